"""Inputs of the batch query of a kind of stage, and its registry.

A table here is a bag: a row is in it as often as it is present. Its columns are called c0, c1, ... in the order of its
schema, whatever their names are: DuckDB and Spark take names that differ by case for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from zset_join.changelog.formats import IMAGE
from zset_join.core.errors import PlanError
from zset_join.core.extras import load_extensions
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.sql_text import to_sql
from zset_join.stages.batch.dialect import Dialect
from zset_join.stages.stage import Stage

__all__ = [
    "BatchScope",
    "BatchTable",
    "BatchTimes",
    "batch_query",
    "column",
    "expression_sql",
    "newest_first",
    "numbered",
    "one_side",
    "register_batch_query",
    "same_rows",
    "tied_query",
]


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """How far time had come when the last epoch ended."""

    watermark_us: int | None = None  # of the stage
    processing_time_us: int | None = None  # of the last epoch
    late_inputs: frozenset[str] = frozenset()  # by relation or source: changes came too late, and were not applied


@dataclass(frozen=True, kw_only=True)
class BatchScope:
    """Context of the query of a stage."""

    dialect: Dialect
    times: BatchTimes
    epochs: str  # the table of the processing time `t` of every epoch `e`
    has_all_epochs: bool = True  # else only epochs in which a row arrived
    marks: str | None = None  # a table of the watermark `before` every epoch `e` and behind it, `mark`


@dataclass(frozen=True, kw_only=True)
class BatchTable:
    """Name the rows of one input of a stage."""

    name: str
    relation: Relation
    history: str | None = None  # a table of all changes: `w` the weight, `e` the epoch, `n` the place among all
    versions: tuple[Any, BatchTable] | None = None  # the stage of current versions, and its input

    def column(self, name: str) -> str:
        return column(self.relation.schema, name)

    @property
    def columns(self) -> list[str]:
        return numbered(self.relation.schema)

    def with_history(self, name: str) -> BatchTable:
        """Return the table with another table of its changes."""
        return replace(self, history=name)


BatchQuery = Callable[[Any, Sequence[BatchTable], BatchScope], str]
TiedQuery = Callable[[Any, Sequence[BatchTable], BatchScope], str | None]

_QUERIES: dict[str, BatchQuery] = {}
_TIED_QUERIES: dict[str, TiedQuery] = {}


def register_batch_query(kind: str, query: BatchQuery, *, tied: TiedQuery | None = None) -> None:
    """Register the batch query of a kind of stage, and the rows that a tie leaves open."""
    _QUERIES[kind] = query
    if tied is not None:
        _TIED_QUERIES[kind] = tied


def batch_query(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    if stage.kind not in _QUERIES:
        load_extensions()
    query = _QUERIES.get(stage.kind)
    if query is None:
        raise PlanError(
            f"verify() has no batch query for a stage of kind {stage.kind!r}; it has one for {sorted(_QUERIES)}.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    return query(stage, inputs, scope)


def same_rows(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:  # noqa: ARG001 - a `BatchQuery`
    """Return the table as it is: the query of a stage that changes where rows are, not what they are."""
    return f"SELECT * FROM {inputs[0].name}"  # noqa: S608 - a name of ours


def tied_query(stage: Stage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of the answer of a stage among which arrival alone decides; None where there cannot be any."""
    query = _TIED_QUERIES.get(stage.kind)
    return None if query is None else query(stage, inputs, scope)


def column(schema: pa.Schema, name: str) -> str:
    """Return the name of a column of a table."""
    return f"c{schema.get_field_index(name)}"


def numbered(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of a table."""
    return [f"c{at}" for at in range(len(schema))]


def newest_first(relation: Relation, table: str = "", goes: str | None = None) -> list[str]:
    """Return the terms that order the changes of one key, the newest first."""
    # Of one commit of a change feed (the relation has `IMAGE`), the rows that arrive are newer than those that go. That is
    # read from their weights, not from the column by which the engine orders them.
    order = [f"{table}{column(relation.schema, name)} DESC" for name in relation.sequence_by if name != IMAGE]
    gone = f"{table}w < 0" if goes is None else goes
    return [*order, *([f"({gone})"] if IMAGE in relation.sequence_by else []), f"{table}n DESC"]


def one_side(schema: pa.Schema) -> dict[str, pa.Schema]:
    """Return the columns of rows that are one side, whichever an expression names."""
    return dict.fromkeys(("row", "left", "right"), schema)


def expression_sql(
    expression: Expression, schemas: Mapping[str, pa.Schema], dialect: Dialect, tables: Mapping[str, str] | None = None
) -> str:
    """Return an expression as SQL over tables with columns c0, c1, ..."""

    def named(side: str, name: str) -> str:
        quoted_column = column(schemas[side], name)
        return quoted_column if tables is None else f"{tables[side]}.{quoted_column}"

    return to_sql(expression, schemas, dialect=dialect.name, columns=named)
