"""An as-of join as a stage: each left row meets the nearest right row in time."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow.types as pt

from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.operators.timed_join import AsOfJoin
from zset_join.shapes.as_of_join import AsOfOptions, as_of_relation, as_of_shape
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.stages.batch.dialect import Dialect
from zset_join.stages.batch.tables import BatchScope, BatchTable, register_batch_query
from zset_join.stages.batch.versions import chosen_rows, equal_keys, has_arrivals, rest_of_on, row_copies
from zset_join.stages.request import InputRows, NamedColumnsRequest
from zset_join.stages.stage import StageOptions, TableKey, refuse_hybrid, register_stage
from zset_join.stages.timed_join import TimedJoinStage
from zset_join.zset.protocol import DurableOperator

__all__ = ["AsOfJoinStage", "AsOfRequest"]


@dataclass(frozen=True, kw_only=True)
class AsOfJoinStage(TimedJoinStage):
    """A join by time; the relations name their join keys."""

    left: Relation
    right: Relation
    options: AsOfOptions

    @property
    def kind(self) -> str:
        return "as_of_join"

    @cached_property
    def shape(self) -> VersionJoinShape:
        return as_of_shape(self.left, self.right, self.options)

    @cached_property
    def output(self) -> Relation:
        return as_of_relation(self.shape)

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        return {
            "left": TableKey(columns=self.inputs[0].key, of_input=0),
            "right": TableKey(columns=self.inputs[1].key, of_input=1),
        }

    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        """Return keys, times, the rest of ON and what shows; all of a right side whose rows change and tie by arrival.

        A row that changes only in columns that are not read arrives again with them and does not without them.
        """
        left, right = self.read_of_sides(shown, ({self.options.left_time}, {self.options.right_time}))
        return left, right if self.options.tie == "smallest_key" or self.right.mode == "append" else None

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
