"""Folding an epoch into the state of one side: the only kernels that write to it.

An update of a live row keeps its row number and its slot of the identity table; only when the join key moved is the row
taken out of one chain and put into another. Freed rows and heap blocks are the first to be used again, so a table that is
updated for ever does not grow.

The caller makes room first (rows, heap, slots); nothing here allocates.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u8, load_u32, load_u64, prefetch, store_u8, store_u64, zero_bytes
from zset_join.kernels.rows.side import (
    D_AFTER_OF,
    D_BEFORE_OF,
    D_COUNT,
    D_DELETED,
    D_ENTRIES,
    D_FIRST_OF,
    D_FOUND,
    D_IDENTITY_CODES,
    D_INSERTED,
    D_INSERTED_DELETED,
    D_JOIN_CODES,
    D_JOIN_COLUMNS,
    D_LAST_OF,
    D_MOVED,
    D_MOVED_OVERWRITTEN,
    D_NUMBERS,
    D_OTHER_COLUMNS,
    D_OTHERS,
    D_OTHERS_LIST,
    D_OVERWRITTEN,
    D_ROWS,
    D_SILENT_COLUMNS,
    D_SILENT_VARIABLES,
    D_STATUS,
    D_UNMATCHABLE,
    D_VARIABLES,
    D_WEIGHTS,
    H_IDENTITY_COUNT,
    H_LIVE_ROWS,
    H_TOMBSTONE_FIRST,
    HASH_KEY,
    HEADER,
    HEAP,
    IDENTITY_BITS,
    IDENTITY_SLOTS,
    JOIN_BITS,
    JOIN_SLOTS,
    ROWS,
    SEQUENCE_OFFSET,
    SEQUENCE_WORDS,
    STRIDE,
    block_bytes,
    put,
    word,
)
from zset_join.kernels.rows.slots import insert_slot, likely_row, prefetch_slot
from zset_join.kernels.rows.storing import (
    add_to_word,
    forget_identity,
    free_values,
    give_row,
    hold_values,
    insert_identity,
    join_tombstone_queue,
    leave_alone,
    leave_tombstone_queue,
    link,
    store_values,
    take_row,
    unlink,
)
from zset_join.kernels.values.keys import (
    FLAG_LIVE,
    FLAGS,
    HASH,
    INLINE_BYTES,
    NEXT,
    NULL_BYTE,
    NULL_MASK,
    OFFSET,
    PREVIOUS,
    WEIGHT,
    WIDTH,
    column_count,
    field,
    hash_row,
)

__all__ = [
    "absorb_appends",
    "absorb_upserts",
    "absorb_weights",
    "expire_tombstones",
    "heap_bytes_needed",
]

_AHEAD = 24


@kernel
def heap_bytes_needed(rows: int, stride: int, count: int, variables: int) -> int:
    """Return the heap bytes that storing `count` records can take at most."""
    total = 0
    for column in range(column_count(variables)):
        offset = field(variables, column, OFFSET)
        for index in range(count):
            length = load_u32(rows + index * stride + offset)
            if length > INLINE_BYTES:
                total += block_bytes(length)
    return total


@kernel
def _arrange(view: int, delta: int, number: int, index: int, source: int) -> None:
    """Make a stored row live, in the chain of its join key; it is row `index` of the delta, whose record is `source`."""
    code = word(word(delta, D_JOIN_CODES), index)
    if load_u8(word(delta, D_UNMATCHABLE) + index) != 0:
        leave_alone(view, number, code)
    else:
        link(view, word(delta, D_JOIN_COLUMNS), number, code, source, 0)


@kernel
def expire_tombstones(view: int, identity_columns: int, variables: int, horizon: int) -> int:
    """Drop the tombstones left at or before `horizon`; return how many. Cost: what is dropped."""
    header = word(view, HEADER)
    dropped = 0
    while True:
        number = load_u64(header + H_TOMBSTONE_FIRST * 8)
        if number == 0:
            return dropped
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        if load_u64(row + WEIGHT) > horizon:
            return dropped
        leave_tombstone_queue(view, number)
        forget_identity(view, hash_row(row, word(view, HEAP), identity_columns, word(view, HASH_KEY)), number)
        free_values(view, variables, row)
        give_row(view, number)
        dropped += 1


@kernel
def _blank(row: int, columns: int) -> None:
    for column in range(column_count(columns)):
        address = row + field(columns, column, NULL_BYTE)
        store_u8(address, load_u8(address) | field(columns, column, NULL_MASK))
        zero_bytes(row + field(columns, column, OFFSET), field(columns, column, WIDTH))


@kernel
def _fetch_chain(view: int, number: int) -> None:
    """Prefetch the memory that removing a row from its chain will touch."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    following, previous = load_u32(row + NEXT), load_u32(row + PREVIOUS)
    if following != 0:
        prefetch(rows + (following - 1) * stride)
    if previous != 0:
        prefetch(rows + (previous - 1) * stride)
    else:
        prefetch_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), load_u32(row + HASH))


@kernel
def _fetch_head(view: int, code: int) -> None:
    """Request the row that putting a row into the chain of this hash will touch."""
    likely = likely_row(word(view, JOIN_SLOTS), word(view, JOIN_BITS), code)
    if likely != 0:
        row = word(view, ROWS) + (likely - 1) * word(view, STRIDE)
        prefetch(row)
        prefetch(row + 63)


@kernel
def _fetch_row(view: int, number: int) -> None:
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    prefetch(row)
    prefetch(row + 63)


@kernel
def _absorb_deleted(view: int, delta: int, keep_tombstones: bool, watermark: int) -> None:
    """Take rows out; with tombstones, leave one each. The list begins at the end of its array."""
    entries = word(delta, D_INSERTED_DELETED) + (word(delta, D_COUNT) - 1) * 8
    count, found = word(delta, D_DELETED), word(delta, D_FOUND)
    variables, codes = word(delta, D_VARIABLES), word(delta, D_IDENTITY_CODES)
    slots, bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    for ahead in range(count + _AHEAD):
        if ahead < count:
            _fetch_row(view, word(found, word(entries, -ahead)))
        middle = ahead - _AHEAD // 2
        if 0 <= middle < count:
            _fetch_chain(view, word(found, word(entries, -middle)))
            prefetch_slot(slots, bits, word(codes, word(word(delta, D_FIRST_OF), word(entries, -middle))))
        if ahead < _AHEAD:
            continue
        entry = word(entries, _AHEAD - ahead)
        number = word(found, entry)
        unlink(view, number)
        free_values(view, variables, word(view, ROWS) + (number - 1) * word(view, STRIDE))
        if keep_tombstones:
            _leave_tombstone(view, delta, entry, number, watermark)
        else:
            forget_identity(view, word(codes, word(word(delta, D_FIRST_OF), entry)), number)
            give_row(view, number)
    add_to_word(word(view, HEADER), H_LIVE_ROWS, -count)


@kernel
def _leave_tombstone(view: int, delta: int, entry: int, number: int, watermark: int) -> None:
    """Make a record, which is in no chain and no queue and owns no blocks, the tombstone of an entry."""
    variables, source = word(delta, D_VARIABLES), word(delta, D_ROWS) + word(word(delta, D_LAST_OF), entry) * word(view, STRIDE)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    _blank(source, word(delta, D_OTHER_COLUMNS))
    store_values(view, variables, row, source, 0, word(view, STRIDE))
    join_tombstone_queue(view, number, 0, watermark)


@kernel
def _absorb_overwritten(view: int, delta: int) -> None:
    """Overwrite rows that keep their join key. The list begins at the end of its array."""
    entries = word(delta, D_MOVED_OVERWRITTEN) + (word(delta, D_COUNT) - 1) * 8
    count, found, after_of = word(delta, D_OVERWRITTEN), word(delta, D_FOUND), word(delta, D_AFTER_OF)
    variables, numbers, rows = word(delta, D_VARIABLES), word(delta, D_NUMBERS), word(delta, D_ROWS)
    for ahead in range(count + _AHEAD):
        if ahead < count:
            _fetch_row(view, word(found, word(entries, -ahead)))
        if ahead < _AHEAD:
            continue
        entry = word(entries, _AHEAD - ahead)
        number, index = word(found, entry), word(after_of, entry)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        free_values(view, variables, row)
        store_values(view, variables, row, rows + index * word(view, STRIDE), 0, word(view, STRIDE))
        put(numbers, index, number)


@kernel
def _absorb_moved(view: int, delta: int) -> None:
    """Overwrite rows and put them into the chain of their new join key."""
    entries, count = word(delta, D_MOVED_OVERWRITTEN), word(delta, D_MOVED)
    found, after_of, codes = word(delta, D_FOUND), word(delta, D_AFTER_OF), word(delta, D_JOIN_CODES)
    variables, numbers = word(delta, D_VARIABLES), word(delta, D_NUMBERS)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    for ahead in range(count + _AHEAD):
        if ahead < count:
            _fetch_row(view, word(found, word(entries, ahead)))
            prefetch_slot(slots, bits, word(codes, word(after_of, word(entries, ahead))))
        middle = ahead - _AHEAD // 2
        if 0 <= middle < count:
            _fetch_chain(view, word(found, word(entries, middle)))
            _fetch_head(view, word(codes, word(after_of, word(entries, middle))))
        if ahead < _AHEAD:
            continue
        entry = word(entries, ahead - _AHEAD)
        number, index = word(found, entry), word(after_of, entry)
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        unlink(view, number)
        free_values(view, variables, row)
        store_values(view, variables, row, source, 0, word(view, STRIDE))
        _arrange(view, delta, number, index, source)
        put(numbers, index, number)


@kernel
def _absorb_inserted(view: int, delta: int) -> None:
    entries, count = word(delta, D_INSERTED_DELETED), word(delta, D_INSERTED)
    after_of, codes, identity_codes = word(delta, D_AFTER_OF), word(delta, D_JOIN_CODES), word(delta, D_IDENTITY_CODES)
    variables, numbers = word(delta, D_VARIABLES), word(delta, D_NUMBERS)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    identity_slots, identity_bits = word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS)
    for ahead in range(count + _AHEAD):
        if ahead < count:
            index = word(after_of, word(entries, ahead))
            prefetch_slot(slots, bits, word(codes, index))
            prefetch_slot(identity_slots, identity_bits, word(identity_codes, index))
        middle = ahead - _AHEAD // 2
        if 0 <= middle < count:
            _fetch_head(view, word(codes, word(after_of, word(entries, middle))))
        if ahead < _AHEAD:
            continue
        index = word(after_of, word(entries, ahead - _AHEAD))
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        number = take_row(view)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        store_values(view, variables, row, source, 0, word(view, STRIDE))
        store_u64(row + WEIGHT, 1)
        insert_slot(identity_slots, identity_bits, word(identity_codes, index), number)
        _arrange(view, delta, number, index, source)
        put(numbers, index, number)
    add_to_word(word(view, HEADER), H_IDENTITY_COUNT, count)
    add_to_word(word(view, HEADER), H_LIVE_ROWS, count)


@kernel
def _overwrite_silent(view: int, delta: int, row: int, source: int) -> None:
    """Copy the columns that are not compared from a record of the delta to an otherwise unchanged row."""
    columns, variables = word(delta, D_SILENT_COLUMNS), word(delta, D_SILENT_VARIABLES)
    free_values(view, variables, row)
    for column in range(column_count(columns)):
        null_byte, mask = field(columns, column, NULL_BYTE), field(columns, column, NULL_MASK)
        kept = load_u8(row + null_byte) & (255 ^ mask)
        store_u8(row + null_byte, kept | (load_u8(source + null_byte) & mask))
        offset = field(columns, column, OFFSET)
        copy_bytes(row + offset, source + offset, field(columns, column, WIDTH))
    hold_values(view, variables, row, source, 0)


@kernel
def _absorb_others(view: int, delta: int, watermark: int) -> None:
    """Tombstones that come without a row, change or come back to life; rows that gain a newer sequence."""
    entries, found, after_of = word(delta, D_OTHERS_LIST), word(delta, D_FOUND), word(delta, D_AFTER_OF)
    variables, numbers = word(delta, D_VARIABLES), word(delta, D_NUMBERS)
    for position in range(word(delta, D_OTHERS)):
        entry = word(entries, position)
        number, index = word(found, entry), word(after_of, entry)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        if index < 0:
            if number == 0:
                number = take_row(view)
                insert_identity(view, number, word(word(delta, D_IDENTITY_CODES), word(word(delta, D_FIRST_OF), entry)))
            else:
                leave_tombstone_queue(view, number)
                free_values(view, variables, row)
            _leave_tombstone(view, delta, entry, number, watermark)
            continue
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        if load_u8(row + FLAGS) & FLAG_LIVE:
            for place in range(word(view, SEQUENCE_WORDS)):
                offset = word(view, SEQUENCE_OFFSET) + place * 8
                store_u64(row + offset, load_u64(source + offset))
            _overwrite_silent(view, delta, row, source)
        else:
            leave_tombstone_queue(view, number)
            free_values(view, variables, row)
            store_values(view, variables, row, source, 0, word(view, STRIDE))
            store_u64(row + WEIGHT, 1)
            _arrange(view, delta, number, index, source)
            add_to_word(word(view, HEADER), H_LIVE_ROWS, 1)
        put(numbers, index, number)


@kernel
def absorb_upserts(view: int, delta: int, keep_tombstones: bool, watermark: int) -> None:
    """Apply the changes that `changes_of_upserts` planned; `D_NUMBERS` gets the row numbers of stored delta rows."""
    # Rows that go are first, so that their records are present for those that arrive.
    _absorb_deleted(view, delta, keep_tombstones, watermark)
    _absorb_overwritten(view, delta)
    _absorb_moved(view, delta)
    _absorb_inserted(view, delta)
    _absorb_others(view, delta, watermark)


@kernel
def _fetch_entry(view: int, delta: int, entry: int) -> None:
    """Request the row of an entry, or the slots that storing its first row will touch."""
    number, index = word(word(delta, D_FOUND), entry), word(word(delta, D_FIRST_OF), entry)
    prefetch_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), word(word(delta, D_IDENTITY_CODES), index))
    if number != 0:
        _fetch_row(view, number)
    else:
        prefetch_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), word(word(delta, D_JOIN_CODES), index))


@kernel
def absorb_weights(view: int, delta: int) -> None:
    """Store the outcome of `resolve_weights`; a row whose weight became 0 is gone."""
    header = word(view, HEADER)
    found, first_of = word(delta, D_FOUND), word(delta, D_FIRST_OF)
    before_of, after_of = word(delta, D_BEFORE_OF), word(delta, D_AFTER_OF)
    variables, codes = word(delta, D_VARIABLES), word(delta, D_IDENTITY_CODES)
    entries = word(delta, D_ENTRIES)
    for ahead in range(entries + _AHEAD):
        if ahead < entries:
            _fetch_entry(view, delta, ahead)
        middle = ahead - _AHEAD // 2
        if 0 <= middle < entries:
            if word(found, middle) != 0:
                _fetch_chain(view, word(found, middle))
            else:
                _fetch_head(view, word(word(delta, D_JOIN_CODES), word(first_of, middle)))
        entry = ahead - _AHEAD
        if entry < 0 or word(before_of, entry) == word(after_of, entry):
            continue
        index, number = word(first_of, entry), word(found, entry)
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        if number == 0:
            number = take_row(view)
            row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
            store_values(view, variables, row, source, 0, word(view, STRIDE))
            insert_identity(view, number, word(codes, index))
            _arrange(view, delta, number, index, source)
            add_to_word(header, H_LIVE_ROWS, 1)
        elif word(after_of, entry) == 0:
            unlink(view, number)
            forget_identity(view, word(codes, index), number)
            free_values(view, variables, row)
            give_row(view, number)
            add_to_word(header, H_LIVE_ROWS, -1)
            continue
        store_u64(row + WEIGHT, word(after_of, entry))
        put(word(delta, D_NUMBERS), index, number)


@kernel
def absorb_appends(view: int, delta: int) -> None:
    header, variables = word(view, HEADER), word(delta, D_VARIABLES)
    codes, count = word(delta, D_JOIN_CODES), word(delta, D_COUNT)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    for ahead in range(count + _AHEAD):
        if ahead < count:
            prefetch_slot(slots, bits, word(codes, ahead))
        middle = ahead - _AHEAD // 2
        if 0 <= middle < count:
            _fetch_head(view, word(codes, middle))
        index = ahead - _AHEAD
        if index < 0:
            continue
        if load_u8(word(delta, D_STATUS) + index) != 0:
            continue
        number = take_row(view)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        store_values(view, variables, row, source, 0, word(view, STRIDE))
        _arrange(view, delta, number, index, source)
        store_u64(row + WEIGHT, word(word(delta, D_WEIGHTS), index))
        add_to_word(header, H_LIVE_ROWS, 1)
        put(word(delta, D_NUMBERS), index, number)
