"""A view: rows that follow from streams, and what is done with them, as a description that is not yet running.

What is done with the rows has PySpark's names: `where`, `select`, `withColumn` and their like take Spark's own expressions
(`row_steps`), `groupBy(...).agg(...)` aggregates (`grouped`), `join` joins them with the next stream or view, and `union`
adds those of another view. All of it is one query with one checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from zset_join.config import QueryOptions
from zset_join.errors import PlanError
from zset_join.operators.deduplicate import Keep
from zset_join.relation import Relation
from zset_join.spark.api.dedup import dedup_stage
from zset_join.spark.api.looks_up import LooksUp
from zset_join.spark.api.streams import ChangeStream
from zset_join.spark.api.unknown_methods import missing_on_view
from zset_join.spark.planning.buffer_limit import explained_limit
from zset_join.spark.planning.fusing import Fusing, fusings_of
from zset_join.spark.planning.row_steps import RowStep, Transform, row_step
from zset_join.spark.planning.stages import PlannedStage, StageStep, Step, explained_state, named, with_steps, written_plan
from zset_join.spark.rows.names import column_named, names_clash
from zset_join.spark.rows.schemas import refuse_collations, spark_schema
from zset_join.spark.rows.user_functions import UserFunction, explained_functions
from zset_join.stages import AggregateStage, Stage, expiring_stage, state_ttls

if TYPE_CHECKING:
    from zset_join.spark.api.grouped import AggregateExpression, GroupedStream
    from zset_join.spark.api.joined import JoinedStream
    from zset_join.spark.api.staged import StagedView
    from zset_join.spark.api.unions import UnionedStream
    from zset_join.spark.api.writer import JoinStreamWriter

__all__ = ["View", "check_names"]


@dataclass(frozen=True, kw_only=True)
class View(LooksUp, ABC):
    """Rows that follow from streams, which can be kept up to date with `writeStream`.

    Every method returns another view and leaves this one as it is.

    Args:
        steps: what is done with the rows, in order.
    """

    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    @abstractmethod
    def session(self) -> SparkSession:
        """Return the session of the streams."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[ChangeStream | View, ...]:
        """Return what the view is made of."""

    @property
    @abstractmethod
    def before_steps(self) -> Relation:
        """Return the columns before the steps."""

    @property
    def stage_before_steps(self) -> Stage | None:
        """Return the stage that makes the rows before the steps of the inputs; None where they are just put together."""
        return None

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """Return what a checkpoint remembers of the view, without its steps."""

    @abstractmethod
    def _explained(self, buckets: int | None) -> list[str]:
        """Return what `explain` says of the view, without its steps."""

    @abstractmethod
    def _source_stages(self) -> list[PlannedStage]:
        """Return the planned stages before the steps, numbered from 0; those without a target are this view's rows."""

    @property
    def name(self) -> str:
        """Return what messages call the view."""
        return self.output.name

    @property
    def output(self) -> Relation:
        """Return the columns of the view, and its key where it has one."""
        return self.steps[-1].relation if self.steps else self.before_steps

    @cached_property
    def planned_stages(self) -> tuple[PlannedStage, ...]:
        """Return the stages of the view with what happens to their answers, in the order of an epoch."""
        return named(self.unnamed_stages)

    @property
    def unnamed_stages(self) -> list[PlannedStage]:
        """Return the planned stages of the view as a part of a larger one."""
        return with_steps(self._source_stages(), self.steps)

    @cached_property
    def fusings(self) -> list[Fusing]:
        """Return, for every input of a stage that earlier stages make, whether it is fused."""
        return fusings_of(self.planned_stages)

    @property
    def number_before_steps(self) -> int:
        """Return the number of the last stage that is none of the steps."""
        return self.planned_stages[-1].number - sum(isinstance(step, StageStep) for step in self.steps)

    @cached_property
    def joined(self) -> tuple[JoinedStream, ...]:
        """Return the joins among the views that this one is made of, itself included, in the order of an epoch."""
        return tuple(join for one in self.inputs if isinstance(one, View) for join in one.joined)

    @cached_property
    def functions(self) -> tuple[UserFunction, ...]:
        """Return the user's own functions in the view and its inputs."""
        found = [one for source in self.inputs for one in source.functions]
        found += [one for step in self.steps if isinstance(step, RowStep) for one in step.functions]
        return tuple(dict.fromkeys(found))

    @cached_property
    def streams(self) -> tuple[ChangeStream, ...]:
        """Return the streams that the view follows from."""
        return tuple(found for one in self.inputs for found in (one.streams if isinstance(one, View) else (one,)))

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
        from zset_join.spark.api.writer import JoinStreamWriter

        return JoinStreamWriter(self)

    def where(self, condition: str | Column) -> View:
        """Keep the rows that fulfil a condition; behind `agg` it is HAVING.

        Args:
            condition: SQL text or a Column.

        Raises:
            PlanError: Spark cannot make sense of it, or it depends on more than the row.
        """
        return self._then(f"where({condition})", lambda rows, _: rows.where(condition))

    def filter(self, condition: str | Column) -> View:
        """Keep the rows that fulfil a condition, as `where`."""
        return self.where(condition)

    def select(self, *columns: Any) -> View:
        """Choose and compute columns: names, Columns, or a list of them, as `DataFrame.select` takes them.

        Raises:
            PlanError: as `where`; or the view would have no column, or two of one name.
        """
        chosen = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        shown = ", ".join(map(str, chosen))
        return self._then(f"select({shown})", lambda rows, kept: rows.select(*chosen, *map(column_named, kept)))

    def selectExpr(self, *expressions: str) -> View:  # noqa: N802 - the name PySpark users type
        """Choose and compute columns given as SQL text.

        Raises:
            PlanError: as `select`.
        """
        return self._then(f"selectExpr{expressions}", lambda rows, kept: rows.selectExpr(*expressions, *kept))

    def withColumn(self, name: str, column: Column) -> View:  # noqa: N802 - the name PySpark users type
        """Add a computed column, or replace the one of that name.

        Raises:
            PlanError: as `where`.
        """
        return self._then(f"withColumn({name!r}, {column})", lambda rows, _: rows.withColumn(name, column))

    def withColumns(self, columns: Mapping[str, Column]) -> View:  # noqa: N802 - the name PySpark users type
        """Add or replace several computed columns.

        Raises:
            PlanError: as `where`.
        """
        return self._then(f"withColumns({dict(columns)})", lambda rows, _: rows.withColumns(dict(columns)))

    def withColumnRenamed(self, existing: str, new: str) -> View:  # noqa: N802 - the name PySpark users type
        """Give a column another name.

        Raises:
            PlanError: there is no such column, or the new name is taken.
        """
        self._check_columns([existing], "withColumnRenamed")
        return self._then(f"withColumnRenamed({existing!r}, {new!r})", lambda rows, _: rows.withColumnRenamed(existing, new))

    def drop(self, *columns: str) -> View:
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
        from zset_join.spark.api.grouped import GroupedStream

        return GroupedStream.of(self, columns)

    groupby = groupBy

    def agg(self, *expressions: AggregateExpression | Column | Mapping[str, str]) -> View:
        """Aggregate all rows into one, which is there from the first epoch on; see `GroupedStream.agg`."""
        return self.groupBy().agg(*expressions)

    def distinct(self, *, state_ttl: Any = None) -> View:
        """Return every distinct row once; it stays as long as a copy of it is there.

        Args:
            state_ttl: how long a row is remembered after its last copy came: a duration or a `StateTtl`.

        Raises:
            KeyTypeError: a column without equality, such as a map.
            PlanError: a column with a collation.
        """
        refuse_collations(self.output.schema, self.columns, relation=self.name, use="part of distinct")
        source = self.output if state_ttl is None else replace(self.output, mode="changelog")
        stage = AggregateStage(source=source, group_by=tuple(self.columns), calls=(), reduces=state_ttl is None)
        return self.then(StageStep(stage=expiring_stage(stage, [self.output], state_ttls(state_ttl, 1))))

    def dedup(
        self,
        keys: Sequence[str] | str,
        *,
        order_by: Sequence[str] | str,
        keep: Keep = "first",
        n: int = 1,
        state_ttl: Any = None,
    ) -> View:
        """Keep the first rows of every key in an order, as ROW_NUMBER() OVER (PARTITION BY keys ORDER BY ...) <= n does.

        Args:
            keys: what rows are told apart by.
            order_by: columns, as `"t"` or `"price desc"`; equal ones go by arrival.
            keep: `first` in this order, or `last`.
            n: how many rows per key.
            state_ttl: how long a key is remembered after its last row: a duration or a `StateTtl`.

        Raises:
            PlanError: a column that is not there, or cannot be ordered or compared.
        """
        rows = self.output
        source = Relation(
            name=rows.name,
            schema=rows.schema,
            mode=rows.mode,
            event_time=rows.event_time,
            watermark_delay=rows.watermark_delay,
        )
        return self.then(StageStep(stage=dedup_stage(source, keys, order_by, keep, n, state_ttl=state_ttl)))

    def temporal_join(self, versions: ChangeStream | View, on: Any, how: str = "inner", **options: Any) -> StagedView:
        """Join each row with the version that was valid at its time; see `zset_join.spark.api.timed.temporal_join`."""
        from zset_join.spark.api.timed import temporal_join

        return temporal_join(self, versions, on, how, **options)

    def join_asof(self, other: ChangeStream | View, on: Any, how: str = "inner", **options: Any) -> StagedView:
        """Join each row with the nearest one in time; see `zset_join.spark.api.timed.join_asof`."""
        from zset_join.spark.api.timed import join_asof

        return join_asof(self, other, on, how, **options)

    def then(self, step: Step) -> Self:
        """Return the view with one more step."""
        made = replace(self, steps=(*self.steps, step))
        check_names(made.columns)  # making the output checks the step as well
        return made

    def join(
        self,
        other: ChangeStream | View,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Any = None,
        state_ttl: Any = None,
    ) -> View:
        """Join the rows of this view with a stream or another view, in this query; see `zset_join.spark.api.joined.join`."""
        from zset_join.spark.api.joined import join

        return join(self, other, on, how, null_safe=null_safe, condition=condition, state_ttl=state_ttl)

    def union(self, other: View) -> UnionedStream:
        """Return the rows of this view and of another one, in the same query; equal rows stay apart, as in PySpark.

        Args:
            other: a view with columns of the same types in the same order; its names are those of this one then.

        Raises:
            OptionError: `other` is no view.
            PlanError: the columns do not go together.
        """
        from zset_join.spark.api.unions import union

        return union(self, other)

    unionAll = union  # noqa: N815 - the name PySpark users type

    def fingerprint(self) -> dict[str, Any]:
        """Return a JSON-ready description; a checkpoint refuses a query whose description differs."""
        described = self._described()
        return {**described, "steps": [list(step.description) for step in self.steps]} if self.steps else described

    def to_json(self) -> dict[str, Any]:
        """Return what it takes to build the operators of the view without its program, JSON-ready."""
        return written_plan(self.planned_stages)

    def explain(self) -> None:
        """Print what the query will do and what it must remember, as DataFrame.explain does."""
        print(self.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def query_explanation(self, output: str | None, options: QueryOptions) -> str:
        """Return what `explain` of a query prints.

        Args:
            output: where the answer goes; None when not yet known.
            options: of the query.

        Raises:
            OptionError: groups are to be hybrid, and there are none; or the limit of append-only joins does not fit.
        """
        lines = [] if output is None else [f"Output to {output}"]
        lines += explained_state(self.planned_stages, options, workers=self.session.sparkContext.defaultParallelism)
        lines += explained_limit(self.planned_stages, options.buffer_limit)
        lines += explained_functions(self.functions, options.udf_version)
        return "\n".join([*lines, self.explanation(buckets=options.buckets)])

    def explanation(self, *, buckets: int | None = None) -> str:
        """Return what `explain` prints."""
        lines: list[str] = []
        if self.steps:
            key = ", ".join(self.output.primary_key)
            lines.append(f"key: {key}" if key else "key: none; the view may hold equal rows")
        number = self.planned_stages[-1].number
        for depth, step in enumerate(reversed(self.steps)):
            branch = f"{'   ' * (depth - 1)}└─ " if depth else ""
            lines.append(f"{branch}{step.title}")
            if isinstance(step, StageStep):
                (fusing,) = (one for one in self.fusings if one.target == number)
                shuffled = step.shuffled if fusing.why_not is not None else "nothing"
                told = [*step.facts(buckets), f"shuffles: {shuffled}", fusing.line(self.before_steps.name)]
                lines += [f"{'   ' * depth}   {line}" for line in told]
                number -= 1
        source = self._explained(buckets)
        indent = "   " * len(self.steps)
        source = [f"{indent[3:]}└─ {source[0]}", *(f"{indent}{line}" for line in source[1:])] if self.steps else source
        return "\n".join([*lines, *source])

    def __getattr__(self, name: str) -> Any:
        raise missing_on_view(name)

    def _then(self, call: str, transform: Transform) -> View:
        return self.then(row_step(self.session, self.output, call, transform))

    def _check_columns(self, names: Sequence[str], call: str) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise PlanError(
                f"{call}: there is no column {missing} here; the columns are {self.columns}.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )


def check_names(columns: list[str]) -> None:
    """Refuse columns that Spark would take for one.

    Raises:
        PlanError: there are such.
    """
    clashing = names_clash(columns)
    if clashing:
        raise PlanError(
            f"the view would have the columns {clashing}, which differ only by case; Spark takes them for one. Rename one.",
            code="OUTPUT_NAMES",
            columns=clashing,
        )
