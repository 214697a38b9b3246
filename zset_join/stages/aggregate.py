"""GROUP BY as a stage; DISTINCT is one that computes nothing.

Rows are brought down before they travel: to one partial line per group where all results are sums and counts, else to the
columns that are read. A runner in which rows do not travel may request them as they are (`reduces=False`); the operator is
another one then, and so is its log.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.aggregates.accumulation import Accumulation, Preaggregation, table_names
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import references
from zset_join.expressions.rows import columns_read
from zset_join.operators.aggregate import Aggregate
from zset_join.shapes.aggregate import AggregateCall, grouped_relation
from zset_join.stages.batch import BatchScope, BatchTable, Dialect, expression_sql, one_side, register_batch_query
from zset_join.stages.request import InputRows, StageRequest
from zset_join.stages.stage import (
    Comparison,
    OutputKey,
    Reduction,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    compared_keys,
    register_stage,
)
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["AggregateRequest", "AggregateStage"]

_KEEP_VALUES = ("min", "max", "count_distinct", "collect_list", "collect_set", "min_by", "max_by")


@dataclass(frozen=True, kw_only=True)
class _Reduced(Reduction):
    """Output of a `Preaggregation`; rebuilt where it is used, so that the stage can be pickled."""

    source: Relation
    group_by: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    @cached_property
    def _made(self) -> Preaggregation:
        return Preaggregation(self.source, self.group_by, self.calls)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "group_by": self.group_by, "calls": self.calls}

    @property
    def is_partial(self) -> bool:
        return self._made.is_partial

    @property
    @override
    def relation(self) -> Relation:
        return self._made.relation

    @override
    def reduce(self, delta: ZSet) -> ZSet:
        return self._made.reduce(delta)


@dataclass(frozen=True, kw_only=True)
class AggregateStage(Stage):
    source: Relation
    group_by: tuple[str, ...]  # none: one global row
    calls: tuple[AggregateCall, ...]  # none: DISTINCT
    reduces: bool = True  # whether rows are reduced before the shuffle

    @property
    @override
    def kind(self) -> str:
        return "aggregate"

    @cached_property
    def _reduction(self) -> _Reduced:
        return _Reduced(source=self.source, group_by=self.group_by, calls=self.calls)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "group_by": self.group_by, "calls": self.calls, "reduces": self.reduces}

    @property
    def is_partial(self) -> bool:
        return self.reduces and self._reduction.is_partial

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        types = tuple(self.source.schema.field(name).type for name in self.group_by)
        reduction = self._reduction if self.reduces else None
        return (StageInput(relation=self.source, key=self.group_by, key_types=types, reduce=reduction),)

    @cached_property
    @override
    def output(self) -> Relation:
        return grouped_relation(self.source, self.group_by, self.calls)

    @property
    @override
    def output_key(self) -> OutputKey:
        return OutputKey(columns=self.group_by, bucketed_by=self.group_by)

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        # A count only checks whether a value is present.
        looked_at = [(call.columns, f"an argument of {call.kind}") for call in self.calls if call.kind != "count"]
        filters = [(call.where, f"part of the filter of {call.kind}") for call in self.calls if call.where is not None]
        looked_at += [(tuple(references(where)[0]), use) for where, use in filters]
        others = [Comparison(relation=self.source, columns=columns, use=use) for columns, use in looked_at]
        return (*compared_keys(self.inputs, "a key of groupBy or distinct"), *others)

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        return bool(self.output_key.columns)

    @property
    @override
    def lists_input(self) -> bool:
        return not self.calls and self.group_by == tuple(self.source.schema.names)

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return inputs[0] & set(self.group_by)

    @cached_property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return dict.fromkeys(table_names(Accumulation(self.source, self.calls)), TableKey(columns=self.group_by))

    @property
    @override
    def follows_from_rows(self) -> bool:
        return True

    @property
    @override
    def emits_without_input(self) -> bool:
        return not self.group_by

    @property
    @override
    def cold_state(self) -> Literal["groups"] | None:
        # The single row of a global aggregate stays in memory.
        return "groups" if self.group_by else None

    @override
    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return frozenset()

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        read = [name for call in self.calls for name in call.columns]
        conditions = [columns_read(call.where) for call in self.calls if call.where is not None]
        return (frozenset(self.group_by).union(read, *conditions),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        budget = options.table_budget if self.group_by else None
        used = options.of_operator(directory, budget=budget)
        is_cut = self.reduces and not self._reduction.is_partial
        return Aggregate(
            self._reduction.relation if is_cut else self.source,
            self.group_by,
            self.calls,
            preaggregated=self.is_partial,
            options=replace(used, on_bad_input="error") if self.reduces else used,
        )

    @property
    def title(self) -> str:
        if not self.calls:
            return f"Distinct {', '.join(self.group_by)}"
        calls = ", ".join(map(repr, self.calls))
        return f"Aggregate by {', '.join(self.group_by)}: {calls}" if self.group_by else f"Aggregate all rows: {calls}"

    @override
    def explain(self, buckets: int | None) -> list[str]:
        single = [call.name for call in self.calls if call.kind in _KEEP_VALUES]
        remembers = "per group its key and sums" if self.group_by else "one row of sums"
        remembers = remembers if self.calls else "every distinct row with its copies"
        if single:
            remembers += f", and every distinct value with its copies for {', '.join(single)}"
        where = shown_buckets(buckets, "group") if self.group_by else "in one bucket"
        return [self.title, f"  remembers: {remembers}; {where}"]


@dataclass(frozen=True, eq=False)
class AggregateRequest(StageRequest):
    """Request GROUP BY; without calls, for DISTINCT."""

    group_by: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    @override
    def stage(self, inputs: Sequence[InputRows]) -> AggregateStage:
        source = replace(inputs[0].relation, primary_key=(), join_key=(), event_time=None, watermark_delay=None)
        return AggregateStage(source=source, group_by=self.group_by, calls=self.calls, reduces=False)

    @override
    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:
        return name if name in self.group_by else None


def aggregate_sql(stage: AggregateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the groups of a table; without calls, its distinct rows."""
    (table,) = inputs
    keys = [table.column(name) for name in stage.group_by]
    schema = stage.output.schema
    shown = [f"{key} AS c{at}" for at, key in enumerate(keys)]
    calls = [
        f"{_call_sql(call, table, schema.field(call.name).type, scope.dialect)} AS c{at}"
        for at, call in enumerate(stage.calls, start=len(keys))
    ]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*shown, *calls])} FROM {table.name}{grouped}"


def _call_sql(call: AggregateCall, table: BatchTable, result: pa.DataType, dialect: Dialect) -> str:
    columns = [table.column(name) for name in call.columns]
    conditions = []
    if call.where is not None:
        conditions.append(expression_sql(call.where, one_side(table.relation.schema), dialect))
    if call.kind in ("min_by", "max_by"):
        conditions.append(f"{columns[1]} IS NOT NULL")
    if call.kind in ("count_distinct", "collect_list", "collect_set"):
        conditions += [f"{one} IS NOT NULL" for one in columns]
    passing = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    if call.kind == "avg":
        return dialect.average(columns[0], passing, result)
    text = _function_sql(call, columns, passing, dialect)
    if call.kind in ("min_by", "max_by", "min", "max") or pt.is_nested(result):
        return text
    return f"CAST({text} AS {dialect.type_name(result)})"


def _function_sql(call: AggregateCall, columns: Sequence[str], passing: str, dialect: Dialect) -> str:
    first = columns[0] if columns else "*"
    match call.kind:
        case "count_distinct":
            return f"{dialect.count_distinct(columns)}{passing}"
        case "min_by" | "max_by":
            return f"{dialect.first_by(first, columns[1], descending=call.kind == 'max_by')}{passing}"
        case "collect_list" | "collect_set":
            return dialect.listed(first, passing, is_set=call.kind == "collect_set")
        case kind:
            return f"{kind}({first}){passing}"


register_stage("aggregate", AggregateStage)
register_batch_query("aggregate", aggregate_sql)
