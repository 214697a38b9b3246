"""When two values are the same: the one place that decides it.

Join keys, primary keys, group keys and row identity all hash and compare here, for rows in memory and rows that come back
from disk. Equality is Spark's: NaN = NaN, 0.0 = -0.0, NULL = NULL (whether a NULL may match is the join's business, see
`has_null`), decimals and timestamps by value because both sides were brought to one type before, nested values by their
canonical encoding. Stored values keep their own bits; only hashes and comparisons see the normalised ones.

A hash is never trusted: it only picks candidates, which `equal_columns` then verifies. What the kernels call `hash_key` is
the seed in the upper half of a word and, in the lower half, the bits of a hash that are kept; fewer than 32 force collisions,
for tests (`zset_join.state.rows.directories`). Both the word that is mixed in and the factor follow from the seed, so that keys
which collide are not to be found without it.

`column_count`, `field`: how a kernel sees the columns of a row record.

A *column table* is a run of int64 words: the number of columns, then `TABLE_WIDTH` words per column; the constants below
name them. The first group is the place of the value inside a row record and never changes; the second group holds the
addresses of Arrow buffers that one call reads from or writes to. Kernels get a column table by its address: passing arrays
between kernels costs more than the work many of them do.

A *row record* (all integers little-endian):

    0   u32  next row of the chain, as row id + 1; 0 ends it (in a free record: the next free one)
    4   u32  previous row of the chain, as row id + 1; 0 at the head
    8   i64  weight (in a tombstone: the watermark it was left at)
    16  u32  hash of the join key
    20  u8   flags
    21  ...  one bit per column, 1 = NULL; then the values, widest first

A *variable slot* (16 bytes) holds strings, binaries and encoded nested values: u32 length, then the bytes themselves when
there are at most 12 (zero padded), else their first 4 and a u64 location: an offset into the arena's heap with the top bit
set, or a plain address (records of a delta point into the Arrow buffers they came from).

Source of the slot: the string layout of Umbra (Neumann and Freitag, CIDR 2020).
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    equal_bytes,
    high_multiply,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    shift_right,
    store_u8,
    store_u64,
)

__all__ = [
    "BIT",
    "DATA",
    "EMPTY",
    "FIXED",
    "FLAGS",
    "FLAG_ARRANGED",
    "FLAG_LIVE",
    "FLAG_TOMBSTONE",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "HASH",
    "HEAP_BIT",
    "INLINE_BYTES",
    "KIND",
    "NESTED",
    "NEXT",
    "NULLS",
    "NULL_BYTE",
    "NULL_MASK",
    "NULL_SAFE",
    "OFFSET",
    "OFFSETS",
    "OFFSET_WIDTH",
    "PREVIOUS",
    "START",
    "TABLE_WIDTH",
    "VALIDITY",
    "VARIABLE",
    "WEIGHT",
    "WIDTH",
    "column_count",
    "equal_columns",
    "field",
    "has_null",
    "hash_row",
    "hash_rows",
    "is_null",
    "variable_bytes",
]

# Columns of a column table.
KIND, WIDTH, OFFSET, NULL_BYTE, NULL_MASK, NULL_SAFE = 0, 1, 2, 3, 4, 5
VALIDITY, DATA, OFFSETS, START, OFFSET_WIDTH = 6, 7, 8, 9, 10
TABLE_WIDTH = 11

# Kinds of column.
FIXED, FLOAT16, FLOAT32, FLOAT64, BIT, VARIABLE, NESTED, EMPTY = 0, 1, 2, 3, 4, 5, 6, 7

# Offsets inside a row record.
NEXT, PREVIOUS, WEIGHT, HASH, FLAGS, NULLS = 0, 4, 8, 16, 20, 21

FLAG_LIVE, FLAG_ARRANGED, FLAG_TOMBSTONE = 1, 2, 4

INLINE_BYTES = 12
HEAP_BIT = -(1 << 63)


@kernel
def column_count(columns: int) -> int:
    return load_u64(columns)


@kernel
def field(columns: int, column: int, what: int) -> int:
    """Return one word of one column of a column table."""
    return load_u64(columns + 8 + (column * TABLE_WIDTH + what) * 8)


_SEED = 0x1F83D9ABFB41BD6B
_ODD_1 = -0x61C8864680B583EB  # golden ratio, odd
_ODD_2 = -0x3D4D51C2D82B14B1  # fractional part of sqrt(3), odd
_ODD_3 = 0x27D4EB2F165667C5
_ODD_4 = 0x5851F42D4C957F2D
_NULL_WORD = 0x2545F4914F6CDD1D
_F64_SIGN, _F64_REST, _F64_INFINITY, _F64_NAN = -(1 << 63), (1 << 63) - 1, 0x7FF0000000000000, 0x7FF8000000000000
_F32_SIGN, _F32_REST, _F32_INFINITY, _F32_NAN = 1 << 31, (1 << 31) - 1, 0x7F800000, 0x7FC00000
_F16_SIGN, _F16_REST, _F16_INFINITY, _F16_NAN = 1 << 15, (1 << 15) - 1, 0x7C00, 0x7E00


@kernel
def _seed(hash_key: int) -> int:
    return _SEED ^ (shift_right(hash_key, 32) * _ODD_3)


@kernel
def _factor(hash_key: int) -> int:
    return _ODD_1 ^ ((shift_right(hash_key, 32) * _ODD_4) << 1)


@kernel
def _short_word(address: int, kind: int, width: int) -> int:
    """Return a value of at most 8 bytes as one word, floats normalised."""
    if width == 8:
        value = load_u64(address)
        if kind == FLOAT64:
            if value == _F64_SIGN:
                return 0
            if (value & _F64_REST) > _F64_INFINITY:
                return _F64_NAN
        return value
    if width == 4:
        value = load_u32(address)
        if kind == FLOAT32:
            if value == _F32_SIGN:
                return 0
            if (value & _F32_REST) > _F32_INFINITY:
                return _F32_NAN
        return value
    if width == 1:
        return load_u8(address)
    value = load_u16(address)
    if kind == FLOAT16:
        if value == _F16_SIGN:
            return 0
        if (value & _F16_REST) > _F16_INFINITY:
            return _F16_NAN
    return value


@kernel
def is_null(row: int, columns: int, column: int) -> bool:
    return (load_u8(row + field(columns, column, NULL_BYTE)) & field(columns, column, NULL_MASK)) != 0


@kernel
def has_null(row: int, columns: int) -> bool:
    """Return whether a key can never match: NULL in a column compared with `=`."""
    for column in range(column_count(columns)):
        if field(columns, column, NULL_SAFE) == 0 and is_null(row, columns, column):
            return True
    return False


@kernel
def variable_bytes(slot: int, heap: int) -> int:
    """Return the address of the bytes of a variable slot."""
    if load_u32(slot) <= INLINE_BYTES:
        return slot + 4
    location = load_u64(slot + 8)
    if location < 0:
        return heap + (location ^ HEAP_BIT)
    return location


@kernel
def _hash_bytes(seed: int, factor: int, address: int, length: int) -> int:
    code = high_multiply(seed ^ length, factor)
    position = 0
    while position + 16 <= length:
        code = high_multiply(code ^ load_u64(address + position), factor ^ load_u64(address + position + 8))
        position += 16
    word = 0
    shift = 0
    while position < length:
        word |= load_u8(address + position) << shift
        shift += 8
        position += 1
        if shift == 64:
            code = high_multiply(code ^ word, factor)
            word = 0
            shift = 0
    return high_multiply(code ^ word, factor)


@kernel
def hash_row(row: int, heap: int, columns: int, hash_key: int) -> int:
    """Return the 32-bit hash of some columns of one row record."""
    code, factor, hash_mask = _seed(hash_key), _factor(hash_key), hash_key & 0xFFFFFFFF
    if column_count(columns) == 1 and field(columns, 0, KIND) == FIXED and field(columns, 0, WIDTH) == 8:
        word = _NULL_WORD if is_null(row, columns, 0) else load_u64(row + field(columns, 0, OFFSET))
        code = high_multiply(code ^ word, factor)
        return shift_right(high_multiply(code ^ _ODD_2, factor), 32) & hash_mask
    for column in range(column_count(columns)):
        if is_null(row, columns, column):
            code = high_multiply(code ^ _NULL_WORD, factor)
            continue
        kind = field(columns, column, KIND)
        width = field(columns, column, WIDTH)
        address = row + field(columns, column, OFFSET)
        if kind == VARIABLE:
            if load_u32(address) <= INLINE_BYTES:
                code = high_multiply(code ^ load_u64(address), factor ^ load_u64(address + 8))
            else:
                code = _hash_bytes(code, factor, variable_bytes(address, heap), load_u32(address))
        elif kind == NESTED:
            start = variable_bytes(address, heap)
            code = _hash_bytes(code, factor, start, 4 + load_u32(start))
        elif kind == EMPTY:
            code = high_multiply(code ^ _NULL_WORD, factor)
        elif width == 8 or width <= 2 or width == 4:
            code = high_multiply(code ^ _short_word(address, kind, width), factor)
        else:
            code = _hash_bytes(code, factor, address, width)
    return shift_right(high_multiply(code ^ _ODD_2, factor), 32) & hash_mask


@kernel
def hash_rows(rows: int, stride: int, count: int, columns: int, hash_key: int, hashes: int, nulls: int) -> int:
    """Hash `count` records; mark those whose key can never match, and return how many."""
    # `hashes` is the address of one word per row, `nulls` of one byte per row.
    marked = 0
    if column_count(columns) == 1 and field(columns, 0, KIND) == FIXED and field(columns, 0, WIDTH) == 8:
        offset, null_byte = field(columns, 0, OFFSET), field(columns, 0, NULL_BYTE)
        null_mask, null_safe = field(columns, 0, NULL_MASK), field(columns, 0, NULL_SAFE)
        seed, factor, hash_mask = _seed(hash_key), _factor(hash_key), hash_key & 0xFFFFFFFF
        for index in range(count):
            row = rows + index * stride
            is_empty = (load_u8(row + null_byte) & null_mask) != 0
            code = high_multiply(seed ^ (_NULL_WORD if is_empty else load_u64(row + offset)), factor)
            store_u64(hashes + index * 8, shift_right(high_multiply(code ^ _ODD_2, factor), 32) & hash_mask)
            lost = 1 if is_empty and null_safe == 0 else 0
            store_u8(nulls + index, lost)
            marked += lost
        return marked
    for index in range(count):
        row = rows + index * stride
        store_u64(hashes + index * 8, hash_row(row, 0, columns, hash_key))
        lost = 1 if has_null(row, columns) else 0
        store_u8(nulls + index, lost)
        marked += lost
    return marked


@kernel
def _equal_values(kind: int, width: int, left: int, left_heap: int, right: int, right_heap: int) -> bool:
    if kind == VARIABLE:
        word = load_u64(left)
        if word != load_u64(right):
            return False
        length = word & 0xFFFFFFFF
        if length <= INLINE_BYTES:
            return load_u64(left + 8) == load_u64(right + 8)
        return equal_bytes(variable_bytes(left, left_heap), variable_bytes(right, right_heap), length)
    if kind == NESTED:
        left_start = variable_bytes(left, left_heap)
        right_start = variable_bytes(right, right_heap)
        length = load_u32(left_start)
        if length != load_u32(right_start):
            return False
        return equal_bytes(left_start + 4, right_start + 4, length)
    if kind == EMPTY:
        return True
    if width == 8 or width == 4 or width <= 2:
        return _short_word(left, kind, width) == _short_word(right, kind, width)
    return equal_bytes(left, right, width)


@kernel
def equal_columns(left: int, left_heap: int, left_columns: int, right: int, right_heap: int, right_columns: int) -> bool:
    """Compare some columns of two records pairwise; NULL equals NULL."""
    if column_count(left_columns) == 1 and field(left_columns, 0, KIND) == FIXED and field(left_columns, 0, WIDTH) == 8:
        # The value of a NULL is zero in every record, so one NULL and one zero are distinguished by their bits alone.
        return load_u64(left + field(left_columns, 0, OFFSET)) == load_u64(right + field(right_columns, 0, OFFSET)) and (
            is_null(left, left_columns, 0) == is_null(right, right_columns, 0)
        )
    for column in range(column_count(left_columns)):
        left_null = is_null(left, left_columns, column)
        if left_null != is_null(right, right_columns, column):
            return False
        if not left_null and not _equal_values(
            field(left_columns, column, KIND),
            field(left_columns, column, WIDTH),
            left + field(left_columns, column, OFFSET),
            left_heap,
            right + field(right_columns, column, OFFSET),
            right_heap,
        ):
            return False
    return True
