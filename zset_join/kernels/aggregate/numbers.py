"""Integers of many words at an address: what exact sums are kept in.

A number of n words is n little-endian int64 words in two's complement. Adding is modular, so what a sum passes through on
its way does not matter: if the true sum fits, the words hold it, whatever the order of what was added and taken away.

Rounding to a float happens once, at the end, to the nearest and to even on a tie: `to_float` looks at the top 64 bits and at
whether anything is left below.

Cost: an addition touches 2 words and follows the carry; a float costs one pass over the words.

`add_counts`, `add_integers`: sums, counts and averages of integers and decimals, exact whatever comes and goes.

A line of `after` (see `aggregate_groups`) has a word for the number of values that are not NULL and, behind it, the sum as a
number of 2 words (integers, decimals of up to 18 digits: at most 2**63 copies of 64 bits) or of 4 (wider decimals). Additions
are modular, so only the present content after the epoch must fit, and the final sum always does.

Cost: a row touches one line; 2 to 4 ns when the lines fit the processor's second cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u64, shift_right, store_u64

__all__ = [
    "add_counts",
    "add_integers",
    "add_number",
    "add_partial_words",
    "add_shifted",
    "add_words",
    "average_decimals",
    "average_integers",
    "multiply_words",
    "negate_words",
    "product_words",
    "square_words",
    "sum_decimals",
    "to_float",
    "to_scaled",
    "unsigned_below",
]

_I64 = ir.IntType(64)
_SIGN = -(1 << 63)
_LOW = 0xFFFFFFFF


@intrinsic
def multiply_add(typing_context: Any, address: Any, left: Any, right: Any) -> tuple[Any, Callable[..., Any]]:
    """Add `left * right` to the number of 2 words at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        pointer = builder.inttoptr(args[0], wide.as_pointer())
        product = builder.mul(builder.sext(args[1], wide), builder.sext(args[2], wide))
        builder.store(builder.add(builder.load(pointer, align=8), product), pointer, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def multiply_add_wide(typing_context: Any, address: Any, low: Any, high: Any, factor: Any) -> tuple[Any, Callable[..., Any]]:
    """Add `(high, low) * factor` to the number of 4 words at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(256)
        pointer = builder.inttoptr(args[0], wide.as_pointer())
        value = builder.or_(
            builder.shl(builder.sext(args[2], wide), wide(64)),
            builder.zext(args[1], wide),
        )
        product = builder.mul(value, builder.sext(args[3], wide))
        builder.store(builder.add(builder.load(pointer, align=8), product), pointer, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def product_words(typing_context: Any, left: Any, right: Any, factor: Any, shift: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `(left * right * factor) << shift` as 4 words; left and right have at most 54 bits, shift at most 63."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair, wide = ir.IntType(128), ir.IntType(256)
        square = builder.mul(builder.sext(args[0], pair), builder.sext(args[1], pair))
        product = builder.mul(builder.sext(square, wide), builder.sext(args[2], wide))
        product = builder.shl(product, builder.zext(args[3], wide))
        words = [builder.trunc(builder.lshr(product, wide(64 * at)), _I64) for at in range(4)]
        return context.make_tuple(builder, signature.return_type, words)

    kind = types.UniTuple(types.int64, 4)
    return kind(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _multiply_carry(typing_context: Any, left: Any, right: Any, addend: Any, carry: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `left * right + addend + carry`, all without sign, as low and high word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        left, right, addend, carry = (builder.zext(arg, wide) for arg in args)
        total = builder.add(builder.add(builder.mul(left, right), addend), carry)
        words = [builder.trunc(total, _I64), builder.trunc(builder.lshr(total, wide(64)), _I64)]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _leading_zeros(typing_context: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Return how many of the top bits are 0; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.IntType(1)(0))

    return types.int64(types.int64), generate


@intrinsic
def _unsigned_float(typing_context: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a word without sign as the nearest float."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.uitofp(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@kernel
def unsigned_below(left: int, right: int) -> bool:
    """Compare two words without sign."""
    return (left ^ _SIGN) < (right ^ _SIGN)


@kernel
def _add_at(address: int, word: int, value: int, carry: int) -> int:
    old = load_u64(address + word * 8)
    total = old + value
    over = 1 if unsigned_below(total, old) else 0
    final = total + carry
    if unsigned_below(final, total):
        over = 1
    store_u64(address + word * 8, final)
    return over


@kernel
def add_words(address: int, words: int, word: int, first: int, second: int, third: int, fourth: int) -> None:
    """Add a signed number of 4 words, times 2**(64 * word), to the number of `words` words at `address`."""
    carry = _add_at(address, word, first, 0)
    sign = fourth >> 63
    if word + 1 < words:
        carry = _add_at(address, word + 1, second, carry)
    if word + 2 < words:
        carry = _add_at(address, word + 2, third, carry)
    if word + 3 < words:
        carry = _add_at(address, word + 3, fourth, carry)
    position = word + 4
    while position < words and (carry != 0 or sign != 0):
        if carry != 0 and sign != 0:
            return  # Adding -1 and 1 to every word above changes nothing.
        carry = _add_at(address, position, sign, carry)
        position += 1


@kernel
def add_number(target: int, source: int, words: int) -> None:
    carry = 0
    for word in range(words):
        carry = _add_at(target, word, load_u64(source + word * 8), carry)


@kernel
def add_shifted(address: int, words: int, value: int, factor: int, shift: int) -> None:
    """Add `value * factor * 2**shift` to the number of `words` words at `address`; `value` has at most 54 bits."""
    word = shift >> 6
    low = shift & 63
    if -512 < factor < 512:
        product = value * factor
        first = product << low
        second = (product >> 1) >> (63 - low)
        sign = product >> 63
        add_words(address, words, word, first, second, sign, sign)
    else:
        first, second, third, fourth = product_words(value, 1, factor, low)
        add_words(address, words, word, first, second, third, fourth)


@kernel
def negate_words(address: int, words: int) -> None:
    carry = 1
    for word in range(words):
        value = ~load_u64(address + word * 8)
        negated = value + carry
        carry = 1 if carry != 0 and negated == 0 else 0
        store_u64(address + word * 8, negated)


@kernel
def is_below(left: int, right: int, words: int) -> bool:
    """Compare two numbers without sign, of the same number of words."""
    for word in range(words - 1, -1, -1):
        first, second = load_u64(left + word * 8), load_u64(right + word * 8)
        if first != second:
            return unsigned_below(first, second)
    return False


@kernel
def multiply_words(target: int, source: int, words: int, factor: int) -> None:
    """Write `source * factor`, both without sign, to `target`, which has one word more."""
    carry = 0
    for word in range(words):
        low, carry = _multiply_carry(load_u64(source + word * 8), factor, 0, carry)
        store_u64(target + word * 8, low)
    store_u64(target + words * 8, carry)


@kernel
def square_words(target: int, source: int, words: int) -> None:
    """Write the square of a number without sign to `target`, which has twice as many words."""
    for word in range(2 * words):
        store_u64(target + word * 8, 0)
    for left in range(words):
        factor = load_u64(source + left * 8)
        if factor == 0:
            continue
        carry = 0
        for right in range(words):
            place = target + (left + right) * 8
            low, carry = _multiply_carry(factor, load_u64(source + right * 8), load_u64(place), carry)
            store_u64(place, low)
        store_u64(target + (left + words) * 8, carry)


@kernel
def divide_words(address: int, words: int, divisor: int) -> int:
    """Divide a number without sign by a positive word, in place; return the remainder."""
    remainder = 0
    if divisor <= _LOW >> 1:
        for word in range(words - 1, -1, -1):
            value = load_u64(address + word * 8)
            upper = (remainder << 32) | shift_right(value, 32)
            quotient_high = upper // divisor
            lower = ((upper - quotient_high * divisor) << 32) | (value & _LOW)
            quotient_low = lower // divisor
            remainder = lower - quotient_low * divisor
            store_u64(address + word * 8, (quotient_high << 32) | quotient_low)
        return remainder
    for word in range(words - 1, -1, -1):
        value = load_u64(address + word * 8)
        quotient = 0
        for bit in range(63, -1, -1):
            # The remainder is below the divisor, which has at most 63 bits: doubled it fits a word without sign.
            remainder = (remainder << 1) | (shift_right(value, bit) & 1)
            if not unsigned_below(remainder, divisor):
                remainder -= divisor
                quotient |= 1 << bit
        store_u64(address + word * 8, quotient)
    return remainder


@kernel
def to_scaled(address: int, words: int) -> tuple[float, int]:
    """Return a number as `(mantissa, exponent)` with value mantissa * 2**exponent, rounded once; 0 gives (0.0, 0)."""
    negative = load_u64(address + (words - 1) * 8) < 0
    flip = -1 if negative else 0
    # In two's complement the magnitude of a negative number is its complement plus 1: the words below the lowest one that is
    # not 0 stay 0, that one is negated, those above are complemented.
    lowest = 0
    while lowest < words and load_u64(address + lowest * 8) == 0:
        lowest += 1
    if lowest == words:
        return 0.0, 0
    top = words - 1
    while top > lowest and (load_u64(address + top * 8) ^ flip) == 0:
        top -= 1
    first = load_u64(address + top * 8)
    first = (-first if top == lowest else first ^ flip) if negative else first
    zeros = _leading_zeros(first)
    if zeros == 64:
        # A negative number whose lowest word that is not 0 is below a word of ones only.
        return 0.0, 0
    value = first << zeros
    rest = 0
    if top > lowest:
        second = load_u64(address + (top - 1) * 8)
        second = (-second if top - 1 == lowest else second ^ flip) if negative else second
        if zeros > 0:
            value |= shift_right(second, 64 - zeros)
        if (second << zeros) != 0 or top - 1 > lowest:
            rest = 1
    scaled = _unsigned_float(value | rest)
    return (-scaled if negative else scaled), 64 * top - zeros


@kernel
def to_float(address: int, words: int, exponent: int) -> float:
    """Return a number times 2**exponent as the nearest float."""
    mantissa, scale = to_scaled(address, words)
    return math.ldexp(mantissa, scale + exponent)


@kernel
def _is_valid(validity: int, position: int) -> bool:
    return validity == 0 or (load_u8(validity + shift_right(position, 3)) >> (position & 7)) & 1 != 0


@kernel
def add_counts(count: int, entry_of: Any, weights: Any, validity: int, start: int, line_words: int, place: int) -> bool:
    """Count the values that are not NULL; `place` is the word's address in the line. Return whether a count fell below 0."""
    below = False
    for index in range(count):
        if _is_valid(validity, start + index):
            word = place + entry_of[index] * line_words * 8
            copies = load_u64(word) + weights[index]
            store_u64(word, copies)
            below |= copies < 0
    return below


@kernel
def add_integers(
    count: int,
    entry_of: Any,
    weights: Any,
    validity: int,
    values: int,
    step: int,
    wide: bool,
    start: int,
    line_words: int,
    place: int,
) -> bool:
    """Count and add values; return whether a count fell below 0 on its way."""
    # `values` is the address of the first value of the Arrow buffer, `step` the bytes from one to the next; of a narrow
    # decimal only the lower half is read. `place` is the address of the count in the first line; the sum comes after it.
    below = False
    for index in range(count):
        if not _is_valid(validity, start + index):
            continue
        weight = weights[index]
        word = place + entry_of[index] * line_words * 8
        copies = load_u64(word) + weight
        store_u64(word, copies)
        below |= copies < 0
        value = values + (start + index) * step
        if wide:
            multiply_add_wide(word + 8, load_u64(value), load_u64(value + 8), weight)
        else:
            multiply_add(word + 8, load_u64(value), weight)
    return below


@kernel
def add_partial_words(count: int, entry_of: Any, values: int, words: int, line_words: int, place: int) -> None:
    """Add numbers of `words` words (values of an Arrow buffer of fixed width) to those at `place` in the lines."""
    for index in range(count):
        source = values + index * words * 8
        target = place + entry_of[index] * line_words * 8
        add_number(target, source, words)


@kernel
def average_integers(entries: int, line_words: int, place: int, averages: Any) -> None:
    """Write the average of integers per line: the sum as the nearest float, divided by the count; 0 where there is no value."""
    for entry in range(entries):
        word = place + entry * line_words * 8
        count, low = load_u64(word), load_u64(word + 8)
        if count <= 0:
            averages[entry] = 0.0
        elif load_u64(word + 16) == low >> 63:
            averages[entry] = float(low) / count
        else:
            averages[entry] = to_float(word + 8, 2, 0) / count


@kernel
def _magnitude(target: int, source: int, words: int, target_words: int) -> bool:
    """Write the absolute value of a number to `target`, extended to `target_words`; return whether it was below 0."""
    for word in range(words):
        store_u64(target + word * 8, load_u64(source + word * 8))
    sign = load_u64(source + (words - 1) * 8) >> 63
    for word in range(words, target_words):
        store_u64(target + word * 8, sign)
    if sign != 0:
        negate_words(target, target_words)
    return sign != 0


@kernel
def _put_decimal(target: int, magnitude: int, negative: bool) -> None:
    if negative:
        negate_words(magnitude, 2)
    store_u64(target, load_u64(magnitude))
    store_u64(target + 8, load_u64(magnitude + 8))


@kernel
def sum_decimals(entries: int, line_words: int, place: int, words: int, bound: int, spare: int, sums: int) -> int:
    """Write the sums of decimals as 128-bit values to `sums`; return the first entry whose sum reaches `bound`, or -1."""
    # `bound` is a number of 4 words (10 to the power of the result's precision); `spare` has room for 4 words.
    beyond = -1
    for entry in range(entries):
        negative = _magnitude(spare, place + entry * line_words * 8 + 8, words, 4)
        if beyond < 0 and not is_below(spare, bound, 4):
            beyond = entry
        _put_decimal(sums + entry * 16, spare, negative)
    return beyond


@kernel
def average_decimals(
    entries: int, line_words: int, place: int, words: int, factor: int, bound: int, spare: int, averages: int
) -> int:
    """Write the averages of decimals, rounded half up, as 128-bit values; return the first one at `bound`, or -1."""
    # `factor` is 10 to the power of the digits that the average has more than the values; `spare` has room for 9 words.
    beyond = -1
    scaled = spare + 32
    for entry in range(entries):
        line = place + entry * line_words * 8
        count = load_u64(line)
        if count <= 0:
            store_u64(averages + entry * 16, 0)
            store_u64(averages + entry * 16 + 8, 0)
            continue
        negative = _magnitude(spare, line + 8, words, 4)
        multiply_words(scaled, spare, 4, factor)
        remainder = divide_words(scaled, 5, count)
        if not unsigned_below(remainder, count - remainder):
            word = 0
            store_u64(scaled, load_u64(scaled) + 1)
            while load_u64(scaled + word * 8) == 0:
                word += 1
                store_u64(scaled + word * 8, load_u64(scaled + word * 8) + 1)
        if beyond < 0 and (load_u64(scaled + 32) != 0 or not is_below(scaled, bound, 4)):
            beyond = entry
        _put_decimal(averages + entry * 16, scaled, negative)
    return beyond
