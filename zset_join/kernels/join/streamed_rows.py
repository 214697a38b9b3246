"""Output of an epoch's changes for rows read from disk: pairs, and unmatched rows that appear or disappear.

The law: the answer is that of the same rows in the state's chains, unchanged. Everything else is in the epoch view
(`zset_join.kernels.rows.side`); the groups of a part must have been matched. Cost: the rows, plus the output.

`emit_listed_rows`: the rows of a whole join, read from its two sides: no change is involved.

The law: over all rows of a side, the pairs are those of the batch join by key, and a row is shown alone as
`zset_join.kernels.join.pairs` has it, by its degree where records have one and else by whether the other side has its key.

Cost: a look-up per row of the side that is walked, plus the rows that come out.

`choose_witnesses`, `mark_lacking`: of which join keys some row is in memory that an epoch does not change, and one row each of
those of which there is none.

Only whether a key has rows matters there, so that any one row that stays represents all of its key.

The keys that an epoch changes are named by records, ascending by hash: that of a delta by its address, that of a row in memory,
which may move, by its number below 0.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.join.pairs import OVERFLOW, SHOWN_MATCHED, SHOWN_UNMATCHED, is_wanted, overflows
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch, shift_right, store_u64
from zset_join.kernels.rows.side import (
    DEGREE_OFFSET,
    E_AFTER,
    E_BEFORE,
    E_CAPACITY,
    E_GROUP_BITS,
    E_GROUP_REFS,
    E_GROUP_SIDES,
    E_GROUP_TABLE,
    E_NEXT_CHANGE,
    E_OUT_WEIGHTS,
    E_PART_BITS,
    E_REFS,
    HEAP,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    S_DEGREES_AFTER,
    S_DEGREES_BEFORE,
    S_FIRST,
    S_KEY_COLUMNS,
    S_OUT,
    S_OUT_CHANGE,
    S_VIEW,
    STRIDE,
    of_change,
    side_word,
    word,
)
from zset_join.kernels.rows.slots import find_key, home_in_part, likely_row, prefetch_slot
from zset_join.kernels.values.keys import FLAG_ARRANGED, FLAG_LIVE, FLAGS, HASH, NEXT, WEIGHT, equal_columns

__all__ = [
    "LISTED_CURSOR_WORDS",
    "choose_witnesses",
    "emit_listed_rows",
    "emit_streamed_rows",
    "mark_lacking",
    "record_witnesses",
]

_ROW_ALONE_LEFT = -2


@kernel
def _group_of(epoch: int, side: int, row: int, code: int) -> int:
    """Return the group of a row's key, -1 where the part has none."""
    table, bits = word(epoch, E_GROUP_TABLE), word(epoch, E_GROUP_BITS)
    position = home_in_part(code, word(epoch, E_PART_BITS), bits)
    while True:
        slot = load_u64(table + position * 8)
        if slot == 0:
            return -1
        if shift_right(slot, 32) == code:
            group = (slot & 0xFFFFFFFF) - 1
            from_side = word(word(epoch, E_GROUP_SIDES), group)
            if equal_columns(
                row,
                word(side_word(epoch, side, S_VIEW), HEAP),
                side_word(epoch, side, S_KEY_COLUMNS),
                word(word(epoch, E_GROUP_REFS), group),
                word(side_word(epoch, from_side, S_VIEW), HEAP),
                side_word(epoch, from_side, S_KEY_COLUMNS),
            ):
                return group
        position = (position + 1) & ((1 << bits) - 1)


@kernel
def emit_streamed_rows(
    epoch: int,
    side: int,
    records: int,
    codes: Any,
    kind: int,
    pairs: bool,
    sign: int,
    cursor: Any,
    pair_counts: Any,
    filled: int,
) -> int:
    """Append the output of some rows of a side at `filled`; return how far the output is filled."""
    # Where the output notes changes, -1 is noted for the row and the position of its change for the partner. `records` is the
    # address of the first row, `kind` what the join shows of rows alone of the side. `cursor`: the row, and its change (-1: the
    # first; -2: only the row alone is left); done when the row is behind the last, OVERFLOW in the first word ends it.
    other = 1 - side
    stride = word(side_word(epoch, side, S_VIEW), STRIDE)
    first, next_change, refs = side_word(epoch, other, S_FIRST), word(epoch, E_NEXT_CHANGE), word(epoch, E_REFS)
    before, after = word(epoch, E_BEFORE), word(epoch, E_AFTER)
    degrees_before, degrees_after = side_word(epoch, other, S_DEGREES_BEFORE), side_word(epoch, other, S_DEGREES_AFTER)
    capacity, out_weights = word(epoch, E_CAPACITY), word(epoch, E_OUT_WEIGHTS)
    out_own, out_other = side_word(epoch, side, S_OUT), side_word(epoch, other, S_OUT)
    own_change, other_change = side_word(epoch, side, S_OUT_CHANGE), side_word(epoch, other, S_OUT_CHANGE)
    at = filled
    for index in range(cursor[0], len(codes)):
        row = records + index * stride
        group = _group_of(epoch, side, row, codes[index])
        resumed, cursor[1] = cursor[1], -1
        if group < 0:
            continue
        weight = load_u64(row + WEIGHT)
        change = -1
        if pairs and resumed != _ROW_ALONE_LEFT:
            change = resumed if resumed >= 0 else word(first, group)
        while change >= 0:
            delta = of_change(after, change) - of_change(before, change)
            if is_wanted(delta, sign):
                if overflows(delta, weight):
                    cursor[0] = OVERFLOW
                    return at
                if at == capacity:
                    cursor[0], cursor[1] = index, change
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, of_change(refs, change))
                store_u64(out_weights + at * 8, delta * weight)
                if own_change != 0:
                    store_u64(own_change + at * 8, -1)
                    store_u64(other_change + at * 8, change)
                pair_counts[group] += 1
                at += 1
            change = of_change(next_change, change)
        if kind != 0:
            shown = word(degrees_after, group) - word(degrees_before, group)
            if kind == SHOWN_UNMATCHED:
                shown = -shown
            if is_wanted(weight * shown, sign):
                if at == capacity:
                    cursor[0], cursor[1] = index, _ROW_ALONE_LEFT
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, 0)
                store_u64(out_weights + at * 8, weight * shown)
                at += 1
    cursor[0] = len(codes)
    return at


LISTED_CURSOR_WORDS = 2

_AHEAD_SLOT = 24
_AHEAD_ROW = 12


@kernel
def emit_listed_rows(
    own: int,
    own_columns: int,
    other: int,
    other_columns: int,
    first: int,
    count: int,
    pairs: bool,
    kind: int,
    cursor: int,
    out_own: int,
    out_other: int,
    out_weights: int,
    filled: int,
    capacity: int,
) -> int:
    """Append the join's output for rows of one side at `filled`; return the new fill position."""
    # `own` and `other` are side views; `own` is walked from the record at `first` on, `kind` is what the join shows of its rows
    # alone (0: nothing). `cursor` is the address of two words: the record, and the row of the other side to continue with (0:
    # the first); it is done when the record is behind the last, OVERFLOW in the first word ends it. `out_*` are addresses; a
    # row alone gets 0 in `out_other`.
    stride, heap, degree = word(own, STRIDE), word(own, HEAP), word(own, DEGREE_OFFSET)
    rows, other_stride, other_heap = word(other, ROWS), word(other, STRIDE), word(other, HEAP)
    slots, bits = word(other, JOIN_SLOTS), word(other, JOIN_BITS)
    at = filled
    position, partner = load_u64(cursor), load_u64(cursor + 8)
    while position < count:
        if position + _AHEAD_SLOT < count:
            prefetch_slot(slots, bits, load_u32(first + (position + _AHEAD_SLOT) * stride + HASH))
        if position + _AHEAD_ROW < count:
            likely = likely_row(slots, bits, load_u32(first + (position + _AHEAD_ROW) * stride + HASH))
            if likely != 0:
                prefetch(rows + (likely - 1) * other_stride)
        row = first + position * stride
        flags = load_u8(row + FLAGS)
        if flags & FLAG_LIVE != 0:
            weight = load_u64(row + WEIGHT)
            head = partner
            if head == 0:
                if flags & FLAG_ARRANGED != 0:
                    code = load_u32(row + HASH)
                    head = find_key(slots, bits, code, row, heap, own_columns, rows, other_stride, other_heap, other_columns)
                if kind != 0:
                    is_matched = load_u64(row + degree) > 0 if degree >= 0 else head != 0
                    if is_matched == (kind == SHOWN_MATCHED):
                        if at == capacity:
                            break
                        store_u64(out_own + at * 8, row)
                        store_u64(out_other + at * 8, 0)
                        store_u64(out_weights + at * 8, weight)
                        at += 1
            while pairs and head != 0 and at < capacity:
                found = rows + (head - 1) * other_stride
                other_weight = load_u64(found + WEIGHT)
                if overflows(weight, other_weight):
                    store_u64(cursor, OVERFLOW)
                    return at
                store_u64(out_own + at * 8, row)
                store_u64(out_other + at * 8, found)
                store_u64(out_weights + at * 8, weight * other_weight)
                at += 1
                head = load_u32(found + NEXT)
            if pairs and head != 0:
                partner = head
                break
        partner = 0
        position += 1
    store_u64(cursor, position)
    store_u64(cursor + 8, partner)
    return at


@kernel
def _first_at_least(number: int, numbers: Any) -> int:
    """Return the position of the first of some numbers, which ascend, that is not below one."""
    begin, end = 0, len(numbers)
    while begin < end:
        middle = (begin + end) // 2
        if numbers[middle] < number:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _is_among(number: int, numbers: Any) -> bool:
    """Return whether a number is one of some, which ascend."""
    at = _first_at_least(number, numbers)
    return at < len(numbers) and numbers[at] == number


@kernel
def _record(view: int, name: int) -> int:
    """Return the address of the record that names a key."""
    return name if name > 0 else word(view, ROWS) + (-name - 1) * word(view, STRIDE)


@kernel
def _is_at(view: int, own_columns: int, code: int, ref: int, heap: int, columns: int, replaced: Any) -> bool:
    """Return whether a row with the key of a record is in memory that stays. Cost: those of the key that do not, at most."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    number = find_key(slots, bits, code, ref, heap, columns, rows, stride, word(view, HEAP), own_columns)
    while number != 0:
        if not _is_among(number, replaced):
            return True
        number = load_u32(rows + (number - 1) * stride + NEXT)
    return False


@kernel
def mark_lacking(
    view: int, own_columns: int, of: int, columns: int, codes: Any, names: Any, replaced: Any, lacking: Any
) -> None:
    """Mark a record of each key of which no row is in memory that stays."""
    # `view` is the side whose rows are looked at, `of` the side whose changes name the keys. `names` are records by their hash,
    # which ascends in `codes`; `replaced` are ascending numbers of rows that the epoch replaces or retracts.
    heap = word(of, HEAP)
    for at in range(len(codes)):
        ref = _record(of, names[at])
        if at and codes[at - 1] == codes[at] and equal_columns(ref, heap, columns, _record(of, names[at - 1]), heap, columns):
            lacking[at] = False
        else:
            lacking[at] = not _is_at(view, own_columns, codes[at], ref, heap, columns, replaced)


@kernel
def choose_witnesses(
    view: int, columns: int, codes: Any, refs: Any, order: Any, replaced: Any, firsts: Any, chosen: Any
) -> None:
    """Mark one record of each key among rows of a side, and choose it where no row of the key is in memory that stays."""
    # `refs` are record addresses, `order` their positions by hash. `firsts` gets a flag for the first record of each key,
    # `chosen` for each that is to come into memory.
    heap = word(view, HEAP)
    begin = 0
    for at in range(len(order)):
        index = order[at]
        if codes[order[begin]] != codes[index]:
            begin = at
        back = at - 1
        while back >= begin and not equal_columns(refs[index], heap, columns, refs[order[back]], heap, columns):
            back -= 1
        firsts[index] = back < begin
        chosen[index] = back < begin and not _is_at(view, columns, codes[index], refs[index], heap, columns, replaced)


@kernel
def record_witnesses(
    view: int,
    own_columns: int,
    codes: Any,
    refs: Any,
    order: Any,
    firsts: Any,
    of: int,
    columns: int,
    key_codes: Any,
    names: Any,
    lacking: Any,
) -> None:
    """Take the mark from the keys of which a row was found; arguments as those of `mark_lacking` and `choose_witnesses`."""
    heap, own_heap = word(of, HEAP), word(view, HEAP)
    key = 0 if len(order) == 0 else _first_at_least(codes[order[0]], key_codes)
    for at in range(len(order)):
        index = order[at]
        if not firsts[index]:
            continue
        while key < len(key_codes) and key_codes[key] < codes[index]:
            key += 1
        one = key
        while one < len(key_codes) and key_codes[one] == codes[index]:
            if lacking[one] and equal_columns(refs[index], own_heap, own_columns, _record(of, names[one]), heap, columns):
                lacking[one] = False
            one += 1
