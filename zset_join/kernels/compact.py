"""Copying what lives of one side's state into an empty one."""

from __future__ import annotations

from typing import Any

from zset_join.kernels.columns import FLAG_ARRANGED, FLAG_LIVE, FLAGS, NEXT, PREVIOUS, WEIGHT
from zset_join.kernels.compiled import kernel
from zset_join.kernels.keys import hash_row
from zset_join.kernels.memory import load_u8, load_u32, load_u64
from zset_join.kernels.rows import insert_identity, join_tombstone_queue, store_live_row, store_values, take_row
from zset_join.kernels.side import H_ROWS_END, H_TOMBSTONE_FIRST, HASH_MASK, HEADER, HEAP, ROWS, STRIDE, word

__all__ = ["copy_live_rows"]


@kernel
def _copy_row(
    old: int, new: int, variables: int, join_columns: int, identity_columns: int, has_identity: bool, source: int, numbers: Any
) -> None:
    code = -1
    if has_identity:
        code = hash_row(source, word(old, HEAP), identity_columns, word(new, HASH_MASK))
    number = store_live_row(new, variables, join_columns, source, word(old, HEAP), code)
    if len(numbers) > 0:
        numbers[(source - word(old, ROWS)) // word(old, STRIDE)] = number


@kernel
def copy_live_rows(
    old: int, new: int, variables: int, join_columns: int, identity_columns: int, has_identity: bool, numbers: Any
) -> None:
    """Copy what is alive (and the tombstones, in their order) into an empty state with room for it.

    A chain begins with the row linked last. It is copied from its end to its beginning, so that its order stays. `numbers`, if
    it is not empty, gets at the place of each old record the number of its copy; others are left as they are.
    """
    rows, stride = word(old, ROWS), word(old, STRIDE)
    for position in range(load_u64(word(old, HEADER) + H_ROWS_END * 8)):
        source = rows + position * stride
        flags = load_u8(source + FLAGS)
        if flags & FLAG_LIVE == 0:
            continue
        if flags & FLAG_ARRANGED == 0:
            _copy_row(old, new, variables, join_columns, identity_columns, has_identity, source, numbers)
            continue
        if load_u32(source + PREVIOUS) != 0:
            continue
        following = load_u32(source + NEXT)
        while following != 0:
            source = rows + (following - 1) * stride
            following = load_u32(source + NEXT)
        previous = load_u32(source + PREVIOUS)
        _copy_row(old, new, variables, join_columns, identity_columns, has_identity, source, numbers)
        while previous != 0:
            source = rows + (previous - 1) * stride
            previous = load_u32(source + PREVIOUS)
            _copy_row(old, new, variables, join_columns, identity_columns, has_identity, source, numbers)
    tombstone = load_u64(word(old, HEADER) + H_TOMBSTONE_FIRST * 8)
    while tombstone != 0:
        source = word(old, ROWS) + (tombstone - 1) * word(old, STRIDE)
        number = take_row(new)
        row = word(new, ROWS) + (number - 1) * word(new, STRIDE)
        store_values(new, variables, row, source, word(old, HEAP), word(new, STRIDE))
        insert_identity(new, number, hash_row(row, word(new, HEAP), identity_columns, word(new, HASH_MASK)))
        join_tombstone_queue(new, number, load_u64(source + WEIGHT))
        tombstone = load_u32(source + NEXT)
