"""Integers of many words at an address: what exact sums are kept in.

A number of n words is n little-endian int64 words in two's complement. Adding is modular, so what a sum passes through on
its way does not matter: if the true sum fits, the words hold it, whatever the order of what was added and taken away.

Rounding to a float happens once, at the end, to the nearest and to even on a tie: `to_float` looks at the top 64 bits and at
whether anything is left below.

Cost: an addition touches 2 words and follows the carry; a float costs one pass over the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, shift_right, store_u64

__all__ = [
    "add_number",
    "add_shifted",
    "add_words",
    "divide_words",
    "is_below",
    "multiply_add",
    "multiply_add_wide",
    "multiply_words",
    "negate_words",
    "product_words",
    "square_words",
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
