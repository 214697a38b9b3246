"""Arrow columns to row records, and back.

`encode_rows` turns a record batch into row records that point into the batch's own buffers for long strings; `gather_fixed`
and `gather_variable` build Arrow columns from any list of record addresses. Both walk the rows in blocks and the columns
inside a block, so that a record is fetched from memory once however many columns it has.

Address 0 stands for "no row": all its columns come out NULL (the padded side of an outer join).

Cost: encoding about 2 ns per value, gathering about 3 ns per value plus one cache miss per row.
"""

from __future__ import annotations

from numba import njit

from zset_join.kernels.columns import (
    BIT,
    DATA,
    EMPTY,
    INLINE_BYTES,
    KIND,
    NESTED,
    NULL_BYTE,
    NULL_MASK,
    OFFSET,
    OFFSET_WIDTH,
    OFFSETS,
    START,
    VALIDITY,
    VARIABLE,
    WIDTH,
)
from zset_join.kernels.keys import variable_bytes
from zset_join.kernels.memory import (
    copy_bytes,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    zero_bytes,
)

__all__ = ["encode_rows", "gather_fixed", "gather_variable"]

_BLOCK = 256
_AHEAD = 12


@njit(cache=True, nogil=True)
def _bit(bitmap: int, position: int) -> int:
    return (load_u8(bitmap + shift_right(position, 3)) >> (position & 7)) & 1


@njit(cache=True, nogil=True)
def _copy_value(target: int, source: int, width: int) -> None:
    if width == 8:
        store_u64(target, load_u64(source))
    elif width == 4:
        store_u32(target, load_u32(source))
    elif width == 1:
        store_u8(target, load_u8(source))
    elif width == 2:
        store_u16(target, load_u16(source))
    elif width == 16:
        store_u64(target, load_u64(source))
        store_u64(target + 8, load_u64(source + 8))
    else:
        copy_bytes(target, source, width)


@njit(cache=True, nogil=True)
def _encode_variable(target: int, offsets: int, offset_width: int, values: int, position: int) -> None:
    if offset_width == 4:
        begin = load_u32(offsets + position * 4)
        length = load_u32(offsets + position * 4 + 4) - begin
    else:
        begin = load_u64(offsets + position * 8)
        length = load_u64(offsets + position * 8 + 8) - begin
    store_u64(target, length)
    if length <= INLINE_BYTES:
        store_u64(target + 8, 0)
        copy_bytes(target + 4, values + begin, length)
    else:
        store_u32(target + 4, load_u32(values + begin))
        store_u64(target + 8, values + begin)


@njit(cache=True, nogil=True)
def encode_rows(columns, count: int, rows: int, stride: int, head_bytes: int) -> None:
    """Write `count` records at `rows`; their first `head_bytes` bytes (links, weight, flags, NULL bits) start as zero."""
    block = 0
    while block < count:
        end = min(block + _BLOCK, count)
        for index in range(block, end):
            zero_bytes(rows + index * stride, head_bytes)
        for column in range(columns.shape[0]):
            kind = columns[column, KIND]
            width = columns[column, WIDTH]
            start = columns[column, START]
            validity = columns[column, VALIDITY]
            values = columns[column, DATA]
            target = rows + columns[column, OFFSET]
            null_byte = rows + columns[column, NULL_BYTE]
            null_mask = columns[column, NULL_MASK]
            for index in range(block, end):
                position = start + index
                if kind == EMPTY or (validity != 0 and _bit(validity, position) == 0):
                    address = null_byte + index * stride
                    store_u8(address, load_u8(address) | null_mask)
                    zero_bytes(target + index * stride, width)
                elif kind == VARIABLE or kind == NESTED:
                    _encode_variable(
                        target + index * stride,
                        columns[column, OFFSETS],
                        columns[column, OFFSET_WIDTH],
                        values,
                        position,
                    )
                elif kind == BIT:
                    store_u8(target + index * stride, _bit(values, position))
                else:
                    _copy_value(target + index * stride, values + position * width, width)
        block = end


@njit(cache=True, nogil=True)
def gather_fixed(refs, begin: int, count: int, columns, null_counts, byte_counts) -> None:
    """Write the fixed-width values, NULL bits and lengths of `count` records, starting with `refs[begin]`.

    Bitmaps must be zeroed by the caller. The offsets of a variable column are written as int32 (they are wrong, and
    `byte_counts` says so, when its bytes exceed 2^31 - 1).
    """
    for column in range(columns.shape[0]):
        null_counts[column] = 0
        byte_counts[column] = 0
        if columns[column, OFFSETS] != 0:
            store_u32(columns[column, OFFSETS], 0)
    block = 0
    while block < count:
        end = min(block + _BLOCK, count)
        for index in range(block, end):
            prefetch(refs[begin + index])
            prefetch(refs[begin + index] + 64)
        for column in range(columns.shape[0]):
            kind = columns[column, KIND]
            width = columns[column, WIDTH]
            offset = columns[column, OFFSET]
            null_byte = columns[column, NULL_BYTE]
            null_mask = columns[column, NULL_MASK]
            validity = columns[column, VALIDITY]
            values = columns[column, DATA]
            offsets = columns[column, OFFSETS]
            nulls = null_counts[column]
            total = byte_counts[column]
            for index in range(block, end):
                row = refs[begin + index]
                null = row == 0 or (load_u8(row + null_byte) & null_mask) != 0
                if null:
                    nulls += 1
                else:
                    byte = validity + shift_right(index, 3)
                    store_u8(byte, load_u8(byte) | (1 << (index & 7)))
                if kind == VARIABLE or kind == NESTED:
                    if not null:
                        total += load_u32(row + offset)
                    store_u32(offsets + index * 4 + 4, total)
                elif kind == BIT:
                    if not null and load_u8(row + offset) != 0:
                        byte = values + shift_right(index, 3)
                        store_u8(byte, load_u8(byte) | (1 << (index & 7)))
                elif kind != EMPTY:
                    if null:
                        zero_bytes(values + index * width, width)
                    else:
                        _copy_value(values + index * width, row + offset, width)
            null_counts[column] = nulls
            byte_counts[column] = total
        block = end


@njit(cache=True, nogil=True)
def gather_variable(refs, begin: int, count: int, columns, column: int, heap: int, values: int) -> None:
    """Write the bytes of one variable column behind each other at `values`."""
    offset = columns[column, OFFSET]
    null_byte = columns[column, NULL_BYTE]
    null_mask = columns[column, NULL_MASK]
    target = values
    for index in range(count):
        ahead = index + _AHEAD
        if ahead < count and refs[begin + ahead] != 0:
            slot = refs[begin + ahead] + offset
            if load_u32(slot) > INLINE_BYTES:
                prefetch(variable_bytes(slot, heap))
        row = refs[begin + index]
        if row != 0 and (load_u8(row + null_byte) & null_mask) == 0:
            length = load_u32(row + offset)
            copy_bytes(target, variable_bytes(row + offset, heap), length)
            target += length
