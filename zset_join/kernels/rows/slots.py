"""Open-addressing hash tables of row numbers.

A slot is 8 bytes: the 32-bit hash above, the row number (row id + 1) below; 0 is an empty slot. The home of a hash is the top
`bits` bits of its product with a constant, so a table of twice the size keeps the order and is filled in one forward pass.
Without the product, rows that arrive in the order of their hashes, as they are on disk, would all have their homes in one part
of the table. Probing is linear; removing shifts the followers back, so deleted keys leave no trace. Candidates are verified by
value.

Cost: a probe is one cache miss for the slot and one for the row. Bytes: 8 per slot, 12.8 to 25.6 per key (the load is
0.3125 to 0.625).
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, prefetch, shift_right, store_u64
from zset_join.kernels.values.keys import equal_columns

__all__ = [
    "find_key",
    "find_key_slot",
    "find_row_slot",
    "home_in_part",
    "home_of",
    "insert_slot",
    "likely_row",
    "prefetch_slot",
    "rehash",
    "remove_slot",
    "replace_slot",
    "slot_number",
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
