"""A join reports the key that made the most pairs of an answer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Change, delta_of, insert
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import HashJoin

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.string(), "n": pa.int32()})
LEFT = Relation(name="l", schema=SCHEMA, join_key=("k", "n"), mode="changelog")
RIGHT = Relation(name="r", schema=SCHEMA, join_key=("k", "n"), mode="changelog")


def rows(key: str | None, count: int, start: int = 0) -> list[Change]:
    """Return insertions of rows with one key."""
    return insert(*[(number, key, 7) for number in range(start, start + count)])


def answered(left: list[Change], right: list[Change], how: str = "inner", **options: Any) -> HashJoin:
    """Return a join whose first answer has been read."""
    join = built(HashJoin, LEFT, RIGHT, how, **options)
    list(join.answer(Tick(0), [delta_of(LEFT, left), delta_of(RIGHT, right)]))
    return join


def test_the_key_with_the_most_pairs_is_reported_with_their_number() -> None:
    join = answered(rows("a", 3) + rows("b", 5) + rows("c", 2), rows("a", 3) + rows("b", 2) + rows("c", 4))

    assert join.largest_fan_out() == (10, ("b", 7))


@pytest.mark.parametrize("part_changes", [1, 4, 16_384])
@pytest.mark.parametrize("chunk_rows", [1, 7, 65_536])
def test_it_does_not_depend_on_chunks_and_parts(chunk_rows: int, part_changes: int) -> None:
    left = [change for number in range(40) for change in rows(f"key {number}", 1 + number % 9, 100 * number)]

    join = answered(left + rows("hot", 30), left + rows("hot", 9), chunk_rows=chunk_rows, part_changes=part_changes)

    assert join.largest_fan_out() == (270, ("hot", 7))


def test_rows_of_the_state_count_with_the_changes_they_meet() -> None:
    join = HashJoin(LEFT, RIGHT)
    join.absorb(Tick(0), [delta_of(LEFT, []), delta_of(RIGHT, rows("a", 2) + rows("b", 50))])
    list(join.answer(Tick(1), [delta_of(LEFT, rows("a", 3) + rows("b", 1)), delta_of(RIGHT, [])]))

    assert join.largest_fan_out() == (50, ("b", 7))


def test_the_next_answer_starts_over() -> None:
    join = answered(rows("a", 9), rows("a", 9))
    join.absorb(Tick(0), [delta_of(LEFT, rows("a", 9)), delta_of(RIGHT, rows("a", 9))])
    list(join.answer(Tick(1), [delta_of(LEFT, rows("b", 1)), delta_of(RIGHT, rows("b", 2))]))

    assert join.largest_fan_out() == (2, ("b", 7))


@pytest.mark.parametrize("how", ["left_semi", "left_anti"])
def test_a_join_without_pairs_has_none(how: str) -> None:
    assert answered(rows("a", 3), rows("a", 3), how).largest_fan_out() is None


def test_without_matches_there_is_none() -> None:
    assert answered(rows("a", 3), rows("b", 3), "full").largest_fan_out() is None


def test_a_key_with_null_is_reported_with_its_null() -> None:
    join = answered(rows(None, 2), rows(None, 3), null_safe=[True, True])

    assert join.largest_fan_out() == (6, (None, 7))
