"""Output of an epoch's changes for rows read from disk: pairs, and unmatched rows that appear or disappear.

The law: the answer is that of the same rows in the state's chains, unchanged. Everything else is in the epoch view
(`zset_join.kernels.rows.epoch`); the groups of a part must have been matched. Cost: the rows, plus the output.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.join.pairs import OVERFLOW, SHOWN_UNMATCHED, is_wanted, overflows
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, shift_right, store_u64
from zset_join.kernels.rows.epoch import (
    E_AFTER,
    E_BEFORE,
    E_CAPACITY,
    E_GROUP_BITS,
    E_GROUP_REFS,
    E_GROUP_SIDES,
    E_GROUP_TABLE,
    E_NEXT_CHANGE,
    E_OUT_WEIGHTS,
    E_PART_BITS,
    E_REFS,
    S_DEGREES_AFTER,
    S_DEGREES_BEFORE,
    S_FIRST,
    S_KEY_COLUMNS,
    S_OUT,
    S_OUT_CHANGE,
    S_VIEW,
    of_change,
    side_word,
)
from zset_join.kernels.rows.side import HEAP, STRIDE, word
from zset_join.kernels.rows.slots import home_in_part
from zset_join.kernels.values.columns import WEIGHT
from zset_join.kernels.values.keys import equal_columns

__all__ = ["emit_streamed_rows"]

_ROW_ALONE_LEFT = -2


@kernel
def _group_of(epoch: int, side: int, row: int, code: int) -> int:
    """Return the group of a row's key, -1 where the part has none."""
    table, bits = word(epoch, E_GROUP_TABLE), word(epoch, E_GROUP_BITS)
    position = home_in_part(code, word(epoch, E_PART_BITS), bits)
    while True:
        slot = load_u64(table + position * 8)
        if slot == 0:
            return -1
        if shift_right(slot, 32) == code:
            group = (slot & 0xFFFFFFFF) - 1
            from_side = word(word(epoch, E_GROUP_SIDES), group)
            if equal_columns(
                row,
                word(side_word(epoch, side, S_VIEW), HEAP),
                side_word(epoch, side, S_KEY_COLUMNS),
                word(word(epoch, E_GROUP_REFS), group),
                word(side_word(epoch, from_side, S_VIEW), HEAP),
                side_word(epoch, from_side, S_KEY_COLUMNS),
            ):
                return group
        position = (position + 1) & ((1 << bits) - 1)


@kernel
def emit_streamed_rows(
    epoch: int,
    side: int,
    records: int,
    codes: Any,
    kind: int,
    pairs: bool,
    sign: int,
    cursor: Any,
    pair_counts: Any,
    filled: int,
) -> int:
    """Append the output of some rows of a side at `filled`; return how far the output is filled."""
    # Where the output notes changes, -1 is noted for the row and the position of its change for the partner. `records` is the
    # address of the first row, `kind` what the join shows of rows alone of the side. `cursor`: the row, and its change (-1: the
    # first; -2: only the row alone is left); done when the row is behind the last, OVERFLOW in the first word ends it.
    other = 1 - side
    stride = word(side_word(epoch, side, S_VIEW), STRIDE)
    first, next_change, refs = side_word(epoch, other, S_FIRST), word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    degrees_before, degrees_after = side_word(epoch, other, S_DEGREES_BEFORE), side_word(epoch, other, S_DEGREES_AFTER)
    capacity, out_weights = word(epoch, E_CAPACITY), word(epoch, E_OUT_WEIGHTS)
    out_own, out_other = side_word(epoch, side, S_OUT), side_word(epoch, other, S_OUT)
    own_change, other_change = side_word(epoch, side, S_OUT_CHANGE), side_word(epoch, other, S_OUT_CHANGE)
    at = filled
    for index in range(cursor[0], len(codes)):
        row = records + index * stride
        group = _group_of(epoch, side, row, codes[index])
        resumed, cursor[1] = cursor[1], -1
        if group < 0:
            continue
        weight = load_u64(row + WEIGHT)
        change = -1
        if pairs and resumed != _ROW_ALONE_LEFT:
            change = resumed if resumed >= 0 else word(first, group)
        while change >= 0:
            delta = of_change(after, change) - of_change(before, change)
            if is_wanted(delta, sign):
                if overflows(delta, weight):
                    cursor[0] = OVERFLOW
                    return at
                if at == capacity:
                    cursor[0], cursor[1] = index, change
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, of_change(refs, change))
                store_u64(out_weights + at * 8, delta * weight)
                if own_change != 0:
                    store_u64(own_change + at * 8, -1)
                    store_u64(other_change + at * 8, change)
                pair_counts[group] += 1
                at += 1
            change = of_change(next_change, change)
        if kind != 0:
            shown = word(degrees_after, group) - word(degrees_before, group)
            if kind == SHOWN_UNMATCHED:
                shown = -shown
            if is_wanted(weight * shown, sign):
                if at == capacity:
                    cursor[0], cursor[1] = index, _ROW_ALONE_LEFT
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, 0)
                store_u64(out_weights + at * 8, weight * shown)
                at += 1
    cursor[0] = len(codes)
    return at
