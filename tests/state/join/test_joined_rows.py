"""Output columns are gathered from pairs of record addresses; 0 is a side that is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import zset_join.state.join.joined_rows as module
from tests.epochs import insert
from tests.state.side_anatomy import absorb, make_side
from zset_join.shapes.join import joined_schema
from zset_join.state.join.joined_rows import JoinedRows
from zset_join.state.rows.side import SideState

LONG = "a text that is longer than twelve bytes"


def filled(*rows: tuple[Any, ...]) -> SideState:
    """Return a side with these rows, numbered from 1."""
    side = make_side("append")
    absorb(side, insert(*rows))
    return side


def gather(
    left: SideState, right: SideState, pairs: list[tuple[int, int]], how: str, *, using: bool = False
) -> list[tuple[Any, ...]]:
    """Return the output rows of pairs of row numbers."""
    schema, sources = joined_schema(left.relation, right.relation, how, using=using, output_names=None)
    numbers = np.array(pairs, np.int64)
    addresses = [
        np.where(numbers[:, at] > 0, side.first_record + (numbers[:, at] - 1) * side.layout.stride, 0)
        for at, side in enumerate((left, right))
    ]
    left_refs, right_refs = (np.ascontiguousarray(refs) for refs in addresses)
    joined, addresses_of_refs = JoinedRows(left, right, schema, sources), (left_refs.ctypes.data, right_refs.ctypes.data)
    made = joined.gather(*addresses_of_refs, len(pairs))
    in_short_memory = joined.gather(*addresses_of_refs, len(pairs), keeps_none=True)
    assert made.schema == schema
    assert in_short_memory.equals(made)
    made.validate(full=True)
    in_short_memory.validate(full=True)
    return list(zip(*(column.to_pylist() for column in made.columns), strict=True))


LEFT, RIGHT = filled((1, "a", LONG), (2, None, "x")), filled((7, "a", "y"), (8, "b", LONG * 2))


def test_a_pair_shows_both_rows() -> None:
    assert gather(LEFT, RIGHT, [(1, 1), (1, 2)], "inner") == [(1, "a", LONG, 7, "a", "y"), (1, "a", LONG, 8, "b", LONG * 2)]


def test_where_memory_is_short_arrow_allocates_none() -> None:
    schema, sources = joined_schema(LEFT.relation, RIGHT.relation, "inner", using=False, output_names=None)
    refs = np.full(1000, LEFT.first_record), np.full(1000, RIGHT.first_record)
    joined, before = JoinedRows(LEFT, RIGHT, schema, sources), pa.total_allocated_bytes()

    short = joined.gather(refs[0].ctypes.data, refs[1].ctypes.data, 1000, keeps_none=True)
    taken_short = pa.total_allocated_bytes() - before
    usual = joined.gather(refs[0].ctypes.data, refs[1].ctypes.data, 1000)
    taken = pa.total_allocated_bytes() - before

    assert (taken_short, taken > 50_000) == (0, True)
    assert short.equals(usual)


def test_a_missing_side_is_all_null() -> None:
    assert gather(LEFT, RIGHT, [(2, 0), (0, 1)], "full") == [(2, None, "x", None, None, None), (None, None, None, 7, "a", "y")]


def test_semi_joins_show_the_left_row_only() -> None:
    assert gather(LEFT, RIGHT, [(2, 0), (1, 0)], "left_semi") == [(2, None, "x"), (1, "a", LONG)]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((1, 1), ("a", 1, LONG, 7, "y")),
        ((0, 2), ("b", None, None, 8, LONG * 2)),
        ((1, 0), ("a", 1, LONG, None, None)),
        ((2, 0), (None, 2, "x", None, None)),
    ],
)
def test_a_merged_key_is_that_of_the_side_that_is_there(pair: tuple[int, int], expected: tuple[Any, ...]) -> None:
    assert gather(LEFT, RIGHT, [pair], "full", using=True) == [expected]


def test_no_pairs_make_no_rows() -> None:
    schema, sources = joined_schema(LEFT.relation, RIGHT.relation, "inner", using=False, output_names=None)
    nothing = np.zeros(1, np.int64)

    made = JoinedRows(LEFT, RIGHT, schema, sources).gather(int(nothing.ctypes.data), int(nothing.ctypes.data), 0)

    assert (made.num_rows, made.schema) == (0, schema)


def test_few_rows_are_gathered_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, sources = joined_schema(LEFT.relation, RIGHT.relation, "full", using=False, output_names=None)
    few, many = (JoinedRows(LEFT, RIGHT, schema, sources) for _ in range(2))
    rng, kept = np.random.default_rng(7), []
    for count in (3, 1, 1024, 9, 8, 1, 1025, 2, 16, 17, 1000):
        refs = [
            np.where(numbers > 0, side.first_record + (numbers - 1) * side.layout.stride, 0)
            for side in (LEFT, RIGHT)
            for numbers in [rng.integers(0 if count % 2 else 1, 3, count)]
        ]
        addresses = refs[0].ctypes.data, refs[1].ctypes.data
        with monkeypatch.context() as patched:
            patched.setattr(module, "_MOST_FEW", 0)
            expected = many.gather(*addresses, count)
        kept.append((few.gather(*addresses, count), expected))

    for made, expected in kept:  # after all of them: none is written to when the next ones are made
        made.validate(full=True)
        assert made.equals(expected)
        assert [column.null_count for column in made.columns] == [column.null_count for column in expected.columns]
        assert made.schema.equals(schema, check_metadata=True)


def test_few_rows_take_one_buffer() -> None:
    schema, sources = joined_schema(LEFT.relation, RIGHT.relation, "inner", using=False, output_names=None)
    refs = np.full(5, LEFT.first_record), np.full(5, RIGHT.first_record)
    joined, before = JoinedRows(LEFT, RIGHT, schema, sources), pa.total_allocated_bytes()

    made = joined.gather(refs[0].ctypes.data, refs[1].ctypes.data, 5)

    assert made.num_rows == 5
    assert 0 < pa.total_allocated_bytes() - before < 4_096
    assert joined.resident_bytes() > 0
