"""Arrow columns to row records, and back.

`encode_rows` turns a record batch into row records that point into the batch's own buffers for long strings; `gather_fixed`
and `gather_variable` build Arrow columns from any list of record addresses. Both walk the rows in blocks and the columns
inside a block, so that a record is fetched from memory once however many columns it has.

Address 0 represents "no row": all its columns come out NULL (the padded side of an outer join).

Cost: encoding about 2 ns per value, gathering about 3 ns per value plus one cache miss per row.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
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
from zset_join.kernels.values.keys import (
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
    TABLE_WIDTH,
    VALIDITY,
    VARIABLE,
    WIDTH,
    column_count,
    field,
    variable_bytes,
)

__all__ = ["encode_rows", "gather_fixed", "gather_variable", "read_arrow_array"]

_BLOCK = 256
_AHEAD = 12


@kernel
def _bit(bitmap: int, position: int) -> int:
    return (load_u8(bitmap + shift_right(position, 3)) >> (position & 7)) & 1


@kernel
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


@kernel
def _short_bytes(source: int, length: int) -> int:
    """Return 1 to 8 bytes as one word, without reading past them."""
    if length >= 4:
        return load_u32(source) | (load_u32(source + length - 4) << (8 * (length - 4)))
    half = length >> 1
    return load_u8(source) | (load_u8(source + half) << (8 * half)) | (load_u8(source + length - 1) << (8 * (length - 1)))


@kernel
def _encode_variable(target: int, offsets: int, offset_width: int, values: int, position: int) -> None:
    if offset_width == 4:
        begin = load_u32(offsets + position * 4)
        length = load_u32(offsets + position * 4 + 4) - begin
    else:
        begin = load_u64(offsets + position * 8)
        length = load_u64(offsets + position * 8 + 8) - begin
    source = values + begin
    if length > INLINE_BYTES:
        store_u64(target, length | (load_u32(source) << 32))
        store_u64(target + 8, source)
    elif length > 8:
        store_u64(target, length | (load_u32(source) << 32))
        store_u64(target + 8, load_u32(source + 4) | (_short_bytes(source + 8, length - 8) << 32))
    elif length > 0:
        first = _short_bytes(source, length)
        store_u64(target, length | (first << 32))
        store_u64(target + 8, shift_right(first, 32))
    else:
        store_u64(target, 0)
        store_u64(target + 8, 0)


@kernel
def read_arrow_array(array: int, columns: int, count: int) -> None:
    """Fill in the buffers of the first `count` columns from an `ArrowArray` (Arrow's C data interface), a struct of columns."""
    # Its words are: length, null count, offset, number of buffers, number of children, buffers, children.
    children = load_u64(array + 6 * 8)
    for column in range(count):
        child = load_u64(children + column * 8)
        buffers = load_u64(child + 5 * 8)
        line = columns + 8 + column * TABLE_WIDTH * 8
        is_variable = field(columns, column, KIND) == VARIABLE
        store_u64(line + VALIDITY * 8, 0 if load_u64(child + 8) == 0 else load_u64(buffers))
        store_u64(line + DATA * 8, load_u64(buffers + 16) if is_variable else load_u64(buffers + 8))
        store_u64(line + OFFSETS * 8, load_u64(buffers + 8) if is_variable else 0)
        store_u64(line + START * 8, load_u64(array + 16) + load_u64(child + 16))


@kernel
def _encode_plain(values: int, width: int, target: int, stride: int, begin: int, end: int) -> None:
    """Copy fixed-width values that have no NULL among them."""
    if width == 8:
        for index in range(begin, end):
            store_u64(target + index * stride, load_u64(values + index * 8))
    elif width == 4:
        for index in range(begin, end):
            store_u32(target + index * stride, load_u32(values + index * 4))
    else:
        for index in range(begin, end):
            _copy_value(target + index * stride, values + index * width, width)


@kernel
def encode_rows(columns: int, count: int, rows: int, stride: int, head_bytes: int) -> None:
    """Write `count` records at `rows`; their first `head_bytes` bytes (links, weight, flags, NULL bits) start as zero."""
    head_bytes = (head_bytes + 7) & -8  # values begin at an aligned word
    block = 0
    while block < count:
        end = min(block + _BLOCK, count)
        for index in range(block, end):
            for place in range(0, head_bytes, 8):
                store_u64(rows + index * stride + place, 0)
        for column in range(column_count(columns)):
            kind = field(columns, column, KIND)
            width = field(columns, column, WIDTH)
            start = field(columns, column, START)
            validity = field(columns, column, VALIDITY)
            values = field(columns, column, DATA)
            target = rows + field(columns, column, OFFSET)
            null_byte = rows + field(columns, column, NULL_BYTE)
            null_mask = field(columns, column, NULL_MASK)
            offsets = field(columns, column, OFFSETS)
            offset_width = field(columns, column, OFFSET_WIDTH)
            if validity == 0 and kind < BIT:
                _encode_plain(values + start * width, width, target, stride, block, end)
                continue
            for index in range(block, end):
                position = start + index
                if kind == EMPTY or (validity != 0 and _bit(validity, position) == 0):
                    address = null_byte + index * stride
                    store_u8(address, load_u8(address) | null_mask)
                    zero_bytes(target + index * stride, width)
                elif kind == VARIABLE or kind == NESTED:
                    _encode_variable(target + index * stride, offsets, offset_width, values, position)
                elif kind == BIT:
                    store_u8(target + index * stride, _bit(values, position))
                else:
                    _copy_value(target + index * stride, values + position * width, width)
        block = end


@kernel
def _gather_plain(refs: int, begin: int, end: int, offset: int, kind: int, width: int, values: int) -> None:
    """Copy fixed-width values that have no NULL among them."""
    if width == 8:
        for index in range(begin, end):
            store_u64(values + index * 8, load_u64(load_u64(refs + index * 8) + offset))
    elif width == 4:
        for index in range(begin, end):
            store_u32(values + index * 4, load_u32(load_u64(refs + index * 8) + offset))
    elif width == 16:
        for index in range(begin, end):
            row = load_u64(refs + index * 8) + offset
            store_u64(values + index * 16, load_u64(row))
            store_u64(values + index * 16 + 8, load_u64(row + 8))
    else:
        for index in range(begin, end):
            _copy_value(values + index * width, load_u64(refs + index * 8) + offset, width)


@kernel
def _mark_valid(validity: int, begin: int, end: int) -> None:
    """Set the bits begin .. end of a zeroed bitmap; begin is a multiple of 8."""
    position = begin
    while position + 8 <= end:
        store_u8(validity + shift_right(position, 3), 255)
        position += 8
    if position < end:
        store_u8(validity + shift_right(position, 3), (1 << (end - position)) - 1)


@kernel
def _gather_nullable(
    refs: int,
    begin: int,
    end: int,
    kind: int,
    width: int,
    offset: int,
    null_byte: int,
    null_mask: int,
    validity: int,
    values: int,
    offsets: int,
    total: int,
) -> tuple[int, int]:
    """Copy values that may be NULL; return how many are, and the end of the variable bytes."""
    nulls = 0
    for index in range(begin, end):
        row = load_u64(refs + index * 8)
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
    return nulls, total


@kernel
def gather_fixed(refs: int, count: int, columns: int, null_counts: int, byte_counts: int) -> None:
    """Write the fixed-width values, NULL bits and lengths of `count` records."""
    # All arguments are addresses: `refs` of record addresses, `null_counts` and `byte_counts` of one word per column. The
    # offsets of a variable column are written as int32; they are wrong when its `byte_counts` exceeds 2^31 - 1.
    bitmap_bytes = shift_right(count + 7, 3)
    for column in range(column_count(columns)):
        zero_bytes(field(columns, column, VALIDITY), bitmap_bytes)
        if field(columns, column, KIND) == BIT:
            zero_bytes(field(columns, column, DATA), bitmap_bytes)
        store_u64(null_counts + column * 8, 0)
        store_u64(byte_counts + column * 8, 0)
        if field(columns, column, OFFSETS) != 0:
            store_u32(field(columns, column, OFFSETS), 0)
    block = 0
    while block < count:
        end = min(block + _BLOCK, count)
        missing = False
        for index in range(block, end):
            row = load_u64(refs + index * 8)
            prefetch(row)
            prefetch(row + 63)
            missing |= row == 0
        for column in range(column_count(columns)):
            kind = field(columns, column, KIND)
            width = field(columns, column, WIDTH)
            offset = field(columns, column, OFFSET)
            null_byte = field(columns, column, NULL_BYTE)
            null_mask = field(columns, column, NULL_MASK)
            validity = field(columns, column, VALIDITY)
            values = field(columns, column, DATA)
            offsets = field(columns, column, OFFSETS)
            total = load_u64(byte_counts + column * 8)
            seen = 255 if missing or kind == BIT or kind == EMPTY else 0
            if seen == 0:
                for index in range(block, end):
                    seen |= load_u8(load_u64(refs + index * 8) + null_byte)
            if seen & null_mask == 0:
                _mark_valid(validity, block, end)
                if kind == VARIABLE or kind == NESTED:
                    for index in range(block, end):
                        total += load_u32(load_u64(refs + index * 8) + offset)
                        store_u32(offsets + index * 4 + 4, total)
                else:
                    _gather_plain(refs, block, end, offset, kind, width, values)
            else:
                nulls, total = _gather_nullable(
                    refs, block, end, kind, width, offset, null_byte, null_mask, validity, values, offsets, total
                )
                store_u64(null_counts + column * 8, load_u64(null_counts + column * 8) + nulls)
            store_u64(byte_counts + column * 8, total)
        block = end


@kernel
def gather_variable(refs: int, count: int, columns: int, column: int, heap: int, values: int) -> None:
    """Write the bytes of one variable column behind each other at `values`, which has 16 bytes to spare at its end."""
    offset = field(columns, column, OFFSET)
    target = values
    for index in range(count):
        ahead = index + _AHEAD
        if ahead < count and load_u64(refs + ahead * 8) != 0:
            slot = load_u64(refs + ahead * 8) + offset
            if load_u32(slot) > INLINE_BYTES:
                prefetch(variable_bytes(slot, heap))
        row = load_u64(refs + index * 8)
        if row == 0:
            continue
        length = load_u32(row + offset)
        if length <= INLINE_BYTES:
            store_u64(target, load_u64(row + offset + 4))
            store_u32(target + 8, load_u32(row + offset + 12))
        else:
            copy_bytes(target, variable_bytes(row + offset, heap), length)
        target += length
