"""Which accumulators a list of aggregate calls needs, and how the rows of a delta get into them.

Calls that read the same columns under the same filter share an accumulator: sum(x), avg(x) and count(x) read one, min(x),
max(x) and count(DISTINCT x) another.

`GroupTables`, `Preaggregation`: bring a delta down before it is shuffled: one line per group, or per distinct row of the
columns that matter.

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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.aggregates.accumulators import (
    NARROW_DECIMAL_DIGITS,
    Accumulator,
    BitCounts,
    CountOf,
    Int64s,
    Lines,
    MomentsOfFloats,
    Source,
    SumOfFloats,
    SumOfIntegers,
)
from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.results import Result, result_of
from zset_join.aggregates.value_codecs import ValuesOf
from zset_join.core.errors import BadInputError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.expressions import Expression, evaluate, references
from zset_join.kernels.aggregate.groups import add_rows
from zset_join.shapes.aggregate import BIT_FUNCTIONS, AggregateCall, result_field
from zset_join.state.rows.directories import IN_MEMORY
from zset_join.state.rows.side_snapshot import refuse_contradictions, snapshot_parts
from zset_join.zset import ZSet, single_batch

__all__ = [
    "Accumulation",
    "GroupTables",
    "Preaggregation",
    "counted_at",
    "partial_relation",
    "parts_of",
    "table_names",
    "weights_of",
]

_MULTISETS = ("min", "max", "count_distinct", "collect_list", "collect_set", "min_by", "max_by")
_MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")


class Accumulation:
    """Add the rows of a relation to the accumulators of some calls."""

    def __init__(self, relation: Relation, calls: Sequence[AggregateCall]) -> None:
        self.relation = relation
        self.calls = tuple(calls)
        self.fields = [result_field(call, relation.schema, relation.name) for call in self.calls]
        self._filters: list[Expression] = []
        self._made: dict[tuple[object, ...], Accumulator] = {}
        squared = {(self._source(call).columns, self._filter_of(call)) for call in self.calls if call.kind in _MOMENTS}
        # Counts come last: whatever adds a column up counts its values as well.
        order = sorted(range(len(self.calls)), key=lambda number: self.calls[number].kind == "count")
        reads = {number: self._accumulator(self.calls[number], squared) for number in order}
        self._reads = [reads[number] for number in range(len(self.calls))]

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(self._made.values())

    @property
    def is_linear(self) -> bool:
        """Return whether all accumulators are sums and counts, so that partial lines can be added up."""
        return not any(isinstance(one, ValuesOf) for one in self.accumulators)

    def results(self) -> list[Result]:
        """Return the readers of the columns of the answer; the accumulators have got their places by now."""
        return [
            result_of(call, read, field.type) for call, read, field in zip(self.calls, self._reads, self.fields, strict=True)
        ]

    def meaning(self) -> list[str]:
        """Describe the state words, for the fingerprint of a state."""
        return [
            f"{type(one).__name__} {one.source.columns} {[str(kind) for kind in one.source.types]} "
            f"{'' if one.source.filter < 0 else repr(self._filters[one.source.filter])}"
            for one in self.accumulators
        ]

    def input_columns(self) -> tuple[str, ...]:
        columns: dict[str, None] = {}
        for call in self.calls:
            columns.update(dict.fromkeys(call.columns))
        for one in self._filters:
            columns.update(dict.fromkeys(sorted(references(one)[0])))
        return tuple(columns)

    def _filter_of(self, call: AggregateCall) -> int:
        if call.where is None:
            return -1
        for number, known in enumerate(self._filters):
            if known.same_as(call.where):
                return number
        self._filters.append(call.where)
        return len(self._filters) - 1

    def _source(self, call: AggregateCall) -> Source:
        columns = tuple(call.columns)
        if call.kind in ("min_by", "max_by"):
            columns = columns[::-1]
        types = tuple(self.relation.schema.field(name).type for name in columns)
        return Source(columns, types, self._filter_of(call))

    def _accumulator(self, call: AggregateCall, squared: set[tuple[tuple[str, ...], int]]) -> Accumulator | None:
        source = self._source(call)
        if call.kind == "count" and not source.columns and source.filter < 0:
            return None
        if call.kind in _MULTISETS:
            by_order = call.kind in ("min_by", "max_by")
            may_be_null = (False, True) if by_order else (False,) * len(source.columns)
            parts = call.kind in ("min", "max") and pt.is_floating(storage_type(source.types[0]))
            return self._shared(("values", by_order, parts), source, lambda: ValuesOf(source, may_be_null, parts_zeros=parts))
        if call.kind == "count":
            same = (one for one in self.accumulators if one.source == source and not isinstance(one, ValuesOf))
            return next(same, None) or self._shared(("count",), source, lambda: CountOf(source))
        if call.kind in BIT_FUNCTIONS:
            return self._shared(("bits",), source, lambda: BitCounts(source))
        stored = storage_type(source.types[0])
        if call.kind in _MOMENTS or (pt.is_floating(stored) and (source.columns, source.filter) in squared):
            return self._shared(("moments",), source, lambda: MomentsOfFloats(source))
        if pt.is_floating(stored):
            return self._shared(("floats",), source, lambda: SumOfFloats(source))
        if pt.is_decimal(stored) and stored.precision > NARROW_DECIMAL_DIGITS:
            return self._shared(("decimals",), source, lambda: SumOfIntegers(source, is_wide=True))
        return self._shared(("integers",), source, lambda: SumOfIntegers(source))

    def _shared(self, kind: tuple[object, ...], source: Source, make: Any) -> Accumulator:
        key = (*kind, source.columns, source.filter)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # ---------------------------------------------------------------- rows

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        """Add the rows of a delta to `after`; return whether a count may have fallen below 0."""
        filtered = self._filtered(rows, weights)
        suspicious = False
        for one in self.accumulators:
            chosen = weights if one.source.filter < 0 else filtered[one.source.filter]
            suspicious |= one.add(lines, rows, chosen)
            counted = lines.after[:, counted_at(one)]
            suspicious |= bool((lines.after[:, 0] < counted).any())
        return suspicious

    def _filtered(self, rows: pa.RecordBatch, weights: Int64s) -> list[Int64s]:
        """Return the weights under each filter: 0 for rows that do not pass."""
        filtered = []
        for one in self._filters:
            columns = {name: rows.column(name) for name in references(one)[0]}
            filtered.append(np.where(evaluate(one, columns, {}, rows.num_rows), weights, 0))
        return filtered

    def constraints(self, lines: Lines, rows: pa.RecordBatch) -> list[tuple[Int64s, Int64s]]:
        """Return the sources of each row: the cell it belongs to, and how many copies the cells have before the delta."""
        # A row counts among the values of an accumulator or among those that do not (NULL, or filtered out); neither may fall
        # below 0, nor may a value of a multiset.
        entry_of = lines.entry_of[: lines.count]
        before = lines.before
        constraints: list[tuple[Int64s, Int64s]] = [(entry_of.copy(), before[:, 0].copy())]
        filtered = self._filtered(rows, np.ones(lines.count, np.int64))
        for one in self.accumulators:
            counted = _counted_rows(one, rows)
            if one.source.filter >= 0:
                counted = counted & (filtered[one.source.filter] != 0)
            at = counted_at(one)
            copies = np.empty((lines.entries, 2), np.int64)
            copies[:, 0] = before[:, at]
            copies[:, 1] = before[:, 0] - before[:, at]
            constraints.append((2 * entry_of + ~counted, copies.reshape(-1)))
            if isinstance(one, ValuesOf):
                cells = lines.cells[one.at]
                constraints.append(cells.limits or (cells.cell_of, cells.before[: cells.count].copy()))
        return constraints


def counted_at(accumulator: Accumulator) -> int:
    """Return the position in a line of the number of values that an accumulator has counted."""
    return accumulator.total_at if isinstance(accumulator, ValuesOf) else accumulator.at


def _counted_rows(accumulator: Accumulator, rows: pa.RecordBatch) -> Any:
    """Return which rows have a value that counts."""
    counted = np.ones(rows.num_rows, np.bool_)
    nullable = accumulator.may_be_null if isinstance(accumulator, ValuesOf) else (False,) * len(accumulator.source.columns)
    for name, may_be_null in zip(accumulator.source.columns, nullable, strict=True):
        column = rows.column(name)
        if column.null_count and not may_be_null:
            counted &= column.is_valid().to_numpy(zero_copy_only=False)
    return counted


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
        return bool(self._multisets)

    def values_per_group(self, lines: Int64s) -> Int64s:
        """Return how many distinct values groups keep, over all multisets."""
        counts: Int64s = np.zeros(len(lines), np.int64)
        for _, one in self._multisets:
            counts += lines[:, one.distinct_at]
        return counts
