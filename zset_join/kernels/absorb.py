"""Folding an epoch into the state of one side: the only kernels that write to it.

An update of a live row keeps its row number and its slot of the identity table; only when the join key moved is the row
taken out of one chain and put into another. Freed rows and heap blocks are the first to be used again, so a table that is
updated for ever does not grow.

The caller makes room first (rows, heap, slots); nothing here allocates.
"""

from __future__ import annotations

from zset_join.kernels.columns import (
    FLAG_ARRANGED,
    FLAG_LIVE,
    FLAG_TOMBSTONE,
    FLAGS,
    HASH,
    HEAP_BIT,
    INLINE_BYTES,
    NEXT,
    NULL_BYTE,
    NULL_MASK,
    NULLS,
    OFFSET,
    PREVIOUS,
    WEIGHT,
    WIDTH,
    column_count,
    field,
)
from zset_join.kernels.compiled import kernel
from zset_join.kernels.delta import (
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
    D_STATUS,
    D_UNMATCHABLE,
    D_VARIABLES,
    D_WEIGHTS,
    put,
)
from zset_join.kernels.heap import allocate_block, block_bytes, free_block
from zset_join.kernels.keys import hash_row, variable_bytes
from zset_join.kernels.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    store_u8,
    store_u32,
    store_u64,
    zero_bytes,
)
from zset_join.kernels.side import (
    H_FREE_ROW,
    H_IDENTITY_COUNT,
    H_JOIN_COUNT,
    H_LIVE_ROWS,
    H_ROWS_END,
    H_TOMBSTONE_FIRST,
    H_TOMBSTONE_LAST,
    H_TOMBSTONES,
    HASH_MASK,
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
    word,
)
from zset_join.kernels.slots import (
    find_key_slot,
    find_row_slot,
    insert_slot,
    likely_row,
    prefetch_slot,
    remove_slot,
    replace_slot,
    slot_number,
)

__all__ = [
    "absorb_appends",
    "absorb_upserts",
    "absorb_weights",
    "copy_live_rows",
    "expire_tombstones",
    "heap_bytes_needed",
]

_AHEAD = 24
_VALUES = 24  # the first aligned word behind the flags; a record with many columns has NULL bits in it too


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
def _add(header: int, position: int, amount: int) -> None:
    store_u64(header + position * 8, load_u64(header + position * 8) + amount)


@kernel
def _take_row(view: int) -> int:
    header = word(view, HEADER)
    number = load_u64(header + H_FREE_ROW * 8)
    if number != 0:
        store_u64(header + H_FREE_ROW * 8, load_u32(word(view, ROWS) + (number - 1) * word(view, STRIDE) + NEXT))
        return number
    end = load_u64(header + H_ROWS_END * 8)
    store_u64(header + H_ROWS_END * 8, end + 1)
    return end + 1


@kernel
def _give_row(view: int, number: int) -> None:
    header = word(view, HEADER)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_u8(row + FLAGS, 0)
    store_u32(row + NEXT, load_u64(header + H_FREE_ROW * 8))
    store_u64(header + H_FREE_ROW * 8, number)


@kernel
def _free_values(view: int, variables: int, row: int) -> None:
    for column in range(column_count(variables)):
        slot = row + field(variables, column, OFFSET)
        length = load_u32(slot)
        if length > INLINE_BYTES:
            free_block(word(view, HEAP), word(view, HEADER), load_u64(slot + 8) ^ HEAP_BIT, length)


@kernel
def _store_values(view: int, variables: int, row: int, source: int, source_heap: int) -> None:
    """Copy NULL bits and values of a record; long strings go to the heap.

    The values are copied as the aligned words they are read as: a load that spans two stores would wait for both.
    """
    for place in range(NULLS, _VALUES):
        store_u8(row + place, load_u8(source + place))
    copy_bytes(row + _VALUES, source + _VALUES, word(view, STRIDE) - _VALUES)
    for column in range(column_count(variables)):
        slot = row + field(variables, column, OFFSET)
        length = load_u32(slot)
        if length > INLINE_BYTES:
            offset = allocate_block(word(view, HEAP), word(view, HEADER), length)
            copy_bytes(
                word(view, HEAP) + offset,
                variable_bytes(source + field(variables, column, OFFSET), source_heap),
                length,
            )
            store_u64(slot + 8, offset | HEAP_BIT)


@kernel
def _link(view: int, join_columns: int, number: int, code: int, key: int, key_heap: int) -> None:
    """Put a stored row at the head of the chain of its join key, which is also that of record `key`."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE | FLAG_ARRANGED)
    store_u32(row + PREVIOUS, 0)
    slots, bits, heap = word(view, JOIN_SLOTS), word(view, JOIN_BITS), word(view, HEAP)
    position = find_key_slot(slots, bits, code, key, key_heap, join_columns, rows, stride, heap, join_columns)
    if position < 0:
        insert_slot(slots, bits, code, number)
        _add(word(view, HEADER), H_JOIN_COUNT, 1)
        store_u32(row + NEXT, 0)
        return
    head = slot_number(slots, position)
    store_u32(row + NEXT, head)
    store_u32(rows + (head - 1) * stride + PREVIOUS, number)
    replace_slot(slots, position, number)


@kernel
def _unlink(view: int, number: int) -> None:
    """Take a row out of its chain; the last one takes the key out of the table."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    flags = load_u8(row + FLAGS)
    if flags & FLAG_ARRANGED == 0:
        return
    store_u8(row + FLAGS, flags & ~FLAG_ARRANGED)
    following = load_u32(row + NEXT)
    previous = load_u32(row + PREVIOUS)
    if following != 0:
        store_u32(rows + (following - 1) * stride + PREVIOUS, previous)
    if previous != 0:
        store_u32(rows + (previous - 1) * stride + NEXT, following)
        return
    position = find_row_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), load_u32(row + HASH), number)
    if following != 0:
        replace_slot(word(view, JOIN_SLOTS), position, following)
    else:
        remove_slot(word(view, JOIN_SLOTS), word(view, JOIN_BITS), position)
        _add(word(view, HEADER), H_JOIN_COUNT, -1)


@kernel
def _leave_alone(view: int, number: int, code: int) -> None:
    """Make a stored row live without a chain: its key can never match."""
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE)


@kernel
def _arrange(view: int, delta: int, number: int, index: int, source: int) -> None:
    """Make a stored row live, in the chain of its join key; it is row `index` of the delta, whose record is `source`."""
    code = word(word(delta, D_JOIN_CODES), index)
    if load_u8(word(delta, D_UNMATCHABLE) + index) != 0:
        _leave_alone(view, number, code)
    else:
        _link(view, word(delta, D_JOIN_COLUMNS), number, code, source, 0)


@kernel
def _forget_identity(view: int, code: int, number: int) -> None:
    position = find_row_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), code, number)
    remove_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), position)
    _add(word(view, HEADER), H_IDENTITY_COUNT, -1)


@kernel
def _leave_tombstone_queue(view: int, number: int) -> None:
    header = word(view, HEADER)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    following = load_u32(row + NEXT)
    previous = load_u32(row + PREVIOUS)
    if following != 0:
        store_u32(rows + (following - 1) * stride + PREVIOUS, previous)
    else:
        store_u64(header + H_TOMBSTONE_LAST * 8, previous)
    if previous != 0:
        store_u32(rows + (previous - 1) * stride + NEXT, following)
    else:
        store_u64(header + H_TOMBSTONE_FIRST * 8, following)
    _add(header, H_TOMBSTONES, -1)


@kernel
def _join_tombstone_queue(view: int, number: int, watermark: int) -> None:
    header = word(view, HEADER)
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    last = load_u64(header + H_TOMBSTONE_LAST * 8)
    store_u32(row + NEXT, 0)
    store_u32(row + PREVIOUS, last)
    store_u64(row + WEIGHT, watermark)
    store_u8(row + FLAGS, FLAG_TOMBSTONE)
    if last != 0:
        store_u32(rows + (last - 1) * stride + NEXT, number)
    else:
        store_u64(header + H_TOMBSTONE_FIRST * 8, number)
    store_u64(header + H_TOMBSTONE_LAST * 8, number)
    _add(header, H_TOMBSTONES, 1)


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
        _leave_tombstone_queue(view, number)
        _forget_identity(view, hash_row(row, word(view, HEAP), identity_columns, word(view, HASH_MASK)), number)
        _free_values(view, variables, row)
        _give_row(view, number)
        dropped += 1


@kernel
def _blank(row: int, columns: int) -> None:
    for column in range(column_count(columns)):
        address = row + field(columns, column, NULL_BYTE)
        store_u8(address, load_u8(address) | field(columns, column, NULL_MASK))
        zero_bytes(row + field(columns, column, OFFSET), field(columns, column, WIDTH))


@kernel
def _insert_identity(view: int, number: int, code: int) -> None:
    insert_slot(word(view, IDENTITY_SLOTS), word(view, IDENTITY_BITS), code, number)
    _add(word(view, HEADER), H_IDENTITY_COUNT, 1)


@kernel
def _fetch_chain(view: int, number: int) -> None:
    """Ask for what taking a row out of its chain will touch."""
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
    """Ask for the row that putting a row into the chain of this hash will touch."""
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
        _unlink(view, number)
        _free_values(view, variables, word(view, ROWS) + (number - 1) * word(view, STRIDE))
        if keep_tombstones:
            _leave_tombstone(view, delta, entry, number, watermark)
        else:
            _forget_identity(view, word(codes, word(word(delta, D_FIRST_OF), entry)), number)
            _give_row(view, number)
    _add(word(view, HEADER), H_LIVE_ROWS, -count)


@kernel
def _leave_tombstone(view: int, delta: int, entry: int, number: int, watermark: int) -> None:
    """Make a record, which is in no chain and no queue and owns no blocks, the tombstone of an entry."""
    variables, source = word(delta, D_VARIABLES), word(delta, D_ROWS) + word(word(delta, D_LAST_OF), entry) * word(view, STRIDE)
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    _blank(source, word(delta, D_OTHER_COLUMNS))
    _store_values(view, variables, row, source, 0)
    _join_tombstone_queue(view, number, watermark)


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
        _free_values(view, variables, row)
        _store_values(view, variables, row, rows + index * word(view, STRIDE), 0)
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
        _unlink(view, number)
        _free_values(view, variables, row)
        _store_values(view, variables, row, source, 0)
        _arrange(view, delta, number, index, source)
        put(numbers, index, number)


@kernel
def _absorb_inserted(view: int, delta: int) -> None:
    """Store new rows."""
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
        number = _take_row(view)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        _store_values(view, variables, row, source, 0)
        store_u64(row + WEIGHT, 1)
        insert_slot(identity_slots, identity_bits, word(identity_codes, index), number)
        _arrange(view, delta, number, index, source)
        put(numbers, index, number)
    _add(word(view, HEADER), H_IDENTITY_COUNT, count)
    _add(word(view, HEADER), H_LIVE_ROWS, count)


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
                number = _take_row(view)
                _insert_identity(view, number, word(word(delta, D_IDENTITY_CODES), word(word(delta, D_FIRST_OF), entry)))
            else:
                _leave_tombstone_queue(view, number)
                _free_values(view, variables, row)
            _leave_tombstone(view, delta, entry, number, watermark)
            continue
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        if load_u8(row + FLAGS) & FLAG_LIVE:
            for place in range(word(view, SEQUENCE_WORDS)):
                offset = word(view, SEQUENCE_OFFSET) + place * 8
                store_u64(row + offset, load_u64(source + offset))
        else:
            _leave_tombstone_queue(view, number)
            _free_values(view, variables, row)
            _store_values(view, variables, row, source, 0)
            store_u64(row + WEIGHT, 1)
            _arrange(view, delta, number, index, source)
            _add(word(view, HEADER), H_LIVE_ROWS, 1)
        put(numbers, index, number)


@kernel
def absorb_upserts(view: int, delta: int, keep_tombstones: bool, watermark: int) -> None:
    """Do what `changes_of_upserts` planned; `D_NUMBERS` gets the row number of every delta row that was stored.

    Rows that go are first, so that their records are there for those that come.
    """
    _absorb_deleted(view, delta, keep_tombstones, watermark)
    _absorb_overwritten(view, delta)
    _absorb_moved(view, delta)
    _absorb_inserted(view, delta)
    _absorb_others(view, delta, watermark)


@kernel
def absorb_weights(view: int, delta: int) -> None:
    """Store the outcome of `resolve_weights`; a row whose weight became 0 is gone."""
    header = word(view, HEADER)
    found, first_of = word(delta, D_FOUND), word(delta, D_FIRST_OF)
    before_of, after_of = word(delta, D_BEFORE_OF), word(delta, D_AFTER_OF)
    variables, codes = word(delta, D_VARIABLES), word(delta, D_IDENTITY_CODES)
    for entry in range(word(delta, D_ENTRIES)):
        if word(before_of, entry) == word(after_of, entry):
            continue
        index, number = word(first_of, entry), word(found, entry)
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        if number == 0:
            number = _take_row(view)
            row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
            _store_values(view, variables, row, source, 0)
            _insert_identity(view, number, word(codes, index))
            _arrange(view, delta, number, index, source)
            _add(header, H_LIVE_ROWS, 1)
        elif word(after_of, entry) == 0:
            _unlink(view, number)
            _forget_identity(view, word(codes, index), number)
            _free_values(view, variables, row)
            _give_row(view, number)
            _add(header, H_LIVE_ROWS, -1)
            continue
        store_u64(row + WEIGHT, word(after_of, entry))
        put(word(delta, D_NUMBERS), index, number)


@kernel
def absorb_appends(view: int, delta: int) -> None:
    """Store every accepted row."""
    header, variables = word(view, HEADER), word(delta, D_VARIABLES)
    for index in range(word(delta, D_COUNT)):
        if load_u8(word(delta, D_STATUS) + index) != 0:
            continue
        number = _take_row(view)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        source = word(delta, D_ROWS) + index * word(view, STRIDE)
        _store_values(view, variables, row, source, 0)
        _arrange(view, delta, number, index, source)
        store_u64(row + WEIGHT, word(word(delta, D_WEIGHTS), index))
        _add(header, H_LIVE_ROWS, 1)
        put(word(delta, D_NUMBERS), index, number)


@kernel
def copy_live_rows(old: int, new: int, variables: int, join_columns: int, identity_columns: int, has_identity: bool) -> None:
    """Copy what is alive (and the tombstones, in their order) into an empty state with room for it."""
    header = word(new, HEADER)
    end = load_u64(word(old, HEADER) + H_ROWS_END * 8)
    for position in range(end):
        source = word(old, ROWS) + position * word(old, STRIDE)
        flags = load_u8(source + FLAGS)
        if flags & FLAG_LIVE == 0:
            continue
        number = _take_row(new)
        row = word(new, ROWS) + (number - 1) * word(new, STRIDE)
        _store_values(new, variables, row, source, word(old, HEAP))
        if has_identity:
            _insert_identity(new, number, hash_row(row, word(new, HEAP), identity_columns, word(new, HASH_MASK)))
        if flags & FLAG_ARRANGED:
            _link(new, join_columns, number, load_u32(source + HASH), source, word(old, HEAP))
        else:
            _leave_alone(new, number, load_u32(source + HASH))
        store_u64(row + WEIGHT, load_u64(source + WEIGHT))
        _add(header, H_LIVE_ROWS, 1)
    tombstone = load_u64(word(old, HEADER) + H_TOMBSTONE_FIRST * 8)
    while tombstone != 0:
        source = word(old, ROWS) + (tombstone - 1) * word(old, STRIDE)
        number = _take_row(new)
        row = word(new, ROWS) + (number - 1) * word(new, STRIDE)
        _store_values(new, variables, row, source, word(old, HEAP))
        _insert_identity(new, number, hash_row(row, word(new, HEAP), identity_columns, word(new, HASH_MASK)))
        _join_tombstone_queue(new, number, load_u64(source + WEIGHT))
        tombstone = load_u32(source + NEXT)
