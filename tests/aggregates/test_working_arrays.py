"""Arrays that are kept from epoch to epoch."""

from __future__ import annotations

import numpy as np

from zset_join.aggregates.lines import WorkingArrays


def test_a_name_keeps_its_array() -> None:
    arrays = WorkingArrays()

    assert arrays.array("a", 300) is arrays.array("a", 200)


def test_a_larger_array_takes_the_place_of_a_smaller_one() -> None:
    arrays = WorkingArrays()
    arrays.array("a", 300)

    grown = arrays.array("a", 400)

    assert len(grown) == 600
    assert arrays.address("a") == grown.ctypes.data


def test_an_array_has_the_requested_type() -> None:
    assert WorkingArrays().array("flags", 5, np.uint8).dtype == np.uint8


def test_a_table_is_zeroed_and_has_room() -> None:
    arrays = WorkingArrays()
    arrays.array("t", 1024)[:] = 7

    address, bits = arrays.table("t", 100)

    assert (1 << bits) > 100
    assert not arrays.array("t", 1 << bits)[: 1 << bits].any()
    assert address == arrays.address("t")


def test_the_bytes_kept_are_counted() -> None:
    arrays = WorkingArrays()
    arrays.array("a", 1000)
    arrays.array("b", 1000, np.uint8)

    assert arrays.resident_bytes() == 9000
