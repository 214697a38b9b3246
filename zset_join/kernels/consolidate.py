"""Summing the weights of equal rows."""

from __future__ import annotations

from typing import Any

from zset_join.kernels.compiled import kernel
from zset_join.kernels.keys import equal_columns, hash_row
from zset_join.kernels.memory import shift_right

__all__ = ["sum_weights"]

_ALL_BITS = 0xFFFFFFFF
_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF


@kernel
def _sum_overflows(left: int, right: int) -> bool:
    if right > 0:
        return left > _MAX_WEIGHT - right
    return left < -_MAX_WEIGHT - 1 - right


@kernel
def sum_weights(
    rows: int, stride: int, count: int, columns: int, weights: Any, table: Any, bits: int, first: Any, sums: Any
) -> tuple[int, bool]:
    """Write the first position and the weight of every distinct row; return how many there are, and whether a sum left int64.

    `table` is 2**bits zeroed words, with room for `count` entries.
    """
    mask = (1 << bits) - 1
    entries = 0
    overflow = False
    for index in range(count):
        row = rows + index * stride
        code = hash_row(row, 0, columns, _ALL_BITS)
        position = shift_right(code, 32 - bits) if bits < 32 else code
        while True:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (entries + 1)
                first[entries] = index
                sums[entries] = weights[index]
                entries += 1
                break
            if shift_right(slot, 32) == code:
                entry = (slot & _ALL_BITS) - 1
                if equal_columns(row, 0, columns, rows + first[entry] * stride, 0, columns):
                    overflow |= _sum_overflows(sums[entry], weights[index])
                    sums[entry] += weights[index]
                    break
            position = (position + 1) & mask
    return entries, overflow
