"""The assistant table finds the row that has an identity: its primary key, or the whole of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import delete, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, changes_of, make_side, pieces
from zset_join.core.relation import Relation
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.side import SideState


def identified(side: SideState) -> int:
    """Return how many identities a side holds."""
    return side.primary_keys.count


def test_in_upsert_mode_a_row_is_found_by_its_primary_key_alone() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", "x")))

    _, found = changes_of(side, upsert((1, "b", "y")))

    assert [line[0] for line in found] == [1, 0]


def test_in_changelog_mode_a_row_is_found_by_all_its_columns() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", "x"), (1, "a", None)))

    _, found = changes_of(side, insert((1, "a", "x"), (1, "a", "y"), (1, "a", None)))

    assert found == [[1, 1, 2, 1], [0, 0, 1, 1], [2, 1, 2, 1]]


def test_append_only_rows_have_no_identity_and_take_no_table() -> None:
    side = make_side("append")

    absorb(side, insert((1, "a", "x"), (1, "a", "x")))

    assert identified(side) == 0
    assert (
        side.resident_bytes() < make_side("changelog").resident_bytes() + 2 * side.layout.stride + side._arrays.resident_bytes()
    )


def test_a_deleted_identity_leaves_the_table() -> None:
    side = make_side()
    absorb(side, upsert((1, "a", "x"), (2, "b", "x")))

    absorb(side, delete((1, None, None)))

    assert identified(side) == 1


def test_a_deleted_identity_with_a_sequence_stays_until_it_expires() -> None:
    side = make_side(sequenced=True)
    absorb(side, upsert((1, "a", "x", 1)))
    absorb(side, delete((1, None, None, 2)), watermark=100)
    remembered = identified(side)

    absorb(side, [], watermark=110)

    assert (remembered, identified(side)) == (1, 0)


def test_a_row_whose_last_copy_goes_leaves_the_table() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", "x"), copies=2))
    absorb(side, delete((1, "a", "x")))
    after_one = identified(side)

    absorb(side, delete((1, "a", "x")))

    assert (after_one, identified(side)) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "one", "same"),
    [
        (pa.float64(), 0.0, -0.0),
        (pa.float64(), math.nan, np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]),
        (pa.list_(pa.float32()), [0.0, None], [-0.0, None]),
        (pa.struct({"a": pa.string()}), {"a": None}, {"a": None}),
    ],
)
def test_two_primary_keys_that_spark_calls_the_same_are_one(kind: pa.DataType, one: Any, same: Any) -> None:
    relation = Relation(
        name="rows", schema=pa.schema({"id": kind, "k": pa.string()}), join_key=("k",), primary_key=("id",), mode="upsert"
    )
    side = SideState(
        relation,
        key_types=[pa.string()],
        null_safe=[False],
        tables=HashTables(hash_seed=0),
        name="side",
    )
    absorb(side, upsert((one, "a")))

    absorb(side, upsert((same, "b")))

    assert [row[1] for row in pieces(side, anatomy(side).live)] == ["b"]


@pytest.mark.parametrize("hash_bits", [1, 4])
def test_identities_with_the_same_hash_are_distinguished(hash_bits: int) -> None:
    side = make_side(hash_bits=hash_bits)
    absorb(side, upsert(*[(number, "a", "old") for number in range(60)]))

    absorb(side, upsert(*[(number, "a", "new") for number in range(0, 60, 2)]) + delete((1, None, None)))

    left = {row[0]: row[2] for row in pieces(side, anatomy(side).live)}
    assert left == {number: "old" if number % 2 else "new" for number in range(60) if number != 1}
