"""Rows that leave an append-only side: what is freed, what is counted, and that everything still fits together."""

from __future__ import annotations

import numpy as np
import pytest

from tests.epochs import insert
from tests.state.side_anatomy import absorb, anatomy, make_side
from zset_join.kernels.rows.eviction import evict_rows
from zset_join.state.rows.side import SideState


def evicted(side: SideState, *numbers: int) -> SideState:
    wanted = np.array(numbers, np.int64)
    evict_rows(side.view, side.variables_address, int(wanted.ctypes.data), len(wanted))
    return side


@pytest.mark.parametrize(("text", "block"), [(None, 0), ("x" * 12, 0), ("x" * 13, 16), ("x" * 100, 112), ("x" * 300, 320)])
def test_a_row_counts_its_record_and_the_block_of_a_long_value(text: str | None, block: int) -> None:
    side = make_side("append")

    absorb(side, insert((1, "a", text)))

    assert side.live_bytes == side.layout.stride + block
    assert side.sizes_of(side.refs_of(np.array([1], np.int64))).tolist() == [side.layout.stride + block]


def test_rows_leave_their_chains_wherever_they_are_in_them() -> None:
    side = make_side("append")
    absorb(side, insert(*((number, "ab"[number % 2], None) for number in range(8))))

    evicted(side, 1, 5, 8, 4)

    assert sorted(anatomy(side).live) == [2, 3, 6, 7]


def test_the_last_row_of_a_key_takes_the_key_along() -> None:
    side = make_side("append")
    absorb(side, insert((1, "a", None), (2, "b", None)))

    evicted(side, 1)

    assert anatomy(side).chains == [[2]]


def test_a_row_whose_key_can_never_match_leaves_too() -> None:
    side = make_side("append")
    absorb(side, insert((1, None, "a text of more than twelve bytes")))

    evicted(side, 1)

    assert (anatomy(side).live, side.live_bytes) == ([], 0)


def test_records_and_blocks_of_evicted_rows_are_used_again() -> None:
    side = make_side("append")
    absorb(side, insert((1, "a", "x" * 100)))
    before = side.resident_bytes()

    absorb(evicted(side, 1), insert((2, "a", "y" * 100)))

    assert side.resident_bytes() == before
    assert anatomy(side).live == [1]
