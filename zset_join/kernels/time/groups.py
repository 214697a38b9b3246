"""Which rows of an epoch share a key, and their order.

The rows of all inputs of one epoch are put into *groups* by key, numbered from 0 as they come; a group is looked up in the
state once. Within a group rows are ordered by their *order words* (the hidden words of a record, compared as signed numbers,
the first one first), equal ones as they came.

Cost: one hash and probe per row; sorting takes n log n of the largest group, and one pass where rows arrive in order.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, prefetch, shift_right
from zset_join.kernels.rows.side import HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.rows.slots import find_key, likely_row, prefetch_slot
from zset_join.kernels.values.keys import equal_columns, has_null, hash_row

__all__ = ["compare_words", "find_groups", "group_keys", "group_of_code", "order_groups"]

_LOW = 0xFFFFFFFF
_ODD = 0x9E3779B1
_AHEAD = 16


@kernel
def _home(code: int, bits: int) -> int:
    return shift_right((code * _ODD) & _LOW, 32 - bits)


@kernel
def group_keys(
    records: int,
    stride: int,
    count: int,
    columns: int,
    hash_key: int,
    table: Any,
    bits: int,
    reps: Any,
    codes: Any,
    groups: int,
    group_of: Any,
) -> int:
    """Give every key record of an input its group, -1 where the key can never match; return how many groups there are now."""
    # `table` is 2**bits words, zeroed before the first input; `reps` and `codes` hold the record and the hash of each group.
    mask = (1 << bits) - 1
    for index in range(count):
        record = records + index * stride
        if has_null(record, columns):
            group_of[index] = -1
            continue
        code = hash_row(record, 0, columns, hash_key)
        position = _home(code, bits)
        while True:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (groups + 1)
                reps[groups] = record
                codes[groups] = code
                group_of[index] = groups
                groups += 1
                break
            if shift_right(slot, 32) == code:
                candidate = (slot & _LOW) - 1
                if equal_columns(record, 0, columns, reps[candidate], 0, columns):
                    group_of[index] = candidate
                    break
            position = (position + 1) & mask
    return groups


@kernel
def find_groups(keys: int, columns: int, source_columns: int, reps: Any, codes: Any, groups: int, numbers: Any) -> None:
    """Look every group up among the keys of the state (their side view); number 0 represents a new key."""
    slots, bits = word(keys, JOIN_SLOTS), word(keys, JOIN_BITS)
    rows, stride, heap = word(keys, ROWS), word(keys, STRIDE), word(keys, HEAP)
    for group in range(groups):
        if group + 2 * _AHEAD < groups:
            prefetch_slot(slots, bits, codes[group + 2 * _AHEAD])
        if group + _AHEAD < groups:
            likely = likely_row(slots, bits, codes[group + _AHEAD])
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
                prefetch(rows + (likely - 1) * stride + 63)
        numbers[group] = find_key(slots, bits, codes[group], reps[group], 0, source_columns, rows, stride, heap, columns)


@kernel
def group_of_code(table: Any, bits: int, numbers: Any, code: int, number: int) -> int:
    """Return the group of this epoch that represents a key of the state, by its hash and number; -1 if there is none."""
    mask = (1 << bits) - 1
    position = _home(code, bits)
    while True:
        slot = table[position]
        if slot == 0:
            return -1
        if shift_right(slot, 32) == code and numbers[(slot & _LOW) - 1] == number:
            return (slot & _LOW) - 1
        position = (position + 1) & mask


@kernel
def compare_words(left: int, right: int, count: int) -> int:
    """Compare order words at two addresses: below, at or above 0."""
    for place in range(count):
        one, other = load_u64(left + 8 * place), load_u64(right + 8 * place)
        if one != other:
            return -1 if one < other else 1
    return 0


@kernel
def _merge_sort(rows: int, stride: int, at: int, words: int, order: Any, begin: int, end: int, scratch: Any) -> None:
    width = 1
    size = end - begin
    while width < size:
        for start in range(begin, end, 2 * width):
            middle, stop = min(start + width, end), min(start + 2 * width, end)
            if middle >= stop:
                continue
            last, first = rows + order[middle - 1] * stride + at, rows + order[middle] * stride + at
            if compare_words(last, first, words) <= 0:
                continue
            for place in range(start, middle):
                scratch[place - start] = order[place]
            one, ones, other, target = 0, middle - start, middle, start
            while one < ones:
                if other < stop and (
                    compare_words(rows + order[other] * stride + at, rows + scratch[one] * stride + at, words) < 0
                ):
                    order[target] = order[other]
                    other += 1
                else:
                    order[target] = scratch[one]
                    one += 1
                target += 1
        width *= 2


@kernel
def order_groups(
    rows: int,
    stride: int,
    at: int,
    words: int,
    group_of: Any,
    chosen: Any,
    count: int,
    groups: int,
    begin: Any,
    order: Any,
    scratch: Any,
) -> int:
    """Write the chosen rows group by group, each in order of its words; return how many there are."""
    # `begin` gets `groups + 1` places; `scratch` has room for all rows. Row records are at `rows`, their words `at` bytes in.
    for group in range(groups + 1):
        begin[group] = 0
    total = 0
    for index in range(count):
        if chosen[index] and group_of[index] >= 0:
            begin[group_of[index] + 1] += 1
            total += 1
    for group in range(groups):
        begin[group + 1] += begin[group]
    for index in range(count):
        group = group_of[index]
        if chosen[index] and group >= 0:
            order[begin[group]] = index
            begin[group] += 1
    for group in range(groups, 0, -1):
        begin[group] = begin[group - 1]
    begin[0] = 0
    for group in range(groups):
        if begin[group + 1] - begin[group] > 1:
            _merge_sort(rows, stride, at, words, order, begin[group], begin[group + 1], scratch)
    return total
