"""The heap of an arena: blocks for strings longer than 12 bytes.

Sizes are rounded up to a class (multiples of 16 up to 256 bytes, then four steps per power of two, so at most 25 % is lost).
A freed block goes to the list of its class and is the first to be used again; the list runs through the blocks themselves.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64
from zset_join.kernels.rows.side import H_FREE_BLOCKS, H_HEAP_END, H_HEAP_USED

__all__ = ["allocate_block", "block_bytes", "class_bytes", "free_block"]


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
