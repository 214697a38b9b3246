"""The changes of both sides, grouped by join key.

A *group* is one join key that this epoch touches: the changes of the left, the changes of the right (as lists through
`next_change`), and the first row of the key's chain in either state. Changes whose key can never match are put in one group
per side at the end, with nothing on the other side.

Changes of both sides share one set of arrays: the left ones stand at 0 .. left_count, the right ones behind them.
"""

from __future__ import annotations

from numba import njit

from zset_join.kernels.columns import NEXT
from zset_join.kernels.keys import equal_columns
from zset_join.kernels.memory import load_u32, load_u64, prefetch, shift_right
from zset_join.kernels.side import HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE
from zset_join.kernels.slots import find_key

__all__ = ["find_group_rows", "group_changes", "group_degrees", "in_changed_set", "make_changed_set"]

_AHEAD_SLOT = 24
_AHEAD_ROW = 10


@njit(cache=True, nogil=True)
def group_changes(
    left_count, right_count, refs, hashes, matchable, left_heap, left_columns, right_heap, right_columns,
    table, bits, next_change, first_left, first_right, last_left, last_right, group_refs, group_sides, group_hashes,
) -> int:
    """Build the groups; return how many there are, those of unmatchable changes not counted.

    `table` (zeroed, 2**bits int64) is an open-addressing table of groups. The two groups of unmatchable changes follow the
    others: left at the returned number, right behind it.
    """
    mask = (1 << bits) - 1
    groups = 0
    for change in range(left_count + right_count):
        next_change[change] = -1
        if matchable[change] == 0:
            continue
        right = change >= left_count
        code = hashes[change]
        position = shift_right(code, 32 - bits)
        while True:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (groups + 1)
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
                if group_sides[group] == 0:
                    if right:
                        same = equal_columns(
                            refs[change], right_heap, right_columns, group_refs[group], left_heap, left_columns
                        )
                    else:
                        same = equal_columns(
                            refs[change], left_heap, left_columns, group_refs[group], left_heap, left_columns
                        )
                else:
                    same = equal_columns(
                        refs[change], right_heap, right_columns, group_refs[group], right_heap, right_columns
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
        end = left_count if side == 0 else left_count + right_count
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
    view, columns, groups, first_left, first_right, for_left, for_right, group_refs, group_sides, group_hashes,
    left_heap, left_columns, right_heap, right_columns, found,
) -> None:
    """Look up the chains of one state, fetching slots and rows ahead.

    `found` gets the number of the first row of a group's key, 0 where there is none or where it is not asked for: the groups
    with left changes are asked for if `for_left`, those with right changes if `for_right`.
    """
    slots = view[JOIN_SLOTS]
    bits = view[JOIN_BITS]
    rows = view[ROWS]
    stride = view[STRIDE]
    heap = view[HEAP]
    mask = (1 << bits) - 1
    for index in range(groups + _AHEAD_SLOT):
        if index < groups:
            prefetch(slots + shift_right(group_hashes[index], 32 - bits) * 8)
        middle = index - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < groups:
            code = group_hashes[middle]
            position = shift_right(code, 32 - bits)
            for _ in range(4):
                slot = load_u64(slots + position * 8)
                if slot == 0:
                    break
                if shift_right(slot, 32) == code:
                    row = rows + ((slot & 0xFFFFFFFF) - 1) * stride
                    prefetch(row)
                    prefetch(row + 63)
                    break
                position = (position + 1) & mask
        group = index - _AHEAD_SLOT
        if group < 0:
            continue
        found[group] = 0
        if (for_left and first_left[group] >= 0) or (for_right and first_right[group] >= 0):
            if group_sides[group] == 0:
                found[group] = find_key(
                    slots, bits, group_hashes[group], group_refs[group], left_heap, left_columns, rows, stride, heap, columns
                )
            else:
                found[group] = find_key(
                    slots, bits, group_hashes[group], group_refs[group], right_heap, right_columns, rows, stride, heap, columns
                )
    for group in range(groups, groups + 2):
        found[group] = 0


@njit(cache=True, nogil=True)
def make_changed_set(begin, end, numbers, table, bits) -> int:
    """Put the row numbers of the changed state rows into `table` (zeroed, 2**bits int64); return how many."""
    mask = (1 << bits) - 1
    count = 0
    for change in range(begin, end):
        number = numbers[change]
        if number != 0:
            position = (number * 0x9E3779B1 >> 7) & mask
            while table[position] != 0:
                position = (position + 1) & mask
            table[position] = number
            count += 1
    return count


@njit(cache=True, nogil=True)
def in_changed_set(number, table, bits) -> bool:
    """Say whether a state row is among the changed ones."""
    mask = (1 << bits) - 1
    position = (number * 0x9E3779B1 >> 7) & mask
    while table[position] != 0:
        if table[position] == number:
            return True
        position = (position + 1) & mask
    return False


@njit(cache=True, nogil=True)
def group_degrees(groups, first, head, view, next_change, after, table, bits, before_degrees, after_degrees) -> None:
    """Say for every group whether its side has live rows before and after the epoch.

    Cost: at most one more row of the chain than the group has changes.
    """
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
                number = load_u32(view[ROWS] + (number - 1) * view[STRIDE] + NEXT)
            else:
                alive = 1
        after_degrees[group] = alive
