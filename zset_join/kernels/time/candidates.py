"""Right rows at or before the time of left rows, nearest first, where a condition chooses among them.

Before an epoch they are the entries of the key's run; after it those without what was taken off them, and the new rows of the
group. Both are one list in order, of which each row is there before (1), after (2), or both (3).

`first_rows`: the first rows of every key that an epoch touches, before it and after it.

Of a group only as much is read as is shown, plus what was retracted.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64
from zset_join.kernels.rows.side import HEAP, SEQUENCE_OFFSET, SEQUENCE_WORDS, STRIDE, word
from zset_join.kernels.time.groups import compare_words
from zset_join.kernels.time.runs import ENTRY, NEVER, entries_until, key_address, row_address, run_base, run_length
from zset_join.kernels.time.versions import is_gone, rows_until, weight_left
from zset_join.kernels.values.keys import WEIGHT, equal_columns

__all__ = ["AFTER", "BEFORE", "UNSTARTED", "equal_rows_as_one", "first_rows", "next_candidates", "touched_probes"]

BEFORE, AFTER = 1, 2
UNSTARTED = -2


@kernel
def touched_probes(
    state: Any, kept: Any, numbers: Any, count: int, right: Any, gone: Any, reach: int, refs: Any, groups: Any, weights: Any
) -> int:
    """Write the left rows that stay and are in reach of a right row that comes or goes; return how many there are."""
    # `state` is the keys, the place of the runs of right rows, and their side; `kept` the latter two of left rows. `right`
    # are the fields of `PreparedRows` with rows, order and what is removed; `gone` the last three of left rows. What `refs`
    # has no room for is counted only.
    keys, at, side = state
    probe_at, probe_side = kept
    rows, _, begin, order, removed_begin, removed_at, _ = right
    probe_removed_begin, probe_removed_at, probe_removed_weight = gone
    stride, words_at = word(side, STRIDE), word(side, SEQUENCE_OFFSET)
    lines = 0
    for group in range(count):
        number, place, end = numbers[group], begin[group], begin[group + 1]
        removed, removed_end = removed_begin[group], removed_begin[group + 1]
        if number == 0 or (place == end and removed == removed_end):
            continue
        key = key_address(keys, number)
        base, first, last = run_base(keys, key, at), NEVER, -NEVER
        if place < end:
            first = load_u64(rows + order[place] * stride + words_at)
            last = load_u64(rows + order[end - 1] * stride + words_at)
        if removed < removed_end:
            first = min(first, load_u64(base + ENTRY * removed_at[removed]))
            last = max(last, load_u64(base + ENTRY * removed_at[removed_end - 1]))
        until = last + reach if reach != NEVER and last <= NEVER - reach else NEVER
        probe_base, probes = run_base(keys, key, probe_at), run_length(key, probe_at)
        for position in range(entries_until(probe_base, probes, first - 1) if first > -NEVER else 0, probes):
            if load_u64(probe_base + ENTRY * position) > until:
                break
            row = row_address(probe_side, load_u64(probe_base + ENTRY * position + 8))
            weight = weight_left(
                row,
                probe_removed_at,
                probe_removed_weight,
                probe_removed_begin[group],
                probe_removed_begin[group + 1],
                position,
            )
            if weight > 0:
                if lines < len(refs):
                    refs[lines], groups[lines], weights[lines] = row, group, weight
                lines += 1
    return lines


@kernel
def next_candidates(
    state: Any,
    right: Any,
    time_at: int,
    probes: Any,
    wanted: Any,
    entries: Any,
    places: Any,
    chosen: Any,
    reach: int,
    width: int,
    found: Any,
    times: Any,
) -> None:
    """Write up to `width` further right rows of each chosen left row, and when they are there; 0 behind the last one."""
    # `reach` is 0 or more. `wanted` is when a row must be there; `entries` and `places` are where a search goes on. A left
    # row that wants both ends where no change is further away: what it finds there is the same before and after.
    keys, at, side = state
    rows, left, begin, order, removed_begin, removed_at, removed_weight = right
    refs, key_numbers, group_of = probes
    words_at, stride = word(side, SEQUENCE_OFFSET), word(side, STRIDE)
    for index in range(len(chosen)):
        one = chosen[index]
        time, number, group, needed = load_u64(refs[one] + time_at), key_numbers[one], group_of[one], wanted[one]
        base, entry, place = 0, entries[one], places[one]
        first_new, removed, removed_end = 0, 0, 0
        if number != 0:
            base = run_base(keys, key_address(keys, number), at)
        if group >= 0:
            first_new, removed, removed_end = begin[group], removed_begin[group], removed_begin[group + 1]
        if entry == UNSTARTED:
            entry, place = -1, first_new - 1
            if number != 0:
                entry = entries_until(base, run_length(key_address(keys, number), at), time) - 1
            if group >= 0:
                place = rows_until(rows + words_at, stride, order, first_new, begin[group + 1], time) - 1
        target, end = index * width, (index + 1) * width
        while target < end:
            while place >= first_new and left[order[place]] <= 0:
                place -= 1
            if place < first_new:
                is_unchanged = removed == removed_end or removed_at[removed] > entry
                if entry < 0 or (is_unchanged and needed == BEFORE | AFTER):
                    break
            new, kept = 0, 0
            if place >= first_new:
                new = rows + order[place] * stride
            if entry >= 0:
                kept = row_address(side, load_u64(base + ENTRY * entry + 8))
            if kept == 0 or (new != 0 and compare_words(new + words_at, kept + words_at, word(side, SEQUENCE_WORDS)) > 0):
                row, there = new, AFTER
                place -= 1
            else:
                row, there = kept, BEFORE | AFTER
                if removed < removed_end and is_gone(row, removed_at, removed_weight, removed, removed_end, entry):
                    there = BEFORE
                entry -= 1
            own = load_u64(row + words_at)
            if reach != NEVER and own <= NEVER - reach and own + reach < time:
                entry, place = -1, first_new - 1
                break
            if there & needed:
                found[target], times[target] = row, there
                target += 1
        entries[one], places[one] = entry, place
        found[target:end] = 0


@kernel
def equal_rows_as_one(side: int, columns: int, befores: Any, afters: Any) -> None:
    """Leave a right row in place where an equal one takes its place."""
    heap = word(side, HEAP)
    for index in range(len(befores)):
        one, other = befores[index], afters[index]
        if one > 0 and other > 0 and one != other and equal_columns(one, heap, columns, other, heap, columns):
            afters[index] = one


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
