"""Freeing what the watermark has passed.

Every run has a time at which something of it may go: the second version (the first one is then no longer needed), a DELETE that
comes first, or for rows that only wait for corrections the first of them. The runs wait in a heap by that time, so that an
advance of the watermark touches only what is due, and at most the caller's limit of it in one epoch.

An entry of the heap that its key does not name any more is passed over.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u64, prefetch, store_u8, store_u64
from zset_join.kernels.time.due_heap import pop_first, push_due
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
from zset_join.kernels.values.columns import FLAGS

__all__ = ["expire", "forget_deletes", "schedule"]

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
