"""The values of an ordered multiset: what they look like as words, and which comes first.

A value is a run of int64 *key words*, compared in order. Numbers, dates and the like take one word, wide decimals two (see
`zset_join.state.rows.sequence`). A string or binary takes three: its first 8 bytes as a big-endian number with the sign bit
turned over, its length, and the address of its bytes: nothing up to 8 bytes, else a plain address (records of a delta) or an
offset into the arena's heap with the top bit set (records of the state). Strings compare as unsigned bytes, as Spark's do.

`texts` has a bit for each word that begins a string.
"""

from __future__ import annotations

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
    shift_right,
    store_u8,
    store_u32,
    store_u64,
)
from zset_join.kernels.rows.heap import allocate_block, block_bytes, free_block
from zset_join.kernels.values.columns import HEAP_BIT

__all__ = [
    "PREFIX_BYTES",
    "TEXT_WORDS",
    "compare_keys",
    "copy_key",
    "fill_text_keys",
    "first_not_below",
    "free_key",
    "gather_texts",
    "own_key",
    "text_bytes_needed",
]

PREFIX_BYTES, TEXT_WORDS = 8, 3

_SIGN = -(1 << 63)


@kernel
def _text_address(text: int, heap: int) -> int:
    """Return the address of a string of more than 8 bytes."""
    location = load_u64(text + 16)
    return heap + (location ^ HEAP_BIT) if location < 0 else location


@kernel
def _compare_texts(left: int, left_heap: int, right: int, right_heap: int) -> int:
    """Compare two strings whose first 8 bytes are the same."""
    left_length, right_length = load_u64(left + 8), load_u64(right + 8)
    if left_length > PREFIX_BYTES and right_length > PREFIX_BYTES:
        left_bytes, right_bytes = _text_address(left, left_heap), _text_address(right, right_heap)
        shorter = min(left_length, right_length)
        position = PREFIX_BYTES
        while position + 8 <= shorter and load_u64(left_bytes + position) == load_u64(right_bytes + position):
            position += 8
        while position < shorter:
            first, second = load_u8(left_bytes + position), load_u8(right_bytes + position)
            if first != second:
                return -1 if first < second else 1
            position += 1
    if left_length == right_length:
        return 0
    return -1 if left_length < right_length else 1


@kernel
def compare_keys(left: int, left_heap: int, right: int, right_heap: int, words: int, texts: int) -> int:
    """Return -1, 0 or 1, as the key at `left` comes before, with or after the one at `right`."""
    if words == 1:
        first, second = load_u64(left), load_u64(right)
        return (1 if first > second else 0) - (1 if first < second else 0)
    return _compare_long_keys(left, left_heap, right, right_heap, words, texts)


@kernel
def _compare_long_keys(left: int, left_heap: int, right: int, right_heap: int, words: int, texts: int) -> int:
    word = 0
    while word < words:
        first, second = load_u64(left + word * 8), load_u64(right + word * 8)
        if first != second:
            return -1 if first < second else 1
        if (texts >> word) & 1:
            order = _compare_texts(left + word * 8, left_heap, right + word * 8, right_heap)
            if order != 0:
                return order
            word += TEXT_WORDS
        else:
            word += 1
    return 0


@kernel
def first_not_below(run: int, count: int, step: int, heap: int, key: int, key_heap: int, words: int, texts: int) -> int:
    """Return the position of the first of `count` sorted keys, `step` bytes apart, that is not below `key`."""
    low, high = 0, count
    if words == 1:
        wanted = load_u64(key)
        while low < high:
            middle = (low + high) >> 1
            if load_u64(run + middle * step) < wanted:
                low = middle + 1
            else:
                high = middle
        return low
    while low < high:
        middle = (low + high) >> 1
        if compare_keys(run + middle * step, heap, key, key_heap, words, texts) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def copy_key(target: int, source: int, words: int) -> None:
    for word in range(words):
        store_u64(target + word * 8, load_u64(source + word * 8))


@kernel
def text_bytes_needed(key: int, words: int, texts: int) -> int:
    """Return the heap bytes that `own_key` takes."""
    needed = 0
    for word in range(words):
        if (texts >> word) & 1 and load_u64(key + word * 8 + 8) > PREFIX_BYTES:
            needed += block_bytes(load_u64(key + word * 8 + 8))
    return needed


@kernel
def own_key(target: int, source: int, source_heap: int, words: int, texts: int, heap: int, header: int) -> None:
    """Copy a key into the state, its long strings into the heap."""
    copy_key(target, source, words)
    if texts == 0:
        return
    for word in range(words):
        if (texts >> word) & 1:
            length = load_u64(source + word * 8 + 8)
            if length > PREFIX_BYTES:
                offset = allocate_block(heap, header, length)
                copy_bytes(heap + offset, _text_address(source + word * 8, source_heap), length)
                store_u64(target + word * 8 + 16, offset | HEAP_BIT)


@kernel
def free_key(key: int, words: int, texts: int, heap: int, header: int) -> None:
    """Give the heap blocks of a key of the state back."""
    if texts == 0:
        return
    for word in range(words):
        if (texts >> word) & 1:
            length = load_u64(key + word * 8 + 8)
            if length > PREFIX_BYTES:
                free_block(heap, header, load_u64(key + word * 8 + 16) ^ HEAP_BIT, length)


@kernel
def fill_text_keys(
    offsets: int, offset_width: int, values: int, validity: int, start: int, count: int, keys: int, words: int
) -> None:
    """Write the three words of `count` strings of an Arrow array; `keys` is the first, lines have `words` words."""
    # The words of a NULL are 0.
    for index in range(count):
        place = keys + index * words * 8
        position = start + index
        if validity != 0 and (load_u8(validity + shift_right(position, 3)) >> (position & 7)) & 1 == 0:
            begin = 0
            length = 0
        elif offset_width == 4:
            begin = load_u32(offsets + position * 4)
            length = load_u32(offsets + position * 4 + 4) - begin
        else:
            begin = load_u64(offsets + position * 8)
            length = load_u64(offsets + position * 8 + 8) - begin
        prefix = 0
        for at in range(min(length, PREFIX_BYTES)):
            prefix |= load_u8(values + begin + at) << (56 - 8 * at)
        store_u64(place, prefix ^ _SIGN)
        store_u64(place + 8, length)
        store_u64(place + 16, values + begin if length > PREFIX_BYTES else 0)


@kernel
def gather_texts(keys: int, words: int, count: int, valid: int, heap: int, offsets: int, values: int) -> int:
    """Write `count` strings behind each other and return how many bytes they take; with `values` 0 write offsets only."""
    # `keys` is the place of the first string's words, lines have `words` words; `valid` has a byte per string. Offsets are
    # int32, and wrong when the total exceeds 2^31 - 1.
    total = 0
    store_u32(offsets, 0)
    for index in range(count):
        if load_u8(valid + index) != 0:
            text = keys + index * words * 8
            length = load_u64(text + 8)
            if values != 0:
                if length > PREFIX_BYTES:
                    copy_bytes(values + total, _text_address(text, heap), length)
                else:
                    prefix = load_u64(text) ^ _SIGN
                    for at in range(length):
                        store_u8(values + total + at, shift_right(prefix, 56 - 8 * at) & 255)
            total += length
        store_u32(offsets + index * 4 + 4, total)
    return total
