"""Integers of many words do what Python's integers do, modulo their width, and round once."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zset_join.kernels.aggregate import numbers
from zset_join.kernels.machine.compiled import kernel

RANDOM = Random(11)


def words_of(number: int, words: int) -> npt.NDArray[np.int64]:
    """Return an integer as so many words."""
    return np.frombuffer((number % (1 << 64 * words)).to_bytes(8 * words, "little"), np.int64).copy()


def number_of(words: npt.NDArray[np.int64]) -> int:
    """Return the signed integer that some words are."""
    return int.from_bytes(words.tobytes(), "little", signed=True)


def call(act: Any, *arguments: Any) -> Any:
    """Call a kernel, with addresses in place of words, which live until it returns."""
    return act(*(int(one.ctypes.data) if isinstance(one, np.ndarray) else one for one in arguments))


def some(bits: int) -> int:
    """Return a random signed integer of up to so many bits, small ones as often as large ones."""
    return RANDOM.choice((-1, 1)) * RANDOM.getrandbits(RANDOM.randrange(1, bits + 1))


@kernel
def add_product(target: int, left: int, right: int) -> None:
    """Call the intrinsic, which only kernels can."""
    numbers.multiply_add(target, left, right)


@kernel
def add_wide_product(target: int, low: int, high: int, factor: int) -> None:
    """Call the intrinsic, which only kernels can."""
    numbers.multiply_add_wide(target, low, high, factor)


@kernel
def product(left: int, right: int, factor: int, shift: int) -> tuple[int, int, int, int]:
    """Call the intrinsic, which only kernels can."""
    return numbers.product_words(left, right, factor, shift)


def changed(number: int, words: int, act: Any, *arguments: int) -> int:
    """Return a number as changed by a kernel."""
    made = words_of(number, words)
    call(act, made, *arguments)
    return number_of(made)


def test_products_are_added_in_two_words() -> None:
    cases = [(some(120), some(63), some(63)) for _ in range(300)]

    assert [changed(a, 2, add_product, b, c) for a, b, c in cases] == [a + b * c for a, b, c in cases]


def test_products_of_128_bits_are_added_in_four_words() -> None:
    cases = [(some(200), some(126), some(63)) for _ in range(300)]
    split = [(a, words_of(b, 2).tolist(), c) for a, b, c in cases]

    assert [changed(a, 4, add_wide_product, *b, c) for a, b, c in split] == [a + b * c for a, b, c in cases]


def test_shifted_products_come_as_four_words() -> None:
    cases = [(some(54), some(54), some(63), RANDOM.randrange(64)) for _ in range(300)]

    made = [number_of(np.array(product(*case), np.int64)) for case in cases]

    assert made == [(a * b * c) << shift for a, b, c, shift in cases]


@pytest.mark.parametrize("words", [4, 7, 34])
def test_shifted_values_are_added_anywhere_in_a_number(words: int) -> None:
    shifts = 64 * words - 130
    cases = [
        (some(64 * words - 10), some(53), RANDOM.choice((1, -1, some(9), some(63))), RANDOM.randrange(shifts))
        for _ in range(400)
    ]

    made = [changed(a, words, numbers.add_shifted, words, value, factor, shift) for a, value, factor, shift in cases]

    assert made == [number_of(words_of(a + ((value * factor) << shift), words)) for a, value, factor, shift in cases]


def test_a_sum_that_leaves_its_words_comes_back_when_the_addend_goes() -> None:
    made = words_of(2**254, 4)

    call(numbers.add_number, made, words_of(2**254, 4), 4)
    call(numbers.add_number, made, words_of(-(2**254), 4), 4)

    assert number_of(made) == 2**254


def test_signs_change() -> None:
    cases = [some(250) for _ in range(100)] + [0, -(2**128), 2**64]

    assert [changed(a, 4, numbers.negate_words, 4) for a in cases] == [-a for a in cases]


def test_magnitudes_compare_without_sign() -> None:
    cases = [(abs(some(250)), abs(some(250))) for _ in range(200)] + [(5, 5)]

    made = [bool(call(numbers.is_below, words_of(a, 4), words_of(b, 4), 4)) for a, b in cases]

    assert made == [a < b for a, b in cases]


@pytest.mark.parametrize("divisor", [1, 3, 2**31 - 1, 2**31, 2**62 + 1, 2**63 - 1])
def test_division_leaves_quotient_and_remainder(divisor: int) -> None:
    numbers_divided = [abs(some(250)) for _ in range(60)]
    words = [words_of(number, 4) for number in numbers_divided]

    rests = [int(call(numbers.divide_words, one, 4, divisor)) for one in words]

    assert [(number_of(one), rest) for one, rest in zip(words, rests, strict=True)] == [
        divmod(number, divisor) for number in numbers_divided
    ]


def test_products_and_squares_take_more_words() -> None:
    number, factor = abs(some(256)) | 1 << 255, 2**63 - 1
    scaled, squared = np.zeros(5, np.int64), np.zeros(8, np.int64)

    call(numbers.multiply_words, scaled, words_of(number, 4), 4, factor)
    call(numbers.square_words, squared, words_of(number, 4), 4)

    assert int.from_bytes(scaled.tobytes(), "little") == number * factor
    assert int.from_bytes(squared.tobytes(), "little") == number**2


def awkward(words: int) -> list[int]:
    """Return numbers whose rounding is a matter of single bits."""
    near = [(1 << 53) + 1, (1 << 53) + 3, (1 << 54) + 2, (1 << 117) + (1 << 64), (1 << 117) + (1 << 64) + 1]
    powers = [1 << bit for bit in range(0, 64 * words - 2, 7)]
    found = [*near, *powers, *(power - 1 for power in powers[1:]), *(some(64 * words - 2) for _ in range(300)), 0]
    return [sign * number for number in found for sign in (1, -1)]


@pytest.mark.parametrize("words", [2, 4, 7])
def test_a_number_becomes_the_nearest_float(words: int) -> None:
    cases = awkward(max(words, 2))

    made = [call(numbers.to_float, words_of(number, words), words, 0) for number in cases]

    assert made == [float(number_of(words_of(number, words))) for number in cases]


def test_a_scaled_float_keeps_numbers_that_are_too_large_for_one() -> None:
    mantissa, exponent = call(numbers.to_scaled, words_of(-(3 << 2100), 34), 34)

    assert Fraction(mantissa) * Fraction(2) ** exponent == -3 * 2**2100


def test_a_sum_beyond_all_floats_is_infinite() -> None:
    assert call(numbers.to_float, words_of(-(1 << 2100), 34), 34, -1074) == -np.inf
