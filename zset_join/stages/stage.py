"""The contract of a stage: all that a runner knows of a stateful operator.

The law: a runner that feeds a stage the deltas of its inputs, each row in the bucket that its key says, gets answers whose sum
over all buckets is what one operator over all rows would have given.

A stage is frozen, knows no Spark, and is written as JSON, so a checkpoint can build its operators without the program that made
the query. New stages are registered with `register_stage`; a runner never asks for the class of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from zset_join.errors import PlanError
from zset_join.protocol import DurableOperator
from zset_join.relation import Relation

__all__ = ["OutputKey", "Stage", "StageInput", "StageOptions", "read_stage", "register_stage"]


@dataclass(frozen=True, kw_only=True)
class StageInput:
    """Describe what a stage is fed, and how its rows are spread over the buckets.

    Args:
        relation: the rows, with event time and watermark delay where they have them.
        key: the columns whose value decides the bucket; none: all rows go to bucket 0.
        key_types: the types they are compared in, one per key column.
        unmatchable: where a row goes whose key has a NULL that matches nothing: spread `by_identity` (the whole row), or
            `by_key` like any other, which an operator needs that keeps it.
    """

    relation: Relation
    key: tuple[str, ...] = ()
    key_types: tuple[pa.DataType, ...] = ()
    unmatchable: Literal["by_identity", "by_key"] = "by_key"


@dataclass(frozen=True, kw_only=True)
class OutputKey:
    """Say what is known of the rows a stage answers with, which is all that fusing needs.

    Args:
        columns: output columns that identify a row; none where that is not known.
        bucketed_by: output columns that carry the bucket key of the stage unchanged, in its order; none where they do not.
    """

    columns: tuple[str, ...] = ()
    bucketed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """Hold what operators take from the options of a query; a stage uses what concerns it.

    Args:
        on_bad_input: `error` or `quarantine`.
        tombstone_retention_seconds: how long deleted keys are remembered, in processing time.
        chunk_rows: rows per chunk of an answer.
        more: options of certain kinds of stages by their names; an operator that gets one it does not know refuses it.
    """

    on_bad_input: str = "error"
    tombstone_retention_seconds: int = 2 * 86400
    chunk_rows: int = 65536
    more: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Stage(Protocol):
    """What both runners run."""

    @property
    def kind(self) -> str:
        """Return the name it is registered under: for JSON, messages, and the batch query that verifies it."""
        ...

    @property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return what it is fed, one or more."""
        ...

    @property
    def output(self) -> Relation:
        """Return its answer."""
        ...

    @property
    def output_key(self) -> OutputKey:
        """Return what is known of the rows of the answer."""
        ...

    @property
    def state_tables(self) -> Mapping[str, tuple[str, ...]]:
        """Return, per table of a snapshot, the columns of it that decide the bucket; none: it lives in bucket 0."""
        ...

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        """Return the operator of one bucket, over mapped files in a directory, or in memory when given None."""
        ...

    def explain(self, buckets: int | None) -> list[str]:
        """Return what it does and remembers: a title, then indented facts."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return everything about it, JSON-ready, with its `kind`."""
        ...


_readers: dict[str, Callable[[Mapping[str, Any]], Stage]] = {}


def register_stage(kind: str, read: Callable[[Mapping[str, Any]], Stage]) -> None:
    """Let `read_stage` build stages of a kind from their JSON."""
    _readers[kind] = read


def read_stage(found: Mapping[str, Any]) -> Stage:
    """Build a stage from what `to_json` gave.

    Raises:
        PlanError: a kind of stage that this version does not have.
    """
    kind = found.get("kind")
    if kind not in _readers:
        raise PlanError(
            f"the plan has a stage of kind {kind!r}, which this version does not know; it knows {sorted(_readers)}. Use the "
            "version of the library that wrote it.",
            code="UNKNOWN_STAGE_KIND",
            kind=kind,
        )
    return _readers[kind](found)
