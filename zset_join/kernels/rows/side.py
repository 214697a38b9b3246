"""One side's state for a kernel, as two runs of int64 words.

The *side view* holds addresses and sizes; it is rebuilt whenever a region moves or grows. The *header* is part of the state
itself: the first page of it, so that a mapped file can be reopened without reading the rest.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64

__all__ = [
    "DEGREE_OFFSET",
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
    "H_LIVE_BYTES",
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
    "H_UNKNOWN_DELETES",
    "H_WATERMARK",
    "IDENTITY_BITS",
    "IDENTITY_SLOTS",
    "JOIN_BITS",
    "JOIN_SLOTS",
    "ROWS",
    "SEQUENCE_OFFSET",
    "SEQUENCE_WORDS",
    "STRIDE",
    "VIEW_WORDS",
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
