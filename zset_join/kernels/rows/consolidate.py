"""Summing the weights of equal rows."""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import prefetch, shift_right
from zset_join.kernels.rows.slots import home_of
from zset_join.kernels.values.keys import equal_columns, hash_row

__all__ = ["sum_weights"]

_ALL_BITS = 0xFFFFFFFF
_HALF = 1 << 31
_AHEAD = 24


@kernel
def sum_weights(
    rows: int,
    stride: int,
    count: int,
    columns: int,
    hash_key: int,
    weights: Any,
    table: Any,
    bits: int,
    first: Any,
    sums: Any,
    lows: Any,
) -> tuple[int, bool]:
    """Write the first position and the weight of every distinct row; return how many, and whether a sum left int64."""
    # `table` is 2**bits zeroed words, with room for `count` entries. Sums are kept in two words (`lows` holds the low 32 bits
    # of each weight), so that only the final sum must fit.
    mask = (1 << bits) - 1
    entries, slots = 0, table.ctypes.data
    for ahead in range(count + _AHEAD):
        if ahead < count:
            lows[ahead] = hash_row(rows + ahead * stride, 0, columns, hash_key)  # there are never more entries than rows behind
            prefetch(slots + home_of(lows[ahead], bits) * 8)
        middle = ahead - _AHEAD // 2
        if 0 <= middle < count:
            slot = table[home_of(lows[middle], bits)]
            if slot != 0 and shift_right(slot, 32) == lows[middle]:
                prefetch(rows + first[(slot & _ALL_BITS) - 1] * stride)
        index = ahead - _AHEAD
        if index < 0:
            continue
        row = rows + index * stride
        code = lows[index]
        position = home_of(code, bits)
        entry = -1
        while entry < 0:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (entries + 1)
                entry = entries
                first[entry] = index
                sums[entry] = 0
                lows[entry] = 0
                entries += 1
            elif shift_right(slot, 32) == code:
                candidate = (slot & _ALL_BITS) - 1
                if equal_columns(row, 0, columns, rows + first[candidate] * stride, 0, columns):
                    entry = candidate
            position = (position + 1) & mask
        sums[entry] += weights[index] >> 32
        lows[entry] += weights[index] & _ALL_BITS
    overflow = False
    for entry in range(entries):
        high = sums[entry] + (lows[entry] >> 32)
        overflow |= high >= _HALF or high < -_HALF
        sums[entry] = (high << 32) | (lows[entry] & _ALL_BITS)
    return entries, overflow
