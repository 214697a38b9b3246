"""Rows as they come, as a stage: what a query without any other one runs, such as a SELECT over one stream inside Spark.

The rows are spread over the buckets by all they hold, so that a retraction meets the insertion it retracts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.operators.unchanged import Unchanged
from zset_join.stages.batch.tables import register_batch_query, same_rows
from zset_join.stages.request import InputRows, StageRequest, shown_only
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.stages.written import read_relation, write_relation
from zset_join.zset.protocol import DurableOperator

__all__ = ["UnchangedRequest", "UnchangedStage"]


@dataclass(frozen=True, kw_only=True)
class UnchangedStage(Stage):
    """Describe rows that are passed on.

    Args:
        source: the rows, in changelog or append mode.

    Raises:
        PlanError: rows in upsert mode (when the operator is built).
    """

    source: Relation

    @property
    def kind(self) -> str:
        """Return "unchanged"."""
        return "unchanged"

    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return the one input, bucketed by its columns; those that cannot be hashed are omitted."""
        plain = [field for field in self.source.schema if not _is_nested(field.type)]
        types = tuple(storage_type(field.type) for field in plain)
        return (StageInput(relation=self.source, key=tuple(field.name for field in plain), key_types=types),)

    @property
    def output(self) -> Relation:
        """Return the same rows."""
        return replace(self.source, join_key=(), sequence_by=())

    @property
    def output_key(self) -> OutputKey:
        """Return the primary key, where the input has one; its bucket is that of the whole row."""
        return OutputKey(columns=self.source.primary_key)

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return the columns without NULL."""
        return inputs[0]

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return one table without rows, which carries the number of the last epoch."""
        return {"stateless": TableKey()}

    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        """Return the columns, which pass through unchanged."""
        return columns

    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        """Return what shows."""
        return (frozenset(shown),)

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        """Return the operator of one bucket."""
        return Unchanged(self.source, on_bad_input=options.on_bad_input, chunk_rows=options.chunk_rows, directory=directory)

    def explain(self, buckets: int | None) -> list[str]:  # noqa: ARG002 - it keeps nothing anywhere
        """Return a description of the stage."""
        return [f'Rows of "{self.source.name}"', "  remembers: nothing"]

    def to_json(self) -> dict[str, Any]:
        """Return everything about it, JSON-ready."""
        return {"kind": self.kind, "source": write_relation(self.source)}


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pt.is_nested(kind))


@dataclass(frozen=True, eq=False)
class UnchangedRequest(StageRequest):
    """Request rows as they come, where only the answer of a stage will do."""

    def stage(self, inputs: Sequence[InputRows]) -> UnchangedStage:
        """Return the stage over an input like this, without its hidden columns."""
        return UnchangedStage(source=shown_only(replace(inputs[0].relation, join_key=()), inputs[0].hidden))


def _read(written: Mapping[str, Any]) -> UnchangedStage:
    return UnchangedStage(source=read_relation(written["source"]))


register_stage("unchanged", _read)
register_batch_query("unchanged", same_rows)
