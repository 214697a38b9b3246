"""Exact sums of floats: the order does not matter, what is gone is gone, and nothing is too large or too small."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from zset_join.kernels.aggregate import floats

TINY, HUGE = 5e-324, 1.7976931348623157e308
MIXED = [0.1, -0.2, 1e-19, 3e21, TINY, -HUGE, HUGE, 1e-30, 1e30, 2.0**-68, 2.0**72, 0.0, -0.0, -1e-300]


class Line:
    """The words of one accumulator of one group, without a heap: blocks are beside it."""

    def __init__(self, *, squares: bool = False) -> None:
        self.squares = squares
        self.words = np.zeros(1 + 2 + floats.WINDOW_WORDS + (floats.SQUARE_WORDS if squares else 0), np.int64)
        self.spare = np.zeros(1024, np.int64)
        self.blocks: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    def add(self, *values: float, weight: int = 1) -> Line:
        """Add values."""
        array = np.array(values, np.float64)
        special = floats.count_special(len(array), 0, int(array.ctypes.data), 0)
        self.blocks.append(np.zeros(max(1, special) * floats.SQUARE_BLOCK_BYTES, np.uint8))
        floats.add_floats(
            len(array),
            np.zeros(len(array), np.int64),
            np.full(len(array), weight, np.int64),
            0,
            int(array.ctypes.data),
            0,
            len(self.words),
            int(self.words.ctypes.data) + 8,
            self.squares,
            0,
            int(self.blocks[-1].ctypes.data),
        )
        return self

    def sum(self) -> float:
        """Return the sum."""
        made, place = np.empty(1), int(self.words.ctypes.data) + 8
        floats.sum_floats(1, len(self.words), place, self.squares, 0, int(self.spare.ctypes.data), made)
        return float(made[0])

    def variance(self, *, sample: bool = False, root: bool = False) -> float | None:
        """Return the variance."""
        made, valid, place = np.empty(1), np.empty(1, np.uint8), int(self.words.ctypes.data) + 8
        floats.variance_floats(1, len(self.words), place, sample, root, 0, int(self.spare.ctypes.data), made, valid)
        return float(made[0]) if valid[0] else None


def exact_variance(values: list[float]) -> float:
    """Return the population variance, rounded once before the division and once in it."""
    numbers = [Fraction(value) for value in values]
    scattered = len(values) * sum(number**2 for number in numbers) - sum(numbers) ** 2
    return float(scattered) / len(values) ** 2


@pytest.mark.parametrize("seed", range(8))
def test_a_sum_is_rounded_once(seed: int) -> None:
    values = [value for value in Random(seed).choices(MIXED, k=200) if abs(value) < 1e300]

    assert Line().add(*values).sum() == math.fsum(values)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_away_leaves_no_trace(seed: int) -> None:
    random = Random(seed)
    values = random.choices(MIXED, k=100)
    line = Line(squares=True).add(0.1, *values)

    line.add(*random.sample(values, k=len(values)), weight=-1)

    assert line.sum() == 0.1
    assert not line.words[1 + 1 + 1 : -1].any() or line.variance() == 0.0


def test_large_weights_are_exact() -> None:
    line = Line().add(0.1, weight=2**62)

    assert line.sum() == float(Fraction(0.1) * 2**62)
    assert line.add(0.1, weight=-(2**62) + 1).sum() == 0.1


def test_the_sum_of_values_that_a_double_cannot_hold_is_infinite_until_some_go() -> None:
    line = Line().add(HUGE, HUGE)

    assert line.sum() == math.inf
    assert line.add(HUGE, weight=-1).sum() == HUGE


def test_subnormal_values_add_up() -> None:
    assert Line().add(TINY, TINY, TINY).sum() == 3 * TINY


@pytest.mark.parametrize(
    ("specials", "total"),
    [([math.nan], math.nan), ([math.inf], math.inf), ([-math.inf], -math.inf), ([math.inf, -math.inf], math.nan)],
)
def test_nan_and_infinities_rule_while_they_are_there(specials: list[float], total: float) -> None:
    line = Line().add(0.1, *specials)

    assert repr(line.sum()) == repr(total)
    assert line.add(*specials, weight=-1).sum() == 0.1


@pytest.mark.parametrize(
    "values",
    [[1.0, 3.0], [0.1] * 7, [1e9, 1e9 + 1e-7, 1e9 - 1e-7], [1e-30, 3e-30], [1e150, -1e150], [5.0], [2.0**71, 2.0**-67]],
)
def test_a_variance_is_exact_before_the_division(values: list[float]) -> None:
    assert Line(squares=True).add(*values).variance() == exact_variance(values)


def test_a_variance_is_never_negative_however_large_the_mean() -> None:
    values = [1e15 + number * 0.125 for number in range(3)]

    assert Line(squares=True).add(*values).variance() == exact_variance(values)


def test_a_standard_deviation_is_the_root_of_the_variance() -> None:
    assert Line(squares=True).add(1.0, 3.0).variance(sample=True, root=True) == math.sqrt(2)


def test_the_variance_of_a_sample_of_one_is_not_there() -> None:
    assert Line(squares=True).add(1.0).variance(sample=True) is None


def test_the_variance_of_infinities_is_nan() -> None:
    assert repr(Line(squares=True).add(math.inf, 1.0).variance()) == "nan"
