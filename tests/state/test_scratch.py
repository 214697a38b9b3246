"""Scratch arrays live for an epoch and are kept for the next."""

from __future__ import annotations

import numpy as np

from zset_join.state.scratch import Scratch


def test_a_name_gives_the_same_array_as_long_as_it_is_large_enough() -> None:
    scratch = Scratch()

    first = scratch.array("codes", 1_000)

    assert scratch.array("codes", 10) is first
    assert scratch.array("codes", 0) is first
    assert scratch.array("others", 10) is not first


def test_a_larger_array_takes_the_place_of_a_smaller_one() -> None:
    scratch = Scratch()
    small = scratch.array("codes", 300)

    large = scratch.array("codes", 301)

    assert len(large) >= 301
    assert len(large) <= 2 * 301
    assert scratch.array("codes", 0) is large
    assert scratch.resident_bytes() == large.nbytes > small.nbytes


def test_an_array_has_the_type_that_was_asked_for() -> None:
    assert Scratch().array("flags", 10, np.uint8).dtype == np.uint8


def test_the_address_is_that_of_the_array() -> None:
    scratch = Scratch()

    array = scratch.array("codes", 10)

    assert scratch.address("codes") == array.ctypes.data


def test_a_table_is_zeroed_each_time_and_never_full() -> None:
    scratch = Scratch()
    address, bits = scratch.table("entries", 1_000)
    scratch.array("entries", 0)[:] = -1

    again, _ = scratch.table("entries", 1_000)

    assert again == address
    assert 1 << bits > 1_000
    assert not scratch.array("entries", 0)[: 1 << bits].any()


def test_even_a_table_for_nothing_has_room() -> None:
    _, bits = Scratch().table("entries", 0)

    assert bits == 4
