"""Folding cells into a multiset: leaves split, join and go, and the heap gets everything back."""

from __future__ import annotations

from tests.kernels.aggregate.test_tree import CAPACITY, leaves
from tests.kernels.multiset_by_hand import Multiset


def test_copies_are_added_and_taken() -> None:
    multiset = Multiset()
    multiset.change({5: 2, 7: 1})
    multiset.change({5: -1, 7: -1, 6: 3})

    assert multiset.values() == [5, 6, 6, 6]


def test_a_full_leaf_is_split_and_sparse_leaves_join_again() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(3000), 1))
    full = leaves(multiset)

    multiset.change(dict.fromkeys((value for value in range(3000) if value % 12), -1))

    assert multiset.values() == [*range(0, 3000, 12)]
    assert (full, leaves(multiset)) == (16, 2)


def test_an_emptied_leaf_leaves_its_directory() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(3000), 1))
    full = leaves(multiset)

    multiset.change(dict.fromkeys(range(300, 900), -1))

    assert multiset.values() == [*range(300), *range(900, 3000)]
    assert leaves(multiset) < full


def test_a_directory_that_shrinks_to_one_leaf_becomes_that_leaf() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(3000), 1))

    multiset.change(dict.fromkeys(range(2, 3000), -1))

    assert (multiset.values(), leaves(multiset), multiset.heap_used()) == ([0, 1], 1, 32)


def test_a_multiset_whose_values_go_gives_its_heap_back() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(3000), 1))

    multiset.change(dict.fromkeys(range(3000), -1))

    assert (multiset.values(), multiset.heap_used(), multiset.line.tolist()) == ([], 0, [0, 0, 0, 0])


def test_few_changes_to_a_large_leaf_are_made_in_place() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(0, 400, 2), 1))
    used = multiset.heap_used()

    multiset.change({1: 1, 100: -1, 398: 5, 0: -1, 399: 1})

    assert multiset.values() == sorted([*(v for v in range(2, 398, 2) if v != 100), 1, *[398] * 6, 399])
    assert multiset.heap_used() == used


def test_a_leaf_of_a_directory_that_changes_in_place_keeps_its_first_key() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(0, 4000, 2), 1))

    multiset.change({0: -1, 1: 1, 3001: 1})
    multiset.change({-1: 1})

    assert multiset.values() == sorted({*range(2, 4000, 2), -1, 1, 3001})


def test_a_call_that_runs_out_of_room_goes_on_where_it_stopped() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(0, 8000, 4), 1))
    multiset.prepare(dict.fromkeys(range(1, 8000, 4), 1))

    calls = multiset.store(room=16_384)

    assert calls > 1
    assert multiset.values() == sorted([*range(0, 8000, 4), *range(1, 8000, 4)])


def test_a_multiset_of_one_leaf_may_fill_many_at_once() -> None:
    multiset = Multiset()
    multiset.change({0: 1})
    multiset.change(dict.fromkeys(range(1, 10 * CAPACITY), 1))

    assert multiset.values() == [*range(10 * CAPACITY)]
