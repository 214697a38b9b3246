"""The shape of an ordered multiset: one leaf, then a directory of leaves, then one leaf again."""

from __future__ import annotations

import numpy as np

from tests.kernels.multiset_by_hand import Multiset
from zset_join.kernels.aggregate import tree

CAPACITY = 256  # leaves of 4 KiB, values of 16 bytes


def leaves(multiset: Multiset) -> int:
    """Return the number of leaves."""
    return int(tree.directory_count(multiset.heap, int(multiset.line[1])))


def copies(multiset: Multiset, value: int) -> int:
    """Return how many copies of a value there are."""
    key = np.array([value], np.int64)
    place = int(multiset.line.ctypes.data) + 8
    return int(tree.find_value(multiset.heap, place, int(multiset.line[2]), int(key.ctypes.data), 1, 0))


def test_a_leaf_holds_4096_bytes_but_never_less_than_eight_values() -> None:
    assert [int(tree.leaf_capacity(words)) for words in (1, 3, 100)] == [CAPACITY, 128, 8]


def test_an_empty_multiset_has_no_leaf() -> None:
    multiset = Multiset()

    assert (leaves(multiset), copies(multiset, 5), multiset.heap_used()) == (0, 0, 0)


def test_few_values_are_in_one_leaf_that_is_no_longer_than_they_are() -> None:
    multiset = Multiset()
    multiset.change({5: 1, 7: 2, 9: 3})

    assert (leaves(multiset), multiset.heap_used()) == (1, 48)
    assert [copies(multiset, value) for value in (4, 5, 7, 8, 9, 10)] == [0, 1, 2, 0, 3, 0]


def test_more_values_than_a_leaf_takes_make_a_directory() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(0, 2 * CAPACITY, 2), 1))
    whole = leaves(multiset)

    multiset.change({1: 4})

    assert (whole, leaves(multiset)) == (1, 2)
    assert [copies(multiset, value) for value in (0, 1, 3, 2 * CAPACITY - 2, 2 * CAPACITY)] == [1, 4, 0, 1, 0]


def test_a_value_below_all_others_goes_to_the_first_leaf() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(1000), 1))

    multiset.change({-5: 1})

    assert (copies(multiset, -5), multiset.values()[:2]) == (1, [-5, 0])


def test_the_words_of_a_multiset_count_values_and_copies() -> None:
    multiset = Multiset()
    multiset.change({5: 1, 7: 2})

    assert multiset.line[1 + tree.V_DISTINCT : 1 + tree.V_WORDS].tolist() == [2, 3]
