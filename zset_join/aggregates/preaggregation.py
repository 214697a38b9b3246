"""Bring a delta down before it is shuffled: one line per group, or per distinct row of the columns that matter.

Where all accumulators are sums and counts, a *partial line* holds a group key and what its rows add up to; the groups of all
tasks are added again behind the shuffle. Where an aggregate needs single values (min, count distinct, lists), the rows are cut
down to the columns that are read and consolidated, so that rows that cancel out do not travel.

The law: an `Aggregate` of the reduced deltas answers as one of the deltas themselves.

Remembers nothing. Cost: the rows of the delta. A partial line takes 8 bytes per state word; pre-aggregation pays when groups
have several rows per task and epoch.

Known limit: a partial line does not contain its rows. An impossible retraction is refused group by group, so partial lines go
together with policy `error` only.

Groups as tables, for snapshots and what is on the disk: one of groups (key, row count, state words), and one per multiset (key,
value, copies), the key columns always in front. Groups that are written and inserted again are present bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.accumulators import Accumulator
from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.lines import Int64s, Lines
from zset_join.aggregates.multisets import ValuesOf
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.aggregate.groups import add_rows
from zset_join.shapes.aggregate import AggregateCall
from zset_join.state.rows.hash_seed import IN_MEMORY
from zset_join.state.rows.side_snapshot import refuse_contradictions, snapshot_parts
from zset_join.zset import ZSet, single_batch

__all__ = ["PARTIAL_WEIGHT", "GroupTables", "Preaggregation", "partial_relation", "parts_of", "table_names", "weights_of"]

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


_ROWS_AT_ONCE = 1 << 16


def weights_of(rows: pa.RecordBatch) -> Int64s:
    """Return the weights of partial lines or of values."""
    return np.require(rows.column(PARTIAL_WEIGHT).to_numpy(zero_copy_only=False), np.int64, ["C", "W"])


def parts_of(rows: pa.Table | pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a table, or what reads one, in parts of which the working arrays are not too large."""
    yield from map(single_batch, snapshot_parts(rows))


def table_names(accumulation: Accumulation) -> tuple[str, ...]:
    """Return the names of the tables of a state: `groups`, then one per multiset."""
    return ("groups", *(f"values_{at}" for at, _ in _multisets(accumulation)))


def _multisets(accumulation: Accumulation) -> list[tuple[int, ValuesOf]]:
    return [(at, one) for at, one in enumerate(accumulation.accumulators) if isinstance(one, ValuesOf)]


class GroupTables:
    """Write the groups of a state, insert them, take them out."""

    def __init__(self, state: GroupState, accumulation: Accumulation) -> None:
        self._state = state
        self._accumulators = accumulation.accumulators
        self._multisets = _multisets(accumulation)
        self.names = table_names(accumulation)

    def schemas(self) -> list[pa.Schema]:
        nothing = np.empty(0, np.int64)
        return [table.schema for table in self.written(nothing, np.empty((0, self._state.line_words), np.int64))]

    def written(self, refs: Int64s, lines: Int64s) -> list[pa.Table]:
        heap = self._state.heap_address
        columns = [*self._keys(refs), pa.array(np.ascontiguousarray(lines[:, 0]))]
        fields = [*self._state.schema, pa.field(PARTIAL_WEIGHT, pa.int64())]
        for one in self._accumulators:
            columns += one.write(lines, heap)
            fields += one.columns()
        tables = [pa.table(columns, schema=pa.schema(fields))]
        for _, one in self._multisets:
            total = int(lines[:, one.distinct_at].sum())
            owners, values, copies = one.write_values(refs, self._state.state_place(one.at), total, heap)
            fields = [*self._state.schema, *one.value_columns(), pa.field(PARTIAL_WEIGHT, pa.int64())]
            tables.append(pa.table([*self._keys(owners), *values, pa.array(copies)], schema=pa.schema(fields)))
        return tables

    def _keys(self, refs: Int64s) -> list[pa.ChunkedArray]:
        parts = [self._state.gather_keys(refs[at : at + _ROWS_AT_ONCE]) for at in range(0, len(refs), _ROWS_AT_ONCE)]
        schema = self._state.schema
        return [pa.chunked_array([part[at] for part in parts], schema.field(at).type) for at in range(len(schema))]

    def insert(self, number: int, rows: pa.RecordBatch) -> None:
        """Add rows of one table that the state does not hold; the table of groups comes first. Cost: the rows."""
        lines = self._state.load(rows, rows.num_rows)
        if number == 0:
            add_rows(lines.count, lines.entry_of, weights_of(rows), lines.line_words, lines.after_address)
            for one in self._accumulators:
                one.merge(lines, [rows.column(field.name) for field in one.columns()])
            repeated = lines.count - lines.entries + int(np.count_nonzero(lines.found[: lines.entries]))
        else:
            repeated = self._add_values(number, lines, rows)
        refuse_contradictions(self._state.relation, repeated)
        self._state.store(lines)

    def _add_values(self, number: int, lines: Lines, rows: pa.RecordBatch) -> int:
        """Add values to lines; return how many are repeated."""
        values = self._multisets[number - 1][1]
        values.add_values(lines, [rows.column(field.name) for field in values.value_columns()], weights_of(rows))
        cells = lines.cells[values.at]
        return int(lines.count - cells.count + np.count_nonzero(cells.before[: cells.count]))

    def repeated_values(self, number: int, rows: pa.RecordBatch) -> int:
        """Return how many values of a table are repeated apart from their group, which is not in the state."""
        lines = self._state.load(rows, rows.num_rows)
        is_together = (np.diff(lines.entry_of[: lines.count]) >= 0).all()  # as written; what it repeats is found by `insert`
        return 0 if is_together else self._add_values(number, lines, rows)

    def remove(self, tables: Sequence[pa.Table]) -> None:
        """Take groups out of the state, given as they were written. Cost: their rows."""
        for (_, one), table in zip(self._multisets, tables[1:], strict=True):
            for rows in parts_of(table):
                lines = self._state.load(rows, rows.num_rows)
                one.add_values(lines, [rows.column(field.name) for field in one.value_columns()], -weights_of(rows))
                self._state.store(lines)
        for rows in parts_of(tables[0]):
            lines = self._state.load(rows, rows.num_rows)
            lines.after[:, 0] = 0  # a group without rows is gone, whatever its words hold; its blocks are freed by them
            self._state.store(lines)

    @property
    def has_values(self) -> bool:
        """Whether groups keep values one by one."""
        return bool(self._multisets)

    def values_per_group(self, lines: Int64s) -> Int64s:
        """Return how many distinct values groups keep, over all multisets."""
        counts: Int64s = np.zeros(len(lines), np.int64)
        for _, one in self._multisets:
            counts += lines[:, one.distinct_at]
        return counts
