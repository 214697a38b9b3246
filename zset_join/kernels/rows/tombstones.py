"""The tombstones of one side: the queue in which they wait to expire, and those that arrive and go between memory and disk.

The law: the queue is ordered by the watermark the tombstones were left at, so that the next to expire comes first.

`expire_tombstones` of `zset_join.kernels.join.absorb` takes them out for good. The caller makes room first; nothing here
allocates.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u32, load_u64, store_u64
from zset_join.kernels.rows.side import (
    H_TOMBSTONE_FIRST,
    H_TOMBSTONE_LAST,
    HEADER,
    ROWS,
    STRIDE,
    word,
)
from zset_join.kernels.rows.storing import (
    forget_identity,
    free_values,
    give_row,
    insert_identity,
    join_tombstone_queue,
    leave_tombstone_queue,
    store_values,
    take_row,
)
from zset_join.kernels.values.columns import NEXT, PREVIOUS, WEIGHT

__all__ = ["date_newest", "drop_tombstones", "insert_tombstones", "list_tombstones", "requeue"]


@kernel
def list_tombstones(view: int, stamps: Any, below_stamp: int, numbers: Any) -> int:
    """Write the numbers of the oldest tombstones, as many as there is room for; return how many."""
    # `stamps` has one per record, and those with `below_stamp` or more are passed over; where it is empty, none is.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    number = load_u64(word(view, HEADER) + H_TOMBSTONE_FIRST * 8)
    count = 0
    while number != 0 and count < len(numbers):
        if len(stamps) == 0 or stamps[number - 1] < below_stamp:
            numbers[count] = number
            count += 1
        number = load_u32(rows + (number - 1) * stride + NEXT)
    return count


@kernel
def drop_tombstones(view: int, numbers: Any, identity_hashes: Any, variables: int) -> None:
    """Take tombstones out of memory, as if they had never been here."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for index in range(len(numbers)):
        number = numbers[index]
        leave_tombstone_queue(view, number)
        forget_identity(view, identity_hashes[index], number)
        free_values(view, variables, rows + (number - 1) * stride)
        give_row(view, number)


@kernel
def insert_tombstones(view: int, records: int, variables: int, identity_hashes: Any, oldest_first: Any, numbers: Any) -> None:
    """Store tombstones whose records lie one behind the other; `numbers` gets their row numbers."""
    # `oldest_first` is their order in the queue. Cost: they, and the older ones that are present.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    following = load_u64(word(view, HEADER) + H_TOMBSTONE_FIRST * 8)
    for index in range(len(oldest_first)):
        at = oldest_first[index]
        source = records + at * stride
        watermark = load_u64(source + WEIGHT)
        number = take_row(view)
        store_values(view, variables, rows + (number - 1) * stride, source, 0, stride)
        insert_identity(view, number, identity_hashes[at])
        while following != 0 and load_u64(rows + (following - 1) * stride + WEIGHT) < watermark:
            following = load_u32(rows + (following - 1) * stride + NEXT)
        join_tombstone_queue(view, number, following, watermark)
        numbers[at] = number


@kernel
def date_newest(view: int, watermarks: Any) -> None:
    """Write the watermarks at which the last tombstones of the queue were left, in their order."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    number = load_u64(word(view, HEADER) + H_TOMBSTONE_LAST * 8)
    for index in range(len(watermarks) - 1, -1, -1):
        row = rows + (number - 1) * stride
        store_u64(row + WEIGHT, watermarks[index])
        number = load_u32(row + PREVIOUS)


@kernel
def requeue(view: int, numbers: Any) -> None:
    """Put all tombstones into the queue again, in the order given."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for index in range(len(numbers)):
        watermark = load_u64(rows + (numbers[index] - 1) * stride + WEIGHT)
        leave_tombstone_queue(view, numbers[index])
        join_tombstone_queue(view, numbers[index], 0, watermark)
