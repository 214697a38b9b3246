"""Sorting by digits gives what NumPy's sorting gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spill.sorting import ascending, ascending_positions

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
WORDS = st.one_of(st.sampled_from(ENDS), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(-5, 5))


@given(words=st.lists(WORDS, max_size=60), copies=st.sampled_from([1, 40]))
def test_words_are_sorted_as_by_numpy(words: list[int], copies: int) -> None:
    given_words = np.array(words * copies, np.int64)
    kept = given_words.copy()

    assert ascending(given_words).tolist() == sorted(given_words.tolist())
    assert ascending_positions(given_words).tolist() == np.argsort(kept, kind="stable").tolist()
    assert given_words.tolist() == kept.tolist()


@pytest.mark.parametrize("bits", [1, 8, 11, 12, 32, 33, 63, 64])
@pytest.mark.parametrize("count", [511, 512, 20_000])
def test_many_words_of_so_many_bits_are_sorted(bits: int, count: int) -> None:
    words = np.random.default_rng(bits).integers(-(1 << 63), (1 << 63) - 1, count) >> (64 - bits)

    assert np.array_equal(ascending(words), np.sort(words))
    assert np.array_equal(ascending_positions(words), np.argsort(words, kind="stable"))
    assert np.array_equal(ascending_positions(words[::2]), np.argsort(words[::2], kind="stable"))
