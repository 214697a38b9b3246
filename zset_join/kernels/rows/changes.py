"""From the rows of a delta to the net change of every row they touch.

The rows of one epoch are first grouped by identity (the primary key, or the whole row) into *entries*; the entry is looked up
once in the state; then the rows of the entry are folded in arrival order into what the entry is after the epoch. The
result is a list of *changes*: record address, row number in the state (0 when it is absent), weight before and after, hash
of the join key, and whether the key can match at all. Rows that break the contract get a status instead.

All arrays are in the delta view (`zset_join.kernels.rows.side`). `marks`, where it is not 0, is the address of one bit per
row number: the bits of the state rows that change are set.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u8,
    store_u64,
    zero_bytes,
)
from zset_join.kernels.rows.side import (
    CHANGE_WORDS,
    D_AFTER_OF,
    D_BEFORE_OF,
    D_COMPARED_COLUMNS,
    D_COUNT,
    D_DELETED,
    D_ENTRIES,
    D_ENTRY_OF,
    D_FIRST_OF,
    D_FOUND,
    D_IDENTITY_CODES,
    D_IDENTITY_COLUMNS,
    D_IDENTITY_NULLS,
    D_INSERTED,
    D_INSERTED_DELETED,
    D_JOIN_CODES,
    D_JOIN_COLUMNS,
    D_LAST_OF,
    D_MOVED,
    D_MOVED_OVERWRITTEN,
    D_OTHERS,
    D_OTHERS_LIST,
    D_OVERWRITTEN,
    D_REJECTED,
    D_ROWS,
    D_SILENT_COLUMNS,
    D_STALE,
    D_STATUS,
    D_TABLE,
    D_TABLE_BITS,
    D_UNKNOWN_DELETES,
    D_UNMATCHABLE,
    D_WEIGHTS,
    HASH_KEY,
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    SEQUENCE_OFFSET,
    SEQUENCE_WORDS,
    STRIDE,
    put,
    put_change,
    word,
)
from zset_join.kernels.rows.slots import find_key, home_of, likely_row, prefetch_slot
from zset_join.kernels.values.keys import (
    FLAG_ARRANGED,
    FLAG_TOMBSTONE,
    FLAGS,
    HASH,
    WEIGHT,
    column_count,
    equal_columns,
    hash_rows,
)

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
    "clear_marks",
    "group_rows",
    "hash_delta",
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
def hash_delta(view: int, delta: int, has_identity: bool, is_append: bool) -> tuple[int, int, int]:
    """Hash the join key (and the identity) of every row and give every row its first status."""
    # The result is how many rows have a join key that can never match, how many a NULL in their identity, and how many a weight
    # that is 0 or, in an append-only input, negative.
    rows, count, stride, mask = word(delta, D_ROWS), word(delta, D_COUNT), word(view, STRIDE), word(view, HASH_KEY)
    weights, status = word(delta, D_WEIGHTS), word(delta, D_STATUS)
    lost = hash_rows(
        rows, stride, count, word(delta, D_JOIN_COLUMNS), mask, word(delta, D_JOIN_CODES), word(delta, D_UNMATCHABLE)
    )
    nulls = 0
    if has_identity:
        codes, marked = word(delta, D_IDENTITY_CODES), word(delta, D_IDENTITY_NULLS)
        nulls = hash_rows(rows, stride, count, word(delta, D_IDENTITY_COLUMNS), mask, codes, marked)
    zero_bytes(status, count)
    bad = 0
    for index in range(count):
        weight = word(weights, index)
        if weight == 0:
            store_u8(status + index, ZERO_WEIGHT)
            bad += 1
        elif is_append and weight < 0:
            store_u8(status + index, RETRACTION_IN_APPEND)
            bad += 1
    return lost, nulls, bad


@kernel
def _older(left: int, right: int, offset: int, words: int) -> bool:
    """Return whether the sequence of record `left` is smaller than that of record `right`."""
    for place in range(words):
        left_word = load_u64(left + offset + place * 8)
        right_word = load_u64(right + offset + place * 8)
        if left_word != right_word:
            return left_word < right_word
    return False


@kernel
def group_rows(view: int, delta: int, keep_entries: bool) -> None:
    """Find the entries of the rows with status OK: their first row, and in `last_of` the row with the largest sequence."""
    # Of rows with equal sequences the later arrival counts. With `keep_entries` every row is given the number of its entry,
    # -1 where its status is not OK. Sets the number of entries, of rows that were too old, and of rows against the contract.
    rows, count = word(delta, D_ROWS), word(delta, D_COUNT)
    status, codes, columns = word(delta, D_STATUS), word(delta, D_IDENTITY_CODES), word(delta, D_IDENTITY_COLUMNS)
    first_of, last_of, entry_of = word(delta, D_FIRST_OF), word(delta, D_LAST_OF), word(delta, D_ENTRY_OF)
    table, bits = word(delta, D_TABLE), word(delta, D_TABLE_BITS)
    mask = (1 << bits) - 1
    stride, words, offset = word(view, STRIDE), word(view, SEQUENCE_WORDS), word(view, SEQUENCE_OFFSET)
    zero_bytes(table, 8 << bits)
    entries = 0
    stale = 0
    rejected = 0
    for index in range(count):
        if index + _AHEAD_ROW < count:
            prefetch(table + home_of(word(codes, index + _AHEAD_ROW), bits) * 8)
        if load_u8(status + index) != OK:
            if load_u8(status + index) > LAST_HARMLESS:
                rejected += 1
            if keep_entries:
                put(entry_of, index, -1)
            continue
        code = word(codes, index)
        position = home_of(code, bits)
        entry = -1
        while True:
            slot = load_u64(table + position * 8)
            if slot == 0:
                entry = entries
                entries += 1
                store_u64(table + position * 8, (code << 32) | entries)
                put(first_of, entry, index)
                put(last_of, entry, index)
                break
            if shift_right(slot, 32) == code:
                entry = (slot & 0xFFFFFFFF) - 1
                row = rows + index * stride
                if equal_columns(row, 0, columns, rows + word(first_of, entry) * stride, 0, columns):
                    if words > 0 and _older(row, rows + word(last_of, entry) * stride, offset, words):
                        stale += 1
                    else:
                        put(last_of, entry, index)
                    break
            position = (position + 1) & mask
        if keep_entries:
            put(entry_of, index, entry)
    put(delta, D_ENTRIES, entries)
    put(delta, D_STALE, stale)
    put(delta, D_REJECTED, rejected)


@kernel
def _mark(marks: int, number: int) -> None:
    if marks != 0:
        byte = marks + shift_right(number, 3)
        store_u8(byte, load_u8(byte) | (1 << (number & 7)))


@kernel
def clear_marks(changes: int, count: int, marks: int) -> None:
    """Clear the bits that listing these changes has set. Cost: the changes."""
    for change in range(count):
        number = load_u64(changes + change * (CHANGE_WORDS * 8) + 8)
        store_u8(marks + shift_right(number, 3), 0)


@kernel
def changes_of_upserts(view: int, delta: int, drop_unmatchable: bool, base: int, changes: int, marks: int) -> int:
    """Look every entry up in the state, list what changes, retraction before insertion, and plan what absorbing will do."""
    # `last_of` becomes -1 where the state is newer, `after_of` is the row that is live after the epoch (-1: none, or the
    # entry was too old). Adds up the entries that were too old and the deletes that met no live row. The result is the position
    # after the last change.
    rows, count, entries = word(delta, D_ROWS), word(delta, D_COUNT), word(delta, D_ENTRIES)
    identity_codes, identity_columns = word(delta, D_IDENTITY_CODES), word(delta, D_IDENTITY_COLUMNS)
    join_codes, unmatchable, weights = word(delta, D_JOIN_CODES), word(delta, D_UNMATCHABLE), word(delta, D_WEIGHTS)
    compared, join_columns = word(delta, D_COMPARED_COLUMNS), word(delta, D_JOIN_COLUMNS)
    first_of, last_of, found, after_of = (
        word(delta, D_FIRST_OF),
        word(delta, D_LAST_OF),
        word(delta, D_FOUND),
        word(delta, D_AFTER_OF),
    )
    inserted_deleted, moved_overwritten = word(delta, D_INSERTED_DELETED), word(delta, D_MOVED_OVERWRITTEN)
    others_list = word(delta, D_OTHERS_LIST)
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    join_slots, join_bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    state, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    words, offset = word(view, SEQUENCE_WORDS), word(view, SEQUENCE_OFFSET)
    has_silent = column_count(word(delta, D_SILENT_COLUMNS)) > 0
    at = base
    stale, unknown_deletes = 0, 0
    inserted, deleted, moved, overwritten, others = 0, 0, 0, 0, 0
    for ahead in range(entries + _AHEAD_SLOT):
        if ahead < entries:
            prefetch_slot(slots, bits, word(identity_codes, word(first_of, ahead)))
        middle = ahead - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < entries:
            likely = likely_row(slots, bits, word(identity_codes, word(first_of, middle)))
            if likely != 0:
                prefetch(state + (likely - 1) * stride)
                prefetch(state + (likely - 1) * stride + 63)
        entry = ahead - _AHEAD_SLOT
        if entry < 0:
            continue
        first, last = word(first_of, entry), word(last_of, entry)
        number = find_key(
            slots,
            bits,
            word(identity_codes, first),
            rows + first * stride,
            0,
            identity_columns,
            state,
            stride,
            heap,
            identity_columns,
        )
        put(found, entry, number)
        old = 0
        if number != 0:
            old = state + (number - 1) * stride
            if words > 0 and _older(rows + last * stride, old, offset, words):
                stale += 1
                put(last_of, entry, -1)
                put(after_of, entry, -1)
                continue
            if load_u8(old + FLAGS) & FLAG_TOMBSTONE:
                old = 0
        new_index = last
        if word(weights, last) < 0:
            new_index = -1
            if old == 0:
                unknown_deletes += 1
        elif drop_unmatchable and load_u8(unmatchable + last) != 0:
            new_index = -1
        put(after_of, entry, new_index)
        if new_index < 0:
            if old == 0:
                if words > 0:
                    put(others_list, others, entry)
                    others += 1
                continue
            deleted += 1
            put(inserted_deleted, count - deleted, entry)
            arranged = 1 if load_u8(old + FLAGS) & FLAG_ARRANGED else 0
            put_change(changes, at, old, number, 1, 0, load_u32(old + HASH), arranged)
            _mark(marks, number)
            at += 1
            continue
        new = rows + new_index * stride
        code = word(join_codes, new_index)
        matchable = 1 - load_u8(unmatchable + new_index)
        if old != 0:
            if equal_columns(new, 0, compared, old, heap, compared):
                if words > 0 or has_silent:
                    put(others_list, others, entry)
                    others += 1
                continue
            arranged = 1 if load_u8(old + FLAGS) & FLAG_ARRANGED else 0
            old_code = load_u32(old + HASH)
            put_change(changes, at, old, number, 1, 0, old_code, arranged)
            _mark(marks, number)
            at += 1
            if (
                matchable != 0
                and arranged != 0
                and old_code == code
                and equal_columns(new, 0, join_columns, old, heap, join_columns)
            ):
                overwritten += 1
                put(moved_overwritten, count - overwritten, entry)
            else:
                put(moved_overwritten, moved, entry)
                moved += 1
        elif number != 0:
            put(others_list, others, entry)
            others += 1
        else:
            put(inserted_deleted, inserted, entry)
            inserted += 1
        prefetch_slot(join_slots, join_bits, code)
        put_change(changes, at, new, 0, 0, 1, code, matchable)
        at += 1
    put(delta, D_STALE, word(delta, D_STALE) + stale)
    put(delta, D_UNKNOWN_DELETES, unknown_deletes)
    put(delta, D_INSERTED, inserted)
    put(delta, D_DELETED, deleted)
    put(delta, D_MOVED, moved)
    put(delta, D_OVERWRITTEN, overwritten)
    put(delta, D_OTHERS, others)
    return at


@kernel
def _find_entries(view: int, delta: int) -> None:
    """Look the entries up in the identity table, fetching slots and rows ahead."""
    entries, first_of, codes = word(delta, D_ENTRIES), word(delta, D_FIRST_OF), word(delta, D_IDENTITY_CODES)
    columns, found = word(delta, D_IDENTITY_COLUMNS), word(delta, D_FOUND)
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    for index in range(entries + _AHEAD_SLOT):
        if index < entries:
            prefetch_slot(slots, bits, word(codes, word(first_of, index)))
        middle = index - (_AHEAD_SLOT - _AHEAD_ROW)
        if 0 <= middle < entries:
            likely = likely_row(slots, bits, word(codes, word(first_of, middle)))
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
                prefetch(rows + (likely - 1) * stride + 63)
        entry = index - _AHEAD_SLOT
        if entry >= 0:
            first = word(first_of, entry)
            key = word(delta, D_ROWS) + first * stride
            put(found, entry, find_key(slots, bits, word(codes, first), key, 0, columns, rows, stride, heap, columns))


@kernel
def resolve_weights(view: int, delta: int) -> None:
    """Look the entries up and net their weights; add to the count of rejected rows those that were given a bad status."""
    # Insertions count first. Retractions are then taken in arrival order as long as the row is present often enough; one that
    # takes more than there is gets ABSENT_ROW, an insertion past int64 gets WEIGHT_OVERFLOW.
    _find_entries(view, delta)
    count, weights, status, entry_of = (
        word(delta, D_COUNT),
        word(delta, D_WEIGHTS),
        word(delta, D_STATUS),
        word(delta, D_ENTRY_OF),
    )
    found, before_of, after_of = word(delta, D_FOUND), word(delta, D_BEFORE_OF), word(delta, D_AFTER_OF)
    bad = 0
    for entry in range(word(delta, D_ENTRIES)):
        weight = 0
        if word(found, entry) != 0:
            weight = load_u64(word(view, ROWS) + (word(found, entry) - 1) * word(view, STRIDE) + WEIGHT)
        put(before_of, entry, weight)
        put(after_of, entry, weight)
    for index in range(count):
        entry, weight = word(entry_of, index), word(weights, index)
        if entry >= 0 and weight > 0:
            if word(after_of, entry) > _MAX_WEIGHT - weight:
                store_u8(status + index, WEIGHT_OVERFLOW)
                bad += 1
            else:
                put(after_of, entry, word(after_of, entry) + weight)
    for index in range(count):
        entry, weight = word(entry_of, index), word(weights, index)
        if entry >= 0 and weight < 0:
            if word(after_of, entry) + weight < 0:
                store_u8(status + index, ABSENT_ROW)
                bad += 1
            else:
                put(after_of, entry, word(after_of, entry) + weight)
    put(delta, D_REJECTED, word(delta, D_REJECTED) + bad)


@kernel
def changes_of_weights(view: int, delta: int, base: int, changes: int, marks: int) -> int:
    """List the entries whose weight changed; return the position after the last one."""
    found, first_of = word(delta, D_FOUND), word(delta, D_FIRST_OF)
    before_of, after_of = word(delta, D_BEFORE_OF), word(delta, D_AFTER_OF)
    codes, unmatchable, stride = word(delta, D_JOIN_CODES), word(delta, D_UNMATCHABLE), word(view, STRIDE)
    at = base
    for entry in range(word(delta, D_ENTRIES)):
        before, after = word(before_of, entry), word(after_of, entry)
        if before == after:
            continue
        number, first = word(found, entry), word(first_of, entry)
        row = word(delta, D_ROWS) + first * stride if number == 0 else word(view, ROWS) + (number - 1) * stride
        put_change(changes, at, row, number, before, after, word(codes, first), 1 - load_u8(unmatchable + first))
        if number != 0:
            _mark(marks, number)
        at += 1
    return at


@kernel
def changes_of_appends(view: int, delta: int, base: int, changes: int) -> int:
    """List every accepted row as a new one; return the position after the last one."""
    rows, stride, status = word(delta, D_ROWS), word(view, STRIDE), word(delta, D_STATUS)
    codes, unmatchable, weights = word(delta, D_JOIN_CODES), word(delta, D_UNMATCHABLE), word(delta, D_WEIGHTS)
    at = base
    for index in range(word(delta, D_COUNT)):
        if load_u8(status + index) != OK:
            continue
        matchable = 1 - load_u8(unmatchable + index)
        put_change(changes, at, rows + index * stride, 0, 0, word(weights, index), word(codes, index), matchable)
        at += 1
    return at
