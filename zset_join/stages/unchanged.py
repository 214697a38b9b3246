"""Stages that move rows and change none: rows as they come, and routes.

`UnchangedStage` is what a query without any other stage runs, such as a SELECT over one stream inside Spark. Rows of an input
that can retract are counted, so a retraction of an absent row is bad input. The rows are spread over the buckets by all they
hold, so that a retraction meets the insertion it retracts.

`RouteStage` leads from the bucket of an upsert's primary key to that of its join key. When the join key of a row moves, only a
table by primary key has the row's old value. So the changes of an upsert input whose join key lies outside its primary key go
to the bucket of their primary key first; each leaves as a delete where it was, and an upsert where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.aggregate import Counted
from zset_join.operators.stateless import Unchanged
from zset_join.operators.upsert_table import Route
from zset_join.stages.batch import register_batch_query, same_rows
from zset_join.stages.request import InputRows, StageRequest, shown_only
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.zset.protocol import DurableOperator

__all__ = ["RouteStage", "UnchangedRequest", "UnchangedStage"]


@dataclass(frozen=True, kw_only=True)
class UnchangedStage(Stage):
    source: Relation
    counts: bool = False  # keep every row with its copies, and refuse a retraction of an absent one

    @property
    @override
    def kind(self) -> str:
        return "unchanged"

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # Those that cannot be hashed are omitted.
        plain = [field for field in self.source.schema if not _is_nested(field.type)]
        types = tuple(storage_type(field.type) for field in plain)
        return (StageInput(relation=self.source, key=tuple(field.name for field in plain), key_types=types),)

    @property
    @override
    def output(self) -> Relation:
        return replace(self.source, join_key=(), sequence_by=())

    @property
    @override
    def output_key(self) -> OutputKey:
        # Its bucket is that of the whole row.
        return OutputKey(columns=self.source.primary_key)

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return inputs[0]

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {"groups": TableKey(columns=self.inputs[0].key)} if self.counts else {"stateless": TableKey()}

    @property
    @override
    def follows_from_rows(self) -> bool:
        return True

    @property
    @override
    def lists_input(self) -> bool:
        return self.counts

    @property
    @override
    def cold_state(self) -> Literal["groups"] | None:
        return "groups" if self.counts else None

    @override
    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return columns

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        return (frozenset(shown),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        if self.counts:
            return Counted(self.source, options=options.of_operator(directory, budget=options.table_budget))
        return Unchanged(self.source, on_bad_input=options.on_bad_input, chunk_rows=options.chunk_rows, directory=directory)

    @override
    def explain(self, buckets: int | None) -> list[str]:
        counted = f"every distinct row with its copies; {shown_buckets(buckets, 'row')}"
        return [f'Rows of "{self.source.name}"', f"  remembers: {counted if self.counts else 'nothing'}"]


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pt.is_nested(kind))


@dataclass(frozen=True, eq=False)
class UnchangedRequest(StageRequest):
    """Request rows as they come, where only the answer of a stage will do."""

    counts: bool = False

    @override
    def stage(self, inputs: Sequence[InputRows]) -> UnchangedStage:
        source = shown_only(replace(inputs[0].relation, join_key=()), inputs[0].hidden)
        return UnchangedStage(source=source, counts=self.counts)


register_stage("unchanged", UnchangedStage)
register_batch_query("unchanged", same_rows)


@dataclass(frozen=True, kw_only=True)
class RouteStage(Stage):
    source: Relation

    @property
    @override
    def kind(self) -> str:
        return "route"

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # A key never meets one of another relation.
        key = self.source.primary_key
        types = tuple(storage_type(self.source.schema.field(name).type) for name in key)
        return (StageInput(relation=self.source, key=key, key_types=types),)

    @property
    @override
    def output(self) -> Relation:
        # At most one change per primary key and epoch, already in order.
        return replace(self.source, sequence_by=())

    @property
    @override
    def output_key(self) -> OutputKey:
        # The output goes to other buckets.
        return OutputKey()

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return inputs[0] | set(self.source.primary_key)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {"route": TableKey(columns=self.source.primary_key)}

    @property
    @override
    def follows_from_rows(self) -> bool:
        return True

    @property
    @override
    def forwards(self) -> bool:
        return True

    @property
    @override
    def cold_state(self) -> Literal["routes"]:
        return "routes"

    @override
    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return columns

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        return (frozenset((*shown, *self.source.join_key)),)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        return Route(self.source, options=options.of_operator(directory, budget=options.hot_budget))

    @override
    def explain(self, buckets: int | None) -> list[str]:
        key = self.source.primary_key
        moving = " or ".join(name for name in self.source.join_key if name not in key)
        kept = ", ".join(self.source.join_key + self.source.sequence_by)
        return [
            f"Route by primary key ({', '.join(key)})",
            f"  why: {moving} may change, and only a table by primary key has the row's old value",
            f'  remembers: primary key -> {kept}, one entry per key of "{self.source.name}"',
        ]


register_stage("route", RouteStage)
register_batch_query("route", same_rows)
