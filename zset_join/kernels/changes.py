"""From the rows of a delta to the net change of every row they touch.

The rows of one epoch are first grouped by identity (the primary key, or the whole row) into *entries*; the entry is looked
up once in the state; then the rows of the entry are folded in arrival order into what the entry is after the epoch. What
comes out is a list of *changes*: record address, row number in the state (0 when it is not there), weight before and after,
hash of the join key, and whether the key can match at all. Rows that break the contract get a status instead.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.columns import FLAG_ARRANGED, FLAG_TOMBSTONE, FLAGS, HASH, WEIGHT
from zset_join.kernels.compiled import kernel
from zset_join.kernels.epoch import put_change
from zset_join.kernels.keys import equal_columns
from zset_join.kernels.memory import load_u8, load_u32, load_u64, prefetch, shift_right, store_u64
from zset_join.kernels.side import (
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    SEQUENCE_OFFSET,
    SEQUENCE_WORDS,
    STRIDE,
    word,
)
from zset_join.kernels.slots import find_key, likely_row, prefetch_slot

__all__ = [
    "ABSENT_ROW",
    "KEY_RANGE",
    "LAST_HARMLESS",
    "NOTHING",
    "NULL_PRIMARY_KEY",
    "NULL_SEQUENCE",
    "OK",
    "RETRACTION_IN_APPEND",
    "WEIGHT_OVERFLOW",
    "ZERO_WEIGHT",
    "changes_of_appends",
    "changes_of_upserts",
    "changes_of_weights",
    "find_entries",
    "group_rows",
    "resolve_weights",
]

# Status of a row of a delta: applied, dropped without a trace, or (beyond LAST_HARMLESS) against the relation's contract.
OK, NOTHING, ZERO_WEIGHT = 0, 1, 2
LAST_HARMLESS = 2
NULL_PRIMARY_KEY, NULL_SEQUENCE, ABSENT_ROW, WEIGHT_OVERFLOW, RETRACTION_IN_APPEND, KEY_RANGE = 3, 4, 5, 6, 7, 8

_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF
_AHEAD_SLOT = 24
_AHEAD_ROW = 12


@kernel
def _older(left: int, right: int, offset: int, words: int) -> bool:
    """Say whether the sequence of record `left` is smaller than that of record `right`."""
    for place in range(words):
        left_word = load_u64(left + offset + place * 8)
        right_word = load_u64(right + offset + place * 8)
        if left_word != right_word:
            return left_word < right_word
    return False


@kernel
def group_rows(
    view: int,
    rows: int,
    count: int,
    status: Any,
    codes: Any,
    columns: int,
    table: int,
    bits: int,
    entry_of: Any,
    first_of: Any,
    last_of: Any,
    keys: Any,
) -> tuple[int, int]:
    """Give every row with status OK the number of its entry; return how many entries there are, and how many rows were too old.

    `last_of` is the row of an entry with the largest sequence, the later arrival where they are equal. `table` (address
    of 2**bits zeroed words) is an open-addressing table of entries. Rows with another status get entry -1.
    """
    mask = (1 << bits) - 1
    stride, words, offset = word(view, STRIDE), word(view, SEQUENCE_WORDS), word(view, SEQUENCE_OFFSET)
    entries = 0
    stale = 0
    for index in range(count):
        if index + _AHEAD_ROW < count:
            prefetch(table + shift_right(codes[index + _AHEAD_ROW], 32 - bits) * 8)
        if status[index] != OK:
            entry_of[index] = -1
            continue
        code = codes[index]
        row = rows + index * stride
        position = shift_right(code, 32 - bits)
        while True:
            slot = load_u64(table + position * 8)
            if slot == 0:
                store_u64(table + position * 8, (code << 32) | (entries + 1))
                entry_of[index] = entries
                first_of[entries] = index
                last_of[entries] = index
                keys[entries] = row
                entries += 1
                break
            if shift_right(slot, 32) == code:
                entry = (slot & 0xFFFFFFFF) - 1
                if equal_columns(row, 0, columns, keys[entry], 0, columns):
                    entry_of[index] = entry
                    if words > 0 and _older(row, rows + last_of[entry] * stride, offset, words):
                        stale += 1
                    else:
                        last_of[entry] = index
                    break
            position = (position + 1) & mask
    return entries, stale


@kernel
def find_entries(view: int, entries: int, first_of: Any, codes: Any, keys: Any, columns: int, found: Any) -> None:
    """Look the entries up in the identity table, fetching slots and rows ahead."""
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    for index in range(entries + _AHEAD_SLOT):
        if index < entries:
            prefetch_slot(slots, bits, codes[first_of[index]])
        middle = index - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < entries:
            likely = likely_row(slots, bits, codes[first_of[middle]])
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
                prefetch(rows + (likely - 1) * stride + 63)
        entry = index - _AHEAD_SLOT
        if entry >= 0:
            found[entry] = find_key(slots, bits, codes[first_of[entry]], keys[entry], 0, columns, rows, stride, heap, columns)


@kernel
def changes_of_upserts(
    view: int,
    rows: int,
    columns: int,
    identity_columns: int,
    identity_codes: Any,
    join_codes: Any,
    unmatchable: Any,
    drop_unmatchable: bool,
    weights: Any,
    keys: Any,
    first_of: Any,
    entries: int,
    found: Any,
    last_of: Any,
    after_of: Any,
    same_of: Any,
    base: int,
    changes: int,
) -> tuple[int, int, int]:
    """Look every entry up in the state and list what changes, retraction before insertion.

    The join slots that absorbing will need are fetched on the way. `last_of` becomes -1 where the state is newer, `after_of`
    is the row that is live after the epoch (-1: none, or nothing changed), `same_of` marks the entries whose live row equals
    the new one: nothing changes but, perhaps, the sequence. Returns the position after the last change, how many entries were
    too old, and how many deletes met no live row.
    """
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    join_slots, join_bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    state, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    words, offset = word(view, SEQUENCE_WORDS), word(view, SEQUENCE_OFFSET)
    at = base
    stale = 0
    unknown_deletes = 0
    for ahead in range(entries + _AHEAD_SLOT):
        if ahead < entries:
            prefetch_slot(slots, bits, identity_codes[first_of[ahead]])
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < entries:
            likely = likely_row(slots, bits, identity_codes[first_of[middle]])
            if likely != 0:
                prefetch(state + (likely - 1) * stride)
                prefetch(state + (likely - 1) * stride + 63)
        entry = ahead - _AHEAD_SLOT
        if entry < 0:
            continue
        number = find_key(
            slots,
            bits,
            identity_codes[first_of[entry]],
            keys[entry],
            0,
            identity_columns,
            state,
            stride,
            heap,
            identity_columns,
        )
        found[entry] = number
        same_of[entry] = 0
        last = last_of[entry]
        new_index = last
        old = 0
        if number != 0:
            old = state + (number - 1) * stride
            if words > 0 and _older(rows + last * stride, old, offset, words):
                stale += 1
                last_of[entry] = -1
                after_of[entry] = -1
                continue
            if load_u8(old + FLAGS) & FLAG_TOMBSTONE:
                old = 0
        if weights[last] < 0:
            new_index = -1
            if old == 0:
                unknown_deletes += 1
        elif drop_unmatchable and unmatchable[last] != 0:
            new_index = -1
        after_of[entry] = new_index
        if new_index >= 0 and old != 0:
            if equal_columns(rows + new_index * stride, 0, columns, old, heap, columns):
                same_of[entry] = 1
                continue
        if old != 0:
            arranged = 1 if load_u8(old + FLAGS) & FLAG_ARRANGED else 0
            put_change(changes, at, old, number, 1, 0, load_u32(old + HASH), arranged)
            at += 1
        if new_index >= 0:
            new = rows + new_index * stride
            prefetch_slot(join_slots, join_bits, join_codes[new_index])
            put_change(changes, at, new, 0, 0, 1, join_codes[new_index], 1 - unmatchable[new_index])
            at += 1
    return at, stale, unknown_deletes


@kernel
def resolve_weights(
    view: int,
    count: int,
    weights: Any,
    status: Any,
    entry_of: Any,
    found: Any,
    entries: int,
    before_of: Any,
    after_of: Any,
) -> int:
    """Net the weights of every entry; return how many rows were given a bad status.

    Insertions count first. Retractions are then taken in arrival order as long as the row is there often enough; one that
    takes more than there is gets ABSENT_ROW, an insertion past int64 gets WEIGHT_OVERFLOW.
    """
    bad = 0
    for entry in range(entries):
        weight = 0
        if found[entry] != 0:
            weight = load_u64(word(view, ROWS) + (found[entry] - 1) * word(view, STRIDE) + WEIGHT)
        before_of[entry] = weight
        after_of[entry] = weight
    for index in range(count):
        entry = entry_of[index]
        if entry >= 0 and weights[index] > 0:
            if after_of[entry] > _MAX_WEIGHT - weights[index]:
                status[index] = WEIGHT_OVERFLOW
                bad += 1
            else:
                after_of[entry] += weights[index]
    for index in range(count):
        entry = entry_of[index]
        if entry >= 0 and weights[index] < 0:
            if after_of[entry] + weights[index] < 0:
                status[index] = ABSENT_ROW
                bad += 1
            else:
                after_of[entry] += weights[index]
    return bad


@kernel
def changes_of_weights(
    view: int,
    keys: Any,
    codes: Any,
    unmatchable: Any,
    first_of: Any,
    found: Any,
    before_of: Any,
    after_of: Any,
    entries: int,
    base: int,
    changes: int,
) -> int:
    """List the entries whose weight changed; return the position after the last one."""
    at = base
    for entry in range(entries):
        if before_of[entry] == after_of[entry]:
            continue
        number = found[entry]
        row = keys[entry] if number == 0 else word(view, ROWS) + (number - 1) * word(view, STRIDE)
        first = first_of[entry]
        put_change(changes, at, row, number, before_of[entry], after_of[entry], codes[first], 1 - unmatchable[first])
        at += 1
    return at


@kernel
def changes_of_appends(
    rows: int,
    stride: int,
    count: int,
    weights: Any,
    status: Any,
    codes: Any,
    unmatchable: Any,
    base: int,
    changes: int,
) -> int:
    """List every accepted row as a new one; return the position after the last one."""
    at = base
    for index in range(count):
        if status[index] != OK:
            continue
        put_change(changes, at, rows + index * stride, 0, 0, weights[index], codes[index], 1 - unmatchable[index])
        at += 1
    return at
