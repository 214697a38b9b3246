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


LEFT, RIGHT = filled((1, "a", LONG), (2, None, "x")), filled((7, "a", "y"), (8, "b", LONG * 2))


def test_where_memory_is_short_arrow_allocates_none_and_few_rows_take_one_buffer() -> None:
    schema, sources = joined_schema(LEFT.relation, RIGHT.relation, "inner", using=False, output_names=None)
    left, right = (np.full(1000, side.first_record) for side in (LEFT, RIGHT))
    joined, addresses = JoinedRows(LEFT, RIGHT, schema, sources), (left.ctypes.data, right.ctypes.data)

    def taken(count: int, **given: bool) -> tuple[pa.RecordBatch, int]:
        before = pa.total_allocated_bytes()
        return joined.gather(*addresses, count, **given), pa.total_allocated_bytes() - before

    (short, of_short), (usual, of_usual), (_, of_few) = taken(1000, keeps_none=True), taken(1000), taken(5)

    assert (of_short, of_usual > 50_000, 0 < of_few < 4_096) == (0, True, True)
    assert short.equals(usual)
    assert joined.resident_bytes() > 0


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
