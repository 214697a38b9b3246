"""The epoch view: where the arrays of one epoch are, as one run of int64 words that kernels get by its address.

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
    "SIDE_WORDS",
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
    "of_change",
    "put_change",
    "side_word",
]

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
