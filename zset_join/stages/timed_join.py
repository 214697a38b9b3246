"""A join by key and time as a stage: what temporal and as-of joins have in common.

`AsOfJoinStage`, `AsOfRequest`: an as-of join as a stage: each left row meets the nearest right row in time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import references
from zset_join.operators.timed_join import AsOfJoin
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions, VersionJoinShape, as_of_relation, as_of_shape
from zset_join.stages.batch import (
    BatchScope,
    BatchTable,
    Dialect,
    chosen_rows,
    equal_keys,
    has_arrivals,
    register_batch_query,
    rest_of_on,
    row_copies,
)
from zset_join.stages.request import InputRows, NamedColumnsRequest, sides_read
from zset_join.stages.stage import (
    Comparison,
    Joined,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    compared_in_condition,
    compared_keys,
    refuse_hybrid,
    register_stage,
)
from zset_join.zset.protocol import DurableOperator

__all__ = ["AsOfJoinStage", "AsOfRequest", "TimedJoinStage"]


class TimedJoinStage(Stage):
    """A join of left rows with the right rows of their key that their time chooses."""

    left: Relation
    right: Relation
    options: AsOfOptions | TemporalOptions

    @property
    @abstractmethod
    def shape(self) -> VersionJoinShape:
        """Return which rows meet, and when."""

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # A NULL in it matches nothing.
        return tuple(
            StageInput(
                relation=relation,
                key=tuple(pair[side] for pair in self.shape.key),
                key_types=self.shape.key_types,
                unmatchable="by_identity",
            )
            for side, relation in enumerate((self.shape.left, self.shape.right))
        )

    def read_of_sides(self, shown: Collection[str], more: Sequence[Collection[str]]) -> tuple[frozenset[str], ...]:
        """Return, per side, what these columns of the answer need: keys, times, the rest of ON, what shows, and `more`."""
        shape = self.shape
        keys = [{*relation.join_key, *extra} for relation, extra in zip((self.left, self.right), more, strict=True)]
        if self.options.residual is not None:
            for side, columns in enumerate(references(self.options.residual)):
                keys[side] |= columns
        sides = [0 if side == "left" else 1 for side, _ in shape.sources]
        sources = [
            (name, (side, column)) for name, side, (_, column) in zip(shape.schema.names, sides, shape.sources, strict=True)
        ]
        return sides_read((self.left.schema, self.right.schema), keys, sources, shown)

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        left, right = self.inputs[0].relation, self.inputs[1].relation
        keys = compared_keys(self.inputs, "a key of a join")
        return (*keys, *compared_in_condition(left, right, self.options.residual))

    @property
    @override
    def output_key(self) -> OutputKey:
        shape = self.shape
        shown = dict(zip(shape.sources, shape.schema.names, strict=True))
        left = tuple(shown[("left", pair[0])] for pair in shape.key)
        aliases = tuple((shown[("left", a)], shown[("right", b)]) for a, b in shape.key if ("right", b) in shown)
        padded = tuple(name for _, name in aliases)
        is_padded = shape.how == "left" and bool(padded)
        return OutputKey(
            columns=self.output.primary_key, bucketed_by=left, aliases=aliases, padded=(padded,) if is_padded else ()
        )

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        # Equal left rows are answered one by one.
        return False

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        shape = self.shape
        full = {"left": set(inputs[0]), "right": set(inputs[1]) if shape.how == "inner" else set()}
        if shape.how == "inner":
            full["left"] |= {pair[0] for pair in shape.key}
            full["right"] |= {pair[1] for pair in shape.key}
        shown = zip(shape.sources, shape.schema.names, strict=True)
        return frozenset(name for (side, column), name in shown if column in full[side])

    @property
    @override
    def waits_for_time(self) -> bool:
        return True

    @property
    @override
    def joined(self) -> Joined:
        return Joined(left=self.left, right=self.right, how=self.options.how, using=self.options.using)

    @property
    def condition(self) -> str:
        """Return ON as text: the key, then the rest."""
        pairs = " and ".join(f"{a} = {b}" for a, b in zip(self.left.join_key, self.right.join_key, strict=True))
        return pairs if self.options.residual is None else f"{pairs} and {self.options.residual!r}"


# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.


@dataclass(frozen=True, kw_only=True)
class AsOfJoinStage(TimedJoinStage):
    """A join by time; the relations name their join keys."""

    left: Relation
    right: Relation
    options: AsOfOptions

    @property
    @override
    def kind(self) -> str:
        return "as_of_join"

    @cached_property
    @override
    def shape(self) -> VersionJoinShape:
        return as_of_shape(self.left, self.right, self.options)

    @cached_property
    @override
    def output(self) -> Relation:
        return as_of_relation(self.shape)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        return {
            "left": TableKey(columns=self.inputs[0].key, of_input=0),
            "right": TableKey(columns=self.inputs[1].key, of_input=1),
        }

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # All of a right side whose rows change and tie by arrival.
        left, right = self.read_of_sides(shown, ({self.options.left_time}, {self.options.right_time}))
        return left, right if self.options.tie == "smallest_key" or self.right.mode == "append" else None

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        refuse_hybrid(options.hot_budget, title=self.title, option="default_hash_join")
        return AsOfJoin(
            self.left,
            self.right,
            self.options,
            options=options.of_operator(directory),
        )

    @property
    def title(self) -> str:
        options = self.options
        within = "" if options.tolerance is None else f", within {options.tolerance}"
        nearest = f"nearest {options.left_time} {options.op} {options.right_time}"
        return f"As-of join {options.how} on {self.condition}, {nearest}{within}"

    @override
    def explain(self, buckets: int | None) -> list[str]:
        where = shown_buckets(buckets, "join key")
        return [
            self.title,
            f"  ties: {self.options.tie.replace('_', ' ')}; corrects when a nearer row arrives or the chosen one is retracted",
            f'  remembers: all rows of "{self.left.name}" and "{self.right.name}"; {where}; nothing is freed by time',
        ]


@dataclass(frozen=True, eq=False)
class AsOfRequest(NamedColumnsRequest):
    keys: tuple[tuple[str, str], ...]
    options: AsOfOptions
    names: tuple[str, str] = ("left", "right")

    @override
    def stage(self, inputs: Sequence[InputRows]) -> AsOfJoinStage:
        left, right = (
            replace(rows.relation, name=self.names[side], join_key=tuple(pair[side] for pair in self.keys))
            for side, rows in enumerate(inputs)
        )
        return AsOfJoinStage(left=left, right=right, options=self.options)


def as_of_sql(stage: AsOfJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return, for each left row, the nearest right row."""
    return _as_of(stage, inputs, scope.dialect, is_tied=False)


def as_of_tied(stage: AsOfJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the answers among which the arrival of right rows decides, where it is not known."""
    return None if has_arrivals(inputs[1]) else _as_of(stage, inputs, scope.dialect, is_tied=True)


def _as_of(stage: AsOfJoinStage, inputs: Sequence[BatchTable], dialect: Dialect, *, is_tied: bool) -> str:
    left, right = inputs
    options, shape = stage.options, stage.shape
    left_time, right_time = f"l.{left.column(options.left_time)}", f"r.{right.column(options.right_time)}"
    rights = f"SELECT *, 0 AS n FROM {right.name}"
    if has_arrivals(right):
        rights = f"SELECT * FROM ({row_copies(right, dialect)}) WHERE gone IS NULL"
    columns = ", ".join(f"l.{one}" for one in left.columns)
    parts = [
        f"versions AS (SELECT *, false AS deleted FROM ({rights}))",
        f"lefts AS (SELECT {columns}, 0 AS known, {dialect.row_id} AS id FROM {left.name} l)",
    ]
    pairs = [*equal_keys(shape, left, right, dialect), f"{left_time} {options.op} {right_time}"]
    if options.tolerance is not None:
        kind = shape.times.kind
        one, other = (left_time, right_time) if options.op in (">=", ">") else (right_time, left_time)
        if pt.is_time(kind):  # a time of day plus an interval wraps around
            near, far = dialect.microseconds(one, kind), f"{dialect.microseconds(other, kind)} + {options.tolerance}"
        else:
            near, far = dialect.time(one, kind), dialect.moved(dialect.time(other, kind), kind, options.tolerance)
        pairs.append(f"{near} <= {far}")
    if options.residual is not None:
        pairs.append(rest_of_on(options.residual, left, right, dialect))
    nearest = "DESC" if options.op in (">=", ">") else "ASC"
    order = [f"{right_time} {nearest}"]
    if options.tie == "smallest_key":
        order += [f"r.{right.column(name)}" for name in stage.right.primary_key]
    query = chosen_rows(shape, left, right, " AND ".join(pairs), order, is_tied=is_tied)
    return f"WITH {', '.join(parts)} {query}"


register_stage("as_of_join", AsOfJoinStage)
register_batch_query("as_of_join", as_of_sql, tied=as_of_tied)
