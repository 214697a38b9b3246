"""From the rows of a delta to the net change of every row they touch.

The rows of one epoch are first grouped by identity (the primary key, or the whole row) into *entries*; the entry is looked
up once in the state; then the rows of the entry are folded in arrival order into what the entry is after the epoch. What
comes out is a list of *changes*: record address, row number in the state (0 when it is not there), weight before and after,
hash of the join key, and whether the key can match at all. Rows that break the contract get a status instead.
"""

from __future__ import annotations

from numba import njit

from zset_join.kernels.columns import FLAG_ARRANGED, FLAG_TOMBSTONE, FLAGS, HASH, WEIGHT
from zset_join.kernels.keys import equal_columns
from zset_join.kernels.memory import load_u8, load_u32, load_u64, shift_right
from zset_join.kernels.side import HEAP, ROWS, SEQUENCE_OFFSET, SEQUENCE_WORDS, STRIDE

__all__ = [
    "ABSENT_ROW",
    "NOTHING",
    "NULL_PRIMARY_KEY",
    "NULL_SEQUENCE",
    "OK",
    "RETRACTION_IN_APPEND",
    "WEIGHT_OVERFLOW",
    "changes_of_appends",
    "changes_of_upserts",
    "changes_of_weights",
    "group_rows",
    "resolve_upserts",
    "resolve_weights",
]

# Status of a row of a delta.
OK, NULL_PRIMARY_KEY, NULL_SEQUENCE, ABSENT_ROW, WEIGHT_OVERFLOW, RETRACTION_IN_APPEND, NOTHING = 0, 1, 2, 3, 4, 5, 6

_MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF


@njit(cache=True, nogil=True)
def group_rows(rows, stride, count, status, codes, columns, table, bits, entry_of, first_of, keys) -> int:
    """Give every row with status OK the number of its entry; return how many entries there are.

    `table` (zeroed, 2**bits int64) is an open-addressing table of entries. Rows with another status get entry -1.
    """
    mask = (1 << bits) - 1
    entries = 0
    for index in range(count):
        if status[index] != OK:
            entry_of[index] = -1
            continue
        code = codes[index]
        row = rows + index * stride
        position = shift_right(code, 32 - bits)
        while True:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (entries + 1)
                entry_of[index] = entries
                first_of[entries] = index
                keys[entries] = row
                entries += 1
                break
            if shift_right(slot, 32) == code:
                entry = (slot & 0xFFFFFFFF) - 1
                if equal_columns(row, 0, columns, keys[entry], 0, columns):
                    entry_of[index] = entry
                    break
            position = (position + 1) & mask
    return entries


@njit(cache=True, nogil=True)
def _older(left, right, offset, words) -> bool:
    """Say whether the sequence of record `left` is smaller than that of record `right`."""
    for word in range(words):
        left_word = load_u64(left + offset + word * 8)
        right_word = load_u64(right + offset + word * 8)
        if left_word != right_word:
            return left_word < right_word
    return False


@njit(cache=True, nogil=True)
def resolve_upserts(
    view, rows, stride, count, weights, unmatchable, drop_unmatchable, entry_of, found, entries, last_of, after_of
) -> tuple[int, int]:
    """Fold upserts and deletes in arrival order, larger sequence wins, later arrival wins a tie.

    `last_of` is the row that won (-1: all were older than the state), `after_of` the row that is live after the epoch
    (-1: none, or nothing changed). Returns how many rows were too old and how many deletes met no live row.
    """
    words = view[SEQUENCE_WORDS]
    offset = view[SEQUENCE_OFFSET]
    stale = 0
    for entry in range(entries):
        last_of[entry] = -1
    for index in range(count):
        entry = entry_of[index]
        if entry < 0:
            continue
        row = rows + index * stride
        if words > 0:
            if last_of[entry] >= 0:
                current = rows + last_of[entry] * stride
            elif found[entry] != 0:
                current = view[ROWS] + (found[entry] - 1) * view[STRIDE]
            else:
                current = 0
            if current != 0 and _older(row, current, offset, words):
                stale += 1
                continue
        last_of[entry] = index
    unknown_deletes = 0
    for entry in range(entries):
        last = last_of[entry]
        after_of[entry] = last
        if last < 0:
            continue
        if weights[last] < 0:
            after_of[entry] = -1
            before = found[entry]
            if before == 0 or load_u8(view[ROWS] + (before - 1) * view[STRIDE] + FLAGS) & FLAG_TOMBSTONE:
                unknown_deletes += 1
        elif drop_unmatchable and unmatchable[last] != 0:
            after_of[entry] = -1
    return stale, unknown_deletes


@njit(cache=True, nogil=True)
def changes_of_upserts(
    view, rows, stride, columns, codes, unmatchable, found, last_of, after_of, same_of, entries,
    base, refs, numbers, before, after, hashes, matchable,
) -> int:
    """List the changes of resolved upserts, retraction before insertion; return the position after the last one.

    `same_of` marks the entries whose live row equals the new one: nothing changes but, perhaps, the sequence.
    """
    at = base
    for entry in range(entries):
        same_of[entry] = 0
        if last_of[entry] < 0:
            continue
        number = found[entry]
        old = 0
        if number != 0:
            old = view[ROWS] + (number - 1) * view[STRIDE]
            if load_u8(old + FLAGS) & FLAG_TOMBSTONE:
                old = 0
        new_index = after_of[entry]
        if new_index >= 0 and old != 0:
            if equal_columns(rows + new_index * stride, 0, columns, old, view[HEAP], columns):
                same_of[entry] = 1
                continue
        if old != 0:
            refs[at] = old
            numbers[at] = number
            before[at] = 1
            after[at] = 0
            hashes[at] = load_u32(old + HASH)
            matchable[at] = 1 if load_u8(old + FLAGS) & FLAG_ARRANGED else 0
            at += 1
        if new_index >= 0:
            refs[at] = rows + new_index * stride
            numbers[at] = 0
            before[at] = 0
            after[at] = 1
            hashes[at] = codes[new_index]
            matchable[at] = 1 - unmatchable[new_index]
            at += 1
    return at


@njit(cache=True, nogil=True)
def resolve_weights(view, count, weights, status, entry_of, found, entries, before_of, after_of) -> int:
    """Net the weights of every entry; return how many rows were given a bad status.

    Insertions count first. Retractions are then taken in arrival order as long as the row is there often enough; one that
    takes more than there is gets ABSENT_ROW, an insertion past int64 gets WEIGHT_OVERFLOW.
    """
    bad = 0
    for entry in range(entries):
        weight = 0
        if found[entry] != 0:
            weight = load_u64(view[ROWS] + (found[entry] - 1) * view[STRIDE] + WEIGHT)
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


@njit(cache=True, nogil=True)
def changes_of_weights(
    view, keys, codes, unmatchable, first_of, found, before_of, after_of, entries,
    base, refs, numbers, before, after, hashes, matchable,
) -> int:
    """List the entries whose weight changed; return the position after the last one."""
    at = base
    for entry in range(entries):
        if before_of[entry] == after_of[entry]:
            continue
        number = found[entry]
        refs[at] = keys[entry] if number == 0 else view[ROWS] + (number - 1) * view[STRIDE]
        numbers[at] = number
        before[at] = before_of[entry]
        after[at] = after_of[entry]
        hashes[at] = codes[first_of[entry]]
        matchable[at] = 1 - unmatchable[first_of[entry]]
        at += 1
    return at


@njit(cache=True, nogil=True)
def changes_of_appends(
    rows, stride, count, weights, status, codes, unmatchable, base, refs, numbers, before, after, hashes, matchable
) -> int:
    """List every accepted row as a new one; return the position after the last one."""
    at = base
    for index in range(count):
        if status[index] != OK:
            continue
        refs[at] = rows + index * stride
        numbers[at] = 0
        before[at] = 0
        after[at] = weights[index]
        hashes[at] = codes[index]
        matchable[at] = 1 - unmatchable[index]
        at += 1
    return at
