"""The key with the most bytes is found by value, over both sides, and also where all hashes are equal."""

from __future__ import annotations

import pytest

from tests.epochs import Change, delta_of, insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.state.cold.largest_key import largest_key
from zset_join.state.rows.side import SideState

LONG = "x" * 100


def two_sides(hash_bits: int = 32) -> list[SideState]:
    return [make_side("append", hash_bits=hash_bits), make_side("append", hash_bits=hash_bits)]


def largest(sides: list[SideState], left: list[Change], right: list[Change]) -> tuple[tuple[object, ...], int, int] | None:
    found = [side.prepare(delta_of(side.relation, changes)) for side, changes in zip(sides, (left, right), strict=True)]
    return largest_key(sides, found)


@pytest.mark.parametrize("hash_bits", [32, 4, 1])
def test_rows_of_both_sides_and_of_the_delta_count(hash_bits: int) -> None:
    sides = two_sides(hash_bits)
    absorb(sides[0], insert((1, "a", None), (2, "b", None), (3, "a", None)))
    absorb(sides[1], insert((4, "b", None)))

    found = largest(sides, insert((5, "b", None)), insert((6, "c", None), (7, "b", None)))

    assert found == (("b",), 4, 4 * sides[0].layout.stride)


@pytest.mark.parametrize("hash_bits", [32, 1])
def test_bytes_decide_and_not_rows(hash_bits: int) -> None:
    sides = two_sides(hash_bits)
    absorb(sides[0], insert((1, "a", None), (2, "a", None), (3, "long", LONG)))

    found = largest(sides, [], [])

    assert found == (("long",), 1, sides[0].layout.stride + 112)


def test_a_key_that_can_never_match_is_no_key() -> None:
    sides = two_sides()
    absorb(sides[0], insert((1, None, LONG)))

    assert largest(sides, [], insert((2, None, LONG))) is None


def test_without_rows_there_is_no_key() -> None:
    assert largest(two_sides(), [], []) is None
