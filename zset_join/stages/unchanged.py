"""Rows as they come, as a stage: what a query without any other one runs, such as a SELECT over one stream inside Spark.

Rows of an input that can retract are counted, so that a retraction of an absent row is bad input.

The rows are spread over the buckets by all they hold, so that a retraction meets the insertion it retracts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.distinct import Counted
from zset_join.operators.stateless import Unchanged
from zset_join.stages.batch.tables import register_batch_query, same_rows
from zset_join.stages.request import InputRows, StageRequest, shown_only
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.zset.protocol import DurableOperator

__all__ = ["UnchangedRequest", "UnchangedStage"]


@dataclass(frozen=True, kw_only=True)
class UnchangedStage(Stage):
    source: Relation
    counts: bool = False  # keep every row with its copies, and refuse a retraction of an absent one

    @property
    def kind(self) -> str:
        return "unchanged"

    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return the one input, bucketed by its columns; those that cannot be hashed are omitted."""
        plain = [field for field in self.source.schema if not _is_nested(field.type)]
        types = tuple(storage_type(field.type) for field in plain)
        return (StageInput(relation=self.source, key=tuple(field.name for field in plain), key_types=types),)

    @property
    def output(self) -> Relation:
        return replace(self.source, join_key=(), sequence_by=())

    @property
    def output_key(self) -> OutputKey:
        """Return the primary key, where the input has one; its bucket is that of the whole row."""
        return OutputKey(columns=self.source.primary_key)

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return inputs[0]

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return the copies by row, or one table without rows, which carries the number of the last epoch."""
        return {"groups": TableKey(columns=self.inputs[0].key)} if self.counts else {"stateless": TableKey()}

    @property
    def follows_from_rows(self) -> bool:
        return True

    @property
    def lists_input(self) -> bool:
        return self.counts

    @property
    def cold_state(self) -> Literal["groups"] | None:
        return "groups" if self.counts else None

    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return columns

    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        """Return what shows."""
        return (frozenset(shown),)

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        if self.counts:
            return Counted(self.source, options=options.of_operator(directory, budget=options.table_budget))
        return Unchanged(self.source, on_bad_input=options.on_bad_input, chunk_rows=options.chunk_rows, directory=directory)

    def explain(self, buckets: int | None) -> list[str]:
        counted = f"every distinct row with its copies; {shown_buckets(buckets, 'row')}"
        return [f'Rows of "{self.source.name}"', f"  remembers: {counted if self.counts else 'nothing'}"]


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pt.is_nested(kind))


@dataclass(frozen=True, eq=False)
class UnchangedRequest(StageRequest):
    """Request rows as they come, where only the answer of a stage will do."""

    counts: bool = False

    def stage(self, inputs: Sequence[InputRows]) -> UnchangedStage:
        source = shown_only(replace(inputs[0].relation, join_key=()), inputs[0].hidden)
        return UnchangedStage(source=source, counts=self.counts)


register_stage("unchanged", UnchangedStage)
register_batch_query("unchanged", same_rows)
