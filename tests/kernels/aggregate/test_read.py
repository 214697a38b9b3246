"""Reading a multiset as it will be, without building it."""

from __future__ import annotations

from tests.kernels.multiset_by_hand import Multiset


def test_both_ends_are_known_before_and_after() -> None:
    multiset = Multiset()
    multiset.change({6: 1, 7: 1, 8: 1, 9: 1, 10: 1})

    multiset.prepare({10: -1, 9: -1, 8: -1, 5: 1})

    assert (multiset.end(high=True), multiset.end(high=False)) == ((10, 7), (6, 5))


def test_an_end_that_loses_a_copy_stays_while_one_is_left() -> None:
    multiset = Multiset()
    multiset.change({10: 2, 3: 1})

    multiset.prepare({10: -1})

    assert multiset.end(high=True) == (10, 10)


def test_an_empty_multiset_has_no_ends() -> None:
    multiset = Multiset()
    before = multiset.end(high=True)
    multiset.prepare({5: 1})

    assert (before, multiset.end(high=True)) == ((None, None), (None, 5))


def test_a_multiset_that_is_emptied_has_no_ends_afterwards() -> None:
    multiset = Multiset()
    multiset.change({5: 1, 6: 1})

    multiset.prepare({5: -1, 6: -1})

    assert (multiset.end(high=True), multiset.end(high=False)) == ((6, None), (5, None))


def test_ends_are_found_across_leaves() -> None:
    multiset = Multiset()
    multiset.change(dict.fromkeys(range(2000), 1))

    multiset.prepare(dict.fromkeys([*range(700), *range(1500, 2000)], -1))

    assert (multiset.end(high=True), multiset.end(high=False)) == ((1999, 1499), (0, 700))


def test_a_value_that_comes_and_goes_in_one_epoch_is_no_end() -> None:
    multiset = Multiset()
    multiset.change({5: 1})

    multiset.prepare({9: 0, 1: 0})

    assert (multiset.end(high=True), multiset.end(high=False)) == ((5, 5), (5, 5))


def test_all_values_come_in_order_as_they_are_and_as_they_will_be() -> None:
    multiset = Multiset()
    multiset.change({2: 1, 4: 2, 6: 1})

    multiset.prepare({1: 1, 4: -1, 5: 2, 6: -1, 7: 1})

    assert multiset.values() == [2, 4, 4, 6]
    assert multiset.values(after=True) == [1, 2, 4, 5, 5, 7]
