"""The delta view: where the arrays about one side's delta are, as one run of int64 words that kernels get by its address.

The rows of a delta that share an identity are one *entry*. What absorbing an upsert does to the state is decided while the
changes are listed, and kept as lists of entries, one list per kind of work, so that each kind is worked off in a loop of its
own: inserted rows, rows that go, rows whose join key moves, rows that are overwritten in place, and all others (tombstones
that arrive, change or come back to life, and rows that gain nothing but a newer sequence).

Two lists share an array: one grows from its start, the other from its end.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import store_u64

__all__ = [
    "DELTA_WORDS",
    "D_AFTER_OF",
    "D_BEFORE_OF",
    "D_COMPARED_COLUMNS",
    "D_COUNT",
    "D_DELETED",
    "D_ENTRIES",
    "D_ENTRY_OF",
    "D_FIRST_OF",
    "D_FOUND",
    "D_IDENTITY_CODES",
    "D_IDENTITY_COLUMNS",
    "D_IDENTITY_NULLS",
    "D_INSERTED",
    "D_INSERTED_DELETED",
    "D_JOIN_CODES",
    "D_JOIN_COLUMNS",
    "D_LAST_OF",
    "D_MOVED",
    "D_MOVED_OVERWRITTEN",
    "D_NUMBERS",
    "D_OTHERS",
    "D_OTHERS_LIST",
    "D_OTHER_COLUMNS",
    "D_OVERWRITTEN",
    "D_REJECTED",
    "D_ROWS",
    "D_SILENT_COLUMNS",
    "D_SILENT_VARIABLES",
    "D_STALE",
    "D_STATUS",
    "D_TABLE",
    "D_TABLE_BITS",
    "D_UNKNOWN_DELETES",
    "D_UNMATCHABLE",
    "D_VARIABLES",
    "D_WEIGHTS",
    "put",
]

# The input: record addresses, how many, int64 weights.
D_ROWS, D_COUNT, D_WEIGHTS = 0, 1, 2
# One byte per row.
D_STATUS, D_UNMATCHABLE, D_IDENTITY_NULLS = 3, 4, 5
# One word per row.
D_JOIN_CODES, D_IDENTITY_CODES, D_ENTRY_OF, D_NUMBERS = 6, 7, 8, 9
# One word per entry: first and decisive row, row number in the state (0: none), and the present content before and after.
D_FIRST_OF, D_LAST_OF, D_FOUND, D_BEFORE_OF, D_AFTER_OF = 10, 11, 12, 13, 14
# Lists of entries.
D_INSERTED_DELETED, D_MOVED_OVERWRITTEN, D_OTHERS_LIST = 15, 16, 17
# The table that groups rows into entries.
D_TABLE, D_TABLE_BITS = 18, 19
# Column tables.
D_JOIN_COLUMNS, D_IDENTITY_COLUMNS, D_COMPARED_COLUMNS, D_OTHER_COLUMNS, D_VARIABLES = 20, 21, 22, 23, 24
# Columns of an upsert that are not compared: all of them, and those among them that may have bytes on the heap.
D_SILENT_COLUMNS, D_SILENT_VARIABLES = 34, 35
# The output: counts.
D_ENTRIES, D_STALE, D_UNKNOWN_DELETES, D_REJECTED = 25, 26, 27, 28
D_INSERTED, D_DELETED, D_MOVED, D_OVERWRITTEN, D_OTHERS = 29, 30, 31, 32, 33
DELTA_WORDS = 36


@kernel
def put(array: int, position: int, value: int) -> None:
    """Set one word of an array (or of a view), by its address."""
    store_u64(array + position * 8, value)
