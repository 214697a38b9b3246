"""Bring a delta down before it is shuffled: one line per group, or per distinct row of the columns that matter.

Where all accumulators are sums and counts, a *partial line* holds a group key and what its rows add up to; the groups of all
tasks are added again behind the shuffle. Where an aggregate needs single values (min, count distinct, lists), the rows are cut
down to the columns that are read and consolidated, so that rows that cancel out do not travel.

The law: an `Aggregate` of the reduced deltas answers as one of the deltas themselves.

Remembers nothing. Cost: the rows of the delta. A partial line takes 8 bytes per state word; pre-aggregation pays when groups
have several rows per task and epoch.

Known limit: a partial line does not contain its rows. An impossible retraction is refused group by group, so partial lines go
together with policy `error` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.accumulators import Accumulator
from zset_join.aggregates.group_state import GroupState
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.aggregate.groups import add_rows
from zset_join.shapes.aggregate import AggregateCall
from zset_join.state.rows.hash_seed import IN_MEMORY
from zset_join.zset import ZSet

__all__ = ["PARTIAL_WEIGHT", "Preaggregation", "partial_relation"]

PARTIAL_WEIGHT = "_zset_weight"
"""The column of a partial line that holds the change of its group's row count."""


def partial_relation(relation: Relation, group_by: Sequence[str], accumulators: Sequence[Accumulator]) -> Relation:
    """Describe partial lines; the accumulators have got their places."""
    fields = [relation.schema.field(name) for name in group_by] + [pa.field(PARTIAL_WEIGHT, pa.int64())]
    for one in accumulators:
        fields += one.columns()
    return Relation(name=relation.name, schema=pa.schema(fields), mode="changelog")


class Preaggregation:
    """Reduce deltas of a relation for an aggregate.

    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
    >>> reduction = Preaggregation(sales, ["shop"], [AggregateCall("sum", "price")])
    >>> reduction.is_partial, len(reduction.reduce(ZSet.of({"shop": ["A", "A", "B"], "price": [1, 2, 3]})))
    (True, 2)
    """

    def __init__(self, relation: Relation, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> None:
        self._source = relation
        self._accumulation = Accumulation(relation, calls)
        self.is_partial = self._accumulation.is_linear
        self._columns = tuple(dict.fromkeys((*group_by, *self._accumulation.input_columns())))
        if self.is_partial:
            schema = pa.schema([relation.schema.field(name) for name in group_by])
            self._state = GroupState(
                relation.name,
                schema,
                self._accumulation.accumulators,
                fingerprint="",
                tables=IN_MEMORY.seeded(),
                name="partial",
            )
            self.relation = partial_relation(relation, group_by, self._accumulation.accumulators)
        else:
            schema = pa.schema([relation.schema.field(name) for name in self._columns])
            time = relation.event_time if relation.event_time in self._columns else None
            delay = None if time is None else relation.watermark_delay
            self.relation = replace(
                relation, schema=schema, join_key=(), primary_key=(), event_time=time, watermark_delay=delay
            )

    def reduce(self, delta: ZSet) -> ZSet:
        """Return the delta, reduced; partial lines have weight 1 each."""
        rows = conform(delta.rows, self._source)
        if not self.is_partial:
            kept = [rows.column(name) for name in self._columns]
            return ZSet(pa.RecordBatch.from_arrays(kept, schema=self.relation.schema), delta.weights).consolidated()
        if self._source.mode == "append" and len(delta) and delta.weights.min() < 0:
            raise BadInputError(
                f'relation "{self._source.name}" is append-only, but a delta has a row with weight {delta.weights.min()}; '
                "declare keys or a weight column if it changes.",
                code="RETRACTION_IN_APPEND",
                relation=self._source.name,
            )
        if not len(delta):
            return ZSet.empty(self.relation.schema)
        weights = np.require(delta.weights, np.int64, ["C", "W"])
        lines = self._state.load(rows, len(delta))
        add_rows(lines.count, lines.entry_of, weights, lines.line_words, lines.after_address)
        self._accumulation.add(lines, rows, weights)
        kept_entries = np.flatnonzero(lines.after.any(axis=1))
        after = np.ascontiguousarray(lines.after[kept_entries])
        columns = self._state.gather_keys(self._state.key_refs(lines)[kept_entries])
        columns.append(pa.array(np.ascontiguousarray(after[:, 0])))
        for one in self._accumulation.accumulators:
            columns += one.write(after, self._state.heap_address)
        batch = pa.RecordBatch.from_arrays(columns, schema=self.relation.schema)
        return ZSet(batch, np.ones(len(kept_entries), np.int64))
