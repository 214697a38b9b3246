"""The join of two streams, or of what other joins give, as a description: checked, explained, not yet running.

`on` follows PySpark: one name or a list of names both sides have (the output then shows them once, first), or pairs of
names when they differ. A condition over both rows beside the keys is a tree from `zset_join.expressions`; text is not
accepted, so nothing a user writes is ever evaluated as code.

What is done with the joined rows has PySpark's names as well: `where`, `select`, `withColumn` and their like take Spark's own
expressions (`row_steps`), `groupBy(...).agg(...)` aggregates (`grouped`), and `join` joins them with the next stream or view.
All of it is one query with one checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.plan import InputNode, JoinNode, RouteNode, SideNode, ViewNode, explain, join_type, needs_route
from zset_join.relation import Relation
from zset_join.spark.names import column_named, names_clash
from zset_join.spark.normalise import JoinInputs
from zset_join.spark.operators import AggregateNode, output_relation
from zset_join.spark.row_steps import Transform, row_step
from zset_join.spark.schemas import spark_schema
from zset_join.spark.stage_names import join_stage
from zset_join.spark.stages import AggregateStep, Segment, Step, segments_of
from zset_join.spark.streams import ChangeStream

if TYPE_CHECKING:
    from zset_join.spark.grouped import AggregateExpression, GroupedStream
    from zset_join.spark.writer import JoinStreamWriter

__all__ = ["JoinedStream", "join"]


@dataclass(frozen=True, kw_only=True)
class JoinedStream:
    """A join, and what is done with its rows, that can be started with `writeStream`; made by `ChangeStream.join`.

    Every method returns another view and leaves this one as it is.

    Args:
        left: the left stream, or a view.
        right: the right stream, or a view.
        node: the checked description of the join.
        steps: what is done with its rows, in order.
    """

    left: ChangeStream | JoinedStream
    right: ChangeStream | JoinedStream
    node: JoinNode = field(repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.left.session

    @property
    def name(self) -> str:
        """Return what messages call the view."""
        return self.output.name

    @cached_property
    def views(self) -> tuple[JoinedStream, ...]:
        """Return the views that this one is made of, each before those that are made of it, and this one last."""
        before = [view for side in (self.left, self.right) if isinstance(side, JoinedStream) for view in side.views]
        return (*before, self)

    @cached_property
    def joins(self) -> tuple[JoinInputs, ...]:
        """Return the joins of the view, in the order of an epoch; the last one is its own."""
        numbers = [one.number for one in self.segments if isinstance(one.source, JoinNode)]
        return tuple(
            JoinInputs(number=number, node=view.node, streams=view._streams)
            for number, view in zip(numbers, self.views, strict=True)
        )

    @cached_property
    def join_output(self) -> Relation:
        """Return the columns of the join itself, without those that only order the inputs."""
        return output_relation(self.node)

    @property
    def output(self) -> Relation:
        """Return the columns of the view, and its key where it has one."""
        return self.steps[-1].relation if self.steps else self.join_output

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Return the stages of the view with what happens to their answers, in the order of an epoch."""
        return self._segments(0)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the columns of the view, as Arrow types."""
        return self.output.schema

    @property
    def schema(self) -> StructType:
        """Return the columns of the view, as Spark types; an output adds its weight or row kind."""
        return spark_schema(self.output.schema)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of the view."""
        return list(self.output.schema.names)

    @property
    def writeStream(self) -> JoinStreamWriter:  # noqa: N802 - the name PySpark users type
        """Return a writer to choose options, an output and a trigger with."""
        from zset_join.spark.writer import JoinStreamWriter

        return JoinStreamWriter(self)

    def where(self, condition: str | Column) -> JoinedStream:
        """Keep the rows that fulfil a condition; behind `agg` it is HAVING.

        Args:
            condition: SQL text or a Column.

        Raises:
            PlanError: Spark cannot make sense of it, or it depends on more than the row.
        """
        return self._then(f"where({condition})", lambda rows, _: rows.where(condition))

    def filter(self, condition: str | Column) -> JoinedStream:
        """Keep the rows that fulfil a condition, as `where`."""
        return self.where(condition)

    def select(self, *columns: Any) -> JoinedStream:
        """Choose and compute columns: names, Columns, or a list of them, as `DataFrame.select` takes them.

        Raises:
            PlanError: as `where`; or the view would have no column, or two of one name.
        """
        chosen = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        shown = ", ".join(map(str, chosen))
        return self._then(f"select({shown})", lambda rows, kept: rows.select(*chosen, *map(column_named, kept)))

    def selectExpr(self, *expressions: str) -> JoinedStream:  # noqa: N802 - the name PySpark users type
        """Choose and compute columns given as SQL text.

        Raises:
            PlanError: as `select`.
        """
        return self._then(f"selectExpr{expressions}", lambda rows, kept: rows.selectExpr(*expressions, *kept))

    def withColumn(self, name: str, column: Column) -> JoinedStream:  # noqa: N802 - the name PySpark users type
        """Add a computed column, or replace the one of that name.

        Raises:
            PlanError: as `where`.
        """
        return self._then(f"withColumn({name!r}, {column})", lambda rows, _: rows.withColumn(name, column))

    def withColumns(self, columns: Mapping[str, Column]) -> JoinedStream:  # noqa: N802 - the name PySpark users type
        """Add or replace several computed columns.

        Raises:
            PlanError: as `where`.
        """
        return self._then(f"withColumns({dict(columns)})", lambda rows, _: rows.withColumns(dict(columns)))

    def withColumnRenamed(self, existing: str, new: str) -> JoinedStream:  # noqa: N802 - the name PySpark users type
        """Give a column another name.

        Raises:
            PlanError: there is no such column, or the new name is taken.
        """
        self._check_columns([existing], "withColumnRenamed")
        return self._then(f"withColumnRenamed({existing!r}, {new!r})", lambda rows, _: rows.withColumnRenamed(existing, new))

    def drop(self, *columns: str) -> JoinedStream:
        """Leave out columns.

        Raises:
            PlanError: there is no such column, or none would be left.
        """
        self._check_columns(columns, "drop")
        kept = [name for name in self.columns if name not in columns]
        return self._then(f"drop{columns}", lambda rows, also: rows.select(*map(column_named, [*kept, *also])))

    def groupBy(self, *columns: Any) -> GroupedStream:  # noqa: N802 - the name PySpark users type
        """Group the rows, for `.agg(...)`.

        Args:
            columns: names or Columns, or a list of them.

        Raises:
            PlanError: a column that is not there, or cannot be grouped by.
        """
        from zset_join.spark.grouped import GroupedStream

        return GroupedStream.of(self, columns)

    groupby = groupBy

    def agg(self, *expressions: AggregateExpression | Column | Mapping[str, str]) -> JoinedStream:
        """Aggregate all rows into one, which is there from the first epoch on; see `GroupedStream.agg`."""
        return self.groupBy().agg(*expressions)

    def distinct(self) -> JoinedStream:
        """Return every distinct row once; it stays as long as a copy of it is there.

        Raises:
            KeyTypeError: a column without equality, such as a map.
        """
        return self.then(AggregateStep(node=AggregateNode(source=self.output, group_by=tuple(self.columns), calls=())))

    def then(self, step: Step) -> JoinedStream:
        """Return the view with one more step."""
        made = replace(self, steps=(*self.steps, step))
        _check_names(made.columns)  # making the output checks the step as well
        return made

    def join(
        self,
        other: ChangeStream | JoinedStream,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Any = None,
    ) -> JoinedStream:
        """Join the rows of this view with a stream or another view, in the same query; see `zset_join.spark.joined.join`."""
        return join(self, other, on, how, null_safe=null_safe, condition=condition)

    def fingerprint(self) -> dict[str, Any]:
        """Return a JSON-ready description; a checkpoint refuses a query whose description differs."""
        described = self.node.fingerprint()
        for side, source in (("left", self.left), ("right", self.right)):
            if isinstance(source, JoinedStream):
                described[side] = {**described[side], "view": source.fingerprint()}
        return {**described, "steps": [list(step.description) for step in self.steps]} if self.steps else described

    def to_json(self) -> dict[str, Any]:
        """Return what it takes to build the operators of the view without its program, JSON-ready."""
        further = self.segments[1:]
        found = self.joins[0].node.to_json()
        if len(self.joins) > 1:
            return {**found, "stages": {one.source_stage: one.source.to_json() for one in further}}
        return {**found, "aggregates": [one.source.to_json() for one in further]} if further else found

    def explain(self) -> None:
        """Print what the query will do and what it must remember, as DataFrame.explain does."""
        print(self.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def explanation(self, *, buckets: int | None = None, output: str | None = None) -> str:
        """Return what `explain` prints."""
        lines = [] if output is None else [f"Output to {output}"]
        if self.steps:
            key = ", ".join(self.output.primary_key)
            lines.append(f"key: {key}" if key else "key: none; the view may hold equal rows")
        for depth, step in enumerate(reversed(self.steps)):
            branch = f"{'   ' * (depth - 1)}└─ " if depth else ""
            lines.append(f"{branch}{step.title}")
            if isinstance(step, AggregateStep):
                lines += [f"{'   ' * depth}   {line}" for line in step.memory(buckets)]
        views = {
            side: source.explanation(buckets=buckets).splitlines()
            for side, source in enumerate((self.left, self.right))
            if isinstance(source, JoinedStream)
        }
        joined = explain(self.node, buckets=buckets, views=views).splitlines()
        indent = "   " * len(self.steps)
        joined = [f"{indent[3:]}└─ {joined[0]}", *(f"{indent}{line}" for line in joined[1:])] if self.steps else joined
        return "\n".join([*lines, *joined])

    @property
    def _streams(self) -> tuple[ChangeStream | None, ChangeStream | None]:
        """Return the input of both sides, None for a view."""
        left, right = (side if isinstance(side, ChangeStream) else None for side in (self.left, self.right))
        return left, right

    def _segments(self, first: int) -> tuple[Segment, ...]:
        """Return the segments up to the output of this view, numbered from `first`."""
        before: list[list[Segment]] = [[], []]
        number = first
        for side, source in enumerate((self.left, self.right)):
            if isinstance(source, JoinedStream):
                before[side] = list(source._segments(number))
                number += len(before[side])
        for side, segments in enumerate(before):
            if segments:
                segments[-1] = replace(segments[-1], target_stage=join_stage(number), side=side)
        return (*before[0], *before[1], *segments_of(self.node, self.join_output, self.steps, first=number))

    def _then(self, call: str, transform: Transform) -> JoinedStream:
        return self.then(row_step(self.session, self.output, call, transform))

    def _check_columns(self, names: Sequence[str], call: str) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise PlanError(
                f"{call}: there is no column {missing} here; the columns are {self.columns}.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )


def join(
    left: ChangeStream | JoinedStream,
    right: ChangeStream | JoinedStream,
    on: Any,
    how: str = "inner",
    *,
    null_safe: bool | Sequence[bool] = False,
    condition: Expression | None = None,
) -> JoinedStream:
    """Describe the join of two streams or views.

    Args:
        left: the left stream, or a view.
        right: the right stream, or a view.
        on: a column name, a list of names, or a list of pairs (left name, right name).
        how: any spelling PySpark accepts except cross.
        null_safe: compare with `<=>` instead of `=`, for all key columns or one flag each.
        condition: a tree from `zset_join.expressions` that a pair must satisfy as well; part of ON.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    if not isinstance(right, ChangeStream | JoinedStream):
        raise OptionError(
            f"join expects another stream or view, got {type(right).__name__}. Wrap the DataFrame first: changes(df, name=..., "
            "keys=[...]) or appends(df, name=...).",
            code="NOT_A_STREAM",
        )
    pairs, using = _key_pairs(left, right, on)
    flags = _flags(null_safe, len(pairs))
    if condition is not None and not isinstance(condition, Expression):
        raise OptionError(
            f'condition is a {type(condition).__name__}; expected a tree such as left("x") < right("y"), with left and '
            "right from zset_join.expressions.",
            code="CONDITION",
        )
    sides = [_side(source, [pair[position] for pair in pairs]) for position, source in enumerate((left, right))]
    node = JoinNode(left=sides[0], right=sides[1], how=join_type(how), null_safe=flags, using=using, residual=condition)
    joined = JoinedStream(left=left, right=right, node=node)
    _check_streams(joined)
    _check_names(joined.columns)  # making the output checks the condition as well
    return joined


def _side(source: ChangeStream | JoinedStream, join_key: Sequence[str]) -> SideNode:
    """Describe one input of a join."""
    if isinstance(source, JoinedStream):
        rows = source.output
        relation = Relation(name=rows.name, schema=rows.schema, join_key=tuple(join_key), mode="changelog")
        return ViewNode(relation=relation, key=rows.primary_key)
    relation = source.relation(join_key)
    made = InputNode(relation=relation, hidden=source.hidden, has_baseline=source.baseline is not None)
    return RouteNode(source=made) if needs_route(relation) else made


def _check_streams(joined: JoinedStream) -> None:
    """Refuse inputs that messages and the dead-letter table could not tell apart."""
    names = [side.relation.name for one in joined.joins for side in one.node.sides]
    taken = sorted({name for name in names if names.count(name) > 1})
    if taken:
        raise OptionError(
            f"several inputs of the chain are called {taken}; messages and the dead-letter table tell them apart by their "
            'names. Give each its own: a stream that is used twice is stream.alias("another name") the second time.',
            code="SAME_NAME",
            names=taken,
        )


def _check_names(columns: list[str]) -> None:
    clashing = names_clash(columns)
    if clashing:
        raise PlanError(
            f"the view would have the columns {clashing}, which differ only by case; Spark takes them for one. Rename one.",
            code="OUTPUT_NAMES",
            columns=clashing,
        )


def _key_pairs(
    left: ChangeStream | JoinedStream, right: ChangeStream | JoinedStream, on: Any
) -> tuple[list[tuple[str, str]], bool]:
    if on is None or (isinstance(on, list | tuple) and not on):
        raise PlanError(
            f'the join of "{left.name}" and "{right.name}" names no key column; a cross join has no bounded change. Pass '
            'on="column", on=["a", "b"] or on=[("left column", "right column")].',
            code="CROSS_JOIN",
        )
    if isinstance(on, Column | Expression):
        raise OptionError(
            f'on={on!r} is an expression. Name the equal columns: on=[("left column", "right column")], and give what else '
            "must hold as condition=left(...) < right(...), with left and right from zset_join.expressions.",
            code="ON_EXPRESSION",
        )
    wanted = [on] if isinstance(on, str) else on
    if not isinstance(wanted, list | tuple) or not all(_is_key(entry) for entry in wanted):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, or a list of pairs of names.",
            code="ON",
        )
    using = all(isinstance(entry, str) for entry in wanted)
    pairs = [(entry, entry) if isinstance(entry, str) else (entry[0], entry[1]) for entry in wanted]
    for stream, position in ((left, 0), (right, 1)):
        missing = [pair[position] for pair in pairs if pair[position] not in stream.columns]
        if missing:
            raise PlanError(
                f'on={on!r} names {missing}, which "{stream.name}" does not have; its columns are {list(stream.columns)}.',
                code="UNKNOWN_COLUMN",
                name=stream.name,
                missing=missing,
            )
    return pairs, using


def _is_key(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    return isinstance(entry, list | tuple) and len(entry) == 2 and all(isinstance(name, str) for name in entry)


def _flags(null_safe: bool | Sequence[bool], count: int) -> tuple[bool, ...]:
    flags = (null_safe,) * count if isinstance(null_safe, bool) else tuple(null_safe)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise OptionError(
            f"null_safe={null_safe!r}; expected True, False, or one of them for each of the {count} key columns.",
            code="NULL_SAFE",
        )
    return flags
