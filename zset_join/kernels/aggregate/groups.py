"""The groups of an aggregate: found by their key, loaded, and stored again.

A group is a row record whose `weight` is the number of rows in the group and whose *state words* come after the key
columns, at `state_offset`. One epoch works on dense copies: an *entry* is a group that the delta touches, and line e of
`before` and of `after` holds its row count and its state words. Everything between loading and storing reads and writes
these lines in order, so the state itself is touched twice per entry and epoch, however many aggregates there are.

The caller makes room first (rows, heap, slots); nothing here allocates.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u8,
    store_u32,
    store_u64,
)
from zset_join.kernels.rows.changes import ABSENT_ROW, OK, WEIGHT_OVERFLOW
from zset_join.kernels.rows.side import (
    H_JOIN_COUNT,
    H_LIVE_ROWS,
    H_ROWS_END,
    HEADER,
    HEAP,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    STRIDE,
    word,
)
from zset_join.kernels.rows.slots import (
    find_key,
    find_row_slot,
    home_of,
    insert_slot,
    likely_row,
    prefetch_slot,
    remove_slot,
)
from zset_join.kernels.rows.storing import add_to_word, free_values, give_row, store_values, take_row
from zset_join.kernels.values.keys import (
    FLAG_LIVE,
    FLAGS,
    HASH,
    WEIGHT,
    equal_columns,
)

__all__ = ["add_rows", "copy_groups", "group_delta", "load_groups", "resolve_rows", "store_groups"]

_AHEAD_SLOT = 24
_AHEAD_ROW = 12
_LOW = 0xFFFFFFFF
_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF


@kernel
def group_delta(
    rows: int,
    stride: int,
    count: int,
    codes: Any,
    columns: int,
    table: int,
    bits: int,
    entry_of: Any,
    keys: Any,
    key_codes: Any,
) -> int:
    """Give every record of a delta the number of its entry; return how many there are."""
    # `table` is the address of 2**bits zeroed words. `keys` gets the first record of each entry, `key_codes` its hash.
    mask = (1 << bits) - 1
    entries = 0
    for index in range(count):
        if index + _AHEAD_ROW < count:
            prefetch(table + home_of(codes[index + _AHEAD_ROW], bits) * 8)
        code = codes[index]
        row = rows + index * stride
        position = home_of(code, bits)
        while True:
            slot = load_u64(table + position * 8)
            if slot == 0:
                store_u64(table + position * 8, (code << 32) | (entries + 1))
                entry_of[index] = entries
                keys[entries] = row
                key_codes[entries] = code
                entries += 1
                break
            if shift_right(slot, 32) == code:
                entry = (slot & _LOW) - 1
                if equal_columns(row, 0, columns, keys[entry], 0, columns):
                    entry_of[index] = entry
                    break
            position = (position + 1) & mask
    return entries


@kernel
def load_groups(
    view: int,
    entries: int,
    keys: Any,
    key_codes: Any,
    columns: int,
    state_offset: int,
    words: int,
    group_numbers: Any,
    before: int,
    after: int,
) -> None:
    """Look every entry up and copy its row count and state words to its line of `before` and of `after`; 0 where it is new."""
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    for ahead in range(entries + _AHEAD_SLOT):
        if ahead < entries:
            prefetch_slot(slots, bits, key_codes[ahead])
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < entries:
            likely = likely_row(slots, bits, key_codes[middle])
            if likely != 0:
                row = rows + (likely - 1) * stride
                position = 0
                while position < stride:
                    prefetch(row + position)
                    position += 64
                prefetch(row + stride - 1)
        entry = ahead - _AHEAD_SLOT
        if entry < 0:
            continue
        number = find_key(slots, bits, key_codes[entry], keys[entry], 0, columns, rows, stride, heap, columns)
        group_numbers[entry] = number
        line = entry * words * 8
        if number == 0:
            for place in range(words):
                store_u64(before + line + place * 8, 0)
                store_u64(after + line + place * 8, 0)
            continue
        row = rows + (number - 1) * stride
        rows_of_group = load_u64(row + WEIGHT)
        store_u64(before + line, rows_of_group)
        store_u64(after + line, rows_of_group)
        for place in range(1, words):
            value = load_u64(row + state_offset + place * 8 - 8)
            store_u64(before + line + place * 8, value)
            store_u64(after + line + place * 8, value)


@kernel
def add_rows(count: int, entry_of: Any, weights: Any, words: int, after: int) -> bool:
    """Add the weights of a delta to the row counts of its entries; return whether one left int64 or fell below 0 on its way."""
    suspicious = False
    for index in range(count):
        place = after + entry_of[index] * words * 8
        old = load_u64(place)
        weight = weights[index]
        new = old + weight
        store_u64(place, new)
        suspicious |= new < 0
    return suspicious


@kernel
def _forget_group(view: int, variables: int, number: int) -> None:
    header = word(view, HEADER)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    position = find_row_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), load_u32(row + HASH), number)
    remove_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), position)
    free_values(view, variables, row)
    give_row(view, number)
    add_to_word(header, H_JOIN_COUNT, -1)
    add_to_word(header, H_LIVE_ROWS, -1)


@kernel
def _new_group(view: int, variables: int, source: int, source_heap: int, key_bytes: int, code: int) -> int:
    """Store a new group without its state; return its record."""
    number = take_row(view)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_values(view, variables, row, source, source_heap, key_bytes)
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE)
    insert_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), code, number)
    add_to_word(word(view, HEADER), H_JOIN_COUNT, 1)
    add_to_word(word(view, HEADER), H_LIVE_ROWS, 1)
    return row


@kernel
def store_groups(
    view: int,
    entries: int,
    keys: Any,
    key_codes: Any,
    variables: int,
    key_bytes: int,
    state_offset: int,
    words: int,
    group_numbers: Any,
    after: int,
) -> None:
    """Write the lines of `after` back; a group without rows is gone, whatever its words are."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    for entry in range(entries):
        ahead = entry + _AHEAD_ROW
        if ahead < entries:
            number = group_numbers[ahead]
            if number != 0:
                prefetch(rows + (number - 1) * stride)
                prefetch(rows + number * stride - 1)
            if number == 0 or load_u64(after + ahead * words * 8) == 0:
                prefetch_slot(slots, bits, key_codes[ahead])
        line = after + entry * words * 8
        rows_of_group = load_u64(line)
        number = group_numbers[entry]
        if rows_of_group == 0:
            if number != 0:
                _forget_group(view, variables, number)
            continue
        if number == 0:
            row = _new_group(view, variables, keys[entry], 0, key_bytes, key_codes[entry])
        else:
            row = rows + (number - 1) * stride
        store_u64(row + WEIGHT, rows_of_group)
        for place in range(1, words):
            store_u64(row + state_offset + place * 8 - 8, load_u64(line + place * 8))


@kernel
def copy_groups(old: int, new: int, variables: int, key_bytes: int, state_offset: int, words: int, copied: int) -> int:
    """Copy the groups into an empty state with room for them; write old and new record addresses to `copied`."""
    count = 0
    for position in range(load_u64(word(old, HEADER) + H_ROWS_END * 8)):
        source = word(old, ROWS) + position * word(old, STRIDE)
        if load_u8(source + FLAGS) & FLAG_LIVE == 0:
            continue
        row = _new_group(new, variables, source, word(old, HEAP), key_bytes, load_u32(source + HASH))
        store_u64(row + WEIGHT, load_u64(source + WEIGHT))
        for place in range(words - 1):
            store_u64(row + state_offset + place * 8, load_u64(source + state_offset + place * 8))
        store_u64(copied + count * 16, source)
        store_u64(copied + count * 16 + 8, row)
        count += 1
    return count


@kernel
def resolve_rows(count: int, weights: Any, status: Any, constraints: int, places: int) -> int:
    """Decide row by row what the groups can take; return how many rows were given a bad status."""
    # A *constraint* is a list of cells with a number of copies each, and the cell of each row (-1: none). `places` is the
    # address of two addresses per constraint: of the cell of each row, and of the copies of each cell, which are brought up
    # to date. Insertions count first; retractions are then taken in arrival order as long as every cell of theirs has enough.
    bad = 0
    for index in range(count):
        weight = weights[index]
        if status[index] != OK or weight <= 0:
            continue
        for constraint in range(constraints):
            cell = load_u64(load_u64(places + constraint * 16) + index * 8)
            if cell >= 0 and load_u64(load_u64(places + constraint * 16 + 8) + cell * 8) > _MAX_WEIGHT - weight:
                status[index] = WEIGHT_OVERFLOW
        if status[index] == WEIGHT_OVERFLOW:
            bad += 1
        else:
            _take_from_cells(index, -weight, constraints, places)
    for index in range(count):
        weight = weights[index]
        if status[index] != OK or weight >= 0:
            continue
        for constraint in range(constraints):
            cell = load_u64(load_u64(places + constraint * 16) + index * 8)
            if cell >= 0 and load_u64(load_u64(places + constraint * 16 + 8) + cell * 8) + weight < 0:
                status[index] = ABSENT_ROW
        if status[index] == ABSENT_ROW:
            bad += 1
        else:
            _take_from_cells(index, -weight, constraints, places)
    return bad


@kernel
def _take_from_cells(index: int, copies: int, constraints: int, places: int) -> None:
    for constraint in range(constraints):
        cell = load_u64(load_u64(places + constraint * 16) + index * 8)
        if cell >= 0:
            add_to_word(load_u64(places + constraint * 16 + 8), cell, -copies)
