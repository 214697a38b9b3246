"""The steps of a view over a whole table, by Spark alone: what `verify` compares with.

Row steps are the very expressions of the view. An aggregate is Spark's own, of rows that are repeated as often as their
weight says. Where Spark leaves the answer open, ours is asked for: of several values with one order, `min_by` gives the
smallest and `max_by` the largest; lists and sets are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.aggregates.calls import AggregateCall
from zset_join.spark.condition import to_column
from zset_join.spark.layout import WEIGHT
from zset_join.spark.names import column_named
from zset_join.spark.row_steps import RowStep
from zset_join.spark.stages import Step

__all__ = ["batch_view"]

_OF_SPARK: Mapping[str, Callable[..., Column]] = {
    "avg": F.avg,
    "bit_and": F.bit_and,
    "bit_or": F.bit_or,
    "bit_xor": F.bit_xor,
    "collect_list": lambda value: F.sort_array(F.collect_list(value)),
    "collect_set": lambda value: F.sort_array(F.collect_set(value)),
    "count": F.count,
    "count_distinct": F.count_distinct,
    "max": F.max,
    "max_by": lambda value, order: F.max_by(value, _order(value, order)),
    "min": F.min,
    "min_by": lambda value, order: F.min_by(value, _order(value, order)),
    "stddev_pop": F.stddev_pop,
    "stddev_samp": F.stddev_samp,
    "sum": F.sum,
    "var_pop": F.var_pop,
    "var_samp": F.var_samp,
}


def batch_view(rows: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """Return what a view makes of a table.

    Args:
        rows: the rows of the join, with their weights in `WEIGHT`.
        steps: of the view.
    """
    for step in steps:
        rows = step.apply(rows) if isinstance(step, RowStep) else _aggregated(rows, step.node.group_by, step.node.calls)
    return rows


def _aggregated(rows: DataFrame, group_by: Sequence[str], calls: Sequence[AggregateCall]) -> DataFrame:
    if not calls:
        return rows.select(*map(column_named, group_by)).distinct().withColumn(WEIGHT, F.lit(1).cast("long"))
    copies = rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), F.col(WEIGHT))).alias("__copy"))
    groups = copies.groupBy(*map(column_named, group_by)).agg(*(_call(call).alias(call.name) for call in calls))
    return groups.withColumn(WEIGHT, F.lit(1).cast("long"))


def _call(call: AggregateCall) -> Column:
    columns = [column_named(name) for name in call.columns] or [F.lit(1)]
    if call.where is not None:
        passes = to_column(call.where, _Named())
        columns = [F.when(passes, column) for column in columns]
    return _OF_SPARK[call.kind](*columns)


def _order(value: Column, order: Column) -> Column:
    """Return the order of a value, and among equals the value; NULL where the order is."""
    return F.when(order.isNotNull(), F.struct(order, value))


class _Named(dict[tuple[str, str], Any]):
    """Give the column of a name, whichever side it is asked for."""

    def __missing__(self, key: tuple[str, str]) -> Column:
        return column_named(key[1])
