"""The first rows of every key that an epoch touches, before it and after it.

Of a group only as much is read as is shown, plus what was retracted.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64
from zset_join.kernels.rows.side import HEAP, SEQUENCE_OFFSET, SEQUENCE_WORDS, STRIDE, word
from zset_join.kernels.time.groups import compare_words
from zset_join.kernels.time.runs import ENTRY, key_address, row_address, run_base, run_length
from zset_join.kernels.values.columns import WEIGHT
from zset_join.kernels.values.keys import equal_columns

__all__ = ["first_rows"]


@kernel
def first_rows(
    keys: int,
    at: int,
    side: int,
    columns: int,
    rows: int,
    left: Any,
    numbers: Any,
    groups: int,
    begin: Any,
    order: Any,
    removed_begin: Any,
    removed_at: Any,
    removed_weight: Any,
    limit: int,
    refs: Any,
    weights: Any,
) -> int:
    """Write the rows that each touched group shows after the epoch and not before (or the reverse)."""
    # A line is a record address and a change of copies; return how many lines there are, written or not: what `refs` has no
    # room for is counted only. Of one row per key an equal one in its place is no change.
    stride, words_at, words = word(side, STRIDE), word(side, SEQUENCE_OFFSET), word(side, SEQUENCE_WORDS)
    room, lines = len(refs), 0
    for group in range(groups):
        place, end = begin[group], begin[group + 1]
        removed, removed_end = removed_begin[group], removed_begin[group + 1]
        if place == end and removed == removed_end:
            continue
        base, length = 0, 0
        if numbers[group] != 0:
            key = key_address(keys, numbers[group])
            base, length = run_base(keys, key, at), run_length(key, at)
        first_line, position, before, after = lines, 0, 0, 0
        while before < limit or after < limit:
            while place < end and left[order[place]] <= 0:
                place += 1
            is_new = False
            if place < end and after < limit:
                is_new = position >= length
                if not is_new:
                    new = rows + order[place] * stride
                    own = load_u64(base + ENTRY * position)
                    first = load_u64(new + words_at)
                    is_new = first < own
                    if first == own:
                        old = row_address(side, load_u64(base + ENTRY * position + 8))
                        is_new = compare_words(new + words_at, old + words_at, words) < 0
            if is_new:
                shown = min(left[order[place]], limit - after)
                if lines < room:
                    refs[lines] = rows + order[place] * stride
                    weights[lines] = shown
                lines += 1
                after += shown
                place += 1
                continue
            if position >= length:
                break
            row = row_address(side, load_u64(base + ENTRY * position + 8))
            weight = load_u64(row + WEIGHT)
            was = min(weight, limit - before)
            if removed < removed_end and removed_at[removed] == position:
                weight -= removed_weight[removed]
                removed += 1
            now = min(weight, limit - after)
            if now != was:
                if lines < room:
                    refs[lines] = row
                    weights[lines] = now - was
                lines += 1
            before += was
            after += now
            position += 1
        if limit == 1 and lines == first_line + 2 and lines <= room:
            if equal_columns(refs[first_line], word(side, HEAP), columns, refs[first_line + 1], word(side, HEAP), columns):
                lines = first_line
    return lines
