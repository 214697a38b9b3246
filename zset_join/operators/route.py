"""From primary keys to join keys: where an upsert has to go, and where its old row has to leave.

Upserts are keyed by primary key, a join is partitioned by join key. When pk=1 moves from key A to key B, the two live in
different partitions and only a table by primary key has A. `Route` keeps that table and turns a changelog in upsert mode into
one whose rows each carry the join key of the partition they belong to.

The law: applied in order, the output leaves the same rows behind as the input; every delete carries the join key its row
had. Per primary key and epoch at most one delete and one upsert come out, the delete first; sequences are settled here, so
the join behind needs none.

Remembers per primary key: the key columns, the join key columns, the sequence, and for deleted keys a tombstone; with a budget
the busy ones in memory and the others on disk.

Source: the shuffle of a stream-stream join in Flink (upsert normalisation before the exchange).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.core.tick import Tick
from zset_join.operators.upsert_table import UpsertTable
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.guarded import guarded
from zset_join.zset import ZSet

__all__ = ["Route"]


@guarded("the route")
class Route(UpsertTable):
    """Send every change to the partition of its join key.

    >>> schema = pa.schema({"id": pa.int64(), "k": pa.string()})
    >>> route = Route(Relation(name="r", schema=schema, join_key=("k",), primary_key=("id",), mode="upsert"))
    >>> route.absorb(Tick(0), [ZSet.of({"id": [1], "k": ["A"]}, schema=schema)])
    >>> moved = [ZSet.of({"id": [1], "k": ["B"]}, schema=schema)]
    >>> [row for chunk in route.answer(Tick(1), moved) for row in chunk.to_pylist()]
    [((1, 'A'), -1), ((1, 'B'), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        if relation.mode != "upsert" or not relation.join_key:
            raise PlanError(
                f'relation "{relation.name}" is in {relation.mode} mode with join key {list(relation.join_key)}; only upserts '
                "by primary key with a join key need a route.",
                code="ROUTE_NOT_NEEDED",
                relation=relation.name,
            )
        nullable = pa.schema([field.with_nullable(True) for field in relation.schema])
        self._keys = tuple(dict.fromkeys((*relation.primary_key, *relation.join_key)))
        super().__init__(
            relation,
            replace(relation, schema=nullable, sequence_by=()),
            table="route",
            kept=tuple(dict.fromkeys((*self._keys, *relation.sequence_by))),
            compared=self._keys,
            options=options,
        )
        self._key_plan = self._side.layout.gather_plan(self._side.relation.field_indices(self._keys))

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._answers.guarded(self._answer(tick, deltas))

    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta) == 0:
            return
        prepared, (old, _) = self._prepare(tick, delta)
        self._refuse_bad_input(prepared, tick)
        # An unchanged key is no change, but its payload passes on: `after_of` names the row that won.
        upserts = np.sort(prepared.after_of[: prepared.entries])
        upserts = upserts[upserts >= 0]
        for keys in self._in_chunks(prepared, old, self._key_plan):
            by_name = dict(zip(self._keys, keys, strict=True))
            count = len(keys[0])
            columns = [
                by_name[field.name] if field.name in by_name else pa.nulls(count, field.type) for field in self.output.schema
            ]
            yield ZSet(pa.RecordBatch.from_arrays(columns, schema=self.output.schema), np.full(count, -1, np.int64))
        rows = conform(delta.rows, self.inputs[0])
        for begin in range(0, len(upserts), self._chunk_rows):
            taken = take_rows(rows, upserts[begin : begin + self._chunk_rows])
            yield ZSet(pa.RecordBatch.from_arrays(taken.columns, schema=self.output.schema), np.ones(taken.num_rows, np.int64))
