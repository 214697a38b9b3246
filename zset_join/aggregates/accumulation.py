"""Which accumulators a list of aggregate calls needs, and how the rows of a delta get into them.

Calls that read the same columns under the same filter share an accumulator: sum(x), avg(x) and count(x) read one, min(x),
max(x) and count(DISTINCT x) another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zset_join.aggregates.accumulators import (
    NARROW_DECIMAL_DIGITS,
    Accumulator,
    BitCounts,
    CountOf,
    MomentsOfFloats,
    Source,
    SumOfDecimals,
    SumOfFloats,
    SumOfIntegers,
)
from zset_join.aggregates.lines import Int64s, Lines
from zset_join.aggregates.multisets import ValuesOf
from zset_join.aggregates.results import Result, result_of
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, evaluate, references
from zset_join.shapes.aggregate import BIT_FUNCTIONS, AggregateCall, result_field

__all__ = ["Accumulation", "counted_at"]

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
        """Return every accumulator once."""
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
            return self._shared(("decimals",), source, lambda: SumOfDecimals(source))
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
