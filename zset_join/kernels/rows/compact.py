"""Bringing together what lives of one side's state, in place.

Used records behind the place where the last one will be fill the holes before it, so a row that is before it keeps its
number, and chains their order. Blocks slide to the beginning of the heap in the order they have.

To find who owns a block while it slides, its first word and the word of the record that points to it change places: the block
names its owner, the owner keeps the word. A free block holds its size meanwhile. So sliding takes no memory.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u8, load_u32, load_u64, store_u32, store_u64
from zset_join.kernels.rows.heap import block_bytes, class_bytes
from zset_join.kernels.rows.side import (
    H_FREE_BLOCKS,
    H_FREE_ROW,
    H_HEAP_END,
    H_ROWS_END,
    H_TOMBSTONE_FIRST,
    H_TOMBSTONE_LAST,
    HASH_KEY,
    HEADER,
    HEADER_WORDS,
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    STRIDE,
    word,
)
from zset_join.kernels.rows.slots import find_row_slot, replace_slot
from zset_join.kernels.values.columns import (
    FLAG_ARRANGED,
    FLAG_TOMBSTONE,
    FLAGS,
    HASH,
    HEAP_BIT,
    INLINE_BYTES,
    NEXT,
    OFFSET,
    PREVIOUS,
    column_count,
    field,
)
from zset_join.kernels.values.keys import hash_row

__all__ = ["move_records", "plan_moves", "slide_blocks"]


@kernel
def plan_moves(view: int, used: int, sources: Any, targets: Any) -> int:
    """List the positions of the used records behind the first `used` ones, and the holes there; return how many."""
    # There are as many of either, where `used` is the number of used records.
    rows, stride = word(view, ROWS), word(view, STRIDE)
    count = 0
    hole = 0
    for position in range(used, load_u64(word(view, HEADER) + H_ROWS_END * 8)):
        if load_u8(rows + position * stride + FLAGS) == 0:
            continue
        while load_u8(rows + hole * stride + FLAGS) != 0:
            hole += 1
        sources[count] = position
        targets[count] = hole
        hole += 1
        count += 1
    return count


@kernel
def move_records(view: int, used: int, identity_columns: int, has_identity: bool, sources: Any, targets: Any) -> None:
    """Move records into holes, and let everything that named them follow; the first `used` records are all afterwards."""
    rows, stride, heap, mask = word(view, ROWS), word(view, STRIDE), word(view, HEAP), word(view, HASH_KEY)
    header = word(view, HEADER)
    for index in range(len(sources)):
        old, number = sources[index] + 1, targets[index] + 1
        row = rows + targets[index] * stride
        copy_bytes(row, rows + sources[index] * stride, stride)
        flags = load_u8(row + FLAGS)
        if flags & (FLAG_ARRANGED | FLAG_TOMBSTONE):
            following, previous = load_u32(row + NEXT), load_u32(row + PREVIOUS)
            if following != 0:
                store_u32(rows + (following - 1) * stride + PREVIOUS, number)
            elif flags & FLAG_TOMBSTONE:
                store_u64(header + H_TOMBSTONE_LAST * 8, number)
            if previous != 0:
                store_u32(rows + (previous - 1) * stride + NEXT, number)
            elif flags & FLAG_TOMBSTONE:
                store_u64(header + H_TOMBSTONE_FIRST * 8, number)
            else:
                slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
                replace_slot(slots, find_row_slot(slots, bits, load_u32(row + HASH), old), number)
        if has_identity:
            slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
            replace_slot(slots, find_row_slot(slots, bits, hash_row(row, heap, identity_columns, mask), old), number)
    store_u64(header + H_FREE_ROW * 8, 0)
    store_u64(header + H_ROWS_END * 8, used)


@kernel
def slide_blocks(view: int, variables: int) -> None:
    """Slide the blocks of all records, which are used ones, to the beginning of the heap."""
    rows, stride, heap, header = word(view, ROWS), word(view, STRIDE), word(view, HEAP), word(view, HEADER)
    for size_class in range(HEADER_WORDS - H_FREE_BLOCKS):
        head = header + (H_FREE_BLOCKS + size_class) * 8
        free = load_u64(head)
        store_u64(head, 0)
        while free != 0:
            following = load_u64(heap + free - 1)
            store_u64(heap + free - 1, 2 * class_bytes(size_class) + 1)
            free = following
    for position in range(load_u64(header + H_ROWS_END * 8)):
        for column in range(column_count(variables)):
            slot = rows + position * stride + field(variables, column, OFFSET)
            if load_u32(slot) > INLINE_BYTES:
                block = heap + (load_u64(slot + 8) ^ HEAP_BIT)
                store_u64(slot + 8, load_u64(block))
                store_u64(block, 2 * slot)
    end = load_u64(header + H_HEAP_END * 8)
    source, target = 0, 0
    while source < end:
        mark = load_u64(heap + source)
        if mark & 1:
            source += mark >> 1
            continue
        slot = mark >> 1
        size = block_bytes(load_u32(slot))
        if source != target:
            copy_bytes(heap + target, heap + source, size)
        store_u64(heap + target, load_u64(slot + 8))
        store_u64(slot + 8, target | HEAP_BIT)
        source += size
        target += size
    store_u64(header + H_HEAP_END * 8, target)
