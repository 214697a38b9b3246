"""A binary heap of (time, number): what is due first comes first.

Listing what is due changes nothing and touches only that and what is right behind it. Taking it out costs a logarithm each,
or one pass over the heap where much of it is due.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, store_u64

__all__ = ["first_due", "list_due", "pop_due", "pop_first", "push_all", "push_due", "push_each"]

_ENTRY = 16


@kernel
def first_due(heap: int) -> int:
    """Return the time of the first entry; there is one."""
    return load_u64(heap)


@kernel
def _sift_down(heap: int, length: int, place: int, time: int, number: int) -> None:
    while True:
        child = 2 * place + 1
        if child >= length:
            break
        if child + 1 < length and load_u64(heap + _ENTRY * (child + 1)) < load_u64(heap + _ENTRY * child):
            child += 1
        earliest = load_u64(heap + _ENTRY * child)
        if earliest >= time:
            break
        store_u64(heap + _ENTRY * place, earliest)
        store_u64(heap + _ENTRY * place + 8, load_u64(heap + _ENTRY * child + 8))
        place = child
    store_u64(heap + _ENTRY * place, time)
    store_u64(heap + _ENTRY * place + 8, number)


@kernel
def push_due(heap: int, length: int, time: int, number: int) -> int:
    """Add an entry, for which there is room; return the new length."""
    place = length
    while place > 0:
        parent = (place - 1) >> 1
        above = load_u64(heap + _ENTRY * parent)
        if above <= time:
            break
        store_u64(heap + _ENTRY * place, above)
        store_u64(heap + _ENTRY * place + 8, load_u64(heap + _ENTRY * parent + 8))
        place = parent
    store_u64(heap + _ENTRY * place, time)
    store_u64(heap + _ENTRY * place + 8, number)
    return length + 1


@kernel
def push_all(heap: int, length: int, time: int, numbers: Any) -> int:
    """Add entries of one time, for which there is room; return the new length."""
    for place in range(len(numbers)):
        length = push_due(heap, length, time, numbers[place])
    return length


@kernel
def push_each(heap: int, length: int, times: Any, numbers: Any) -> int:
    """Add entries, each with its time, for which there is room; return the new length."""
    for place in range(len(numbers)):
        length = push_due(heap, length, times[place], numbers[place])
    return length


@kernel
def pop_first(heap: int, length: int) -> int:
    """Take the first entry out; return the new length."""
    length -= 1
    if length > 0:
        _sift_down(heap, length, 0, load_u64(heap + _ENTRY * length), load_u64(heap + _ENTRY * length + 8))
    return length


@kernel
def list_due(heap: int, length: int, time: int, numbers: Any, stack: Any) -> int:
    """Write the numbers of what is due at `time`; return how many there are, written or not."""
    # `stack` has room for twice as many places as `numbers` and 2 more.
    due_count, waiting, room = 0, 0, len(numbers)
    if length > 0:
        stack[0] = 0
        waiting = 1
    while waiting > 0:
        waiting -= 1
        place = stack[waiting]
        if load_u64(heap + _ENTRY * place) > time:
            continue
        if due_count == room:
            return room + 1
        numbers[due_count] = load_u64(heap + _ENTRY * place + 8)
        due_count += 1
        for child in range(2 * place + 1, min(2 * place + 3, length)):
            stack[waiting] = child
            waiting += 1
    return due_count


@kernel
def pop_due(heap: int, length: int, time: int, due: int) -> int:
    """Take out all entries that are due at `time`, of which there are `due`; return the new length."""
    levels = 1
    while (1 << levels) <= length:
        levels += 1
    if due * levels < 2 * length:
        for _ in range(due):
            length = pop_first(heap, length)
        return length
    kept = 0
    for place in range(length):
        own = load_u64(heap + _ENTRY * place)
        if own > time:
            store_u64(heap + _ENTRY * kept, own)
            store_u64(heap + _ENTRY * kept + 8, load_u64(heap + _ENTRY * place + 8))
            kept += 1
    for place in range((kept >> 1) - 1, -1, -1):
        _sift_down(heap, kept, place, load_u64(heap + _ENTRY * place), load_u64(heap + _ENTRY * place + 8))
    return kept
