"""Freeing what the watermark has passed.

Every run has a time at which something of it may go: the second version (the first one is then no longer needed), a DELETE that
comes first, or for rows that only wait for corrections the first of them. The runs wait in a heap by that time, so that an
advance of the watermark touches only what is due, and at most the caller's limit of it in one epoch.

An entry of the heap that its key does not name any more is passed over.

`first_due`, `list_due`: a binary heap of (time, number): what is due first comes first.

Listing what is due changes nothing and touches only that and what is right behind it. Taking it out costs a logarithm each,
or one pass over the heap where much of it is due.

`free_waiting`, `store_waiting`: storing rows that wait for the watermark, and freeing them.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch, store_u8, store_u32, store_u64
from zset_join.kernels.rows.side import H_LIVE_ROWS, HEADER, SEQUENCE_OFFSET, STRIDE, word
from zset_join.kernels.rows.storing import add_to_word, free_values, give_row, store_values, take_row
from zset_join.kernels.time.runs import (
    ENTRY,
    FLAG_DELETE,
    FLAG_PRECEDED,
    NEVER,
    RUN_DUE,
    entries_until,
    free_entries,
    inherit_mark,
    key_address,
    row_address,
    run_base,
    run_length,
)
from zset_join.kernels.values.keys import FLAG_LIVE, FLAGS, HASH, NEXT, PREVIOUS, WEIGHT

__all__ = [
    "expire",
    "first_due",
    "forget_deletes",
    "free_waiting",
    "list_due",
    "pop_due",
    "push_all",
    "push_each",
    "schedule",
    "store_waiting",
]

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


@kernel
def store_waiting(
    keys: int,
    waiting_at: int,
    side: int,
    variables: int,
    rows: int,
    chosen: Any,
    weights: Any,
    group_of: Any,
    numbers: Any,
    heap: int,
    length: int,
) -> int:
    """Store the chosen rows of a delta, and let them wait under their key; return the new length of the heap."""
    stride, at = word(side, STRIDE), word(side, SEQUENCE_OFFSET)
    for place in range(len(chosen)):
        index = chosen[place]
        source = rows + index * stride
        number = take_row(side)
        row = row_address(side, number)
        key_number = numbers[group_of[index]] if group_of[index] >= 0 else 0
        store_u32(row + NEXT, 0)
        store_u32(row + PREVIOUS, 0)
        store_u64(row + WEIGHT, weights[index])
        store_u32(row + HASH, key_number)
        store_u8(row + FLAGS, FLAG_LIVE)
        store_values(side, variables, row, source, 0, stride)
        add_to_word(word(side, HEADER), H_LIVE_ROWS, 1)
        if key_number != 0:
            key = key_address(keys, key_number)
            store_u64(key + waiting_at, load_u64(key + waiting_at) + 1)
        length = push_due(heap, length, load_u64(source + at), number)
    return length


@kernel
def free_waiting(keys: int, waiting_at: int, side: int, variables: int, row_numbers: Any, count: int, key_numbers: Any) -> None:
    """Free rows that have left; write the key of each."""
    for place in range(count):
        row = row_address(side, row_numbers[place])
        key_number = load_u32(row + HASH)
        key_numbers[place] = key_number
        if key_number != 0:
            key = key_address(keys, key_number)
            store_u64(key + waiting_at, load_u64(key + waiting_at) - 1)
        free_values(side, variables, row)
        give_row(side, row_numbers[place])
        add_to_word(word(side, HEADER), H_LIVE_ROWS, -1)


_AT_ONCE = 512
_AHEAD = 8


@kernel
def _due_of(keys: int, key: int, at: int, side: int, keeps_newest: bool, past: int) -> int:
    """Return when something of a run may go; DELETEs that are past already wait elsewhere."""
    length, base = run_length(key, at), run_base(keys, key, at)
    if length == 0:
        return NEVER
    first = load_u64(base)
    if not keeps_newest:
        return first
    if first > past and load_u8(row_address(side, load_u64(base + 8)) + FLAGS) & FLAG_DELETE:
        return first
    return load_u64(base + ENTRY) if length > 1 else NEVER


@kernel
def schedule(keys: int, at: int, side: int, keeps_newest: bool, numbers: Any, heap: int, length: int, past: int) -> int:
    """Let the runs of some keys wait for their time, where it is earlier than the one they wait for; return the length."""
    for place in range(len(numbers)):
        if place + _AHEAD < len(numbers) and numbers[place + _AHEAD] != 0:
            prefetch(run_base(keys, key_address(keys, numbers[place + _AHEAD]), at))
        if numbers[place] == 0:
            continue
        key = key_address(keys, numbers[place])
        due = _due_of(keys, key, at, side, keeps_newest, past)
        if due < load_u64(key + at + RUN_DUE):
            store_u64(key + at + RUN_DUE, due)
            length = push_due(heap, length, due, numbers[place])
    return length


@kernel
def expire(
    keys: int,
    at: int,
    forget_at: int,
    side: int,
    variables: int,
    keeps_newest: bool,
    heap: int,
    length: int,
    horizon: int,
    most: int,
    most_rows: int,
    forget_time: int,
    dues: Any,
    touched: Any,
    forgetting: Any,
) -> tuple[int, int, int, int]:
    """Free past entries of due runs, of at most `most` keys; no more of them once `most_rows` are freed."""
    # Versions go when there is a newer one at or before the horizon; a DELETE that is the newest is to be forgotten at
    # `forget_time`, which its key then holds at byte `forget_at`.
    # The result is the length of the heap, and how many rows were freed, keys touched, and DELETEs are to be forgotten.
    freed, count, forgets, popped = 0, 0, 0, 0
    while freed < most_rows and popped < most:
        begin, until = popped, min(popped + _AT_ONCE, most)
        while (
            length > 0 and popped < until and load_u64(heap) <= horizon
        ):  # out of the heap first, so that keys can be fetched ahead
            dues[popped], touched[popped] = load_u64(heap), load_u64(heap + 8)
            length = pop_first(heap, length)
            popped += 1
        if popped == begin:
            break
        for place in range(begin, popped):
            if place + 3 * _AHEAD < popped:
                ahead = key_address(keys, touched[place + 3 * _AHEAD])
                prefetch(ahead)
                prefetch(ahead + 63)
            if place + 2 * _AHEAD < popped:
                prefetch(run_base(keys, key_address(keys, touched[place + 2 * _AHEAD]), at))
            if place + _AHEAD < popped:
                ahead = key_address(keys, touched[place + _AHEAD])
                if run_length(ahead, at) > 0:
                    prefetch(row_address(side, load_u64(run_base(keys, ahead, at) + 8)))
            due, number = dues[place], touched[place]
            key = key_address(keys, number)
            if load_u8(key + FLAGS) == 0 or load_u64(key + at + RUN_DUE) != due:
                continue
            store_u64(key + at + RUN_DUE, NEVER)
            base = run_base(keys, key, at)
            past = entries_until(base, run_length(key, at), horizon)
            leaving = past - 1 if keeps_newest else past
            if leaving > 0 and keeps_newest:
                first, stays = row_address(side, load_u64(base + 8)), row_address(side, load_u64(base + ENTRY * leaving + 8))
                if load_u64(base) < load_u64(base + ENTRY * leaving):
                    store_u8(first + FLAGS, load_u8(first + FLAGS) | FLAG_PRECEDED)
                inherit_mark(first, stays)
            if leaving > 0:
                free_entries(keys, key, at, side, variables, 0, leaving)
                freed += leaving
                if keeps_newest:
                    store_u64(key + forget_at, 0)
            if keeps_newest and past > 0 and load_u64(key + forget_at) == 0 and forget_time != NEVER:
                if load_u8(row_address(side, load_u64(base + 8)) + FLAGS) & FLAG_DELETE:
                    store_u64(key + forget_at, forget_time)
                    forgetting[forgets] = number
                    forgets += 1
            touched[count] = number
            count += 1
            due = _due_of(keys, key, at, side, keeps_newest, horizon)
            if due != NEVER:
                store_u64(key + at + RUN_DUE, due)
                length = push_due(heap, length, due, number)
    return length, freed, count, forgets


@kernel
def forget_deletes(
    keys: int,
    at: int,
    forget_at: int,
    side: int,
    variables: int,
    heap: int,
    length: int,
    now: int,
    horizon: int,
    most: int,
    touched: Any,
) -> tuple[int, int, int]:
    """Forget DELETEs that come first and whose time to be remembered is over."""
    # The result is the length of the heap, how many keys were touched, and the newest time of a DELETE that was forgotten.
    count, newest = 0, -NEVER
    while length > 0 and count < most and load_u64(heap) <= now:
        due, number = load_u64(heap), load_u64(heap + 8)
        length = pop_first(heap, length)
        key = key_address(keys, number)
        if load_u8(key + FLAGS) == 0 or load_u64(key + forget_at) != due:
            continue
        store_u64(key + forget_at, 0)
        base = run_base(keys, key, at)
        if run_length(key, at) == 0 or load_u64(base) > horizon:
            continue
        if load_u8(row_address(side, load_u64(base + 8)) + FLAGS) & FLAG_DELETE:
            newest = max(newest, load_u64(base))
            free_entries(keys, key, at, side, variables, 0, 1)
            touched[count] = number
            count += 1
    return length, count, newest
