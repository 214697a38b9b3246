"""Folding an epoch into the state of one side: the only kernels that write to it.

An update of a live row keeps its row number and its slot of the identity table; only when the join key moved is the row
taken out of one chain and put into another. Freed rows and heap blocks are the first to be used again, so a table that is
updated for ever does not grow.

The caller makes room first (rows, heap, slots); nothing here allocates.
"""

from __future__ import annotations

from numba import njit

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
)
from zset_join.kernels.heap import allocate_block, block_bytes, free_block
from zset_join.kernels.keys import equal_columns, hash_row, variable_bytes
from zset_join.kernels.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
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
)
from zset_join.kernels.slots import find_key, find_row_slot, insert_slot, remove_slot, replace_slot

__all__ = [
    "absorb_appends",
    "absorb_upserts",
    "absorb_weights",
    "copy_live_rows",
    "expire_tombstones",
    "heap_bytes_needed",
]


@njit(cache=True, nogil=True)
def heap_bytes_needed(rows, stride, count, variables) -> int:
    """Return the heap bytes that storing `count` records can take at most."""
    total = 0
    for column in range(variables.shape[0]):
        offset = variables[column, OFFSET]
        for index in range(count):
            length = load_u32(rows + index * stride + offset)
            if length > INLINE_BYTES:
                total += block_bytes(length)
    return total


@njit(cache=True, nogil=True)
def _add(header, word, amount) -> None:
    store_u64(header + word * 8, load_u64(header + word * 8) + amount)


@njit(cache=True, nogil=True)
def _take_row(view) -> int:
    header = view[HEADER]
    number = load_u64(header + H_FREE_ROW * 8)
    if number != 0:
        store_u64(header + H_FREE_ROW * 8, load_u32(view[ROWS] + (number - 1) * view[STRIDE] + NEXT))
        return number
    end = load_u64(header + H_ROWS_END * 8)
    store_u64(header + H_ROWS_END * 8, end + 1)
    return end + 1


@njit(cache=True, nogil=True)
def _give_row(view, number) -> None:
    header = view[HEADER]
    row = view[ROWS] + (number - 1) * view[STRIDE]
    store_u8(row + FLAGS, 0)
    store_u32(row + NEXT, load_u64(header + H_FREE_ROW * 8))
    store_u64(header + H_FREE_ROW * 8, number)


@njit(cache=True, nogil=True)
def _free_values(view, variables, row) -> None:
    for column in range(variables.shape[0]):
        slot = row + variables[column, OFFSET]
        length = load_u32(slot)
        if length > INLINE_BYTES:
            free_block(view[HEAP], view[HEADER], load_u64(slot + 8) ^ HEAP_BIT, length)


@njit(cache=True, nogil=True)
def _store_values(view, variables, row, source, source_heap) -> None:
    """Copy NULL bits and values of a record; long strings go to the heap."""
    copy_bytes(row + NULLS, source + NULLS, view[STRIDE] - NULLS)
    for column in range(variables.shape[0]):
        slot = row + variables[column, OFFSET]
        length = load_u32(slot)
        if length > INLINE_BYTES:
            offset = allocate_block(view[HEAP], view[HEADER], length)
            copy_bytes(view[HEAP] + offset, variable_bytes(source + variables[column, OFFSET], source_heap), length)
            store_u64(slot + 8, offset | HEAP_BIT)


@njit(cache=True, nogil=True)
def _link(view, join_columns, number, code) -> None:
    """Put a stored row into the chain of its join key, as the second one, so that the slot stays as it is."""
    rows, stride = view[ROWS], view[STRIDE]
    row = rows + (number - 1) * stride
    store_u32(row + HASH, code)
    store_u8(row + FLAGS, FLAG_LIVE | FLAG_ARRANGED)
    head = find_key(
        view[JOIN_SLOTS], view[JOIN_BITS], code, row, view[HEAP], join_columns, rows, stride, view[HEAP], join_columns
    )
    if head == 0:
        insert_slot(view[JOIN_SLOTS], view[JOIN_BITS], code, number)
        _add(view[HEADER], H_JOIN_COUNT, 1)
        store_u32(row + NEXT, 0)
        store_u32(row + PREVIOUS, 0)
        return
    first = rows + (head - 1) * stride
    second = load_u32(first + NEXT)
    store_u32(row + NEXT, second)
    store_u32(row + PREVIOUS, head)
    store_u32(first + NEXT, number)
    if second != 0:
        store_u32(rows + (second - 1) * stride + PREVIOUS, number)


@njit(cache=True, nogil=True)
def _unlink(view, number) -> None:
    """Take a row out of its chain; the last one takes the key out of the table."""
    rows, stride = view[ROWS], view[STRIDE]
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
    position = find_row_slot(view[JOIN_SLOTS], view[JOIN_BITS], load_u32(row + HASH), number)
    if following != 0:
        replace_slot(view[JOIN_SLOTS], position, following)
    else:
        remove_slot(view[JOIN_SLOTS], view[JOIN_BITS], position)
        _add(view[HEADER], H_JOIN_COUNT, -1)


@njit(cache=True, nogil=True)
def _arrange(view, join_columns, number, code, unmatchable) -> None:
    row = view[ROWS] + (number - 1) * view[STRIDE]
    if unmatchable:
        store_u32(row + HASH, code)
        store_u8(row + FLAGS, FLAG_LIVE)
    else:
        _link(view, join_columns, number, code)


@njit(cache=True, nogil=True)
def _forget_identity(view, identity_columns, number) -> None:
    row = view[ROWS] + (number - 1) * view[STRIDE]
    code = hash_row(row, view[HEAP], identity_columns, view[HASH_MASK])
    position = find_row_slot(view[IDENTITY_SLOTS], view[IDENTITY_BITS], code, number)
    remove_slot(view[IDENTITY_SLOTS], view[IDENTITY_BITS], position)
    _add(view[HEADER], H_IDENTITY_COUNT, -1)


@njit(cache=True, nogil=True)
def _leave_tombstone_queue(view, number) -> None:
    header = view[HEADER]
    rows, stride = view[ROWS], view[STRIDE]
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


@njit(cache=True, nogil=True)
def _join_tombstone_queue(view, number, watermark) -> None:
    header = view[HEADER]
    rows, stride = view[ROWS], view[STRIDE]
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


@njit(cache=True, nogil=True)
def expire_tombstones(view, identity_columns, variables, horizon) -> int:
    """Drop the tombstones left at or before `horizon`; return how many. Cost: what is dropped."""
    header = view[HEADER]
    dropped = 0
    while True:
        number = load_u64(header + H_TOMBSTONE_FIRST * 8)
        if number == 0:
            return dropped
        row = view[ROWS] + (number - 1) * view[STRIDE]
        if load_u64(row + WEIGHT) > horizon:
            return dropped
        _leave_tombstone_queue(view, number)
        _forget_identity(view, identity_columns, number)
        _free_values(view, variables, row)
        _give_row(view, number)
        dropped += 1


@njit(cache=True, nogil=True)
def _blank(row, columns) -> None:
    for column in range(columns.shape[0]):
        address = row + columns[column, NULL_BYTE]
        store_u8(address, load_u8(address) | columns[column, NULL_MASK])
        zero_bytes(row + columns[column, OFFSET], columns[column, WIDTH])


@njit(cache=True, nogil=True)
def _insert_identity(view, number, code) -> None:
    insert_slot(view[IDENTITY_SLOTS], view[IDENTITY_BITS], code, number)
    _add(view[HEADER], H_IDENTITY_COUNT, 1)


@njit(cache=True, nogil=True)
def absorb_upserts(
    view, rows, stride, variables, join_columns, identity_columns, other_columns, join_codes, unmatchable, identity_codes,
    weights, found, last_of, after_of, same_of, entries, keep_tombstones, watermark, numbers,
) -> None:
    """Store the outcome of `resolve_upserts`; `numbers` gets the row number of every delta row that is now live."""
    header = view[HEADER]
    for entry in range(entries):
        last = last_of[entry]
        if last < 0:
            continue
        number = found[entry]
        row = view[ROWS] + (number - 1) * view[STRIDE]
        live = number != 0 and load_u8(row + FLAGS) & FLAG_LIVE != 0
        if same_of[entry] != 0:
            source = rows + last * stride
            for word in range(view[SEQUENCE_WORDS]):
                offset = view[SEQUENCE_OFFSET] + word * 8
                store_u64(row + offset, load_u64(source + offset))
            numbers[last] = number
            continue
        index = after_of[entry]
        if index >= 0:
            source = rows + index * stride
            if number == 0:
                number = _take_row(view)
                row = view[ROWS] + (number - 1) * view[STRIDE]
                _store_values(view, variables, row, source, 0)
                _insert_identity(view, number, identity_codes[index])
                _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
                _add(header, H_LIVE_ROWS, 1)
            elif live:
                stays = (
                    unmatchable[index] == 0
                    and load_u8(row + FLAGS) & FLAG_ARRANGED != 0
                    and load_u32(row + HASH) == join_codes[index]
                    and equal_columns(source, 0, join_columns, row, view[HEAP], join_columns)
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
            row = view[ROWS] + (number - 1) * view[STRIDE]
            _insert_identity(view, number, identity_codes[last])
        else:
            if not live:
                _leave_tombstone_queue(view, number)
            _free_values(view, variables, row)
        _store_values(view, variables, row, source, 0)
        _join_tombstone_queue(view, number, watermark)


@njit(cache=True, nogil=True)
def absorb_weights(
    view, rows, stride, variables, join_columns, identity_columns, join_codes, unmatchable, identity_codes,
    keys, first_of, found, before_of, after_of, entries, numbers,
) -> None:
    """Store the outcome of `resolve_weights`; a row whose weight became 0 is gone."""
    header = view[HEADER]
    for entry in range(entries):
        if before_of[entry] == after_of[entry]:
            continue
        number = found[entry]
        row = view[ROWS] + (number - 1) * view[STRIDE]
        index = first_of[entry]
        if number == 0:
            number = _take_row(view)
            row = view[ROWS] + (number - 1) * view[STRIDE]
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


@njit(cache=True, nogil=True)
def absorb_appends(
    view, rows, stride, count, variables, join_columns, join_codes, unmatchable, weights, status, numbers
) -> None:
    """Store every accepted row."""
    header = view[HEADER]
    for index in range(count):
        if status[index] != 0:
            continue
        number = _take_row(view)
        row = view[ROWS] + (number - 1) * view[STRIDE]
        _store_values(view, variables, row, rows + index * stride, 0)
        _arrange(view, join_columns, number, join_codes[index], unmatchable[index])
        store_u64(row + WEIGHT, weights[index])
        _add(header, H_LIVE_ROWS, 1)
        numbers[index] = number


@njit(cache=True, nogil=True)
def copy_live_rows(old, new, variables, join_columns, identity_columns, has_identity) -> None:
    """Copy what is alive (and the tombstones, in their order) into an empty state with room for it."""
    header = new[HEADER]
    end = load_u64(old[HEADER] + H_ROWS_END * 8)
    for position in range(end):
        source = old[ROWS] + position * old[STRIDE]
        flags = load_u8(source + FLAGS)
        if flags & FLAG_LIVE == 0:
            continue
        number = _take_row(new)
        row = new[ROWS] + (number - 1) * new[STRIDE]
        _store_values(new, variables, row, source, old[HEAP])
        if has_identity:
            _insert_identity(new, number, hash_row(row, new[HEAP], identity_columns, new[HASH_MASK]))
        _arrange(new, join_columns, number, load_u32(source + HASH), flags & FLAG_ARRANGED == 0)
        store_u64(row + WEIGHT, load_u64(source + WEIGHT))
        _add(header, H_LIVE_ROWS, 1)
    tombstone = load_u64(old[HEADER] + H_TOMBSTONE_FIRST * 8)
    while tombstone != 0:
        source = old[ROWS] + (tombstone - 1) * old[STRIDE]
        number = _take_row(new)
        row = new[ROWS] + (number - 1) * new[STRIDE]
        _store_values(new, variables, row, source, old[HEAP])
        _insert_identity(new, number, hash_row(row, new[HEAP], identity_columns, new[HASH_MASK]))
        _join_tombstone_queue(new, number, load_u64(source + WEIGHT))
        tombstone = load_u32(source + NEXT)
