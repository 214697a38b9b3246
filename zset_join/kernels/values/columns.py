"""How a kernel sees the columns of a row record.

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
from zset_join.kernels.machine.memory import load_u64

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
    "field",
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
