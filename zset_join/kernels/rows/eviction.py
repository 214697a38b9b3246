"""Rows that leave a side by number, and the bytes that rows count for.

A row counts `stride` bytes, its record, and for each string, binary or nested value beyond 12 bytes the heap block that holds
it. Both follow from the columns and the values alone, so the bytes of a state are the sum over its live rows, however they
came to lie where they are.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, store_u8
from zset_join.kernels.rows.delta import D_COUNT, D_ROWS, D_STATUS, put
from zset_join.kernels.rows.heap import block_bytes
from zset_join.kernels.rows.side import H_LIVE_ROWS, HEADER, ROWS, STRIDE, word
from zset_join.kernels.rows.storing import add_to_word, free_values, give_row, unlink
from zset_join.kernels.values.columns import INLINE_BYTES, OFFSET, column_count, field
from zset_join.kernels.values.keys import equal_columns

__all__ = ["accepted_bytes", "bytes_of_rows", "evict_rows", "mark_equal_keys", "row_bytes"]


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
