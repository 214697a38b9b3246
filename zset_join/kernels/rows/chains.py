"""The rows of a side that have the key of a record, listed for many records at once.

The law: a key's rows are listed from the one linked first to the one linked last, and the records in their order.

Two passes: the first finds the head of each chain and counts, the second writes, from the end of each key's place to its start,
because a chain begins with the row linked last. Cost: one probe per record, two reads per match.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch
from zset_join.kernels.rows.side import HASH_KEY, HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.rows.slots import find_key, prefetch_slot
from zset_join.kernels.values.columns import NEXT
from zset_join.kernels.values.keys import hash_rows

__all__ = ["count_matches", "list_matches"]

_AHEAD = 8


@kernel
def count_matches(
    view: int,
    own_columns: int,
    keys: int,
    key_stride: int,
    count: int,
    key_columns: int,
    codes: int,
    unmatchable: int,
    heads: Any,
    ends: Any,
) -> int:
    """Find the first row of each record's chain, and where the matches of each record end; return how many there are."""
    # The records that name a key lie from address `keys` on. `codes` (words) and `unmatchable` (bytes) are addresses of
    # scratch, one per record. `heads` gets row numbers (0: none), `ends` the number of matches of this and all former records.
    hash_rows(keys, key_stride, count, key_columns, word(view, HASH_KEY), codes, unmatchable)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    total = 0
    for index in range(count):
        if index + _AHEAD < count:
            prefetch_slot(slots, bits, load_u64(codes + (index + _AHEAD) * 8))
        number = 0
        if load_u8(unmatchable + index) == 0:
            code = load_u64(codes + index * 8)
            number = find_key(slots, bits, code, keys + index * key_stride, 0, key_columns, rows, stride, heap, own_columns)
        heads[index] = number
        while number != 0:
            total += 1
            number = load_u32(rows + (number - 1) * stride + NEXT)
        ends[index] = total
    return total


@kernel
def list_matches(view: int, heads: Any, ends: Any, positions: Any, numbers: Any) -> None:
    """Write every match as the position of its record and the number of its row."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for index in range(len(heads)):
        number = heads[index]
        at = ends[index]
        while number != 0:
            at -= 1
            positions[at] = index
            numbers[at] = number
            row = rows + (number - 1) * stride
            prefetch(row)
            number = load_u32(row + NEXT)
