"""The rows of a pipeline, as a query describes them: the words of PySpark over expressions that are trees.

    big = orders.where(col("total") > 100).join(customers, on="customer")
    big.groupBy("city").agg(F.count().alias("orders"), F.sum("total").alias("revenue"))

A view holds no rows. It checks what can be checked without rows, so what cannot work is refused where it is written. A view may
be used several times, in one query or in many; what it takes is done once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.expressions.rows import named
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.requests import AggregateRequest
from zset_join.plan.row_steps import SelectStep, WhereStep, keeps_upserts
from zset_join.plan.tree import Apply, Merge, Node, Operate, visible

if TYPE_CHECKING:
    from zset_join.lookup.options import Lookup
    from zset_join.lookup.source import LookupSource
    from zset_join.pipeline.grouping import Aggregated, GroupedView
    from zset_join.pipeline.sources import Reading
    from zset_join.plan.versioning import Versioning

__all__ = ["View"]


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Rows that change; made by `changes` and `appends`, and by the methods here.

    Args:
        node: how they come about.
        name: what messages call them.
        readings: the sources below, with how they are read.
    """

    node: Node
    name: str
    readings: tuple[Reading, ...]

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return list(visible(self.node))

    @property
    def schema(self) -> pa.Schema:
        """Return the columns with their types."""
        return pa.schema([field for field in self.node.relation.schema if field.name not in self.node.hidden])

    def plan(self) -> QueryPlan:
        """Return the plan of the query that keeps this view.

        Raises:
            PlanError: two of its sources share a name.
        """
        return plan_query(self.node, name=self.name)

    def explain(self) -> None:
        """Print what the query will do and what it must remember, as DataFrame.explain does."""
        print(self.plan().explain(buckets=1))  # noqa: T201 - printing is what explain() does in PySpark

    def alias(self, name: str) -> View:
        """Return the same rows under another name, for messages.

        Raises:
            OptionError: the name is empty.
        """
        if not str(name).strip():
            raise OptionError(f"alias({name!r}): a view needs a name.", code="NAME")
        return replace(self, name=name)

    def where(self, condition: Expression) -> View:
        """Keep the rows that fulfil a condition; NULL does not pass.

        Raises:
            PlanError: it cannot be evaluated on these columns.
        """
        return self._then(WhereStep(self._expression(condition, "where")))

    def filter(self, condition: Expression) -> View:
        """Keep the rows that fulfil a condition; the same as `where`."""
        return self.where(condition)

    def select(self, *columns: str | Mapping[str, Expression], **computed: Expression) -> View:
        """Keep columns, and compute others.

        Args:
            columns: names, `"*"` for all, or dicts of name and expression.
            computed: expressions by the names of their columns.

        Raises:
            PlanError: a column that is not there, or an expression that cannot be computed.

        >>> import pyarrow as pa
        >>> from zset_join.expressions import col
        >>> from zset_join.pipeline import appends
        >>> sales = appends("sales", {"units": pa.int64(), "price": pa.int64()})
        >>> sales.select("units", total=col("units") * col("price")).columns
        ['units', 'total']
        """
        chosen: list[tuple[str, Expression]] = []
        for given in (*columns, computed):
            if isinstance(given, Mapping):
                chosen += [(name, self._expression(expression, "select")) for name, expression in given.items()]
            elif given == "*":
                chosen += [(name, named(name)) for name in self.columns]
            elif isinstance(given, str):
                self._check_columns([given], f"select({given!r})")
                chosen.append((given, named(given)))
            else:
                raise OptionError(
                    f"select({given!r}): expected column names, or expressions by name as in select(total=...).",
                    code="ARGUMENT",
                    argument=repr(given),
                )
        return self._select(chosen)

    def withColumn(self, name: str, expression: Expression) -> View:  # noqa: N802 - the name PySpark users type
        """Add a column, or put another in its place.

        Raises:
            PlanError: it cannot be computed from these columns.
        """
        return self.withColumns({name: expression})

    def withColumns(self, columns: Mapping[str, Expression]) -> View:  # noqa: N802 - the name PySpark users type
        """Add columns, or put others in their places."""
        made = {name: self._expression(expression, "withColumn") for name, expression in columns.items()}
        kept = [(name, made.pop(name, named(name))) for name in self.columns]
        return self._select([*kept, *made.items()])

    def withColumnRenamed(self, existing: str, new: str) -> View:  # noqa: N802 - the name PySpark users type
        """Give a column another name.

        Raises:
            PlanError: it is not there, or the name is taken.
        """
        self._check_columns([existing], "withColumnRenamed")
        return self._select([(new if name == existing else name, named(name)) for name in self.columns])

    def drop(self, *columns: str) -> View:
        """Leave columns out.

        Raises:
            PlanError: a column that is not there, or none would be left.
        """
        self._check_columns(columns, "drop")
        return self._select([(name, named(name)) for name in self.columns if name not in columns])

    def groupBy(self, *columns: Any, **computed: Expression) -> GroupedView:  # noqa: N802 - the name PySpark users type
        """Group the rows, by columns or by what is computed from them; `agg` says what to compute for each group.

        Raises:
            PlanError: a column that is not there, or cannot be grouped by.
        """
        from zset_join.pipeline.grouping import GroupedView

        return GroupedView.of(self, columns, computed)

    groupby = groupBy

    def agg(self, *calls: Aggregated) -> View:
        """Aggregate all rows into one, which is there from the first epoch on; see `GroupedView.agg`."""
        return self.groupBy().agg(*calls)

    def distinct(self) -> View:
        """Return every distinct row once; it stays as long as a copy of it is there.

        Raises:
            KeyTypeError: a column without equality, such as a map.
        """
        return self._operate(AggregateRequest(tuple(self.columns), ()))

    def join(
        self,
        other: View,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | None = None,
    ) -> View:
        """Join with another view.

        Args:
            other: the right rows; the same view may stand on both sides.
            on: a column name, a list of names, a list of pairs (left, right) of names or expressions over one row, or a
                condition over `left(...)` and `right(...)`.
            how: any spelling PySpark accepts except cross.
            null_safe: compare with `<=>` instead of `=`, for all key columns or one flag each.
            condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        from zset_join.pipeline.joining import join

        return join(self, other, on, how, null_safe=null_safe, condition=condition)

    def lookup_join(
        self,
        source: LookupSource,
        on: Any = None,
        how: str = "inner",
        *,
        hint: Lookup | None = None,
        columns: Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        condition: Expression | None = None,
        alias: str | None = None,
    ) -> View:
        """Join with what an outside table says when a row comes.

        Args:
            source: the outside table, such as `PostgresSource(...)`.
            on: a column name, a list of names, or a list of pairs (name or expression over the row, column of the table).
            how: inner or left.
            hint: how to ask: `Lookup(async_=True, capacity=200, ...)`.
            columns: columns of the table that are wanted; default all.
            constants: values that columns of the table must have; they are part of the key that is asked for.
            condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.
            alias: what the table is called here; hints may use it.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        from zset_join.pipeline.looking_up import lookup_join

        return lookup_join(
            self, source, on, how, hint=hint, columns=columns, constants=constants, condition=condition, alias=alias
        )

    def versioned_by(self, column: str, *, delay: Any = None) -> View:
        """Say which column of this source says when a row happened or a version began.

        Args:
            column: a timestamp, date or integer.
            delay: how far the watermark stays behind the largest time, such as "30 seconds"; a number where the column is one.

        Raises:
            PlanError: this view is no source, or has no such column.
        """
        from zset_join.pipeline.timed import versioned_by

        return versioned_by(self, column, delay=delay)

    def describe(self) -> Versioning:
        """Say whether these rows are versioned or latest-only, and why; print it, or read its fields."""
        from zset_join.pipeline.timed import describe

        return describe(self)

    def dedup(
        self, *, keys: Sequence[str] | str, order_by: Sequence[str] | str, keep: Literal["first", "last"] = "first", n: int = 1
    ) -> View:
        """Keep the first or last rows of every key: ROW_NUMBER() OVER (PARTITION BY keys ORDER BY order_by) <= n.

        Args:
            keys: what rows are told apart by.
            order_by: columns, as `"t"` or `"price desc"`.
            keep: `first` in this order, or `last`.
            n: how many rows per key are shown.

        Raises:
            PlanError: columns or types that cannot be deduplicated.
        """
        from zset_join.pipeline.timed import dedup

        return dedup(self, keys=keys, order_by=order_by, keep=keep, n=n)

    def temporal_join(
        self,
        other: View,
        on: Any = None,
        how: str = "inner",
        *,
        as_of: Any,
        emit: Literal["once", "on_watermark", "eager"] = "on_watermark",
        late: Literal["side_output", "drop", "join"] | None = None,
        keep_probe_for: Any = None,
        is_change_time: bool = False,
        snapshot: str = "current",
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | None = None,
    ) -> View:
        """Join each row with another view as it was at the time of the row, or as it is when the row comes.

        Args:
            other: the right rows. By event time a versioned view; a dedup of the newest row by event time is planned away, its
                input rows are the versions.
            on: as for `join`; by event time column names, the key of the versions among them.
            how: inner or left.
            as_of: the column of this view that says when, or `PROCESSING_TIME`; there changes of the other view say nothing.
            emit: by event time: `on_watermark` waits and answers once, `eager` answers at once and corrects, `once` answers at
                once and for good.
            late: by event time, what becomes of rows behind the watermark: `side_output`, `drop` or `join`.
            keep_probe_for: by event time, how long after the watermark rows are kept for corrections, in eager mode.
            is_change_time: by event time: the time of a version is that of its change, not a column of the row; silences the
                warning about deletes.
            snapshot: by processing time: `current` joins with the right changes of the same epoch, `previous` without them.
            null_safe: by processing time: compare with `<=>` instead of `=`, for all key columns or one flag each.
            condition: what a pair must satisfy as well, over `left(...)` and `right(...)`.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        from zset_join.pipeline.looking_up import PROCESSING_TIME
        from zset_join.pipeline.looking_up import temporal_join as by_processing_time
        from zset_join.pipeline.timed import temporal_join

        if as_of == PROCESSING_TIME:
            return by_processing_time(
                self, other, on, how, as_of=as_of, snapshot=snapshot, null_safe=null_safe, condition=condition
            )
        return temporal_join(
            self,
            other,
            on=on,
            as_of=as_of,
            how=how,
            emit=emit,
            late=late,
            keep_probe_for=keep_probe_for,
            condition=condition,
            is_change_time=is_change_time,
        )

    def join_asof(
        self,
        other: View,
        *,
        on: Any,
        left_time: str,
        right_time: str,
        op: Literal[">=", ">", "<=", "<"] = ">=",
        how: str = "inner",
        tie: Literal["latest_arrival", "smallest_key"] = "latest_arrival",
        tolerance: Any = None,
        condition: Expression | None = None,
    ) -> View:
        """Join each row with the nearest one of another view.

        Args:
            other: the right rows.
            on: as for `temporal_join`.
            left_time: the time of this view's rows.
            right_time: the time of the other's.
            op: how they compare: `>=` looks back, `<=` forward, `>` and `<` leave the same time out.
            how: `inner` or `left`.
            tie: of several right rows at one time, the `latest_arrival` or the `smallest_key`.
            tolerance: the largest distance, such as "5 minutes"; a number where the times are.
            condition: what the chosen row must satisfy as well, over `left(...)` and `right(...)`.

        Raises:
            PlanError: see the message.
        """
        from zset_join.pipeline.timed import join_asof

        return join_asof(
            self,
            other,
            on=on,
            left_time=left_time,
            right_time=right_time,
            op=op,
            how=how,
            tie=tie,
            tolerance=tolerance,
            condition=condition,
        )

    def union(self, other: View) -> View:
        """Return the rows of this view and of another one; columns go by position, equal rows stay apart, as in PySpark.

        Raises:
            PlanError: the columns do not go together.
        """
        if not isinstance(other, View):
            raise OptionError(f"union({other!r}): expected a view.", code="ARGUMENT", argument=repr(other))
        if len(other.columns) != len(self.columns):
            raise PlanError(
                f'"{self.name}" has the columns {self.columns} and "{other.name}" {other.columns}; a union goes by position. '
                "Select columns first.",
                code="UNION_TYPES",
                relation=other.name,
            )
        renamed = other
        if other.columns != self.columns:
            renamed = other._select([(name, named(own)) for name, own in zip(self.columns, other.columns, strict=True)])
        made = replace(self, node=Merge((self.node, renamed.node)), readings=merged(self.readings, other.readings))
        return made._checked()

    unionAll = union  # noqa: N815 - the name PySpark users type

    def operate(self, request: Any, *others: View) -> View:
        """Put a stage of another kind over these rows, and perhaps those of others; see `zset_join.plan.tree.StageRequest`."""
        return self._operate(request, *others)

    def _operate(self, request: Any, *others: View) -> View:
        node = Operate(request, (self.node, *(other.node for other in others)))
        readings = self.readings
        for other in others:
            readings = merged(readings, other.readings)
        return replace(self, node=node, readings=readings)._checked()

    def _then(self, step: WhereStep | SelectStep, hides: tuple[str, ...] = ()) -> View:
        return replace(self, node=Apply(self.node, step, hides))._checked()

    def _select(self, columns: Sequence[tuple[str, Expression]]) -> View:
        step = SelectStep(tuple(columns))
        relation = self.node.relation
        if relation.mode == "upsert":
            # What orders changes goes along, hidden, where the rows can stay upserts.
            taken = {name for name, _ in columns}
            order = [name for name in relation.sequence_by if name not in step.kept and name not in taken]
            longer = SelectStep((*columns, *((name, named(name)) for name in order)))
            if order and keeps_upserts(relation, longer):
                return self._then(longer, tuple(name for name in order if name not in self.node.hidden))
        return self._then(step)

    def _checked(self) -> View:
        """Return this view, once its rows are known to make sense."""
        reserved = [name for name in self.columns if name.startswith("__")]
        if reserved:
            raise PlanError(
                f"the columns {reserved} begin with two underscores; such names are the engine's. Rename them.",
                code="RESERVED_COLUMN",
                columns=reserved,
            )
        return self

    def _expression(self, given: Any, call: str) -> Expression:
        if isinstance(given, Expression):
            return given
        raise OptionError(
            f'{call}({given!r}): expected an expression such as col("total") > 100, with col from zset_join.expressions.',
            code="ARGUMENT",
            argument=repr(given),
        )

    def _check_columns(self, names: Sequence[str], call: str) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise PlanError(
                f'{call} names {missing}, which "{self.name}" does not have; its columns are {self.columns}.',
                code="UNKNOWN_COLUMN",
                name=self.name,
                missing=missing,
            )


def merged(first: tuple[Reading, ...], second: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Return the sources of both, each once."""
    return (*first, *(reading for reading in second if reading not in first))
