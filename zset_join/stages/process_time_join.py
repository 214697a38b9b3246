"""A temporal join by processing time as a stage: both inputs meet in the bucket of their join key; only the left one emits."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import Expression, references
from zset_join.operators.process_time_join import ProcessTimeJoin
from zset_join.shapes.join import joined_schema
from zset_join.shapes.lookup import LookupShape, ProcessTimeTerms, process_time_relation
from zset_join.stages.batch import BatchScope, BatchTable, Dialect, expression_sql, newest_first, register_batch_query
from zset_join.stages.current_versions import CurrentVersionsStage, held_versions, version_columns
from zset_join.stages.request import InputRows, KeyedJoinRequest, NamedColumnsRequest, keyed_rows, sides_read
from zset_join.stages.stage import (
    Comparison,
    Joined,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    TableUse,
    compared_in_condition,
    compared_keys,
    refuse_hybrid,
    register_stage,
)
from zset_join.zset.protocol import DurableOperator

__all__ = ["ProcessTimeJoinRequest", "ProcessTimeJoinStage"]


@dataclass(frozen=True, kw_only=True)
class ProcessTimeJoinStage(Stage):
    """A join by processing time; the relations name their join keys."""

    left: Relation  # hidden columns included
    right: Relation
    how: str = "inner"
    snapshot: str = "current"
    null_safe: tuple[bool, ...] = ()  # per key column, True for `<=>`; none: nowhere
    using: bool = False
    residual: Expression | None = None
    hidden: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # per input, the columns that only order its changes
    index: str | None = None  # the declared index of the right table that is looked up in
    find_by: tuple[str, ...] = ()  # the columns of that index, part of the right key; none: the whole key

    @property
    @override
    def kind(self) -> str:
        return "process_time_join"

    @property
    def _flags(self) -> tuple[bool, ...]:
        return self.null_safe or (False,) * len(self.left.join_key)

    @cached_property
    def shape(self) -> LookupShape:
        """Return the columns of the answer, and the key."""
        return LookupShape.of(self.left, self.right, self.how, using=self.using, leaves_process=False)

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        shape = self.shape
        places = [at for at, name in enumerate(self.right.join_key) if not self.find_by or name in self.find_by]
        types = tuple(shape.key_schema.field(at).type for at in places)
        left, right = (
            StageInput(
                relation=relation,
                key=tuple(relation.join_key[at] for at in places),
                key_types=types,
                unmatchable="by_identity",
                null_safe=tuple(self._flags[at] for at in places),
                keeps_unmatchable=is_left,
            )
            for relation, is_left in ((self.left, True), (self.right, False))
        )
        return left, right

    @cached_property
    @override
    def output(self) -> Relation:
        whole = process_time_relation(self.shape, self.snapshot, residual=self.residual)
        hidden = {*self.hidden[0], *self.hidden[1], *(f"{name}_right" for name in self.hidden[1])}
        return Relation(
            name=whole.name, schema=pa.schema([column for column in whole.schema if column.name not in hidden]), mode=whole.mode
        )

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        left, right = self.inputs[0].relation, self.inputs[1].relation
        keys = compared_keys(self.inputs, "a key of a join")
        return (*keys, *compared_in_condition(left, right, self.residual))

    @property
    @override
    def output_key(self) -> OutputKey:
        shown, key = set(self.output.schema.names), self.inputs[0].key
        return OutputKey(bucketed_by=key if set(key) <= shown else ())

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        matched = set(self.left.join_key) if self.how == "inner" and not any(self._flags) else set()
        return (inputs[0] | matched) & set(self.output.schema.names) & set(self.left.schema.names)

    @property
    @override
    def answers_by(self) -> str:
        return f'which rows of "{self.right.name}" there were when each row came, and those have changed since'

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {
            "left": TableKey(columns=self.inputs[0].key, of_input=0),
            "right": TableKey(columns=self.inputs[1].key, of_input=1),
            "memo": TableKey(columns=self.inputs[0].key, of_input=0),
        }

    @property
    @override
    def joined(self) -> Joined:
        return Joined(left=self.left, right=self.right, how=self.how, using=self.using)

    @override
    def table_use(self, origins: Mapping[str, str]) -> TableUse:
        return TableUse(index=self.index, is_using=self.using, by_event_time=False)

    @property
    @override
    def lasting(self) -> dict[str, Any]:
        return {**self.to_json(), "index": None}

    @property
    @override
    def inputs_kept(self) -> frozenset[int]:
        return frozenset({1} if self.left.mode == "append" else {0, 1})

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # All of left rows that change, as each change meets rows of its time.
        rests = (frozenset[str](), frozenset[str]()) if self.residual is None else references(self.residual)
        keys = [{*self.left.join_key, *rests[0]}, {*self.right.join_key, *rests[1]}]
        left, right = sides_read((self.left.schema, self.right.schema), keys, self.shape.sources_of_answer, shown)
        return left if self.left.mode == "append" else None, right

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        return cast("DurableOperator", self.made(options, directory))

    def made(
        self,
        options: StageOptions,
        directory: str | None,
        *,
        place: int = 0,
        output_names: Sequence[str] | None = None,
        table_of: ProcessTimeJoin | None = None,
    ) -> ProcessTimeJoin:
        refuse_hybrid(options.hot_budget, title=self.explain(None)[0], option="default_hash_join")
        return ProcessTimeJoin(
            self.left,
            self.right,
            ProcessTimeTerms(
                how=self.how,
                snapshot=self.snapshot,
                null_safe=self._flags,
                using=self.using,
                residual=self.residual,
                hidden=self.hidden[0],
                find_by=self.find_by or None,
                output_names=output_names,
            ),
            options=options.of_operator(directory),
            place=place,
            table_of=table_of,
        )

    @override
    def explain(self, buckets: int | None) -> list[str]:
        pairs = zip(self.left.join_key, self.right.join_key, self._flags, strict=True)
        condition = " and ".join(f"{left} {'<=>' if safe else '='} {right}" for left, right, safe in pairs)
        condition += "" if self.residual is None else f" and {self.residual!r}"
        moment = "after the changes of the same epoch" if self.snapshot == "current" else "as the epoch before left it"
        kept = (
            f'nothing of "{self.left.name}", which is append-only'
            if self.left.mode == "append"
            else f'live rows of "{self.left.name}" and what each was joined with'
        )
        left, right = self.left.name, self.right.name
        where = shown_buckets(buckets, "join key")
        return [
            f"Temporal join {self.how} by processing time on {condition}",
            f'  each row of "{left}" meets "{right}" {moment}; changes of "{right}" alone emit nothing',
            f'  remembers: {kept}; live rows of "{right}" with a complete key; {where}',
        ]


@dataclass(frozen=True, eq=False)
class ProcessTimeJoinRequest(NamedColumnsRequest, KeyedJoinRequest):
    """Request a join with another input as it is when a row arrives, inner or left."""

    snapshot: str = "current"
    index: str | None = None
    find_by: tuple[str, ...] = ()

    @override
    def stage(self, inputs: Sequence[InputRows]) -> ProcessTimeJoinStage:
        left, right = self.sides(inputs, keyed_rows)
        return ProcessTimeJoinStage(
            left=left,
            right=right,
            how=self.how,
            snapshot=self.snapshot,
            null_safe=self.null_safe,
            using=self.using,
            residual=self.condition,
            hidden=(inputs[0].hidden, inputs[1].hidden),
            index=self.index,
            find_by=self.find_by,
        )


def process_time_sql(stage: ProcessTimeJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the join of left rows with the right side of their epochs."""
    left, right = inputs
    versions = None if right.versions is None or right.versions[1].history is None else right.versions
    if stage.left.mode != "append" or left.history is None or (right.history is None and versions is None):
        raise PlanError(
            f'verify() can compare a join by processing time only where "{stage.left.name}" is a source that rows are only '
            f"added to, and "
            f'"{stage.right.name}" a source: what other rows met at their time is only in the state.',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    dialect = scope.dialect
    came = f"SELECT e, {', '.join(left.columns)} FROM {dialect.repeated(left.history, 'w')}"
    kind = "JOIN" if stage.how == "inner" else "LEFT JOIN"
    met = f"r.moment = l.e AND {_condition(stage, left, right, dialect)}"
    there = _at_moments(stage, left, right, dialect) if versions is None else _versions_at(stage, left, *versions, scope)
    return f"SELECT {_shown(stage, left, right)} FROM ({came}) l {kind} ({there}) r ON {met}"


def _at_moments(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    """Return the right rows of every epoch in which a left row arrived."""
    names = ["moment", *right.columns]
    columns = ", ".join(["m.e AS moment", *(f"h.{one}" for one in right.columns)])
    before = "<=" if stage.snapshot == "current" else "<"
    at_moment = f"FROM (SELECT DISTINCT e FROM {left.history}) m JOIN {right.history} h ON h.e {before} m.e"
    if stage.right.mode == "upsert":
        key = ", ".join(f"h.{right.column(name)}" for name in stage.right.primary_key)
        order = ", ".join(newest_first(stage.right, "h."))
        numbered = f"SELECT {columns}, h.w, row_number() OVER (PARTITION BY m.e, {key} ORDER BY {order}) AS place"
        return f"SELECT * FROM ({numbered} {at_moment}) WHERE place = 1 AND w > 0"
    counted = dialect.distinct(names, "sum(w) AS copies", f"(SELECT {columns}, h.w {at_moment})", having="sum(w) > 0")
    return f"SELECT {', '.join(names)} FROM {dialect.repeated(f'({counted})', 'copies')}"


def _versions_at(
    stage: ProcessTimeJoinStage, left: BatchTable, current: CurrentVersionsStage, versions: BatchTable, scope: BatchScope
) -> str:
    """Return the versions that held in every epoch in which a left row arrived, or in the epoch before it."""
    if stage.snapshot == "previous" and not scope.has_all_epochs:
        raise PlanError(
            f'verify() cannot compute which versions of "{stage.right.name}" held in the epoch before each row: the processing '
            'time of an epoch without rows is in no log. Compare one with snapshot="current".',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    moments = f"SELECT DISTINCT e FROM {left.history}"
    seen = "e" if stage.snapshot == "current" else "lag(e) OVER (ORDER BY e)"
    epochs = f"SELECT e, {seen} AS seen FROM {scope.epochs}"
    clock = (
        f"SELECT o.e AS moment, q.seen, t.t FROM ({moments}) o JOIN ({epochs}) q ON q.e = o.e "
        f"JOIN {scope.epochs} t ON t.e = q.seen"
    )
    return f"SELECT moment, {version_columns(current)} FROM ({held_versions(current, versions, clock, scope.dialect)})"


def _condition(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    shape = LookupShape.of(stage.left, stage.right, stage.how, using=stage.using, leaves_process=False)
    flags = stage.null_safe or (False,) * len(stage.left.join_key)
    parts = []
    for own, other, field, safe in zip(stage.left.join_key, stage.right.join_key, shape.key_schema, flags, strict=True):
        kind = dialect.type_name(field.type)
        sign = "IS NOT DISTINCT FROM" if safe else "="
        parts.append(f"CAST(l.{left.column(own)} AS {kind}) {sign} CAST(r.{right.column(other)} AS {kind})")
    if stage.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        parts.append(expression_sql(stage.residual, schemas, dialect, {"left": "l", "right": "r"}))
    return " AND ".join(parts)


def _shown(stage: ProcessTimeJoinStage, left: BatchTable, right: BatchTable) -> str:
    schema, sources = joined_schema(stage.left, stage.right, stage.how, using=stage.using, output_names=None)
    shown = dict(zip(schema.names, sources, strict=True))
    columns = []
    for at, field in enumerate(stage.output.schema):
        side, name = shown[field.name]
        columns.append(f"{f'l.{left.column(name)}' if side == 'left' else f'r.{right.column(name)}'} AS c{at}")
    return ", ".join(columns)


register_stage("process_time_join", ProcessTimeJoinStage)
register_batch_query("process_time_join", process_time_sql)
