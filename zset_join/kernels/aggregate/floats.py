"""Sums of floats that do not depend on the order, nor on what was there in between: exact until the one rounding at the end.

A float is an integer times a power of two, so a sum of floats is an integer too, if it has enough bits. Two accumulators:

- the *window*: 4 words that count units of 2**-120, for values from 2**-68 to 2**72 (3e-21 to 4e21), and 7 words that count
  units of 2**-240 for their squares, where a variance is requested. It is in the group's state words.
- the *block*, in the heap and only where it is needed: how many NaN, +infinity, -infinity and *outliers* (values outside of
  the window) there are; and, while there are outliers, 34 words that count units of 2**-1074, which hold any sum of doubles,
  and 67 words for squares.

Because every addition is exact, retracting a value leaves what would have been without it: no error stays behind, a NaN that
goes is gone, and 1e300 that goes does not take the small values with it.

State words: [number of values, window (4), squares (7, if any), block]. A block word is 0 without a block, else its heap
offset + 1; in the lines of an epoch it may also be a plain address with the top bit set: a copy that the epoch works on.

Cost: a value in the window takes about 5 ns, its square as much again; a block takes 32 bytes, or 304 (840 with squares) with
outliers.
Source: Kulisch, "Computer Arithmetic and Validity" (2008), on exact accumulators.
"""

from __future__ import annotations

import math
from typing import Any

from zset_join.kernels.aggregate.numbers import (
    add_number,
    add_shifted,
    add_words,
    multiply_words,
    negate_words,
    product_words,
    square_words,
    to_float,
    to_scaled,
    unsigned_below,
)
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import (
    copy_bytes,
    load_u8,
    load_u32,
    load_u64,
    shift_right,
    store_u32,
    store_u64,
    zero_bytes,
)
from zset_join.kernels.rows.side import HEADER, HEAP, allocate_block, block_bytes, free_block, word

__all__ = [
    "BLOCK_BYTES",
    "SQUARE_BLOCK_BYTES",
    "SQUARE_WORDS",
    "WINDOW_WORDS",
    "add_floats",
    "average_floats",
    "copy_float_blocks",
    "count_special",
    "find_leftover",
    "merge_blocks",
    "store_float_blocks",
    "sum_floats",
    "variance_floats",
    "write_blocks",
]

WINDOW_WORDS, SQUARE_WORDS = 4, 7
_WINDOW_UNIT, _WINDOW_TOP = 120, 72
_FULL_WORDS, _FULL_SQUARE_WORDS = 34, 67
_FULL_UNIT = 1074
_COUNTS_BYTES = 32
_FULL = _COUNTS_BYTES
_FULL_SQUARES = _FULL + 8 * _FULL_WORDS
BLOCK_BYTES, SQUARE_BLOCK_BYTES = _FULL_SQUARES, _FULL_SQUARES + 8 * _FULL_SQUARE_WORDS
_NANS, _PLUS, _MINUS, _OUTLIERS = 0, 8, 16, 24

_FRACTION = (1 << 52) - 1
_SCRATCH_BIT = -(1 << 63)
# The shift of a value m * 2**(e - 1075) in the window is e - 1075 + 120; both ends leave 53 bits inside.
_SHIFT = _WINDOW_UNIT - 1075
_LEAST_SHIFT, _MOST_SHIFT = 0, _WINDOW_UNIT + _WINDOW_TOP - 53


@kernel
def _is_valid(validity: int, position: int) -> bool:
    return validity == 0 or (load_u8(validity + shift_right(position, 3)) >> (position & 7)) & 1 != 0


@kernel
def _is_special(bits: int) -> bool:
    """Return whether a float is not 0 and does not fit the window."""
    exponent = shift_right(bits, 52) & 0x7FF
    if exponent == 0:
        return bits & _FRACTION != 0
    return not _LEAST_SHIFT <= exponent + _SHIFT <= _MOST_SHIFT


@kernel
def count_special(count: int, validity: int, values: int, start: int) -> int:
    """Return how many values need a block."""
    special_count = 0
    for index in range(count):
        if _is_special(load_u64(values + (start + index) * 8)) and _is_valid(validity, start + index):
            special_count += 1
    return special_count


@kernel
def _block_size(outliers: int, squares: bool) -> int:
    if outliers == 0:
        return _COUNTS_BYTES
    return SQUARE_BLOCK_BYTES if squares else BLOCK_BYTES


@kernel
def _block_address(block: int, heap: int) -> int:
    return block ^ _SCRATCH_BIT if block < 0 else heap + block - 1


@kernel
def _own_block(place: int, heap: int, squares: bool, free: int) -> int:
    """Return the address of the block that the word at `place` points to, as a copy at `free` if it is not one yet."""
    block = load_u64(place)
    if block < 0:
        return block ^ _SCRATCH_BIT
    zero_bytes(free, SQUARE_BLOCK_BYTES if squares else BLOCK_BYTES)
    if block != 0:
        source = heap + block - 1
        copy_bytes(free, source, _block_size(load_u64(source + _OUTLIERS), squares))
    store_u64(place, free | _SCRATCH_BIT)
    return free


@kernel
def _add_to(address: int, amount: int) -> None:
    store_u64(address, load_u64(address) + amount)


@kernel
def _add_special(block: int, bits: int, weight: int, squares: bool) -> None:
    exponent = shift_right(bits, 52) & 0x7FF
    fraction = bits & _FRACTION
    if exponent == 0x7FF:
        if fraction != 0:
            _add_to(block + _NANS, weight)
        else:
            _add_to(block + (_MINUS if bits < 0 else _PLUS), weight)
        return
    _add_to(block + _OUTLIERS, weight)
    value = fraction if exponent == 0 else fraction | (_FRACTION + 1)
    shift = max(exponent, 1) - 1
    add_shifted(block + _FULL, _FULL_WORDS, -value if bits < 0 else value, weight, shift)
    if squares:
        _add_square(block + _FULL_SQUARES, _FULL_SQUARE_WORDS, value, weight, 2 * shift)


@kernel
def _add_square(address: int, words: int, value: int, weight: int, shift: int) -> None:
    first, second, third, fourth = product_words(value, value, weight, shift & 63)
    add_words(address, words, shift >> 6, first, second, third, fourth)


@kernel
def add_floats(
    count: int,
    entry_of: Any,
    weights: Any,
    validity: int,
    values: int,
    start: int,
    line_words: int,
    place: int,
    squares: bool,
    heap: int,
    blocks: int,
) -> bool:
    """Count and add values, and their squares if requested; return whether a count fell below 0 on its way."""
    # `place` is the address of the count in the first line. `blocks` has room for as many blocks as `count_special` returned.
    below = False
    free = blocks
    window = 8
    square = window + 8 * WINDOW_WORDS
    block_word = square + 8 * SQUARE_WORDS if squares else square
    for index in range(count):
        weight = weights[index]
        if weight == 0 or not _is_valid(validity, start + index):
            continue
        line = place + entry_of[index] * line_words * 8
        copies = load_u64(line) + weight
        store_u64(line, copies)
        below |= copies < 0
        bits = load_u64(values + (start + index) * 8)
        if (bits << 1) == 0:
            continue
        if _is_special(bits):
            block = _own_block(line + block_word, heap, squares, free)
            if block == free:
                free += SQUARE_BLOCK_BYTES if squares else BLOCK_BYTES
            _add_special(block, bits, weight, squares)
            continue
        shift = (shift_right(bits, 52) & 0x7FF) + _SHIFT
        value = (bits & _FRACTION) | (_FRACTION + 1)
        add_shifted(line + window, WINDOW_WORDS, -value if bits < 0 else value, weight, shift)
        if squares:
            _add_square(line + square, SQUARE_WORDS, value, weight, 2 * shift)
    return below


@kernel
def _widen(target: int, words: int, source: int, source_words: int, shift: int) -> None:
    """Add a number of `source_words` words, times 2**shift, to the one of `words` words at `target`."""
    low = shift & 63
    at = shift >> 6
    for place in range(source_words):
        value = load_u64(source + place * 8)
        last = place == source_words - 1
        first = value << low
        # The words below the top one carry no sign.
        rest = (value >> 1) >> (63 - low) if last else shift_right(shift_right(value, 1), 63 - low)
        sign = value >> 63 if last else 0
        add_words(target, words, at + place, first, rest, sign, sign)


@kernel
def _special_value(block: int) -> float:
    """Return the contribution of NaN and infinities to a sum; 0 if there are none."""
    nans, plus, minus = load_u64(block + _NANS), load_u64(block + _PLUS), load_u64(block + _MINUS)
    if nans != 0 or (plus != 0 and minus != 0):
        return math.nan
    if plus != 0:
        return math.inf
    return -math.inf if minus != 0 else 0.0


@kernel
def _sum_of_line(line: int, squares: bool, heap: int, spare: int) -> float:
    window = line + 8
    block = load_u64(window + 8 * (WINDOW_WORDS + SQUARE_WORDS if squares else WINDOW_WORDS))
    if block == 0:
        return to_float(window, WINDOW_WORDS, -_WINDOW_UNIT)
    address = _block_address(block, heap)
    special = _special_value(address)
    if special != 0.0:
        return special
    if load_u64(address + _OUTLIERS) == 0:
        return to_float(window, WINDOW_WORDS, -_WINDOW_UNIT)
    copy_bytes(spare, address + _FULL, 8 * _FULL_WORDS)
    _widen(spare, _FULL_WORDS, window, WINDOW_WORDS, _FULL_UNIT - _WINDOW_UNIT)
    return to_float(spare, _FULL_WORDS, -_FULL_UNIT)


@kernel
def sum_floats(entries: int, line_words: int, place: int, squares: bool, heap: int, spare: int, sums: Any) -> None:
    """Write the sum per line, rounded once; 0 where there is no value. `spare` has room for a full accumulator."""
    for entry in range(entries):
        sums[entry] = _sum_of_line(place + entry * line_words * 8, squares, heap, spare)


@kernel
def average_floats(entries: int, line_words: int, place: int, squares: bool, heap: int, spare: int, averages: Any) -> None:
    """Write the rounded sum divided by the count per line; 0 where there is no value."""
    for entry in range(entries):
        line = place + entry * line_words * 8
        count = load_u64(line)
        averages[entry] = _sum_of_line(line, squares, heap, spare) / count if count > 0 else 0.0


@kernel
def _variance(
    sums: int, squares: int, sum_words: int, squared_words: int, unit: int, count: int, divisor: float, spare: int
) -> float:
    """Return (count * squares - sums**2) / divisor times 2**-unit, the numerator rounded once."""
    magnitude = spare
    product = magnitude + 8 * sum_words
    square = product + 8 * (squared_words + 1)
    copy_bytes(magnitude, sums, 8 * sum_words)
    if load_u64(magnitude + 8 * (sum_words - 1)) < 0:
        negate_words(magnitude, sum_words)
    multiply_words(product, squares, squared_words, count)
    square_words(square, magnitude, sum_words)
    words = squared_words + 1
    borrow = 0
    for at in range(words):
        left = load_u64(product + at * 8)
        right = load_u64(square + at * 8) if at < 2 * sum_words else 0
        difference = left - right
        under = 1 if unsigned_below(left, right) else 0
        final = difference - borrow
        if borrow != 0 and difference == 0:
            under = 1
        store_u64(product + at * 8, final)
        borrow = under
    mantissa, exponent = to_scaled(product, words)
    return math.ldexp(mantissa / divisor, exponent - unit)


@kernel
def variance_floats(
    entries: int, line_words: int, place: int, sample: bool, root: bool, heap: int, spare: int, variances: Any, valid: Any
) -> None:
    """Write the variance per line (of the population, or of a sample), or its root; mark in `valid` where there is one."""
    # `spare` has room for 4 KiB.
    for entry in range(entries):
        line = place + entry * line_words * 8
        count = load_u64(line)
        valid[entry] = 1 if count > (1 if sample else 0) else 0
        variances[entry] = 0.0
        if valid[entry] == 0:
            continue
        divisor = float(count) * float(count - 1 if sample else count)
        window, squares = line + 8, line + 8 + 8 * WINDOW_WORDS
        block = load_u64(squares + 8 * SQUARE_WORDS)
        address = _block_address(block, heap) if block != 0 else 0
        if block != 0 and _special_value(address) != 0.0:
            variance = math.nan
        elif block != 0 and load_u64(address + _OUTLIERS) != 0:
            full, full_squares = spare, spare + 8 * _FULL_WORDS
            copy_bytes(full, address + _FULL, 8 * (_FULL_WORDS + _FULL_SQUARE_WORDS))
            _widen(full, _FULL_WORDS, window, WINDOW_WORDS, _FULL_UNIT - _WINDOW_UNIT)
            _widen(full_squares, _FULL_SQUARE_WORDS, squares, SQUARE_WORDS, 2 * (_FULL_UNIT - _WINDOW_UNIT))
            rest = spare + 8 * (_FULL_WORDS + _FULL_SQUARE_WORDS)
            variance = _variance(full, full_squares, _FULL_WORDS, _FULL_SQUARE_WORDS, 2 * _FULL_UNIT, count, divisor, rest)
        else:
            variance = _variance(window, squares, WINDOW_WORDS, SQUARE_WORDS, 2 * _WINDOW_UNIT, count, divisor, spare)
        variances[entry] = math.sqrt(variance) if root else variance


@kernel
def _is_spent(block: int) -> bool:
    return (
        load_u64(block + _NANS) == 0
        and load_u64(block + _PLUS) == 0
        and load_u64(block + _MINUS) == 0
        and load_u64(block + _OUTLIERS) == 0
    )


@kernel
def find_leftover(entries: int, line_words: int, after: int, block_at: int, heap: int) -> int:
    """Return the first entry without rows whose block still counts something, or -1."""
    for entry in range(entries):
        line = after + entry * line_words * 8
        block = load_u64(line + block_at * 8)
        if load_u64(line) == 0 and block != 0 and not _is_spent(_block_address(block, heap)):
            return entry
    return -1


@kernel
def store_float_blocks(view: int, entries: int, line_words: int, before: int, after: int, block_at: int, squares: bool) -> None:
    """Move the blocks that an epoch worked on into the heap, and free those that are not needed any more."""
    # `block_at` is the position of the block word in a line. The caller has made room for a full block per worked-on one.
    heap, header = word(view, HEAP), word(view, HEADER)
    for entry in range(entries):
        place = after + (entry * line_words + block_at) * 8
        block = load_u64(place)
        gone = load_u64(after + entry * line_words * 8) == 0
        if block >= 0 and not (gone and block > 0):
            continue
        source = _block_address(block, heap)
        old = load_u64(before + (entry * line_words + block_at) * 8)
        old_size = _block_size(load_u64(heap + old - 1 + _OUTLIERS), squares) if old != 0 else 0
        new_size = 0 if gone or _is_spent(source) else _block_size(load_u64(source + _OUTLIERS), squares)
        offset = old - 1
        if block_bytes(old_size) != block_bytes(new_size):
            if old != 0:
                free_block(heap, header, offset, old_size)
            offset = allocate_block(heap, header, new_size) if new_size > 0 else -1
        if new_size > 0:
            copy_bytes(heap + offset, source, new_size)
        store_u64(place, offset + 1)


@kernel
def copy_float_blocks(old: int, new: int, groups: int, copied: int, place: int, squares: bool) -> None:
    """Copy the blocks of copied groups into the heap of the new state, which has room for them (see `copy_values`)."""
    for group in range(groups):
        block = load_u64(load_u64(copied + group * 16) + place)
        if block == 0:
            continue
        source = word(old, HEAP) + block - 1
        size = _block_size(load_u64(source + _OUTLIERS), squares)
        offset = allocate_block(word(new, HEAP), word(new, HEADER), size)
        copy_bytes(word(new, HEAP) + offset, source, size)
        store_u64(load_u64(copied + group * 16 + 8) + place, offset + 1)


@kernel
def _written_size(block: int, source: int, squares: bool) -> int:
    """Return the length of the decisive part of a block."""
    # A part of a delta may have as many outliers more as less, and yet another sum. Such a block is one that an epoch works
    # on, with room for all words; one in the heap without outliers has none.
    size = _block_size(load_u64(source + _OUTLIERS), squares)
    if block < 0 and size == _COUNTS_BYTES:
        full = SQUARE_BLOCK_BYTES if squares else BLOCK_BYTES
        for place in range(_COUNTS_BYTES, full, 8):
            if load_u64(source + place) != 0:
                return full
    return size


@kernel
def write_blocks(count: int, blocks: Any, heap: int, squares: bool, offsets: int, target: int) -> int:
    """Write blocks behind each other and return how many bytes they take; with `target` 0 only the offsets are written."""
    total = 0
    store_u32(offsets, 0)
    for index in range(count):
        if blocks[index] != 0:
            source = _block_address(blocks[index], heap)
            size = _written_size(blocks[index], source, squares)
            if target != 0:
                copy_bytes(target + total, source, size)
            total += size
        store_u32(offsets + index * 4 + 4, total)
    return total


@kernel
def merge_blocks(
    count: int,
    entry_of: Any,
    validity: int,
    offsets: int,
    content: int,
    start: int,
    line_words: int,
    place: int,
    squares: bool,
    heap: int,
    blocks: int,
) -> None:
    """Add blocks that were written down before; `place` is the address of the block word in the first line."""
    # `blocks` has room for as many blocks as there are.
    free = blocks
    for index in range(count):
        if not _is_valid(validity, start + index):
            continue
        begin, end = load_u32(offsets + (start + index) * 4), load_u32(offsets + (start + index) * 4 + 4)
        source = content + begin
        block = _own_block(place + entry_of[index] * line_words * 8, heap, squares, free)
        if block == free:
            free += SQUARE_BLOCK_BYTES if squares else BLOCK_BYTES
        for counted in range(_NANS, _COUNTS_BYTES, 8):
            _add_to(block + counted, load_u64(source + counted))
        if end - begin > _COUNTS_BYTES:
            add_number(block + _FULL, source + _FULL, _FULL_WORDS)
            if squares:
                add_number(block + _FULL_SQUARES, source + _FULL_SQUARES, _FULL_SQUARE_WORDS)
