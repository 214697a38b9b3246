"""Counts, sums and averages of integers and decimals in the words of a line."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.aggregate.test_numbers import number_of, words_of
from zset_join.kernels.aggregate import sums

NO_NULLS = 0


def added(
    lines: int, words: int, entries: list[int], values: list[int], weights: list[int], *, wide: bool
) -> npt.NDArray[np.int64]:
    """Return lines of a count and a sum, after some values."""
    made = np.zeros((lines, 1 + words), np.int64)
    stored = np.concatenate([words_of(value, 2 if wide else 1) for value in values])
    sums.add_integers(
        len(values),
        np.array(entries),
        np.array(weights),
        NO_NULLS,
        int(stored.ctypes.data),
        16 if wide else 8,
        wide,
        0,
        1 + words,
        int(made.ctypes.data),
    )
    return made


def test_values_are_added_to_the_line_of_their_entry() -> None:
    made = added(2, 2, [0, 1, 0], [5, 7, -9], [1, 1, 2], wide=False)

    assert made.tolist() == [[3, -13, -1], [1, 7, 0]]


def test_wide_values_take_four_words() -> None:
    made = added(1, 4, [0, 0], [-(10**37), 3], [5, 1], wide=True)

    assert number_of(made[0, 1:]) == 3 - 5 * 10**37


def test_values_under_a_cleared_bit_are_left_out() -> None:
    validity = np.array([0b101], np.uint8)
    made = np.zeros((1, 1), np.int64)

    below = sums.add_counts(
        3, np.zeros(3, np.int64), np.ones(3, np.int64), int(validity.ctypes.data), 0, 1, int(made.ctypes.data)
    )

    assert (made.tolist(), below) == ([[2]], False)


def test_a_count_that_falls_below_zero_is_reported() -> None:
    made = np.zeros((1, 1), np.int64)

    assert sums.add_counts(1, np.zeros(1, np.int64), np.array([-1]), NO_NULLS, 0, 1, int(made.ctypes.data))


def test_an_average_of_integers_takes_the_whole_sum() -> None:
    made = added(3, 2, [0, 0, 1], [2**63 - 1, 2**63 - 1, 3], [1, 1, 2], wide=False)
    averages = np.empty(3)

    sums.average_integers(3, 3, int(made.ctypes.data), averages)

    assert averages.tolist() == [2.0**63, 3.0, 0.0]


def decimals(values: list[int], weights: list[int], *, wide: bool, scale: int | None, digits: int = 38) -> tuple[int, int]:
    """Return the sum (or, with a scale, the average of so many more digits), and which entry is beyond its digits."""
    words = 4 if wide else 2
    made = added(1, words, [0] * len(values), values, weights, wide=wide)
    bound, spare, target = words_of(10**digits, 4), np.zeros(16, np.int64), np.zeros(2, np.int64)
    places = [int(array.ctypes.data) for array in (made, bound, spare, target)]
    if scale is None:
        beyond = sums.sum_decimals(1, 1 + words, places[0], words, *places[1:])
    else:
        beyond = sums.average_decimals(1, 1 + words, places[0], words, 10**scale, *places[1:])
    return number_of(target), int(beyond)


@pytest.mark.parametrize("wide", [False, True])
def test_a_decimal_sum_has_its_sign(wide: bool) -> None:
    assert decimals([5, -12], [3, 2], wide=wide, scale=None) == (-9, -1)


def test_a_decimal_sum_beyond_its_digits_is_reported() -> None:
    assert decimals([999, 1], [1, 1], wide=False, scale=None, digits=3)[1] == 0
    assert decimals([998, 1], [1, 1], wide=False, scale=None, digits=3)[1] == -1


@pytest.mark.parametrize("count", [1, 3, 7, 2**31 + 1, 2**62 + 3])
@pytest.mark.parametrize("value", [0, 5, -5, 10**17 - 1, -(10**17) + 1])
def test_a_decimal_average_is_rounded_half_away_from_zero(value: int, count: int) -> None:
    with localcontext(prec=100):
        exact = (Decimal(value) * 10**4 / count).quantize(Decimal(1), ROUND_HALF_UP)

    assert decimals([value, 0], [1, count - 1], wide=False, scale=4) == (int(exact), -1)


def test_half_a_digit_is_rounded_away_from_zero() -> None:
    assert [decimals([value], [1], wide=False, scale=0)[0] for value in (1, -1)] == [1, -1]
    assert [decimals([value, 0], [1, 1], wide=False, scale=0)[0] for value in (1, -1, 3, -3)] == [1, -1, 2, -2]
