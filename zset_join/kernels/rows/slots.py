"""Open-addressing hash tables of row numbers.

A slot is 8 bytes: the 32-bit hash above, the row number (row id + 1) below; 0 is an empty slot. The home of a hash is the top
`bits` bits of its product with a constant, so a table of twice the size keeps the order and is filled in one forward pass.
Without the product, rows that arrive in the order of their hashes, as they are on disk, would all have their homes in one part
of the table. Probing is linear; removing shifts the followers back, so deleted keys leave no trace. Candidates are verified by
value.

Cost: a probe is one cache miss for the slot and one for the row. Bytes: 8 per slot, 12.8 to 25.6 per key (the load is
0.3125 to 0.625).

`count_matches`, `list_matches`: the rows of a side that have the key of a record, listed for many records at once.

The law: a key's rows are listed from the one linked first to the one linked last, and the records in their order.

Two passes: the first finds the head of each chain and counts, the second writes, from the end of each key's place to its start,
because a chain begins with the row linked last. Cost: one probe per record, two reads per match.

`sum_weights`: summing the weights of equal rows.
"""

from __future__ import annotations

from typing import Any

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u32, load_u64, prefetch, shift_right, store_u64
from zset_join.kernels.rows.side import HASH_KEY, HEAP, JOIN_BITS, JOIN_SLOTS, ROWS, STRIDE, word
from zset_join.kernels.values.keys import NEXT, equal_columns, hash_row, hash_rows

__all__ = [
    "count_matches",
    "find_key",
    "find_key_slot",
    "find_row_slot",
    "home_in_part",
    "home_of",
    "insert_slot",
    "likely_row",
    "list_matches",
    "prefetch_slot",
    "rehash",
    "remove_slot",
    "replace_slot",
    "slot_number",
    "sum_weights",
]

_LOW = 0xFFFFFFFF
_ODD = 0x9E3779B1  # 2**32 divided by the golden ratio: neighbours come far apart (Knuth, TAOCP 3, 6.4)


@kernel
def home_of(code: int, bits: int) -> int:
    """Return where a hash begins to be looked for in a table of 2**bits slots."""
    return shift_right((code * _ODD) & _LOW, 32 - bits)


@kernel
def home_in_part(code: int, part_bits: int, bits: int) -> int:
    """Return the same for hashes of which `home_of` with `part_bits` is one number."""
    low = (1 << (32 - part_bits)) - 1
    return shift_right((code * _ODD) & low, max(0, 32 - part_bits - bits))


@kernel
def find_key_slot(
    slots: int,
    bits: int,
    code: int,
    key: int,
    key_heap: int,
    key_columns: int,
    rows: int,
    stride: int,
    heap: int,
    columns: int,
) -> int:
    """Return the position of the slot whose row (in `rows`) equals record `key` in these columns; -1 if there is none."""
    # The table always has an empty slot, so the search ends.
    mask = (1 << bits) - 1
    position = home_of(code, bits)
    while True:
        slot = load_u64(slots + position * 8)
        if slot == 0:
            return -1
        if shift_right(slot, 32) == code:
            row = rows + ((slot & _LOW) - 1) * stride
            if equal_columns(key, key_heap, key_columns, row, heap, columns):
                return position
        position = (position + 1) & mask


@kernel
def slot_number(slots: int, position: int) -> int:
    return load_u64(slots + position * 8) & _LOW


@kernel
def find_key(
    slots: int,
    bits: int,
    code: int,
    key: int,
    key_heap: int,
    key_columns: int,
    rows: int,
    stride: int,
    heap: int,
    columns: int,
) -> int:
    """Return the number of the row (in `rows`) that equals record `key` in these columns; 0 if there is none."""
    position = find_key_slot(slots, bits, code, key, key_heap, key_columns, rows, stride, heap, columns)
    return 0 if position < 0 else slot_number(slots, position)


@kernel
def prefetch_slot(slots: int, bits: int, code: int) -> None:
    prefetch(slots + home_of(code, bits) * 8)


@kernel
def likely_row(slots: int, bits: int, code: int) -> int:
    """Return the number of the first row with this hash near its home, unverified; 0 if none. Used to fetch rows ahead."""
    mask = (1 << bits) - 1
    position = home_of(code, bits)
    for _ in range(4):
        slot = load_u64(slots + position * 8)
        if slot == 0:
            return 0
        if shift_right(slot, 32) == code:
            return slot & _LOW
        position = (position + 1) & mask
    return 0


@kernel
def find_row_slot(slots: int, bits: int, code: int, number: int) -> int:
    """Return the position of the slot that holds row `number`, or -1."""
    mask = (1 << bits) - 1
    position = home_of(code, bits)
    while True:
        slot = load_u64(slots + position * 8)
        if slot == 0:
            return -1
        if (slot & _LOW) == number:
            return position
        position = (position + 1) & mask


@kernel
def insert_slot(slots: int, bits: int, code: int, number: int) -> None:
    mask = (1 << bits) - 1
    position = home_of(code, bits)
    while load_u64(slots + position * 8) != 0:
        position = (position + 1) & mask
    store_u64(slots + position * 8, (code << 32) | number)


@kernel
def replace_slot(slots: int, position: int, number: int) -> None:
    """Let a slot point to another row of the same key."""
    slot = load_u64(slots + position * 8)
    store_u64(slots + position * 8, (slot ^ (slot & _LOW)) | number)


@kernel
def remove_slot(slots: int, bits: int, position: int) -> None:
    """Empty a slot and shift its followers back."""
    mask = (1 << bits) - 1
    hole = position
    follower = position
    while True:
        follower = (follower + 1) & mask
        slot = load_u64(slots + follower * 8)
        if slot == 0:
            break
        home = home_of(shift_right(slot, 32), bits)
        if ((follower - home) & mask) >= ((follower - hole) & mask):
            store_u64(slots + hole * 8, slot)
            hole = follower
    store_u64(slots + hole * 8, 0)


@kernel
def rehash(old_slots: int, old_bits: int, new_slots: int, new_bits: int, begin: int, end: int) -> None:
    """Copy the entries between two slots of a table into another one; done from the first to the last, the order stays."""
    for position in range(begin, min(end, 1 << old_bits)):
        slot = load_u64(old_slots + position * 8)
        if slot != 0:
            insert_slot(new_slots, new_bits, shift_right(slot, 32), slot & _LOW)


_AHEAD = 8


@kernel
def count_matches(
    view: int,
    own_columns: int,
    keys: int,
    key_stride: int,
    count: int,
    key_columns: int,
    codes: int,
    unmatchable: int,
    heads: Any,
    ends: Any,
) -> int:
    """Find the first row of each record's chain, and where the matches of each record end; return how many there are."""
    # The records that name a key lie from address `keys` on. `codes` (words) and `unmatchable` (bytes) are addresses of
    # scratch, one per record. `heads` gets row numbers (0: none), `ends` the number of matches of this and all former records.
    hash_rows(keys, key_stride, count, key_columns, word(view, HASH_KEY), codes, unmatchable)
    slots, bits = word(view, JOIN_SLOTS), word(view, JOIN_BITS)
    rows, stride, heap = word(view, ROWS), word(view, STRIDE), word(view, HEAP)
    total = 0
    for index in range(count):
        if index + _AHEAD < count:
            prefetch_slot(slots, bits, load_u64(codes + (index + _AHEAD) * 8))
        number = 0
        if load_u8(unmatchable + index) == 0:
            code = load_u64(codes + index * 8)
            number = find_key(slots, bits, code, keys + index * key_stride, 0, key_columns, rows, stride, heap, own_columns)
        heads[index] = number
        while number != 0:
            total += 1
            number = load_u32(rows + (number - 1) * stride + NEXT)
        ends[index] = total
    return total


@kernel
def list_matches(view: int, heads: Any, ends: Any, positions: Any, numbers: Any) -> None:
    """Write every match as the position of its record and the number of its row."""
    rows, stride = word(view, ROWS), word(view, STRIDE)
    for index in range(len(heads)):
        number = heads[index]
        at = ends[index]
        while number != 0:
            at -= 1
            positions[at] = index
            numbers[at] = number
            row = rows + (number - 1) * stride
            prefetch(row)
            number = load_u32(row + NEXT)


_ALL_BITS = 0xFFFFFFFF
_HALF = 1 << 31
_ROWS_AHEAD = 24


@kernel
def sum_weights(
    rows: int,
    stride: int,
    count: int,
    columns: int,
    hash_key: int,
    weights: Any,
    table: Any,
    bits: int,
    first: Any,
    sums: Any,
    lows: Any,
) -> tuple[int, bool]:
    """Write the first position and the weight of every distinct row; return how many, and whether a sum left int64."""
    # `table` is 2**bits zeroed words, with room for `count` entries. Sums are kept in two words (`lows` holds the low 32 bits
    # of each weight), so that only the final sum must fit.
    mask = (1 << bits) - 1
    entries, slots = 0, table.ctypes.data
    for ahead in range(count + _ROWS_AHEAD):
        if ahead < count:
            lows[ahead] = hash_row(rows + ahead * stride, 0, columns, hash_key)  # there are never more entries than rows behind
            prefetch(slots + home_of(lows[ahead], bits) * 8)
        middle = ahead - _ROWS_AHEAD // 2
        if 0 <= middle < count:
            slot = table[home_of(lows[middle], bits)]
            if slot != 0 and shift_right(slot, 32) == lows[middle]:
                prefetch(rows + first[(slot & _ALL_BITS) - 1] * stride)
        index = ahead - _ROWS_AHEAD
        if index < 0:
            continue
        row = rows + index * stride
        code = lows[index]
        position = home_of(code, bits)
        entry = -1
        while entry < 0:
            slot = table[position]
            if slot == 0:
                table[position] = (code << 32) | (entries + 1)
                entry = entries
                first[entry] = index
                sums[entry] = 0
                lows[entry] = 0
                entries += 1
            elif shift_right(slot, 32) == code:
                candidate = (slot & _ALL_BITS) - 1
                if equal_columns(row, 0, columns, rows + first[candidate] * stride, 0, columns):
                    entry = candidate
            position = (position + 1) & mask
        sums[entry] += weights[index] >> 32
        lows[entry] += weights[index] & _ALL_BITS
    overflow = False
    for entry in range(entries):
        high = sums[entry] + (lows[entry] >> 32)
        overflow |= high >= _HALF or high < -_HALF
        sums[entry] = (high << 32) | (lows[entry] & _ALL_BITS)
    return entries, overflow
