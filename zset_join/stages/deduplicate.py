"""The first rows of every key as a stage: ROW_NUMBER() OVER (PARTITION BY keys ORDER BY ...) <= n."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from typing_extensions import override

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.deduplicate import Deduplicate
from zset_join.shapes.deduplicate import Keep, OrderColumn, check_dedup, first_rows_relation
from zset_join.stages.batch import BatchScope, BatchTable, has_arrivals, register_batch_query, row_copies
from zset_join.stages.request import InputRows, NamedColumnsRequest, VersionsBelow
from zset_join.stages.stage import (
    Comparison,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    compared_keys,
    refuse_hybrid,
    register_stage,
)
from zset_join.zset.protocol import DurableOperator

__all__ = ["DedupRequest", "DeduplicateStage"]


@dataclass(frozen=True, kw_only=True)
class DeduplicateStage(Stage):
    source: Relation
    keys: tuple[str, ...]
    order_by: tuple[str, ...]  # as `"t"` or `"price desc"`
    keep: Keep = "first"
    n: int = 1  # rows per key
    input_only_adds: bool = field(default=False, compare=False)
    is_ordered: bool = field(default=False, compare=False)

    @property
    @override
    def kind(self) -> str:
        return "deduplicate"

    @property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # NULL is a key like any other.
        types = tuple(storage_type(self.source.schema.field(name).type) for name in self.keys)
        return (StageInput(relation=self.source, key=self.keys, key_types=types),)

    @cached_property
    @override
    def output(self) -> Relation:
        check_dedup(self.source, self.keys, self.columns, self.keep, self.n)
        return first_rows_relation(self.source, self.keys, self.columns, self.keep, self.n)

    @property
    def columns(self) -> tuple[OrderColumn, ...]:
        """Return the order, read."""
        return tuple(OrderColumn.of(column) for column in self.order_by)

    @property
    @override
    def output_key(self) -> OutputKey:
        return OutputKey(columns=self.keys if self.n == 1 else (), bucketed_by=self.keys)

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return inputs[0]

    @property
    @override
    def shows_newest(self) -> bool:
        return self.output.event_time is not None

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        # Ordering columns are never strings.
        return compared_keys(self.inputs, "a key of dedup")

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {"rows": TableKey(columns=self.keys)}

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # All where the arrival of rows decides that another row may replace.
        if not (self.input_only_adds or self.source.mode == "append" or self.is_ordered):
            return (None,)
        return (frozenset(shown).union(self.keys, (one.name for one in self.columns)),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        refuse_hybrid(options.table_budget, title=self.title, option="default_hash_table")
        return Deduplicate(
            self.source,
            keys=self.keys,
            order_by=self.order_by,
            keep=self.keep,
            n=self.n,
            only_adds=self.input_only_adds,
            options=options.of_operator(directory),
        )

    @property
    def title(self) -> str:
        order = ", ".join(map(str, self.columns))
        shown = f"{self.keep} row" if self.n == 1 else f"{self.keep} {self.n} rows"
        return f"Deduplicate by {', '.join(self.keys)}: the {shown} in order of {order}"

    @override
    def explain(self, buckets: int | None) -> list[str]:
        is_limited = self.input_only_adds or self.source.mode == "append"
        only = "the rows shown" if is_limited else "every live row, for a shown one may be retracted"
        versioned = self.output.event_time is not None
        use = "a versioned relation" if versioned else "latest-only: not ordered by its event time alone, newest first"
        return [
            self.title,
            f"  remembers: {only}; {shown_buckets(buckets, ', '.join(self.keys))}; nothing is freed by time",
            f"  as the right side of a temporal join: {use}",
        ]


@dataclass(frozen=True, eq=False)
class DedupRequest(NamedColumnsRequest):
    """Request the first or last rows of every key."""

    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    keep: Keep = "first"
    n: int = 1

    @override
    def versions_below(self, source: Relation, output: Relation) -> VersionsBelow:
        if output.event_time is None:
            order = ", ".join(self.order_by)
            newest = f"event time {source.event_time}" if source.event_time else "an event time, which its input has not,"
            dedup = f"a dedup by {order} (keep={self.keep}, n={self.n})"
            return VersionsBelow(False, f"{dedup}; the newest row by {newest} alone is versioned")
        if source.mode == "upsert":
            return VersionsBelow(False, "a dedup of a table that has one row per key already")
        why = f"the rows below its dedup are versions of {', '.join(self.keys)}, from {source.event_time} on"
        return VersionsBelow(True, why, self.keys)

    @override
    def stage(self, inputs: Sequence[InputRows]) -> DeduplicateStage:
        identity = set(inputs[0].relation.primary_key)
        source = replace(inputs[0].relation, join_key=(), primary_key=())
        return DeduplicateStage(
            source=source,
            keys=self.keys,
            order_by=self.order_by,
            keep=self.keep,
            n=self.n,
            input_only_adds=inputs[0].only_adds,
            is_ordered=bool(identity) and identity <= {*self.keys, *(OrderColumn.of(one).name for one in self.order_by)},
        )


def dedup_sql(stage: DeduplicateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the first rows of every key by their number."""
    (table,) = inputs
    arrivals, order = has_arrivals(table), _order_of(stage, table)
    last = stage.columns[-1]
    if arrivals:
        order.append("n DESC" if last.descending != (stage.keep == "last") else "n")
    keys = ", ".join(table.column(name) for name in stage.keys)
    rows = (
        f"SELECT * FROM ({row_copies(table, scope.dialect)}) WHERE gone IS NULL" if arrivals else f"SELECT * FROM {table.name}"
    )
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(order)}) AS place FROM ({rows})"
    return f"SELECT {', '.join(table.columns)} FROM ({ranked}) WHERE place <= {stage.n}"


def dedup_tied(stage: DeduplicateStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of keys whose last place is that of several rows."""
    (table,) = inputs
    if has_arrivals(table):
        return None
    columns = ", ".join(table.columns)
    keys, order = [table.column(name) for name in stage.keys], _order_of(stage, table)
    alike = ", ".join([*keys, *(table.column(one.name) for one in stage.columns)])
    reaching = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    before = f"sum(copies) OVER (PARTITION BY {', '.join(keys)} ORDER BY {', '.join(order)} {reaching})"
    among = f"count(*) OVER (PARTITION BY {alike}) AS among, sum(copies) OVER (PARTITION BY {alike}) AS own"
    distinct = scope.dialect.distinct(table.columns, "count(*) AS copies", table.name)
    placed = f"SELECT *, {before} AS reached, {among} FROM ({distinct})"
    return f"SELECT {columns} FROM ({placed}) WHERE among > 1 AND reached > {stage.n} AND reached - own < {stage.n}"


def _order_of(stage: DeduplicateStage, table: BatchTable) -> list[str]:
    order = []
    for column in stage.columns:
        turned = column.descending != (stage.keep == "last")
        order.append(f"{table.column(column.name)} {'DESC NULLS LAST' if turned else 'ASC NULLS FIRST'}")
    return order


register_stage("deduplicate", DeduplicateStage)
register_batch_query("deduplicate", dedup_sql, tied=dedup_tied)
