"""Row steps between the stages of a plan: filter rows, compute columns.

The law: a step depends on the row alone, so a retraction becomes what its insertion became.

Rows in upsert mode stay upserts: a row that does not pass deletes its key, and a selection keeps the columns of the primary key
and those that order changes. Where a selection leaves the key out, the planner turns the upserts into a changelog first.

An event time survives where its column is kept as it is. Opaque steps hold what no tree can express (a UDF of Spark's): they
can be named and compared, not run in process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, describe
from zset_join.expressions.rows import check_condition, columns_read, plain_column, value_type
from zset_join.expressions.written import read_expression, write_expression
from zset_join.stages.written import read_relation, write_relation

__all__ = [
    "OpaqueStep",
    "RowStep",
    "SelectStep",
    "WhereStep",
    "columns_before",
    "keeps_upserts",
    "read_row_step",
    "relation_after",
]


@dataclass(frozen=True)
class WhereStep:
    """Keep the rows that fulfil a condition."""

    condition: Expression  # NULL does not pass
    columns: ClassVar[None] = None

    @property
    def needs(self) -> None:
        """Return None: it may pass on any column."""
        return None

    @property
    def filters_by(self) -> frozenset[str]:
        return frozenset(columns_read(self.condition))

    def output(self, relation: Relation) -> Relation:
        check_condition(self.condition, relation.schema)
        return relation

    def renamed(self, name: str) -> str:
        """Return the name of a column after it, which is unchanged."""
        return name

    def describe(self) -> str:
        return f"Where {describe(self.condition)}"

    def to_json(self) -> dict[str, Any]:
        return {"step": "where", "condition": write_expression(self.condition)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WhereStep) and self.condition.same_as(other.condition)

    def __hash__(self) -> int:
        return hash(self.condition)


@dataclass(frozen=True)
class SelectStep:
    """Make rows of other columns."""

    columns: tuple[tuple[str, Expression], ...]
    condition: ClassVar[None] = None
    filters_by: ClassVar[None] = None

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(name for _, expression in self.columns for name in columns_read(expression))

    def output(self, relation: Relation) -> Relation:
        names = [name for name, _ in self.columns]
        if not names or len(set(names)) < len(names):
            raise PlanError(
                f'the selection from "{relation.name}" would have the columns {names}; it needs one or more of different '
                "names. Name them with alias(...).",
                code="OUTPUT_NAMES",
                names=names,
            )
        kept = self.kept
        key = _renamed(relation.primary_key, kept)
        sequence = _renamed(relation.sequence_by, kept)
        time = None if relation.event_time is None else kept.get(relation.event_time)
        if relation.mode == "upsert" and (key is None or sequence is None):
            raise PlanError(
                f"the selection {names} leaves out columns of keys={list(relation.primary_key)} or sequence_by="
                f'{list(relation.sequence_by)} of "{relation.name}", which is in upsert mode. Keep them.',
                code="KEY_LEFT_OUT",
                relation=relation.name,
            )
        fields = [self._field(name, expression, relation.schema) for name, expression in self.columns]
        return Relation(
            name=relation.name,
            schema=pa.schema(fields),
            primary_key=key or (),
            sequence_by=sequence or (),
            mode=relation.mode,
            event_time=time,
            watermark_delay=None if time is None else relation.watermark_delay,
        )

    @property
    def kept(self) -> dict[str, str]:
        """Return the columns that are passed through, under their new names; of several, the first."""
        kept: dict[str, str] = {}
        for name, expression in self.columns:
            column = plain_column(expression)
            if column is not None:
                kept.setdefault(column, name)
        return kept

    def renamed(self, name: str) -> str | None:
        """Return the name of a column after it; None where it is not passed through unchanged."""
        return self.kept.get(name)

    def narrowed(self, after: Collection[str]) -> SelectStep:
        """Return a selection of those of its columns that are read after it; one at least."""
        return SelectStep(tuple(one for one in self.columns if one[0] in after) or self.columns[:1])

    def describe(self) -> str:
        return f"Select {', '.join(_described(name, expression) for name, expression in self.columns)}"

    def to_json(self) -> dict[str, Any]:
        return {"step": "select", "columns": [[name, write_expression(expression)] for name, expression in self.columns]}

    @staticmethod
    def _field(name: str, expression: Expression, schema: pa.Schema) -> pa.Field:
        column = plain_column(expression)
        if column is not None and column in schema.names:
            return schema.field(column).with_name(name)
        return pa.field(name, value_type(expression, schema))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SelectStep)
            and [name for name, _ in self.columns] == [name for name, _ in other.columns]
            and all(one.same_as(another) for (_, one), (_, another) in zip(self.columns, other.columns, strict=True))
        )

    def __hash__(self) -> int:
        return hash(self.columns)


@dataclass(frozen=True)
class OpaqueStep:
    """Represent a step that only Spark can do."""

    text: str  # for `explain`
    fingerprint: str  # differs between two such steps
    reason: str  # why no tree expresses it
    relation: Relation  # the rows after it
    reads: tuple[str, ...] | None = None  # None: any column; this and what follows is not written down
    is_filter: bool = False  # it passes on all columns of the rows that it keeps
    kept: tuple[tuple[str, str], ...] = ()  # pairs of a column before it and its name after it
    columns: ClassVar[None] = None
    condition: ClassVar[None] = None

    @property
    def needs(self) -> frozenset[str] | None:
        """Return the columns that it reads where its answer has no others; None where it may pass on any."""
        return None if self.reads is None or self.is_filter else frozenset(self.reads)

    @property
    def filters_by(self) -> frozenset[str] | None:
        """Return the columns that it reads where it is a filter; None where it is none, or may read any."""
        return frozenset(self.reads) if self.is_filter and self.reads is not None else None

    def output(self, relation: Relation) -> Relation:  # noqa: ARG002 - as the other steps
        return self.relation

    def renamed(self, name: str) -> str | None:
        """Return the name of a column after it; None where it is not passed through unchanged, or that is unknown."""
        return dict(self.kept).get(name)

    def describe(self) -> str:
        return f"{self.text} (in Spark only: {self.reason})"

    def refusal(self) -> PlanError:
        """Return the error for a place where Spark is not."""
        return PlanError(
            f"the step {self.text} can be done in Spark only, before the first join or group: {self.reason}. Write it as an "
            "expression of zset_join.expressions.",
            code="SPARK_ONLY_STEP",
            step=self.text,
            reason=self.reason,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "step": "opaque",
            "text": self.text,
            "fingerprint": self.fingerprint,
            "reason": self.reason,
            "relation": write_relation(self.relation),
        }


RowStep = WhereStep | SelectStep | OpaqueStep
"""A closed union whose parts answer the same questions: a filter has a `condition`, a selection has `columns`, and a step that
only Spark can do has neither."""


def columns_before(step: RowStep, after: Collection[str]) -> frozenset[str] | None:
    """Return the columns that a step reads so that these columns come about after it; None: all.

    >>> from zset_join.expressions import left
    >>> sorted(columns_before(WhereStep(left("x") > 1), {"y"}))
    ['x', 'y']
    """
    if isinstance(step, SelectStep):
        return step.narrowed(after).needs
    if step.needs is not None:
        return step.needs
    return None if step.filters_by is None else step.filters_by.union(after)


def read_row_step(written: Mapping[str, Any]) -> RowStep:
    """Build from the result of `to_json`.

    >>> from zset_join.expressions import left
    >>> read_row_step(WhereStep(left("x") > 1).to_json()).describe()
    'Where left.x > 1'
    """
    match written.get("step"):
        case "where":
            return WhereStep(read_expression(written["condition"]))
        case "select":
            return SelectStep(tuple((name, read_expression(expression)) for name, expression in written["columns"]))
        case "opaque":
            return OpaqueStep(written["text"], written["fingerprint"], written["reason"], read_relation(written["relation"]))
        case kind:
            raise PlanError(
                f"the plan has a step over rows of kind {kind!r}, which this version does not have; use the version of the "
                "library that wrote it.",
                code="UNKNOWN_ROW_STEP",
                kind=kind,
            )


def relation_after(relation: Relation, steps: tuple[RowStep, ...]) -> Relation:
    for step in steps:
        relation = step.output(relation)
    return relation


def name_after(steps: Sequence[RowStep], name: str) -> str | None:
    """Return the name of a column after some steps; None where it is computed, added up or omitted."""
    current: str | None = name
    for step in steps:
        current = None if current is None else step.renamed(current)
    return current


def keeps_upserts(relation: Relation, step: RowStep) -> bool:
    """Return whether a step can be done to upserts as they are."""
    if step.condition is not None:
        return True
    if step.columns is None:
        return False
    return {*relation.primary_key, *relation.sequence_by} <= step.kept.keys()


def _renamed(columns: tuple[str, ...], kept: Mapping[str, str]) -> tuple[str, ...] | None:
    return tuple(kept[name] for name in columns) if set(columns) <= kept.keys() else None


def _described(name: str, expression: Expression) -> str:
    return name if plain_column(expression) == name else f"{describe(expression)} AS {name}"


def as_changelog(relation: Relation) -> Relation:
    """Return a relation whose rows come with their old values, each change a whole row."""
    return replace(relation, mode="changelog" if relation.mode == "upsert" else relation.mode, sequence_by=(), join_key=())
