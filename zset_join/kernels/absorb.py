"""Folding an epoch into the state of one side: the only kernels that write to it.

An update of a live row keeps its row number and its slot of the identity table; only when the join key moved is the row
taken out of one chain and put into another. Freed rows and heap blocks are the first to be used again, so a table that is
updated for ever does not grow.

The caller makes room first (rows, heap, slots); nothing here allocates.
"""

from __future__ import annotations

from typing import Any

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
from zset_join.kernels.heap import allocate_block, block_bytes, free_block
from zset_join.kernels.keys import equal_columns, hash_row, variable_bytes
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

_BLOCK = 32


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
    """Copy NULL bits and values of a record; long strings go to the heap."""
    copy_bytes(row + NULLS, source + NULLS, word(view, STRIDE) - NULLS)
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
def _link(view: int, join_columns: int, number: int, code: int) -> None:
    """Put a stored row at the head of the chain of its join key."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    row = rows + (number - 1) * stride
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE | FLAG_ARRANGED)
    store_u32(row + PREVIOUS, 0)
    slots, bits, heap = word(view, JOIN_SLOTS), word(view, JOIN_BITS), word(view, HEAP)
    position = find_key_slot(slots, bits, code, row, heap, join_columns, rows, stride, heap, join_columns)
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
def _arrange(view: int, join_columns: int, number: int, code: int, unmatchable: bool) -> None:
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    if unmatchable:
        store_u32(row + HASH, code)
        store_u8(row + FLAGS, FLAG_LIVE)
    else:
        _link(view, join_columns, number, code)


@kernel
def _forget_identity(view: int, identity_columns: int, number: int) -> None:
    row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
    code = hash_row(row, word(view, HEAP), identity_columns, word(view, HASH_MASK))
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
        _forget_identity(view, identity_columns, number)
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
def _fetch_neighbours(view: int, begin: int, end: int, found: Any, after_of: Any, join_codes: Any) -> None:
    """Ask for the memory that storing these entries will touch: slots, chain heads, chain neighbours."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    for entry in range(begin, end):
        number = found[entry]
        if number != 0:
            row = rows + (number - 1) * stride
            prefetch(row)
            prefetch(row + 63)
        if after_of[entry] >= 0:
            prefetch_slot(slots, bits, join_codes[after_of[entry]])
    for entry in range(begin, end):
        number = found[entry]
        if number != 0:
            row = rows + (number - 1) * stride
            following, previous = load_u32(row + NEXT), load_u32(row + PREVIOUS)
            if following != 0:
                prefetch(rows + (following - 1) * stride)
            if previous != 0:
                prefetch(rows + (previous - 1) * stride)
            else:
                prefetch_slot(slots, bits, load_u32(row + HASH))
        if after_of[entry] >= 0:
            likely = likely_row(slots, bits, join_codes[after_of[entry]])
            if likely != 0:
                prefetch(rows + (likely - 1) * stride)
                prefetch(rows + (likely - 1) * stride + 63)


@kernel
def absorb_upserts(
    view: int,
    rows: int,
    stride: int,
    variables: int,
    join_columns: int,
    identity_columns: int,
    other_columns: int,
    join_codes: Any,
    unmatchable: Any,
    identity_codes: Any,
    weights: Any,
    found: Any,
    last_of: Any,
    after_of: Any,
    same_of: Any,
    entries: int,
    keep_tombstones: bool,
    watermark: int,
    numbers: Any,
) -> None:
    """Store the outcome of `resolve_upserts`; `numbers` gets the row number of every delta row that is now live."""
    header = word(view, HEADER)
    for entry in range(entries):
        if entry % _BLOCK == 0:
            _fetch_neighbours(view, entry, min(entry + _BLOCK, entries), found, after_of, join_codes)
        last = last_of[entry]
        if last < 0:
            continue
        number = found[entry]
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        live = number != 0 and load_u8(row + FLAGS) & FLAG_LIVE != 0
        if same_of[entry] != 0:
            source = rows + last * stride
            for place in range(word(view, SEQUENCE_WORDS)):
                offset = word(view, SEQUENCE_OFFSET) + place * 8
                store_u64(row + offset, load_u64(source + offset))
            numbers[last] = number
            continue
        index = after_of[entry]
        if index >= 0:
            source = rows + index * stride
            if number == 0:
                number = _take_row(view)
                row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
                _store_values(view, variables, row, source, 0)
                _insert_identity(view, number, identity_codes[index])
                _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
                _add(header, H_LIVE_ROWS, 1)
            elif live:
                stays = (
                    unmatchable[index] == 0
                    and load_u8(row + FLAGS) & FLAG_ARRANGED != 0
                    and load_u32(row + HASH) == join_codes[index]
                    and equal_columns(source, 0, join_columns, row, word(view, HEAP), join_columns)
                )
                if not stays:
                    _unlink(view, number)
                _free_values(view, variables, row)
                _store_values(view, variables, row, source, 0)
                if not stays:
                    _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
            else:
                _leave_tombstone_queue(view, number)
                _free_values(view, variables, row)
                _store_values(view, variables, row, source, 0)
                _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
                _add(header, H_LIVE_ROWS, 1)
            store_u64(row + WEIGHT, 1)
            numbers[index] = number
            continue
        if live:
            _unlink(view, number)
            _add(header, H_LIVE_ROWS, -1)
        if not keep_tombstones:
            if live:
                _forget_identity(view, identity_columns, number)
                _free_values(view, variables, row)
                _give_row(view, number)
            continue
        source = rows + last * stride
        _blank(source, other_columns)
        if number == 0:
            number = _take_row(view)
            row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
            _insert_identity(view, number, identity_codes[last])
        else:
            if not live:
                _leave_tombstone_queue(view, number)
            _free_values(view, variables, row)
        _store_values(view, variables, row, source, 0)
        _join_tombstone_queue(view, number, watermark)


@kernel
def absorb_weights(
    view: int,
    rows: int,
    stride: int,
    variables: int,
    join_columns: int,
    identity_columns: int,
    join_codes: Any,
    unmatchable: Any,
    identity_codes: Any,
    keys: Any,
    first_of: Any,
    found: Any,
    before_of: Any,
    after_of: Any,
    entries: int,
    numbers: Any,
) -> None:
    """Store the outcome of `resolve_weights`; a row whose weight became 0 is gone."""
    header = word(view, HEADER)
    for entry in range(entries):
        if before_of[entry] == after_of[entry]:
            continue
        number = found[entry]
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        index = first_of[entry]
        if number == 0:
            number = _take_row(view)
            row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
            _store_values(view, variables, row, keys[entry], 0)
            _insert_identity(view, number, identity_codes[index])
            _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
            _add(header, H_LIVE_ROWS, 1)
        elif after_of[entry] == 0:
            _unlink(view, number)
            _forget_identity(view, identity_columns, number)
            _free_values(view, variables, row)
            _give_row(view, number)
            _add(header, H_LIVE_ROWS, -1)
            continue
        store_u64(row + WEIGHT, after_of[entry])
        numbers[index] = number


@kernel
def absorb_appends(
    view: int,
    rows: int,
    stride: int,
    count: int,
    variables: int,
    join_columns: int,
    join_codes: Any,
    unmatchable: Any,
    weights: Any,
    status: Any,
    numbers: Any,
) -> None:
    """Store every accepted row."""
    header = word(view, HEADER)
    for index in range(count):
        if status[index] != 0:
            continue
        number = _take_row(view)
        row = word(view, ROWS) + (number - 1) * word(view, STRIDE)
        _store_values(view, variables, row, rows + index * stride, 0)
        _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
        store_u64(row + WEIGHT, weights[index])
        _add(header, H_LIVE_ROWS, 1)
        numbers[index] = number


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
        _arrange(new, join_columns, number, load_u32(source + HASH), flags & FLAG_ARRANGED == 0)
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
