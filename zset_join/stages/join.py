"""A join of two relations as a stage: inner, left, right, full, left_semi or left_anti.

The rows of both inputs meet in the bucket of their join key. Columns that only order the changes of an input are *hidden*: they
are remembered and not shown, and a change of those alone emits nothing.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import pyarrow as pa
from typing_extensions import override

from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import Expression
from zset_join.expressions.rows import plain_column
from zset_join.expressions.tree import Column, walk
from zset_join.operators.first_load import LoadedJoin
from zset_join.operators.join import HashJoin
from zset_join.shapes.join import JoinShape, JoinTerms, join_shape, joined_schema, output_key
from zset_join.stages.batch import BatchScope, BatchTable, Dialect, expression_sql, register_batch_query
from zset_join.stages.request import InputRows, KeyedJoinRequest
from zset_join.stages.stage import (
    NO_LIMIT,
    Comparison,
    Joined,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    compared_in_condition,
    compared_keys,
    register_stage,
)
from zset_join.zset.protocol import DurableOperator

__all__ = ["JoinRequest", "JoinStage"]

_SIDES = ("left", "right")
_PRESERVED = (("left", "full", "left_anti"), ("right", "full"))
_ABSENT = {"left": ("right",), "right": ("left",), "full": ("left", "right")}
_RowKeys = tuple[tuple[str, ...] | None, tuple[str, ...] | None]


@dataclass(frozen=True, kw_only=True)
class JoinStage(Stage):
    """A join of relations that name their join keys."""

    left: Relation  # hidden columns included
    right: Relation
    how: str = "inner"
    null_safe: tuple[bool, ...] = ()  # per key column, True for `<=>`; none: nowhere
    using: bool = False
    residual: Expression | None = None
    hidden: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # per input, the columns that only order its changes
    row_keys: _RowKeys = (None, None)

    @property
    @override
    def kind(self) -> str:
        return "join"

    @property
    def flags(self) -> tuple[bool, ...]:
        return self.null_safe or (False,) * len(self.left.join_key)

    @property
    def relations(self) -> tuple[Relation, Relation]:
        return self.left, self.right

    @property
    def is_append_only(self) -> bool:
        return self.left.mode == self.right.mode == "append"

    @property
    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.left.join_key, self.right.join_key, strict=True))

    @cached_property
    def shape(self) -> JoinShape:
        terms = JoinTerms(how=self.how, null_safe=self.flags, using=self.using, residual=self.residual, hidden=self.hidden)
        return join_shape(self.left, self.right, terms)

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        return self.shape.key_types

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        return tuple(
            StageInput(
                relation=relation,
                key=relation.join_key,
                key_types=self.key_types,
                unmatchable="by_identity",
                null_safe=self.flags,
                keeps_unmatchable=self.how in preserved,
            )
            for relation, preserved in zip(self.relations, _PRESERVED, strict=True)
        )

    @cached_property
    @override
    def output(self) -> Relation:
        whole = self.shape.output
        names = set(whole.schema.names)
        is_behind = any(key is not None for key in self.row_keys)
        key = self._key_behind_stages() if is_behind else whole.primary_key
        return Relation(
            name=whole.name,
            schema=whole.schema,
            primary_key=key if set(key) <= names else (),
            mode="changelog",
        )

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        left, right = self.inputs[0].relation, self.inputs[1].relation
        keys = compared_keys(self.inputs, "a key of a join")
        return (*keys, *compared_in_condition(left, right, self.residual))

    @cached_property
    @override
    def output_key(self) -> OutputKey:
        shown = self.shown_columns
        absent = _ABSENT.get(self.how, ())
        first: list[str] = []
        aliases: list[tuple[str, str]] = []
        padded: dict[str, list[str]] = {side: [] for side in absent}
        for left, right in self.key_pairs:
            names = [(name, side) for name, (side, column) in shown if column == (right if side == "right" else left)]
            if not names:
                return OutputKey(columns=self.output.primary_key)
            first.append(names[0][0])
            aliases += [(names[0][0], name) for name, _ in names[1:]]
            for name, side in names:
                if side in padded:
                    padded[side].append(name)
        return OutputKey(
            columns=self.output.primary_key,
            bucketed_by=tuple(first),
            aliases=tuple(aliases),
            padded=tuple(tuple(names) for names in padded.values() if names),
        )

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        # A padded row equals a matched one whose other side is all NULL.
        matched = {
            (side, one)
            for pair, safe in zip(self.key_pairs, self.flags, strict=True)
            if not safe
            for side, one in zip(_SIDES, pair, strict=True)
        }
        for side, relation in zip(_SIDES, self.relations, strict=True):
            matched |= {(side, one) for one in relation.primary_key if relation.mode == "upsert"}
        shown = matched.intersection(self.shape.sources)
        return super().answers_distinct_rows and {side for side, _ in shown}.issuperset(_ABSENT.get(self.how, ()))

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        full = {side: set(given) for side, given in zip(_SIDES, inputs, strict=True)}
        if self.how in ("inner", "left_semi"):
            for (left, right), safe in zip(self.key_pairs, self.flags, strict=True):
                full["left"] |= set() if safe else {left}
                full["right"] |= set() if safe else {right}
        full["both"] = full["left"] & full["right"]
        absent = _ABSENT.get(self.how, ())
        return frozenset(name for name, (side, column) in self.shown_columns if side not in absent and column in full[side])

    @override
    def only_adds(self, inputs: Sequence[bool]) -> bool:
        return self.how in ("inner", "left_semi") and all(inputs)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {
            name: TableKey(columns=relation.join_key, of_input=number, is_whole=True)
            for number, (name, relation) in enumerate(zip(_SIDES, self.relations, strict=True))
        }

    @property
    @override
    def follows_from_rows(self) -> bool:
        return True

    @property
    @override
    def is_append_buffer(self) -> bool:
        return self.is_append_only

    @property
    @override
    def cold_state(self) -> Literal["joins"]:
        return "joins"

    @property
    @override
    def joined(self) -> Joined:
        return Joined(left=self.left, right=self.right, how=self.how, using=self.using)

    @property
    @override
    def equi_join(self) -> JoinStage:
        return self

    @override
    def passes(self, columns: frozenset[str]) -> frozenset[str]:
        return columns

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # A right one that is renamed needs the left one.
        read: dict[str, set[str]] = {side: set(one.join_key) for side, one in zip(_SIDES, self.relations, strict=True)}
        if self.residual is not None:
            for column in walk(self.residual):
                if isinstance(column, Column):
                    read[column.side].add(column.name)
        for name, (side, source) in self.shown_columns:
            if name in shown:
                for one in _SIDES if side == "both" or name != source else (side,):
                    read[one].add(source)
        return tuple(frozenset(read[side]) for side in _SIDES)

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        limit = options.buffer_limit if self.is_append_only else NO_LIMIT
        is_loaded = options.hot_budget is None and not self.is_append_only
        operator: Any = (LoadedJoin if is_loaded else HashJoin)(
            self.left,
            self.right,
            self.how,
            null_safe=self.flags,
            using=self.using,
            residual=self.residual,
            hidden=self.hidden,
            options=replace(options.of_operator(directory, budget=options.hot_budget), buffer_limit=limit),
        )
        return cast("DurableOperator", operator)

    @override
    def explain(self, buckets: int | None) -> list[str]:
        condition = " and ".join(
            f"{left} {'<=>' if safe else '='} {right}" for (left, right), safe in zip(self.key_pairs, self.flags, strict=True)
        )
        if self.residual is not None:
            condition += f" and {self.residual!r}"
        kept = []
        for relation, preserved in zip(self.relations, _PRESERVED, strict=True):
            what = "all live rows" if self.how in preserved or all(self.flags) else "live rows with a complete key"
            kept.append(f'{what} of "{relation.name}"')
        bound = ", together less than join_max_buffered_bytes" if self.is_append_only else ""
        return [
            f"Join {self.how.replace('_', ' ')} on {condition}",
            f"  remembers: {', '.join(kept)}{bound}; {shown_buckets(buckets, 'join key')}",
        ]

    @property
    def shown_columns(self) -> list[tuple[str, tuple[str, str]]]:
        """Return the output columns, each with side and column."""
        return list(zip(self.shape.output.schema.names, self.shape.sources, strict=True))

    def _key_behind_stages(self) -> tuple[str, ...]:
        """Return the key of a join whose inputs may have NULL in theirs."""
        # It counts as a value, and what follows from one row at most per key follows all the same; but of two rows that a
        # FULL join pads, one per side, no column may remain that distinguishes them.
        sides = list(zip(self.relations, self.row_keys, strict=True))
        is_never_null = [key is None and relation.mode != "append" for relation, key in sides]
        if self.how == "full" and not any(is_never_null):
            return ()
        left, right = (relation if key is None else replace(relation, primary_key=key) for relation, key in sides)
        return output_key(left, right, self.how, self.shape.output.schema, self.shape.sources)


@dataclass(frozen=True, eq=False)
class JoinRequest(KeyedJoinRequest):
    @override
    def stage(self, inputs: Sequence[InputRows]) -> JoinStage:
        left, right = self.sides(inputs, _keyed)
        return JoinStage(
            left=left,
            right=right,
            how=self.how,
            null_safe=self.null_safe,
            using=self.using,
            residual=self.condition,
            hidden=(inputs[0].hidden, inputs[1].hidden),
            row_keys=(_row_key(inputs[0]), _row_key(inputs[1])),
        )

    @override
    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:
        if side and self.how in {"left_semi", "left_anti"}:
            return None
        if is_of_both and self.using and any(plain_column(one) == name for one, _ in self.keys):
            # A key that is shown once has the values of one side, in a full join of neither.
            return name if self.how in {"inner", "right" if side else "left", "left_semi", "left_anti"} else None
        return f"{name}_right" if side and is_of_both else name


def _keyed(rows: InputRows, key: tuple[str, ...]) -> Relation:
    return replace(rows.relation, join_key=key, primary_key=() if rows.is_derived else rows.relation.primary_key)


def _row_key(rows: InputRows) -> tuple[str, ...] | None:
    return rows.relation.primary_key if rows.is_derived else None


def join_sql(stage: JoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the join of two tables; DuckDB's FULL one as a LEFT one and what the right side has beside it."""
    left, right = inputs
    dialect = scope.dialect
    condition = _condition(stage, left, right, dialect)
    columns = _columns(stage, left, right, dialect)
    if stage.how in ("left_semi", "left_anti"):
        exists = "EXISTS" if stage.how == "left_semi" else "NOT EXISTS"
        return f"SELECT {columns} FROM {left.name} l WHERE {exists} (SELECT 1 FROM {right.name} r WHERE {condition})"
    kind = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[stage.how]
    if stage.how != "full" or dialect.joins_fully:
        return f"SELECT {columns} FROM {left.name} l {kind} {right.name} r ON {condition}"
    return (
        f"SELECT {columns} FROM {left.name} l LEFT JOIN {right.name} r ON {condition}\n"
        f"UNION ALL\nSELECT {_columns(stage, left, right, dialect, only_right=True)} FROM {right.name} r "
        f"WHERE NOT EXISTS (SELECT 1 FROM {left.name} l WHERE {condition})"
    )


def _condition(stage: JoinStage, left: BatchTable, right: BatchTable, dialect: Dialect) -> str:
    parts = []
    for (one, other), kind, safe in zip(stage.key_pairs, stage.key_types, stage.flags, strict=True):
        sign = "IS NOT DISTINCT FROM" if safe else "="
        parts.append(f"{_key(left, 'l', one, kind, dialect)} {sign} {_key(right, 'r', other, kind, dialect)}")
    if stage.residual is not None:
        schemas = {"left": left.relation.schema, "right": right.relation.schema}
        parts.append(expression_sql(stage.residual, schemas, dialect, {"left": "l", "right": "r"}))
    return " AND ".join(parts)


def _key(table: BatchTable, alias: str, name: str, kind: pa.DataType, dialect: Dialect) -> str:
    own = table.relation.schema.field(name).type
    text = f"{alias}.{table.column(name)}"
    return text if own == kind else f"CAST({text} AS {dialect.type_name(kind)})"


def _columns(stage: JoinStage, left: BatchTable, right: BatchTable, dialect: Dialect, *, only_right: bool = False) -> str:
    """Return the output columns; for rows of the right side alone, the others are NULL."""
    schema, sources = joined_schema(stage.left, stage.right, stage.how, using=stage.using, output_names=None)
    shown = dict(zip(schema.names, sources, strict=True))
    columns = []
    for at, field in enumerate(stage.output.schema):
        side, name = shown[field.name]
        one = "NULL" if only_right or side == "right" else f"l.{left.column(name)}"
        other = f"r.{right.column(name)}" if side != "left" else "NULL"
        if side == "both":
            kind = dialect.type_name(field.type)
            text = f"coalesce(CAST({one} AS {kind}), CAST({other} AS {kind}))"
        else:
            text = one if side == "left" else other
        columns.append(f"{text} AS c{at}")
    return ", ".join(columns)


register_stage("join", JoinStage)
register_batch_query("join", join_sql)
