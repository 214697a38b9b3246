"""`groupBy(...).agg(...)`: which aggregates a view requests, however they were written.

An aggregate comes as a call of `zset_join.spark.functions`, as an `AggregateCall`, as a Column of Spark's own
(`F.sum("x")`), or as the dictionary PySpark takes. A Column is translated only where that is certain: Spark analyses it,
its function must be one of ours, its result must have the type ours has, and an argument that is computed must be, written
as SQL and analysed again, the same expression.

Arguments that are computed, and filters, become columns of a row step before the aggregate; without them there is no such step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Expression, references
from zset_join.expressions.rows import plain_column
from zset_join.query.columns import TextColumn, titled
from zset_join.query.grouping import Aggregated, GroupedView, ShortAggregates
from zset_join.runners.spark.frames.facts import ReadExpression, reader_of
from zset_join.runners.spark.planning.row_steps import Transform, row_step, template
from zset_join.runners.spark.rows.names import column_named, first_line
from zset_join.runners.spark.rows.schemas import spark_type
from zset_join.shapes.aggregate import FUNCTIONS, AggregateCall
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.expiring import lasting

__all__ = ["AggregateExpression", "GroupedStream", "Grouping"]

_ARGUMENT = "__a"
_OF_SPARK = {**{name: name for name in FUNCTIONS if name not in ("first", "last")}, "std": "stddev_samp"}
"""Spark's functions that are one of ours, by the names Spark gives them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateExpression:
    """One aggregate of `agg` over what Spark computes."""

    function: str
    columns: tuple[str | Column, ...] = ()
    name: str | None = None
    condition: str | Column | None = None
    limit: int = 10_000
    type: str | None = None

    @classmethod
    def of(cls, given: Aggregated) -> AggregateExpression:
        """Return an aggregate as it was written, whose arguments are names, texts and Columns."""
        shown = None if given.shown is None else given.shown.replace("Column<'", "").replace("'>", "")
        columns = tuple(map(_of_spark, given.columns))
        condition = None if given.condition is None else _of_spark(given.condition)
        return cls(function=given.function, columns=columns, name=given.name or shown, condition=condition, limit=given.limit)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouping:
    """A grouped view; made by `View.groupBy`."""

    rows: Any
    keys: tuple[str, ...]
    computed: Mapping[str, Column] = field(default_factory=dict)
    trees: GroupedView[Any] | None = None

    @classmethod
    def of(cls, rows: Any, columns: Sequence[Any], named_keys: Mapping[str, Expression]) -> Grouping:
        given = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        wanted = []
        for one in given:
            key = titled(one, rows, "groupBy") if isinstance(one, Expression) else None
            is_plain = key is not None and plain_column(key.expression) == key.name
            wanted.append(key.name if key is not None and is_plain else one)
        if named_keys or any(isinstance(one, Expression) for one in wanted):
            grouped = GroupedView.of(rows, wanted, named_keys)
            return cls(rows=rows, keys=tuple(grouped.keys), trees=grouped)
        keys: list[str] = []
        computed: dict[str, Column] = {}
        for column in wanted:
            if not isinstance(column, str | Column):
                raise OptionError(
                    f"groupBy({column!r}): expected column names or Columns.", code="ARGUMENT", argument=repr(column)
                )
            name = column
            if isinstance(column, Column) or column not in rows.columns:
                expression = column if isinstance(column, Column) else F.col(column)
                step = row_step(rows.session, rows.output, f"groupBy({column})", _selecting(expression))
                (name,) = step.relation.schema.names
                if name not in rows.columns or not _is_plain(rows, expression):
                    computed[name] = expression.alias(name)
            keys.append(str(name))
        if len(set(keys)) != len(keys):
            raise PlanError(
                f"groupBy names {sorted({key for key in keys if keys.count(key) > 1})} twice; name every column once.",
                code="DUPLICATE_KEY_COLUMN",
                columns=keys,
            )
        return cls(rows=rows, keys=tuple(keys), computed=computed)

    def agg(self, *calls: Aggregated | AggregateCall | Column | Mapping[str, str], state_ttl: Any = None) -> Any:
        """Return one row per group: the key columns, which identify it, and a column per aggregate."""
        if self.trees is not None or self._is_of_trees(calls):
            grouped = self.trees or GroupedView.of(self.rows, self.keys, {})
            ours: Any = calls
            return grouped.agg(*ours, state_ttl=state_ttl)
        flat = [one for given in calls for one in (_of_mapping(given) if isinstance(given, Mapping) else [given])]
        if not flat:
            raise OptionError("agg() needs at least one aggregate, such as count().", code="ARGUMENT")
        rows = template(self.rows.session, self.rows.output)
        wanted = [_translated(rows, one) if isinstance(one, Column) else one for one in flat]
        wanted = [AggregateExpression.of(one) if isinstance(one, Aggregated) else one for one in wanted]
        lowering = _Lowering(self, rows)
        lowered = [lowering.call(one) for one in wanted]
        before = lowering.rows_before(lowered, keeps_time=state_ttl is not None)
        taken = [name for name in [*self.keys, *(call.name for call in lowered)] if name.startswith("__")]
        if taken:
            raise PlanError(
                f"agg: {taken} begin with two underscores; such names are the engine's. Name the results with alias(...).",
                code="RESERVED_COLUMN",
                columns=taken,
            )
        view = before.operate(lasting(AggregateRequest(self.keys, tuple(lowered)), state_ttl, 1))
        for call, one in zip(lowered, wanted, strict=True):
            if isinstance(one, AggregateExpression) and one.type is not None:
                _check_type(call, one.type, view.arrow_schema)
        return view

    def _is_of_trees(self, calls: Sequence[Any]) -> bool:
        """Return whether aggregates are over trees, which no part of needs Spark."""
        parts = [part for one in calls if isinstance(one, Aggregated) for part in (*one.columns, one.condition)]
        has_columns = bool(self.computed) or any(isinstance(one, Column) for one in (*calls, *parts))
        return not has_columns and any(isinstance(part, Expression) and not isinstance(part, TextColumn) for part in parts)


@dataclass(frozen=True)
class GroupedStream(ShortAggregates[Any]):
    """A grouped view; made by `View.groupBy`."""

    grouping: Grouping

    @override
    def _values(self) -> pa.Schema:
        keys = self.grouping.trees.keys if self.grouping.trees is not None else self.grouping.keys
        return pa.schema([one for one in self.grouping.rows.arrow_schema if one.name not in keys])

    @override
    def agg(self, *calls: Aggregated | AggregateCall | Column | Mapping[str, str], state_ttl: Any = None) -> Any:
        return self.grouping.agg(*calls, state_ttl=state_ttl)


class _Lowering:
    """Turn aggregates as they were written into calls over columns, and remember the columns that must be computed."""

    def __init__(self, grouped: Grouping, rows: DataFrame) -> None:
        self._grouped = grouped
        self._rows = grouped.rows
        self._template = rows
        self._computed: list[tuple[str, Column, ReadExpression]] = []

    def call(self, given: Any) -> AggregateCall:
        """Return the call for one aggregate; a Column is translated by now."""
        if isinstance(given, AggregateCall):
            return given
        if not isinstance(given, AggregateExpression):
            raise OptionError(
                f"agg({given!r}): expected calls of zset_join.spark.functions, such as sum('x').alias('total').",
                code="ARGUMENT",
                argument=repr(given),
            )
        columns = given.columns
        if given.condition is not None:
            passes = F.expr(given.condition) if isinstance(given.condition, str) else given.condition
            columns = tuple(F.when(passes, _as_column(one)) for one in columns) or (F.when(passes, F.lit(1)),)
            if given.name is None:
                raise PlanError(
                    f"{given.function} with a filter needs a name of its own; add .alias(...).",
                    code="AGGREGATE_NAME",
                    function=given.function,
                )
        arguments = ", ".join(one if isinstance(one, str) else self._text(one) for one in given.columns)
        named = given.name or (f"{given.function}({arguments})" if any(isinstance(one, Column) for one in columns) else "")
        names = tuple(self._argument(one, given.function) for one in columns)
        return AggregateCall(given.function, names, name=named, limit=given.limit)

    def rows_before(self, calls: Sequence[AggregateCall], *, keeps_time: bool = False) -> Any:
        """Return the view that is aggregated: with one more step where something is computed."""
        if not self._computed and not self._grouped.computed:
            return self._rows
        keys = [self._grouped.computed.get(name, column_named(name)) for name in self._grouped.keys]
        used = {name for call in calls for name in call.columns}
        used |= {str(self._rows.output.event_time)} if keeps_time else set()
        used |= {name for call in calls if call.where is not None for name in references(call.where)[0]}
        plain = [name for name in self._rows.columns if name in used and name not in self._grouped.keys]
        computed = [column.alias(name) for name, column, _ in self._computed]
        chosen = [*keys, *map(column_named, plain), *computed]
        return self._rows.opaque("agg", lambda df, kept: df.select(*chosen, *map(column_named, kept)), is_internal=True)

    def _argument(self, given: str | Column, function: str) -> str:
        """Return the column that holds an argument."""
        here = [name for name in self._rows.columns if name not in self._grouped.computed]
        if isinstance(given, str) and given in here:
            return given
        column = _as_column(given)
        expression = self._analysed(column, function)
        if expression.column is not None and expression.column in here:
            return expression.column
        for name, _, known in self._computed:
            if known.meaning == expression.meaning:
                return name
        self._computed.append((f"{_ARGUMENT}{len(self._computed)}", column, expression))
        return self._computed[-1][0]

    def _text(self, column: Column) -> str:
        return self._analysed(column, "agg").text

    def _analysed(self, column: Column, function: str) -> ReadExpression:
        """Return an argument as analysed by Spark, after checking that it depends on the row alone."""
        row_step(self._rows.session, self._rows.output, f"{function}({column})", _selecting(column.alias("argument")))
        return reader_of(self._rows.session).expression(self._template, column)


def _translated(rows: DataFrame, column: Column) -> AggregateExpression:
    """Return the aggregate that a Column of Spark's requests."""
    try:
        found = reader_of(rows.sparkSession).aggregate(rows, column)
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f"agg({column}): Spark cannot resolve it: {first_line(error)} The columns here are {rows.columns}.",
            code="EXPRESSION",
            call=str(column),
        ) from error
    if found is None:
        raise _refused(column, "it is not one aggregate function by itself; compute with its result behind agg, in select(...)")
    if found.untaken is not None:
        raise _refused(column, f"its argument {found.untaken} cannot be taken over; compute it first with withColumn(...)")
    name, condition = found.function, found.condition
    translated = AggregateExpression(function="count", name=found.name, type=found.type)
    if name == "count_if":
        (passes,) = found.arguments
        return replace(translated, condition=passes if condition is None else condition & passes)
    if name not in _OF_SPARK or (found.is_distinct and name != "count"):
        raise _refused(column, f"{'distinct ' if found.is_distinct else ''}{name} is not a supported aggregate function")
    if name == "count" and not found.is_distinct:
        if found.is_constant:
            return replace(translated, condition=condition)
        if len(found.arguments) > 1:
            raise _refused(column, "a count of several columns at once is not a supported aggregate function")
    kind = "count_distinct" if found.is_distinct else _OF_SPARK[name]
    return replace(translated, function=kind, columns=found.arguments, condition=condition)


def _refused(column: Column, why: str) -> PlanError:
    return PlanError(
        f"agg({column}): {why}. Supported: {', '.join(sorted({*_OF_SPARK, 'count_if'}))}, and first and last of "
        "zset_join.spark.functions, which take the column that orders.",
        code="AGGREGATE_EXPRESSION",
        expression=str(column),
    )


def _check_type(call: AggregateCall, wanted: str, schema: pa.Schema) -> None:
    """Refuse a Column of Spark's whose result would have another type here."""
    ours = spark_type(schema.field(call.name).type).simpleString()
    if ours != wanted:
        raise PlanError(
            f"agg({call!r}): its type is {wanted} in Spark and would be {ours} here; cast the argument with withColumn(...).",
            code="AGGREGATE_TYPE",
            function=call.function,
        )


def _of_mapping(given: Mapping[str, str]) -> list[AggregateExpression]:
    return [
        AggregateExpression(function=function, columns=() if column == "*" else (column,)) for column, function in given.items()
    ]


def _selecting(column: Column) -> Transform:
    return lambda rows, _: rows.select(column)


def _of_spark(given: Any) -> Any:
    """Return an argument of an aggregate as a name or a Column."""
    if isinstance(given, TextColumn):
        return F.expr(given.name)
    if isinstance(given, Expression):
        raise OptionError(
            f"agg: the expression {given!r} is beside Columns of Spark. Write all arguments and keys of one agg with "
            "zset_join.spark.functions, or all with pyspark.sql.functions.",
            code="ARGUMENT",
            argument=repr(given),
        )
    return given


def _as_column(given: str | Column) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _is_plain(rows: Any, column: Column) -> bool:
    """Return whether an expression is a column of a view as it is."""
    return reader_of(rows.session).expression(template(rows.session, rows.output), column).column is not None
