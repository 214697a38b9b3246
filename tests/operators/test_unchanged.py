"""Rows that are passed on, by example."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.stateless import Unchanged
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

CLICKS = Relation(name="clicks", schema=pa.schema({"page": pa.string()}), mode="changelog")


def test_it_is_a_durable_operator() -> None:
    assert isinstance(Unchanged(CLICKS), DurableOperator)


def test_rows_come_out_netted_and_retractions_first() -> None:
    same = Epochs(Unchanged(CLICKS))

    assert same.feed([*insert(("b",), ("b",), ("c",)), *delete(("a",), ("c",))]) == [(("a",), -1), (("b",), 2)]


def test_it_goes_on_after_its_last_epoch(tmp_path: Path) -> None:
    first = Unchanged(CLICKS, directory=str(tmp_path))
    first.absorb(Tick(4), [ZSet.of({"page": ["a"]})])

    again = Unchanged(CLICKS, directory=str(tmp_path))

    assert again.is_current()
    with pytest.raises(StateError, match="4"):
        again.absorb(Tick(4), [ZSet.of({"page": ["a"]})])


def test_a_snapshot_carries_the_epoch_alone(tmp_path: Path) -> None:
    first = Unchanged(CLICKS)
    first.absorb(Tick(2), [ZSet.of({"page": ["a"]})])
    again = Unchanged(CLICKS, directory=str(tmp_path))

    again.restore(first.snapshot())

    assert [table.num_rows for table in first.snapshot().values()] == [0]
    with pytest.raises(StateError):
        again.absorb(Tick(2), [ZSet.of({"page": ["a"]})])
