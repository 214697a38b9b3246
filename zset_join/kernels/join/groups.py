"""The changes of both sides, grouped by join key and looked up in both states.

The input and the output are in the epoch view (`zset_join.kernels.rows.side`). Cost: the changes.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch, shift_right, store_u64, zero_bytes
from zset_join.kernels.rows.side import (
    CHANGE_WORDS,
    E_AFTER,
    E_GROUP_BITS,
    E_GROUP_HASHES,
    E_GROUP_REFS,
    E_GROUP_SIDES,
    E_GROUP_TABLE,
    E_GROUPS,
    E_HASHES,
    E_MATCHABLE,
    E_NEXT_CHANGE,
    E_PART_BITS,
    E_REFS,
    HEAP,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    S_CHANGED,
    S_COUNT,
    S_DEGREES_AFTER,
    S_DEGREES_BEFORE,
    S_FIRST,
    S_HEAD,
    S_KEY_COLUMNS,
    S_LAST,
    S_READ_BY_OWN,
    S_READS_DEGREES,
    S_VIEW,
    STRIDE,
    of_change,
    side_word,
    word,
)
from zset_join.kernels.rows.slots import find_key, home_in_part, home_of, likely_row, prefetch_slot
from zset_join.kernels.values.keys import NEXT, equal_columns

__all__ = ["in_changed_set", "match_changes", "partition_changes", "range_changes"]

_AHEAD_SLOT = 24
_AHEAD_ROW = 12
_VALUES = 24


@kernel
def match_changes(epoch: int) -> int:
    """Group the changes, and look every group up; return how many groups there are."""
    groups = _group(epoch)
    store_u64(epoch + E_GROUPS * 8, groups)
    _find_heads(epoch, 0, groups)
    _find_heads(epoch, 1, groups)
    for side in range(2):
        if side_word(epoch, side, S_READS_DEGREES) != 0:
            _read_degrees(epoch, side, groups)
    return groups


@kernel
def _group(epoch: int) -> int:
    left_count = side_word(epoch, 0, S_COUNT)
    total = left_count + side_word(epoch, 1, S_COUNT)
    refs, hashes, matchable = word(epoch, E_REFS), word(epoch, E_HASHES), word(epoch, E_MATCHABLE)
    next_change = word(epoch, E_NEXT_CHANGE)
    table, bits = word(epoch, E_GROUP_TABLE), word(epoch, E_GROUP_BITS)
    group_refs, group_sides = word(epoch, E_GROUP_REFS), word(epoch, E_GROUP_SIDES)
    group_hashes = word(epoch, E_GROUP_HASHES)
    left_first, right_first = side_word(epoch, 0, S_FIRST), side_word(epoch, 1, S_FIRST)
    left_last, right_last = side_word(epoch, 0, S_LAST), side_word(epoch, 1, S_LAST)
    left_heap, right_heap = word(side_word(epoch, 0, S_VIEW), HEAP), word(side_word(epoch, 1, S_VIEW), HEAP)
    left_columns, right_columns = side_word(epoch, 0, S_KEY_COLUMNS), side_word(epoch, 1, S_KEY_COLUMNS)
    part_bits = word(epoch, E_PART_BITS)
    zero_bytes(table, 8 << bits)
    mask = (1 << bits) - 1
    groups = 0
    for change in range(total):
        if change + _AHEAD_ROW < total:
            prefetch(of_change(refs, change + _AHEAD_ROW) + 24)
            prefetch(table + home_in_part(of_change(hashes, change + _AHEAD_ROW), part_bits, bits) * 8)
        store_u64(next_change + change * (CHANGE_WORDS * 8), -1)
        if of_change(matchable, change) == 0:
            continue
        right = change >= left_count
        ref = of_change(refs, change)
        code = of_change(hashes, change)
        position = home_in_part(code, part_bits, bits)
        group = -1
        while True:
            slot = load_u64(table + position * 8)
            if slot == 0:
                group = groups
                groups += 1
                store_u64(table + position * 8, (code << 32) | groups)
                store_u64(left_first + group * 8, -1)
                store_u64(right_first + group * 8, -1)
                store_u64(group_refs + group * 8, ref)
                store_u64(group_sides + group * 8, 1 if right else 0)
                store_u64(group_hashes + group * 8, code)
                break
            if shift_right(slot, 32) == code:
                group = (slot & 0xFFFFFFFF) - 1
                from_right = word(group_sides, group) != 0
                same = equal_columns(
                    ref,
                    right_heap if right else left_heap,
                    right_columns if right else left_columns,
                    word(group_refs, group),
                    right_heap if from_right else left_heap,
                    right_columns if from_right else left_columns,
                )
                if same:
                    break
            position = (position + 1) & mask
        first = right_first if right else left_first
        last = right_last if right else left_last
        if word(first, group) < 0:
            store_u64(first + group * 8, change)
        else:
            store_u64(next_change + word(last, group) * (CHANGE_WORDS * 8), change)
        store_u64(last + group * 8, change)
    _group_unmatchable(epoch, groups, 0, 0, left_count)
    _group_unmatchable(epoch, groups + 1, 1, left_count, total)
    return groups


@kernel
def _group_unmatchable(epoch: int, group: int, side: int, begin: int, end: int) -> None:
    matchable, next_change = word(epoch, E_MATCHABLE), word(epoch, E_NEXT_CHANGE)
    store_u64(side_word(epoch, 0, S_FIRST) + group * 8, -1)
    store_u64(side_word(epoch, 1, S_FIRST) + group * 8, -1)
    store_u64(side_word(epoch, 0, S_HEAD) + group * 8, 0)
    store_u64(side_word(epoch, 1, S_HEAD) + group * 8, 0)
    last = -1
    for change in range(begin, end):
        if of_change(matchable, change) == 0:
            if last < 0:
                store_u64(side_word(epoch, side, S_FIRST) + group * 8, change)
            else:
                store_u64(next_change + last * (CHANGE_WORDS * 8), change)
            last = change


@kernel
def _is_read(own: int, other: int, group: int, by_own: bool) -> bool:
    return word(other, group) >= 0 or (by_own and word(own, group) >= 0)


@kernel
def _find_heads(epoch: int, side: int, groups: int) -> None:
    """Look the chains of one side's state up, fetching slots and rows ahead."""
    # A head is the number of the first row of a group's key, 0 where there is none or where it is not requested. A state is
    # read where the other side changes, and where its own side does if S_READ_BY_OWN.
    own, other = side_word(epoch, side, S_FIRST), side_word(epoch, 1 - side, S_FIRST)
    by_own = side_word(epoch, side, S_READ_BY_OWN) != 0
    view, columns, heads = (
        side_word(epoch, side, S_VIEW),
        side_word(epoch, side, S_KEY_COLUMNS),
        side_word(epoch, side, S_HEAD),
    )
    group_refs, group_sides = word(epoch, E_GROUP_REFS), word(epoch, E_GROUP_SIDES)
    group_hashes = word(epoch, E_GROUP_HASHES)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    for ahead in range(groups + _AHEAD_SLOT):
        if ahead < groups and _is_read(own, other, ahead, by_own):
            prefetch_slot(slots, bits, word(group_hashes, ahead))
            prefetch(word(group_refs, ahead) + _VALUES)
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < groups and _is_read(own, other, middle, by_own):
            likely = likely_row(slots, bits, word(group_hashes, middle))
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
                prefetch(rows + (likely - 1) * stride + 63)
        group = ahead - _AHEAD_SLOT
        if group < 0:
            continue
        head = 0
        if _is_read(own, other, group, by_own):
            from_side = word(group_sides, group)
            head = find_key(
                slots,
                bits,
                word(group_hashes, group),
                word(group_refs, group),
                word(side_word(epoch, from_side, S_VIEW), HEAP),
                side_word(epoch, from_side, S_KEY_COLUMNS),
                rows,
                stride,
                heap,
                columns,
            )
        store_u64(heads + group * 8, head)


@kernel
def in_changed_set(number: int, marks: int) -> bool:
    return (load_u8(marks + shift_right(number, 3)) >> (number & 7)) & 1 != 0


@kernel
def _read_degrees(epoch: int, side: int, groups: int) -> None:
    """Return for every group whether its side has live rows before and after the epoch."""
    view, first, heads = side_word(epoch, side, S_VIEW), side_word(epoch, side, S_FIRST), side_word(epoch, side, S_HEAD)
    marks, has_changed = side_word(epoch, side, S_CHANGED), side_word(epoch, side, S_COUNT) != 0
    next_change, after = word(epoch, E_NEXT_CHANGE), word(epoch, E_AFTER)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for group in range(groups):
        number = word(heads, group)
        store_u64(side_word(epoch, side, S_DEGREES_BEFORE) + group * 8, 1 if number != 0 else 0)
        alive = 0
        change = word(first, group)
        while change >= 0 and alive == 0:
            if of_change(after, change) > 0:
                alive = 1
            change = of_change(next_change, change)
        while alive == 0 and number != 0:
            if has_changed and in_changed_set(number, marks):
                number = load_u32(rows + (number - 1) * stride + NEXT)
            else:
                alive = 1
        store_u64(side_word(epoch, side, S_DEGREES_AFTER) + group * 8, alive)


@kernel
def partition_changes(left_count: int, total: int, part_bits: int, source: int, target: int, bounds: Any) -> None:
    """Sort changes by the home of their hash among 2**`part_bits`, so that a part's groups fit the processor's cache."""
    # `source` and `target` are addresses of changes. `bounds` has 2 * parts + 1 zeroed words: a part's left changes begin at
    # bounds[2 * part], its right ones at bounds[2 * part + 1].
    lines = 2 << part_bits
    for change in range(total):
        side = 1 if change >= left_count else 0
        bounds[2 * home_of(of_change(source + 32, change), part_bits) + side + 1] += 1
    for line in range(lines):
        bounds[line + 1] += bounds[line]
    for change in range(total):
        side = 1 if change >= left_count else 0
        line = 2 * home_of(of_change(source + 32, change), part_bits) + side
        place = bounds[line]
        bounds[line] = place + 1
        begin = source + change * (CHANGE_WORDS * 8)
        end = target + place * (CHANGE_WORDS * 8)
        for what in range(6):
            store_u64(end + what * 8, load_u64(begin + what * 8))
    for line in range(lines, 0, -1):
        bounds[line] = bounds[line - 1]
    bounds[0] = 0


@kernel
def range_changes(home_bounds: Any, part_bits: int, source: int, target: int, bounds: Any) -> None:
    """Sort changes that `partition_changes` has sorted again, by 2**`part_bits` ranges of their hash: the order on disk."""
    # `home_bounds` are the bounds it wrote; else as there.
    lines = 2 << part_bits
    for line in range(len(home_bounds) - 1):
        for change in range(home_bounds[line], home_bounds[line + 1]):
            bounds[2 * shift_right(of_change(source + 32, change), 32 - part_bits) + (line & 1) + 1] += 1
    for line in range(lines):
        bounds[line + 1] += bounds[line]
    for line in range(len(home_bounds) - 1):
        for change in range(home_bounds[line], home_bounds[line + 1]):
            into = 2 * shift_right(of_change(source + 32, change), 32 - part_bits) + (line & 1)
            place = bounds[into]
            bounds[into] = place + 1
            begin = source + change * (CHANGE_WORDS * 8)
            end = target + place * (CHANGE_WORDS * 8)
            for what in range(6):
                store_u64(end + what * 8, load_u64(begin + what * 8))
    for line in range(lines, 0, -1):
        bounds[line] = bounds[line - 1]
    bounds[0] = 0
