"""Tombstones on disk are remembered exactly as long as those in memory, whatever the watermark does.

The laws of `budget_is_invisible` have watermarks far inside every retention. Here it is three seconds, the watermark moves by
some, does not advance, goes back or is missing, and the state is opened again or restored in between.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.built import built
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.state.cold import cold_side
from zset_join.testing.comparison import exact_tables, total
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.string(), "at": pa.int64()})
OUTSIDE = Relation(name="rows", schema=SCHEMA, join_key=("k",), primary_key=("id",), mode="upsert", sequence_by=("at",))
INSIDE = Relation(name="rows", schema=SCHEMA, join_key=("id",), primary_key=("id",), mode="upsert", sequence_by=("at",))
BUDGETS: tuple[dict[str, Any], ...] = ({"max_hot_bytes": 0}, {"max_hot_keys": 1}, {"max_hot_keys": 3})
KINDS = ("route", "join by a key of its own", "join by its primary key")
RETENTION_SECONDS = 3
LONG = "a key that is longer than twelve bytes"

rows = st.tuples(st.integers(0, 5), st.sampled_from(("A", LONG)), st.integers(0, 9), st.sampled_from((1, 1, -1, -1)))
epochs = st.tuples(
    st.lists(rows, max_size=4), st.none() | st.integers(-2, 6), st.sampled_from(("go on", "go on", "open again", "restore"))
)


def make(kind: str, directory: str | None = None, **options: Any) -> Route | HashJoin:
    """Return an operator that keeps tombstones for `RETENTION_SECONDS`."""
    options |= {"directory": directory, "tombstone_retention_seconds": RETENTION_SECONDS, "hash_bits": 4}
    if kind == "route":
        return built(Route, OUTSIDE, **options)
    one = OUTSIDE if kind == "join by a key of its own" else INSIDE
    return built(HashJoin, one, one, "left", **options)


def answered(operator: Route | HashJoin, tick: Tick, deltas: Sequence[ZSet]) -> dict[Any, int]:
    """Return the sum of an answer, and absorb."""
    answer = total(line for chunk in operator.answer(tick, deltas) for line in chunk.to_pylist())
    operator.absorb(tick, deltas)
    return answer


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@given(history=st.lists(epochs, max_size=12))
def test_with_any_budget_a_deleted_key_is_remembered_as_long_as_with_everything_in_memory(
    history: list[tuple[list[tuple[int, str, int, int]], int | None, str]], kind: str, budget: dict[str, Any]
) -> None:
    seconds = 100
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(cold_side, "SPARE_TOMBSTONES", 0):
        whole, hybrid = make(kind), make(kind, directory, **budget)
        for epoch, (changes, moved, then) in enumerate(history):
            seconds += moved or 0
            tick = Tick(epoch, None if moved is None else seconds * 1_000_000)
            *columns, weights = list(zip(*changes, strict=True)) or [(), (), (), ()]
            delta = ZSet.of(dict(zip(SCHEMA.names, columns, strict=True)), weights, schema=SCHEMA)
            deltas = [delta] if kind == "route" else [delta, ZSet.empty(SCHEMA)]

            assert answered(hybrid, tick, deltas) == answered(whole, tick, deltas)
            state = exact_tables(whole.snapshot())
            assert exact_tables(hybrid.snapshot()) == state
            counts = hybrid.statistics()
            assert sum(count for name, count in counts.items() if name.endswith("_hot_tombstones")) <= max(budget.values())

            if then == "open again":
                hybrid.close()
                hybrid = make(kind, directory, **budget)
            elif then == "restore":
                for operator in (whole, hybrid):
                    operator.restore(operator.snapshot())
            assert exact_tables(hybrid.snapshot()) == state
        hybrid.close()
