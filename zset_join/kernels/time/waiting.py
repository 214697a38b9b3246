"""Storing rows that wait for the watermark, and freeing them."""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u32, load_u64, store_u8, store_u32, store_u64
from zset_join.kernels.rows.side import H_LIVE_ROWS, HEADER, SEQUENCE_OFFSET, STRIDE, word
from zset_join.kernels.rows.storing import add_to_word, free_values, give_row, store_values, take_row
from zset_join.kernels.time.due_heap import push_due
from zset_join.kernels.time.runs import key_address, row_address
from zset_join.kernels.values.columns import FLAG_LIVE, FLAGS, HASH, NEXT, PREVIOUS, WEIGHT

__all__ = ["free_waiting", "store_waiting"]


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
