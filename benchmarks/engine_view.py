"""The engine as users call it: the join as SQL, run by `Pipeline.step`, Arrow in and one consolidated delta out.

A step contains all that a view costs above the operator: binding of the input, the projection of the SELECT, progress.
Rows of the view are not kept, as the operator keeps none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.workloads import Epoch
from zset_join.core.relation import Relation
from zset_join.pipeline import Pipeline
from zset_join.sql import Query, connect
from zset_join.zset import ZSet

__all__ = ["ZsetJoinView"]

_TYPES = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.string(): "STRING"}


class ZsetJoinView:
    """Keep an inner join as a view of a SQL session.

    Args:
        relations: left and right, both upserted by one column.
    """

    def __init__(self, relations: tuple[Relation, Relation]) -> None:
        self._relations = relations
        left, right = relations
        session = connect(keep_tables=False)
        for one in relations:
            columns = ", ".join(f"{field.name} {_TYPES[field.type]}" for field in one.schema)
            session.sql(f"CREATE TABLE {one.name} ({columns}, PRIMARY KEY ({one.primary_key[0]}) NOT ENFORCED)")
        columns = ", ".join(f"{one.name}.{name}" for one in relations for name in one.schema.names)
        query = session.sql(
            f"SELECT {columns} FROM {left.name} JOIN {right.name} "
            f"ON {left.name}.{left.join_key[0]} = {right.name}.{right.join_key[0]}"
        )
        assert isinstance(query, Query)
        self._pipeline = Pipeline(query.bound.view, keep_view=False)

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Step with first rows."""
        self._pipeline.step({self._relations[side].name: ZSet.of(rows)})

    def loaded(self) -> None:
        """Do nothing; the state is complete."""

    def prepare(self, epoch: Epoch) -> dict[str, ZSet]:
        """Return the deltas by table."""
        return {one.name: delta for one, delta in zip(self._relations, epoch.deltas, strict=True)}

    def step(self, prepared: dict[str, ZSet]) -> ZSet:
        """Run one epoch."""
        return self._pipeline.step(prepared)

    def count_rows(self, answer: ZSet) -> int:
        """Count the rows of the delta."""
        return len(answer)

    def weighted_rows(self, answer: ZSet) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the rows of the delta."""
        yield from answer.to_pylist()
