"""Storing, linking and freeing one row of a side's state: what absorbing and compacting are made of.

Freed rows and heap blocks are the first to be used again. The caller makes room first (rows, heap, slots); nothing here
allocates.

`accepted_bytes`, `bytes_of_rows`: rows that leave a side by number, and the bytes that rows count for.

A row counts `stride` bytes, its record, and for each string, binary or nested value beyond 12 bytes the heap block that holds
it. Both follow from the columns and the values alone, so the bytes of a state are the sum over its live rows, however they
came to lie where they are.

`date_newest`, `drop_tombstones`: the tombstones of one side: the queue in which they wait to expire, and those that arrive and
go between memory and disk.

The law: the queue is ordered by the watermark the tombstones were left at, so that the next to expire comes first.

`expire_tombstones` of `zset_join.kernels.join.absorb` takes them out for good. The caller makes room first; nothing here
allocates.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u8, load_u32, load_u64, store_u8, store_u32, store_u64
from zset_join.kernels.rows.side import (
    D_COUNT,
    D_ROWS,
    D_STATUS,
    H_FREE_ROW,
    H_IDENTITY_COUNT,
    H_JOIN_COUNT,
    H_LIVE_ROWS,
    H_ROWS_END,
    H_TOMBSTONE_FIRST,
    H_TOMBSTONE_LAST,
    H_TOMBSTONES,
    HEADER,
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    STRIDE,
    allocate_block,
    block_bytes,
    free_block,
    put,
    word,
)
from zset_join.kernels.rows.slots import (
    find_key_slot,
    find_row_slot,
    insert_slot,
    remove_slot,
    replace_slot,
    slot_number,
)
from zset_join.kernels.values.keys import (
    FLAG_ARRANGED,
    FLAG_LIVE,
    FLAG_TOMBSTONE,
    FLAGS,
    HASH,
    HEAP_BIT,
    INLINE_BYTES,
    NEXT,
    NULLS,
    OFFSET,
    PREVIOUS,
    WEIGHT,
    column_count,
    equal_columns,
    field,
    variable_bytes,
)

__all__ = [
    "accepted_bytes",
    "add_to_word",
    "bytes_of_rows",
    "date_newest",
    "drop_tombstones",
    "evict_rows",
    "forget_identity",
    "free_values",
    "hold_values",
    "insert_identity",
    "insert_tombstones",
    "join_tombstone_queue",
    "leave_alone",
    "leave_tombstone_queue",
    "link",
    "list_tombstones",
    "mark_equal_keys",
    "requeue",
    "row_bytes",
    "store_live_row",
    "store_values",
    "take_row",
    "unlink",
]

_VALUES = 24  # the first aligned word behind the flags; a record with many columns has NULL bits in it too


@kernel
def add_to_word(array: int, position: int, amount: int) -> None:
    """Add to one word of an array (the header, most often), by its address."""
    store_u64(array + position * 8, load_u64(array + position * 8) + amount)


@kernel
def take_row(view: int) -> int:
    """Return the number of a record to use: a freed one, or the next behind the end."""
    header = word(view, HEADER)
    number = load_u64(header + H_FREE_ROW * 8)
    if number != 0:
        store_u64(header + H_FREE_ROW * 8, load_u32(word(view, ROWS) + (number - 1) * word(view, STRIDE) + NEXT))
        return number
    end = load_u64(header + H_ROWS_END * 8)
    store_u64(header + H_ROWS_END * 8, end + 1)
    return end + 1


@kernel
def give_row(view: int, number: int) -> None:
    """Free a record; its blocks are freed before."""
    header = word(view, HEADER)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_u8(row + FLAGS, 0)
    store_u32(row + NEXT, load_u64(header + H_FREE_ROW * 8))
    store_u64(header + H_FREE_ROW * 8, number)


@kernel
def free_values(view: int, variables: int, row: int) -> None:
    for column in range(column_count(variables)):
        slot = row + field(variables, column, OFFSET)
        length = load_u32(slot)
        if length > INLINE_BYTES:
            free_block(word(view, HEAP), word(view, HEADER), load_u64(slot + 8) ^ HEAP_BIT, length)


@kernel
def store_values(view: int, variables: int, row: int, source: int, source_heap: int, end: int) -> None:
    """Copy NULL bits and values of a record up to byte `end`; long strings go to the heap."""
    # The values are copied as the aligned words they are read as: a load that spans two stores would wait for both.
    for place in range(NULLS, _VALUES):
        store_u8(row + place, load_u8(source + place))
    copy_bytes(row + _VALUES, source + _VALUES, end - _VALUES)
    hold_values(view, variables, row, source, source_heap)


@kernel
def hold_values(view: int, variables: int, row: int, source: int, source_heap: int) -> None:
    """Give the long strings of a record, whose slots were copied from another one, blocks of the heap of their own."""
    for column in range(column_count(variables)):
        slot = row + field(variables, column, OFFSET)
        length = load_u32(slot)
        if length > INLINE_BYTES:
            offset = allocate_block(word(view, HEAP), word(view, HEADER), length)
            copy_bytes(
                word(view, HEAP) + offset,
                variable_bytes(source + field(variables, column, OFFSET), source_heap),
                length,
            )
            store_u64(slot + 8, offset | HEAP_BIT)


@kernel
def link(view: int, join_columns: int, number: int, code: int, key: int, key_heap: int) -> None:
    """Put a stored row at the head of the chain of its join key, which is also that of record `key`."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE | FLAG_ARRANGED)
    store_u32(row + PREVIOUS, 0)
    slots, bits, heap = word(view, JOIN_SLOTS), word(view, JOIN_BITS), word(view, HEAP)
    position = find_key_slot(slots, bits, code, key, key_heap, join_columns, rows, stride, heap, join_columns)
    if position < 0:
        insert_slot(slots, bits, code, number)
        add_to_word(word(view, HEADER), H_JOIN_COUNT, 1)
        store_u32(row + NEXT, 0)
        return
    head = slot_number(slots, position)
    store_u32(row + NEXT, head)
    store_u32(rows + (head - 1) * stride + PREVIOUS, number)
    replace_slot(slots, position, number)


@kernel
def unlink(view: int, number: int) -> None:
    """Take a row out of its chain; the last one takes the key out of the table."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    flags = load_u8(row + FLAGS)
    if flags & FLAG_ARRANGED == 0:
        return
    store_u8(row + FLAGS, flags & ~FLAG_ARRANGED)
    following = load_u32(row + NEXT)
    previous = load_u32(row + PREVIOUS)
    if following != 0:
        store_u32(rows + (following - 1) * stride + PREVIOUS, previous)
    if previous != 0:
        store_u32(rows + (previous - 1) * stride + NEXT, following)
        return
    position = find_row_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), load_u32(row + HASH), number)
    if following != 0:
        replace_slot(word(view, JOIN_SLOTS), position, following)
    else:
        remove_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), position)
        add_to_word(word(view, HEADER), H_JOIN_COUNT, -1)


@kernel
def leave_alone(view: int, number: int, code: int) -> None:
    """Make a stored row live without a chain: its key can never match."""
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE)


@kernel
def insert_identity(view: int, number: int, code: int) -> None:
    insert_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), code, number)
    add_to_word(word(view, HEADER), H_IDENTITY_COUNT, 1)


@kernel
def forget_identity(view: int, code: int, number: int) -> None:
    position = find_row_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), code, number)
    remove_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), position)
    add_to_word(word(view, HEADER), H_IDENTITY_COUNT, -1)


@kernel
def store_live_row(view: int, variables: int, join_columns: int, source: int, source_heap: int, identity_code: int) -> int:
    """Store a live row of another state, with all it remembers; return its number."""
    # `identity_code` is the hash of its identity, -1 where rows have none.
    number = take_row(view)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_values(view, variables, row, source, source_heap, word(view, STRIDE))
    if identity_code >= 0:
        insert_identity(view, number, identity_code)
    if load_u8(source + FLAGS) & FLAG_ARRANGED:
        link(view, join_columns, number, load_u32(source + HASH), source, source_heap)
    else:
        leave_alone(view, number, load_u32(source + HASH))
    store_u64(row + WEIGHT, load_u64(source + WEIGHT))
    add_to_word(word(view, HEADER), H_LIVE_ROWS, 1)
    return number


@kernel
def leave_tombstone_queue(view: int, number: int) -> None:
    """Take a tombstone out of the queue of those that wait to expire."""
    header = word(view, HEADER)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    following = load_u32(row + NEXT)
    previous = load_u32(row + PREVIOUS)
    if following != 0:
        store_u32(rows + (following - 1) * stride + PREVIOUS, previous)
    else:
        store_u64(header + H_TOMBSTONE_LAST * 8, previous)
    if previous != 0:
        store_u32(rows + (previous - 1) * stride + NEXT, following)
    else:
        store_u64(header + H_TOMBSTONE_FIRST * 8, following)
    add_to_word(header, H_TOMBSTONES, -1)


@kernel
def join_tombstone_queue(view: int, number: int, following: int, watermark: int) -> None:
    """Make a record a tombstone that waits to expire before another one, or as the last of all (0)."""
    header = word(view, HEADER)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    if following != 0:
        behind = rows + (following - 1) * stride
        previous = load_u32(behind + PREVIOUS)
        store_u32(behind + PREVIOUS, number)
    else:
        previous = load_u64(header + H_TOMBSTONE_LAST * 8)
        store_u64(header + H_TOMBSTONE_LAST * 8, number)
    store_u32(row + NEXT, following)
    store_u32(row + PREVIOUS, previous)
    store_u64(row + WEIGHT, watermark)
    store_u8(row + FLAGS, FLAG_TOMBSTONE)
    if previous != 0:
        store_u32(rows + (previous - 1) * stride + NEXT, number)
    else:
        store_u64(header + H_TOMBSTONE_FIRST * 8, number)
    add_to_word(header, H_TOMBSTONES, 1)


@kernel
def row_bytes(row: int, stride: int, variables: int) -> int:
    """Return the bytes that one record counts for."""
    total = stride
    for column in range(column_count(variables)):
        length = load_u32(row + field(variables, column, OFFSET))
        if length > INLINE_BYTES:
            total += block_bytes(length)
    return total


@kernel
def accepted_bytes(delta: int, stride: int, variables: int) -> int:
    """Return the bytes that the accepted rows of a delta (status 0) count for."""
    rows, status = word(delta, D_ROWS), word(delta, D_STATUS)
    total = 0
    for index in range(word(delta, D_COUNT)):
        if load_u8(status + index) == 0:
            total += row_bytes(rows + index * stride, stride, variables)
    return total


@kernel
def bytes_of_rows(refs: int, count: int, stride: int, variables: int, sizes: int) -> None:
    """Write the bytes that each of `count` records counts for; their addresses are at `refs`."""
    for index in range(count):
        put(sizes, index, row_bytes(load_u64(refs + index * 8), stride, variables))


@kernel
def evict_rows(view: int, variables: int, numbers: int, count: int) -> None:
    """Take rows out of a side in append mode, by number, for good."""
    for index in range(count):
        number = word(numbers, index)
        unlink(view, number)
        free_values(view, variables, word(view, ROWS) + (number - 1) * word(view, STRIDE))
        give_row(view, number)
    add_to_word(word(view, HEADER), H_LIVE_ROWS, -count)


@kernel
def mark_equal_keys(
    pivot: int, pivot_heap: int, pivot_columns: int, refs: int, count: int, heap: int, columns: int, marks: int
) -> None:
    """Write 1 for each of `count` records whose key equals that of record `pivot`, else 0."""
    for index in range(count):
        same = equal_columns(pivot, pivot_heap, pivot_columns, load_u64(refs + index * 8), heap, columns)
        store_u8(marks + index, 1 if same else 0)


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
