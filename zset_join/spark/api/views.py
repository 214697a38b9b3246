"""Streams and views with the words of PySpark: what a user holds, each over a plan that is plain data.

`ChangeStream` is a stream (made by `changes` and `appends`), `View` what follows from streams, `GroupedStream` its groups.
What is done with the rows of a view has PySpark's names: `where`, `select`, `withColumn` and their like take Spark's own
expressions (`row_steps`), `groupBy(...).agg(...)` aggregates, `join` joins them with the next stream or view, and `union` adds
those of another view. All of it is one query with one checkpoint.

A word only makes the next plan: what it means and what it refuses is in the module of its name (`joined`, `timed`,
`looking_up`, `grouped`, `unions`), which knows plans and no words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from zset_join.errors import PlanError
from zset_join.lookup import LookupSource
from zset_join.query.indexes import create_index
from zset_join.relation import Relation
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.deduplicate import Keep
from zset_join.spark.api import joined, looking_up, timed, unions
from zset_join.spark.api.dedup import dedup_stage
from zset_join.spark.api.grouped import AggregateExpression, Grouping
from zset_join.spark.api.staged import staged
from zset_join.spark.api.stream_arguments import check_stream_name
from zset_join.spark.api.unknown_methods import missing_on_stream, missing_on_view
from zset_join.spark.api.writer import JoinStreamWriter
from zset_join.spark.planning.row_steps import Transform, row_step
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import StageStep
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import spark_schema
from zset_join.stages import AggregateStage, expiring_stage, state_ttls

__all__ = ["ChangeStream", "GroupedStream", "JoinedStream", "UnionedStream", "View"]


class _Joinable:
    """The words that streams and views have in common: rows that can be joined."""

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
        """Join with another stream or view, in one query; see `zset_join.spark.api.joined.join`."""
        return View(
            joined.join(_plan(self), _plan(other), on, how, null_safe=null_safe, condition=condition, state_ttl=state_ttl)
        )

    def describe(self) -> str:
        """Say whether these rows are versioned or latest-only, and why; and which indexes they have or are looked up by."""
        return timed.describe(_plan(self))

    def temporal_join(self, versions: Any, on: Any, how: str = "inner", **options: Any) -> View:
        """Join each row with the version that was valid at its time; see `zset_join.spark.api.timed.temporal_join`."""
        return View(timed.temporal_join(_plan(self), _plan(versions), on, how, **options))

    def join_asof(self, other: ChangeStream | View, on: Any, how: str = "inner", **options: Any) -> View:
        """Join each row with the nearest one in time; see `zset_join.spark.api.timed.join_asof`."""
        return View(timed.join_asof(_plan(self), _plan(other), on, how, **options))

    def lookup_join(self, source: LookupSource, on: Any = None, how: str = "inner", **options: Any) -> View:
        """Join with what an outside table says when a row comes; see `zset_join.spark.api.looking_up.lookup_join`."""
        return View(looking_up.lookup_join(_plan(self), source, on, how, **options))


def _plan(rows: Any) -> Any:
    """Return the plan of a view; a stream, and what is neither, as it is."""
    return rows.plan if isinstance(rows, View) else rows


@dataclass(frozen=True, kw_only=True)
class ChangeStream(SourceStream, _Joinable):
    """A streaming DataFrame whose rows change a table, with the words of a stream; made by `changes` and `appends`."""

    if not TYPE_CHECKING:  # a type checker is to find unknown names

        def __getattr__(self, name: str) -> Any:
            raise missing_on_stream(name)

    def create_index(self, columns: Sequence[str] | str, *, name: str | None = None) -> ChangeStream:
        """Declare an index of these rows, for `temporal_join` with the stream that is returned.

        Joins of a query that look up in one stream by the same columns share one copy of it, declared or not. An index names
        it, and lets joins by processing time on more columns than it has go by its columns.

        Args:
            columns: what rows are found by; for joins by event time the primary key.
            name: of the index; default: made of the names of the stream and the columns.

        Raises:
            PlanError: columns that are not there.
            OptionError: the name is taken.
        """
        return create_index(self, columns, name=name)

    def alias(self, name: str) -> ChangeStream:
        """Return the same stream under another name, to be used twice in one query.

        Raises:
            OptionError: the name is empty, or one of those the dead-letter table needs.
        """
        check_stream_name(name)
        return replace(self, name=name)

    def dedup(
        self,
        keys: Sequence[str] | str,
        *,
        order_by: Sequence[str] | str,
        keep: Keep = "first",
        n: int = 1,
        state_ttl: Any = None,
    ) -> View:
        """Keep the first rows of every key in an order; see `View.dedup`.

        Raises:
            PlanError: as there; or the stream says by `keys` which row is replaced, so that it has one per key already.
        """
        return View(staged([self], dedup_stage(self.relation(()), keys, order_by, keep, n, state_ttl=state_ttl)))


@dataclass(frozen=True)
class View(_Joinable):
    """Rows that follow from streams, which can be kept up to date with `writeStream`.

    Every method returns another view and leaves this one as it is.

    Args:
        plan: how they follow.
    """

    plan: ViewPlan

    @property
    def name(self) -> str:
        """Return what messages call the view."""
        return self.plan.name

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.plan.session

    @property
    def output(self) -> Relation:
        """Return the columns of the view, and its key where it has one."""
        return self.plan.output

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
        return self.plan.columns

    @property
    def writeStream(self) -> JoinStreamWriter:  # noqa: N802 - the name PySpark users type
        """Return a writer to choose options, an output and a trigger with."""
        return JoinStreamWriter(self.plan)

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
        return GroupedStream(Grouping.of(self.plan, columns))

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
        source = self.output if state_ttl is None else replace(self.output, mode="changelog")
        stage = AggregateStage(source=source, group_by=tuple(self.columns), calls=(), reduces=state_ttl is None)
        return self._with(StageStep(stage=expiring_stage(stage, [self.output], state_ttls(state_ttl, 1))))

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
        return self._with(StageStep(stage=dedup_stage(source, keys, order_by, keep, n, state_ttl=state_ttl)))

    def union(self, other: View) -> View:
        """Return the rows of this view and of another one, in the same query; equal rows stay apart, as in PySpark.

        Args:
            other: a view with columns of the same types in the same order; its names are those of this one then.

        Raises:
            OptionError: `other` is no view.
            PlanError: the columns do not go together.
        """
        return View(unions.union(self.plan, _plan(other)))

    unionAll = union  # noqa: N815 - the name PySpark users type

    def create_index(self, columns: Sequence[str] | str, *, name: str | None = None) -> View:
        """Declare an index of these rows, for `temporal_join` with the view that is returned; see `ChangeStream.create_index`.

        Raises:
            PlanError: columns that are not there.
            OptionError: the name is taken.
        """
        return View(create_index(self.plan, columns, name=name))

    def explain(self) -> None:
        """Print what the query will do and what it must remember, as DataFrame.explain does."""
        print("\n".join([*self.plan.explained_indexes(), self.plan.explanation()]))  # noqa: T201 - printing is what explain() does in PySpark

    def __getattr__(self, name: str) -> Any:
        raise missing_on_view(name)

    def _with(self, step: StageStep) -> View:
        return View(self.plan.then(step))

    def _then(self, call: str, transform: Transform) -> View:
        return View(self.plan.then(row_step(self.session, self.output, call, transform)))

    def _check_columns(self, names: Sequence[str], call: str) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise PlanError(
                f"{call}: there is no column {missing} here; the columns are {self.columns}.",
                code="UNKNOWN_COLUMN",
                missing=missing,
            )


@dataclass(frozen=True)
class GroupedStream:
    """The rows of a view in groups; made by `View.groupBy`.

    Args:
        grouping: the rows and the columns that they are grouped by.
    """

    grouping: Grouping

    def count(self, *, state_ttl: Any = None) -> View:
        """Return the number of rows per group, as the column `count`."""
        return self.agg(AggregateExpression(function="count", name="count"), state_ttl=state_ttl)

    def agg(
        self, *expressions: AggregateExpression | AggregateCall | Column | Mapping[str, str], state_ttl: Any = None
    ) -> View:
        """Return one row per group: the key columns, which identify it, and a column per aggregate.

        Args:
            expressions: calls of `zset_join.spark.functions`; Columns such as `F.sum("x").alias("y")` that are one of them; or
                a dictionary from column to function.
            state_ttl: how long a group is remembered after its last row: a duration or a `StateTtl`.

        Raises:
            PlanError: an aggregate that cannot be kept up to date, or columns it does not take.
        """
        return View(self.grouping.agg(*expressions, state_ttl=state_ttl))


JoinedStream = View
"""What `join` returns, for annotations."""
UnionedStream = View
"""What `union` returns, for annotations."""
