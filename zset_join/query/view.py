"""Views: PySpark's methods over expression trees.

    big = orders.where(col("total") > 100).join(customers, on="customer")
    big.groupBy("city").agg(F.count().alias("orders"), F.sum("total").alias("revenue"))

A view holds no rows. It checks what can be checked without rows, so what cannot work is refused where it is written. A view may
be used several times, in one query or in many; what it takes is done once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import pyarrow as pa
from typing_extensions import override

from zset_join.expressions import Expression
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import LookupSource
from zset_join.plan.versioning import Versioning
from zset_join.query import indexes, joining, timed
from zset_join.query.grouping import Aggregated, GroupedView
from zset_join.query.rows import Rows
from zset_join.query.unknown_methods import missing_on_view

__all__ = ["View"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class View(Rows):
    """A query over changing rows. `changes`, `appends`, `versioned` and `records` return one, and so do its methods.

    Rows: `where`, `select`, `selectExpr`, `withColumn`, `withColumnRenamed`, `drop`, `union`, `distinct`,
        `dropDuplicates`, `dedup`, `every_change`.
    Joins: `join`, `temporal_join`, `join_asof`, `lookup_join`; `alias` names a side, `create_index` names an index.
    Groups: `groupBy(...).agg(...)`, `agg`.
    Time: `versioned_by`.
    Inspect: `columns`, `schema`, `describe`, `explain`, `plan`.

    A view is immutable and holds no rows; `Pipeline(view)` runs it. `view["column"]` is a column in an expression.
    """

    if not TYPE_CHECKING:  # a type checker is to find unknown names

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and "node" in vars(self) and name in self.columns:
                return self[name]
            raise self._missing(name)

    @override
    def __repr__(self) -> str:
        """Return the columns in one line; `explain` prints the plan."""
        return f"View({self.name}: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        return self.plan()._repr_html_()

    _missing = staticmethod(missing_on_view)
    _warns: ClassVar[bool] = True

    def groupBy(self, *columns: Any, **computed: Expression) -> GroupedView[Self]:  # noqa: N802 - the name PySpark users type
        """Group the rows by columns or expressions; `agg` computes values for each group.

        Raises:
            PlanError: a column that does not exist, or cannot be grouped by.
        """
        return GroupedView.of(self, columns, computed)

    groupby = groupBy

    @override
    def agg(self, *calls: Aggregated | Mapping[str, str]) -> Self:
        """Aggregate all rows into one, which is present from the first epoch on; see `GroupedView.agg`."""
        return self.groupBy().agg(*calls)

    def join(
        self,
        other: Rows,
        on: Any = None,
        how: str = "inner",
        *,
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | str | None = None,
        state_ttl: Any = None,
    ) -> Self:
        """Join with another view.

        Args:
            other: the right rows; the same view may be on both sides.
            on: a column name, a list of names, a list of pairs (left, right) of names or expressions over one row, or a
                condition over `left(...)` and `right(...)`.
            how: any spelling PySpark accepts except cross.
            null_safe: compare with `<=>` instead of `=`, for all key columns or one flag each.
            condition: further condition on a pair, over `left(...)` and `right(...)`.
            state_ttl: lifetime of stored rows: a duration or a `StateTtl` for both sides, or a pair (left, right) of them.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        return joining.join(self, other, on, how, null_safe=null_safe, condition=condition, state_ttl=state_ttl)

    def lookup_join(
        self,
        source: LookupSource,
        on: Any = None,
        how: str = "inner",
        *,
        hint: Lookup | None = None,
        columns: Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        condition: Expression | str | None = None,
        alias: str | None = None,
    ) -> Self:
        """Join with the rows an external table has when a row arrives.

        Args:
            source: the external table, such as `PostgresSource(...)`.
            on: a column name, a list of names, or a list of pairs (name or expression over the row, column of the table).
            how: inner or left.
            hint: options of the lookups: `Lookup(async_=True, capacity=200, ...)`.
            columns: columns of the table that are wanted; default all.
            constants: values that columns of the table must have; they are part of the key that is requested.
            condition: further condition on a pair, over `left(...)` and `right(...)`.
            alias: name of the table in this query, also for hints.

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        words = joining.LookupWords(
            on=on, how=how, hint=hint, columns=columns, constants=constants, condition=condition, alias=alias
        )
        return joining.lookup_join(self, source, words)

    def versioned_by(self, column: str, *, delay: Any = None, max_watermark_jump: Any = None) -> Self:
        """Choose the column of this source with the time a row happened or a version began.

        Args:
            column: a timestamp, date or integer.
            delay: delay of the watermark behind the largest time, such as "30 seconds"; a number for an integer column.
            max_watermark_jump: how far ahead of the watermark a row may be, in the form of the delay; None: any distance.

        Raises:
            PlanError: this view is no source, or has no such column.
        """
        return timed.versioned_by(self, column, delay=delay, max_watermark_jump=max_watermark_jump)

    def describe(self) -> Versioning:
        """Return whether these rows are versioned or latest-only, and why; print it, or read its fields."""
        return timed.describe(self)

    def create_index(self, columns: Sequence[str] | str, *, name: str | None = None) -> Self:
        """Declare an index of these rows, for temporal joins with the returned view.

        Joins that look up rows in one table by the same columns share one copy of it, with or without an index. An index names
        the copy; joins by processing time on additional columns can use it, too.

        Args:
            columns: the lookup key; for joins by event time the primary key.
            name: of the index; default: derived from the names of the view and the columns.

        Raises:
            PlanError: unknown columns.
            OptionError: the name is taken.
        """
        return indexes.create_index(self, columns, name=name)

    def dedup(
        self,
        keys: Sequence[str] | str,
        *,
        order_by: Sequence[str] | str,
        keep: Literal["first", "last"] = "first",
        n: int = 1,
        state_ttl: Any = None,
    ) -> Self:
        """Keep the first or last rows of every key: ROW_NUMBER() OVER (PARTITION BY keys ORDER BY order_by) <= n.

        Args:
            keys: the columns that identify a key.
            order_by: columns, as `"t"` or `"price desc"`.
            keep: `first` in this order, or `last`.
            n: number of rows per key.
            state_ttl: lifetime of a key after its last row: a duration or a `StateTtl`.

        Raises:
            PlanError: columns or types that cannot be deduplicated.
        """
        return timed.dedup(self, keys=keys, order_by=order_by, keep=keep, n=n, state_ttl=state_ttl)

    def dropDuplicates(  # noqa: N802 - the name PySpark users type
        self, subset: Sequence[str] | str | None = None, *, state_ttl: Any = None
    ) -> Self:
        """Return one row per value of some columns: the smallest by the other columns (PySpark does not define which).

        Args:
            subset: columns that distinguish rows; None: all of them, as `distinct`.
            state_ttl: lifetime of a row after its last arrival: a duration or a `StateTtl`.

        Raises:
            PlanError: `UNKNOWN_COLUMN`, or a column without order, such as a map: choose with `dedup(keys=, order_by=)`.

        Cost: as `dedup`: every live row is stored, so that a retraction shows the next one.
        """
        keys = self.columns if subset is None else [subset] if isinstance(subset, str) else list(subset)
        others = [name for name in self.columns if name not in keys]
        if subset is None or not others:
            return self.distinct(state_ttl=state_ttl)
        return self.dedup(keys, order_by=others, state_ttl=state_ttl)

    drop_duplicates = dropDuplicates

    def temporal_join(
        self,
        other: Rows | LookupSource | pa.Table,
        on: Any = None,
        how: str = "inner",
        *,
        as_of: Any = None,
        emit: Literal["once", "on_watermark", "eager"] = "on_watermark",
        late: Literal["side_output", "drop", "join"] | None = None,
        keep_probe_for: Any = None,
        max_watermark_jump: Any = None,
        delete_column: str | None = None,
        is_change_time: bool = False,
        snapshot: str = "current",
        null_safe: bool | Sequence[bool] = False,
        condition: Expression | str | None = None,
        index: str | None = None,
        reload_interval: Any = None,
    ) -> Self:
        """Join each row with another view as it was at the time of the row, or as it is when the row arrives.

        Args:
            other: the right rows. By event time a versioned view; a dedup of the newest row by event time is removed from the
                plan: its input rows are the versions. By processing time also a table that is loaded as a whole: an Arrow
                    table, or a source such as `ArrowSource` with a function, `ParquetSource` or `DeltaSource`.
            on: as for `join`; by event time column names, the key of the versions among them.
            how: inner or left.
            as_of: the column of this view with the time, by default its event time; or `PROCESSING_TIME`, where changes of the
                other view emit nothing.
            emit: by event time: `on_watermark` waits, `eager` answers at once and corrects, `once` at once and for good.
            late: by event time, for rows behind the watermark, or behind `keep_probe_for` where rows may change: `side_output`,
                `drop` or `join`.
            keep_probe_for: by event time, how long after the watermark rows are kept for corrections, in eager mode. Default:
                rows that may change as long as they live, others not at all. A change behind it is an error without `late`.
            max_watermark_jump: how far ahead of the watermark a time may be (any); a row further ahead is bad input.
            delete_column: by event time: a boolean column of the versions that marks DELETEs, where they have no keys.
            is_change_time: the time of a version is that of its change, not of the row; silences a warning about deletes.
            snapshot: by processing time: `current` joins with the right changes of the same epoch, `previous` without them.
            null_safe: by processing time: compare with `<=>` instead of `=`, for all key columns or one flag each.
            condition: further condition on a pair, over `left(...)` and `right(...)`.
            index: the declared index of the other view to look up in; default: one that fits, see `create_index`.
            reload_interval: of a table that is loaded: how long a copy is used, such as "10 minutes" (default).

        Raises:
            PlanError: see the message; it names the argument, its value and the cure.
        """
        if as_of == joining.PROCESSING_TIME:
            now = joining.CurrentWords(
                on=on,
                how=how,
                snapshot=snapshot,
                null_safe=null_safe,
                condition=condition,
                index=index,
                reload_interval=reload_interval,
            )
            return joining.temporal_join(self, other, now)
        words = timed.TemporalWords(
            on=on,
            as_of=as_of,
            how=how,
            emit=emit,
            late=late,
            keep_probe_for=keep_probe_for,
            max_watermark_jump=max_watermark_jump,
            condition=condition,
            delete_column=delete_column,
            is_change_time=is_change_time,
            index=index,
        )
        return timed.temporal_join(self, timed.view_for(other, reload_interval), words, warns=self._warns)

    def join_asof(
        self,
        other: Rows,
        on: Any = None,
        how: str = "inner",
        *,
        left_time: str,
        right_time: str,
        op: Literal[">=", ">", "<=", "<"] = ">=",
        tolerance: Any = None,
        tie: Literal["latest_arrival", "smallest_key"] = "latest_arrival",
        condition: Expression | str | None = None,
    ) -> Self:
        """Join each row with the nearest one of another view.

        Args:
            other: the right rows.
            on: as for `temporal_join`.
            how: `inner` or `left`.
            left_time: the time of this view's rows.
            right_time: the time of the other's.
            op: how they compare: `>=` looks back, `<=` forward, `>` and `<` leave the same time out.
            tolerance: the largest distance, such as "5 minutes"; a number for numeric times.
            tie: of several right rows at one time, the `latest_arrival` or the `smallest_key`.
            condition: condition over `left(...)` and `right(...)`; the nearest row for which it is true is taken.

        Raises:
            PlanError: see the message.
        """
        words = timed.AsOfWords(
            on=on,
            left_time=left_time,
            right_time=right_time,
            op=op,
            how=how,
            tie=tie,
            tolerance=tolerance,
            condition=condition,
        )
        return timed.join_asof(self, other, words)
