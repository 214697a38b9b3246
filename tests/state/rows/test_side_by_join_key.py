"""An arrangement finds all rows of a join key, and only those."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import delete, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, make_side, pieces
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.slots import find_key
from zset_join.state.rows.side import SideState


def rows_of(side: SideState, key: str | None) -> list[Any]:
    """Return the ids of the rows that the arrangement finds under a key."""
    prepared = side.prepare(delta_of(side.relation, insert((0, key, None))))
    view, columns = side._view, side.join_columns.address
    head = find_key(
        view[s.JOIN_SLOTS], view[s.JOIN_BITS], prepared.join_codes[0], prepared.encoded.address, 0, columns,
        view[s.ROWS], view[s.STRIDE], view[s.HEAP], columns,
    )  # fmt: skip
    chains = [chain for chain in anatomy(side).chains if chain[0] == head]
    return sorted(row[0] for chain in chains for row in pieces(side, chain))


@pytest.fixture
def side() -> SideState:
    """Give a side with three rows of key a, one of key b and one without a key."""
    side = make_side()
    absorb(side, upsert((1, "a", "x"), (2, "a", "y"), (3, "b", "x"), (4, "a", "x"), (5, None, "x")))
    return side


def test_rows_are_found_by_their_key(side: SideState) -> None:
    assert rows_of(side, "a") == [1, 2, 4]
    assert rows_of(side, "b") == [3]


def test_a_key_nobody_has_finds_nothing(side: SideState) -> None:
    assert rows_of(side, "c") == rows_of(side, "a ") == rows_of(side, "") == []


@pytest.mark.parametrize(("gone", "left"), [(1, [2, 4]), (2, [1, 4]), (4, [1, 2])])
def test_a_row_leaves_its_chain_from_wherever_it_is(side: SideState, gone: int, left: list[int]) -> None:
    absorb(side, delete((gone, None, None)))

    assert rows_of(side, "a") == left


def test_with_its_last_row_a_key_leaves_the_table(side: SideState) -> None:
    keys = side.arrangement.count

    absorb(side, delete((3, None, None)))

    assert side.arrangement.count == keys - 1
    assert rows_of(side, "b") == []


def test_a_row_that_moves_is_found_at_its_new_key_only(side: SideState) -> None:
    absorb(side, upsert((2, "b", "y")))

    assert (rows_of(side, "a"), rows_of(side, "b")) == ([1, 4], [2, 3])


def test_a_row_whose_key_cannot_match_is_stored_but_not_arranged(side: SideState) -> None:
    found = anatomy(side)

    assert len(found.live) == 5
    assert sum(map(len, found.chains)) == 4


def test_a_row_joins_and_leaves_the_arrangement_with_its_key(side: SideState) -> None:
    absorb(side, upsert((5, "b", "x"), (3, None, "x")))

    assert rows_of(side, "b") == [5]
    assert len(anatomy(side).live) == 5


def test_under_null_safe_equality_null_is_a_key() -> None:
    side = make_side(null_safe=[True])
    absorb(side, upsert((1, None, "x"), (2, None, "y"), (3, "", "x")))

    assert (rows_of(side, None), rows_of(side, "")) == ([1, 2], [3])


@pytest.mark.parametrize("hash_bits", [1, 4])
def test_keys_with_the_same_hash_have_chains_of_their_own(hash_bits: int) -> None:
    side = make_side(hash_bits=hash_bits)
    absorb(side, upsert(*[(number, f"k{number % 20}", None) for number in range(100)]))

    absorb(side, delete(*[(number, None, None) for number in range(0, 100, 3)]))

    assert rows_of(side, "k7") == [7, 47, 67]
    assert side.arrangement.count == 20


def test_the_key_is_compared_in_the_type_of_both_sides() -> None:
    side = make_side(key_types=[pa.large_string()])
    absorb(side, upsert((1, "a", "x")))

    assert rows_of(side, "a") == [1]


def test_a_table_grows_with_its_keys_and_not_with_its_rows() -> None:
    one_key, many_keys = make_side(), make_side()

    absorb(one_key, upsert(*[(number, "a", None) for number in range(300)]))
    absorb(one_key, upsert(*[(number, "a", None) for number in range(300, 600)]))
    absorb(many_keys, upsert(*[(number, f"k{number}", None) for number in range(600)]))

    assert (one_key.arrangement.bits, many_keys.arrangement.bits) == (9, 10)
