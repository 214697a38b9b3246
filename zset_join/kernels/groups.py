"""The changes of both sides, grouped by join key.

A *group* is one join key that this epoch touches: the changes of the left, the changes of the right (as lists through
`next_change`), and the first row of the key's chain in either state. Changes whose key can never match are put in one group
per side at the end, with nothing on the other side.

Changes of both sides share one set of arrays: the left ones stand at 0 .. left_count, the right ones behind them.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from zset_join.kernels.columns import NEXT
from zset_join.kernels.keys import equal_columns
from zset_join.kernels.memory import load_u32, load_u64, prefetch, shift_right, store_u64
from zset_join.kernels.side import HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.slots import find_key, likely_row, prefetch_slot

__all__ = ["find_group_rows", "group_changes", "group_degrees", "in_changed_set", "make_changed_set"]

_AHEAD_SLOT = 24
_AHEAD_ROW = 12
_ODD = -0x61C8864680B583EB


@njit(cache=True, nogil=True)
def group_changes(
    left_count: int,
    right_count: int,
    refs: Any,
    hashes: Any,
    matchable: Any,
    left_heap: int,
    left_columns: int,
    right_heap: int,
    right_columns: int,
    table: int,
    bits: int,
    next_change: Any,
    first_left: Any,
    first_right: Any,
    last_left: Any,
    last_right: Any,
    group_refs: Any,
    group_sides: Any,
    group_hashes: Any,
) -> int:
    """Build the groups; return how many there are, those of unmatchable changes not counted.

    `table` (address of 2**bits zeroed words) is an open-addressing table of groups. The two groups of unmatchable changes
    follow the others: left at the returned number, right behind it.
    """
    mask = (1 << bits) - 1
    total = left_count + right_count
    groups = 0
    for change in range(total):
        if change + _AHEAD_ROW < total:
            prefetch(refs[change + _AHEAD_ROW] + 24)
            prefetch(table + shift_right(hashes[change + _AHEAD_ROW], 32 - bits) * 8)
        next_change[change] = -1
        if matchable[change] == 0:
            continue
        right = change >= left_count
        code = hashes[change]
        position = shift_right(code, 32 - bits)
        group = -1
        while True:
            slot = load_u64(table + position * 8)
            if slot == 0:
                store_u64(table + position * 8, (code << 32) | (groups + 1))
                group = groups
                groups += 1
                first_left[group] = -1
                first_right[group] = -1
                group_refs[group] = refs[change]
                group_sides[group] = 1 if right else 0
                group_hashes[group] = code
                break
            if shift_right(slot, 32) == code:
                group = (slot & 0xFFFFFFFF) - 1
                same = equal_columns(
                    refs[change],
                    right_heap if right else left_heap,
                    right_columns if right else left_columns,
                    group_refs[group],
                    right_heap if group_sides[group] else left_heap,
                    right_columns if group_sides[group] else left_columns,
                )
                if same:
                    break
            position = (position + 1) & mask
        if right:
            if first_right[group] < 0:
                first_right[group] = change
            else:
                next_change[last_right[group]] = change
            last_right[group] = change
        else:
            if first_left[group] < 0:
                first_left[group] = change
            else:
                next_change[last_left[group]] = change
            last_left[group] = change
    for side in range(2):
        group = groups + side
        first_left[group] = -1
        first_right[group] = -1
        begin = 0 if side == 0 else left_count
        end = left_count if side == 0 else total
        last = -1
        for change in range(begin, end):
            if matchable[change] == 0:
                if last < 0:
                    if side == 0:
                        first_left[group] = change
                    else:
                        first_right[group] = change
                else:
                    next_change[last] = change
                last = change
    return groups


@njit(cache=True, nogil=True)
def find_group_rows(
    left_view: int,
    right_view: int,
    groups: int,
    first_left: Any,
    first_right: Any,
    left_for_left: bool,
    right_for_right: bool,
    group_refs: Any,
    group_sides: Any,
    group_hashes: Any,
    left_columns: int,
    right_columns: int,
    head_left: Any,
    head_right: Any,
) -> None:
    """Look the chains of both states up, fetching slots and rows ahead.

    A head is the number of the first row of a group's key, 0 where there is none or where it is not asked for. The left state
    is asked where the right changes (and where the left does, if `left_for_left`), the right state the other way round.
    """
    for side in range(2):
        view = left_view if side == 0 else right_view
        columns = left_columns if side == 0 else right_columns
        slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
        rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
        for ahead in range(groups + _AHEAD_SLOT):
            if ahead < groups and _is_asked(side, first_left[ahead], first_right[ahead], left_for_left, right_for_right):
                prefetch_slot(slots, bits, group_hashes[ahead])
            middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
            if 0 <= middle < groups and _is_asked(
                side, first_left[middle], first_right[middle], left_for_left, right_for_right
            ):
                likely = likely_row(slots, bits, group_hashes[middle])
                if likely != 0:
                    prefetch(rows + (likely - 1) * stride)
                    prefetch(rows + (likely - 1) * stride + 63)
            group = ahead - _AHEAD_SLOT
            if group < 0:
                continue
            head = 0
            if _is_asked(side, first_left[group], first_right[group], left_for_left, right_for_right):
                head = find_key(
                    slots,
                    bits,
                    group_hashes[group],
                    group_refs[group],
                    word(right_view, HEAP) if group_sides[group] else word(left_view, HEAP),
                    right_columns if group_sides[group] else left_columns,
                    rows,
                    stride,
                    heap,
                    columns,
                )
            if side == 0:
                head_left[group] = head
            else:
                head_right[group] = head
    for group in range(groups, groups + 2):
        head_left[group] = 0
        head_right[group] = 0


@njit(cache=True, nogil=True)
def _is_asked(side: int, first_left: int, first_right: int, left_for_left: bool, right_for_right: bool) -> bool:
    if side == 0:
        return first_right >= 0 or (left_for_left and first_left >= 0)
    return first_left >= 0 or (right_for_right and first_right >= 0)


@njit(cache=True, nogil=True)
def make_changed_set(begin: int, end: int, numbers: Any, table: int, bits: int) -> int:
    """Put the row numbers of the changed state rows into `table` (address of 2**bits zeroed words); return how many."""
    mask = (1 << bits) - 1
    count = 0
    for change in range(begin, end):
        number = numbers[change]
        if number != 0:
            position = shift_right(number * _ODD, 32) & mask
            while load_u64(table + position * 8) != 0:
                position = (position + 1) & mask
            store_u64(table + position * 8, number)
            count += 1
    return count


@njit(cache=True, nogil=True)
def in_changed_set(number: int, table: int, bits: int) -> bool:
    """Say whether a state row is among the changed ones."""
    mask = (1 << bits) - 1
    position = shift_right(number * _ODD, 32) & mask
    while True:
        entry = load_u64(table + position * 8)
        if entry == number:
            return True
        if entry == 0:
            return False
        position = (position + 1) & mask


@njit(cache=True, nogil=True)
def group_degrees(
    groups: int,
    first: Any,
    head: Any,
    view: int,
    next_change: Any,
    after: Any,
    table: int,
    bits: int,
    before_degrees: Any,
    after_degrees: Any,
) -> None:
    """Say for every group whether its side has live rows before and after the epoch.

    Cost: at most one more row of the chain than the group has changes.
    """
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for group in range(groups):
        number = head[group]
        before_degrees[group] = 1 if number != 0 else 0
        alive = 0
        change = first[group]
        while change >= 0 and alive == 0:
            if after[change] > 0:
                alive = 1
            change = next_change[change]
        while alive == 0 and number != 0:
            if in_changed_set(number, table, bits):
                number = load_u32(rows + (number - 1) * stride + NEXT)
            else:
                alive = 1
        after_degrees[group] = alive
