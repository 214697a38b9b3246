"""One side's state for a kernel, as two runs of int64 words.

The *side view* holds addresses and sizes; it is rebuilt whenever a region moves or grows. The *header* is part of the state
itself: the first page of it, so that a mapped file can be reopened without reading the rest.

`allocate_block`, `block_bytes`: the heap of an arena: blocks for strings longer than 12 bytes.

Sizes are rounded up to a class (multiples of 16 up to 256 bytes, then four steps per power of two, so at most 25 % is lost).
A freed block goes to the list of its class and is the first to be used again; the list runs through the blocks themselves.

`put`: the delta view: where the arrays about one side's delta are, as one run of int64 words that kernels get by its address.

The rows of a delta that share an identity are one *entry*. What absorbing an upsert does to the state is decided while the
changes are listed, and kept as lists of entries, one list per kind of work, so that each kind is worked off in a loop of its
own: inserted rows, rows that go, rows whose join key moves, rows that are overwritten in place, and all others (tombstones
that arrive, change or come back to life, and rows that gain nothing but a newer sequence).

Two lists share an array: one grows from its start, the other from its end.

`of_change`, `put_change`: the epoch view: where the arrays of one epoch are, as one run of int64 words that kernels get by its
address.

A *change* is a record of CHANGE_WORDS words, one cache line: the address of its row record (REFS), the row number in the
state, 0 for a new row (NUMBERS), the weights BEFORE and AFTER, the hash of the join key (HASHES), whether the key can match at
all (MATCHABLE), and the next change of its group (NEXT_CHANGE). The view holds the address of each word of the first change;
the changes of the left side come first.

A *group* is one join key: the first change of either side (S_FIRST, a list through NEXT_CHANGE) and the first row of its chain
in either state (S_HEAD). The two groups behind the last hold the changes of either side that can never match.

Cost: 8 words per change, and 13 per group.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64

__all__ = [
    "BLOCK_ROWS",
    "CHANGE_WORDS",
    "DEGREE_OFFSET",
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
    "EPOCH_WORDS",
    "E_AFTER",
    "E_BEFORE",
    "E_BLOCK",
    "E_CAPACITY",
    "E_FAN_OUT",
    "E_FAN_OUT_REF",
    "E_FAN_OUT_SIDE",
    "E_GROUPS",
    "E_GROUP_BITS",
    "E_GROUP_HASHES",
    "E_GROUP_REFS",
    "E_GROUP_SIDES",
    "E_GROUP_TABLE",
    "E_HASHES",
    "E_MATCHABLE",
    "E_NEXT_CHANGE",
    "E_NUMBERS",
    "E_OUT_WEIGHTS",
    "E_PART_BITS",
    "E_REFS",
    "HASH_KEY",
    "HEADER",
    "HEADER_WORDS",
    "HEAD_BYTES",
    "HEAP",
    "H_ABSORBED_EPOCH",
    "H_COLD_BYTES",
    "H_COLD_GROUPS",
    "H_DIRTY",
    "H_FINGERPRINT",
    "H_FREE_BLOCKS",
    "H_FREE_ROW",
    "H_HEAP_END",
    "H_HEAP_USED",
    "H_IDENTITY_BITS",
    "H_IDENTITY_COUNT",
    "H_JOIN_BITS",
    "H_JOIN_COUNT",
    "H_LIVE_ROWS",
    "H_MARK",
    "H_MARK_HELD",
    "H_NULL_KEYS",
    "H_NULL_KEYS_COUNTED",
    "H_REJECTED_ROWS",
    "H_ROWS_END",
    "H_STALE_ROWS",
    "H_TOMBSTONES",
    "H_TOMBSTONE_FIRST",
    "H_TOMBSTONE_LAST",
    "H_WATERMARK",
    "IDENTITY_BITS",
    "IDENTITY_SLOTS",
    "JOIN_BITS",
    "JOIN_SLOTS",
    "ROWS",
    "SEQUENCE_OFFSET",
    "SEQUENCE_WORDS",
    "SIDE_WORDS",
    "STRIDE",
    "S_CHANGED",
    "S_COUNT",
    "S_DEGREES_AFTER",
    "S_DEGREES_BEFORE",
    "S_FIRST",
    "S_HEAD",
    "S_KEY_COLUMNS",
    "S_LAST",
    "S_OUT",
    "S_OUT_CHANGE",
    "S_READS_DEGREES",
    "S_READ_BY_OWN",
    "S_VIEW",
    "VIEW_WORDS",
    "allocate_block",
    "block_bytes",
    "class_bytes",
    "free_block",
    "of_change",
    "put",
    "put_change",
    "side_word",
    "word",
]

# The side view.
ROWS, STRIDE, HEAP, HEADER = 0, 1, 2, 3
JOIN_SLOTS, JOIN_BITS, IDENTITY_SLOTS, IDENTITY_BITS = 4, 5, 6, 7
HASH_KEY, HEAD_BYTES, SEQUENCE_OFFSET, SEQUENCE_WORDS, DEGREE_OFFSET = 8, 9, 10, 11, 12
VIEW_WORDS = 16

# The header, as positions of 8-byte words.
H_FINGERPRINT, H_DIRTY, H_ABSORBED_EPOCH = 0, 1, 2
H_MARK, H_MARK_HELD = 3, 4  # of the rows in these files, and of those of another side that it holds in their place
H_ROWS_END, H_LIVE_ROWS, H_FREE_ROW, H_LIVE_BYTES = 8, 9, 10, 11
H_HEAP_END, H_HEAP_USED = 12, 13
H_JOIN_COUNT, H_JOIN_BITS, H_IDENTITY_COUNT, H_IDENTITY_BITS = 16, 17, 18, 19
H_TOMBSTONES, H_TOMBSTONE_FIRST, H_TOMBSTONE_LAST = 20, 21, 22
H_STALE_ROWS, H_UNKNOWN_DELETES, H_REJECTED_ROWS = 24, 25, 26
H_COLD_GROUPS = 27
H_COLD_BYTES = 29  # what the rows on disk count for
H_WATERMARK = 30  # the newest of all epochs that were absorbed
H_NULL_KEYS, H_NULL_KEYS_COUNTED = 31, 32  # rows that were dropped for NULL in their key; whether all of them were counted
H_FREE_BLOCKS = 64  # one list per size class, to the end of the header
HEADER_WORDS = 512


@kernel
def word(view: int, position: int) -> int:
    """Return one word of a side view (or of a header), by its address."""
    return load_u64(view + position * 8)


@kernel
def block_bytes(length: int) -> int:
    """Return the size of the block that holds `length` bytes."""
    if length <= 256:
        return (length + 15) & -16
    step = 64
    while step * 8 < length:
        step <<= 1
    return (length + step - 1) & -step


@kernel
def _size_class(size: int) -> int:
    if size <= 256:
        return size >> 4
    step = 64
    octave = 0
    while step * 8 < size:
        step <<= 1
        octave += 1
    return 17 + octave * 4 + size // step - 5


@kernel
def class_bytes(size_class: int) -> int:
    if size_class <= 16:
        return size_class << 4
    return (5 + (size_class - 17) % 4) * (64 << (size_class - 17) // 4)


@kernel
def allocate_block(heap: int, header: int, length: int) -> int:
    """Return the heap offset of a block for `length` bytes; the caller has made room."""
    size = block_bytes(length)
    store_u64(header + H_HEAP_USED * 8, load_u64(header + H_HEAP_USED * 8) + size)
    head = header + (H_FREE_BLOCKS + _size_class(size)) * 8
    free = load_u64(head)
    if free != 0:
        store_u64(head, load_u64(heap + free - 1))
        return free - 1
    end = load_u64(header + H_HEAP_END * 8)
    store_u64(header + H_HEAP_END * 8, end + size)
    return end


@kernel
def free_block(heap: int, header: int, offset: int, length: int) -> None:
    size = block_bytes(length)
    store_u64(header + H_HEAP_USED * 8, load_u64(header + H_HEAP_USED * 8) - size)
    head = header + (H_FREE_BLOCKS + _size_class(size)) * 8
    store_u64(heap + offset, load_u64(head))
    store_u64(head, offset + 1)


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


# Words of a change.
CHANGE_WORDS = 8

# What both sides share.
E_GROUPS, E_NEXT_CHANGE, E_REFS, E_NUMBERS, E_BEFORE, E_AFTER, E_HASHES, E_MATCHABLE = 0, 1, 2, 3, 4, 5, 6, 7
E_GROUP_REFS, E_GROUP_SIDES, E_GROUP_HASHES, E_GROUP_TABLE, E_GROUP_BITS = 8, 9, 10, 11, 12
E_OUT_WEIGHTS, E_CAPACITY, E_BLOCK, E_PART_BITS = 13, 14, 15, 16
# The group that made the most output rows so far: how many, the address of a record with its key, and the side of that record.
E_FAN_OUT, E_FAN_OUT_REF, E_FAN_OUT_SIDE = 17, 18, 19
_SIDES = 20

# What each side has.
S_VIEW, S_KEY_COLUMNS, S_COUNT, S_FIRST, S_LAST, S_HEAD = 0, 1, 2, 3, 4, 5
S_CHANGED = 6  # one bit per row number: this state row changes
S_DEGREES_BEFORE, S_DEGREES_AFTER, S_READS_DEGREES, S_READ_BY_OWN = 9, 10, 11, 12
S_OUT, S_OUT_CHANGE = 13, 14
SIDE_WORDS = 16
EPOCH_WORDS = _SIDES + 2 * SIDE_WORDS

# Rows of a chain that are read at a time; E_BLOCK has room for twice as many words.
BLOCK_ROWS = 2048


@kernel
def side_word(epoch: int, side: int, position: int) -> int:
    """Return one word of one side of an epoch view."""
    return load_u64(epoch + (_SIDES + side * SIDE_WORDS + position) * 8)


@kernel
def of_change(address: int, change: int) -> int:
    """Return the word of a change that is at `address` in the first one."""
    return load_u64(address + change * (CHANGE_WORDS * 8))


@kernel
def put_change(changes: int, position: int, ref: int, number: int, before: int, after: int, code: int, matchable: int) -> None:
    """Write one change; `changes` is the address of the first."""
    address = changes + position * (CHANGE_WORDS * 8)
    store_u64(address, ref)
    store_u64(address + 8, number)
    store_u64(address + 16, before)
    store_u64(address + 24, after)
    store_u64(address + 32, code)
    store_u64(address + 40, matchable)
