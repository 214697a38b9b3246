"""The first rows of every key over whole tables, by Spark alone: what `verify` compares the answers of a dedup with.

Copies of a row count as rows; NULL is the smallest value. Rows that are equal in the order are ordered by arrival where the
history of the dedup is known, that of the copies that are left: ascending, the earlier one comes first; descending, the later
one. Where it is not known what they hold orders them, and `first_rows_tied` returns the rows that may be shown instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import column_named
from zset_join.spark.tools.batch_times import GONE, copies
from zset_join.spark.tools.timed_history import TimedHistory
from zset_join.stages import DeduplicateStage

__all__ = ["first_rows", "first_rows_by_arrival", "first_rows_tied"]


def first_rows(stage: DeduplicateStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:  # noqa: ARG001 - as others
    """Return the first rows of every key, those equal in the order by what they hold."""
    (rows,) = tables
    others = [field.name for field in stage.output.schema if not pt.is_map(field.type)]
    return _ranked(stage, rows, [_in_order(column_named(name), is_descending=False) for name in others])


def first_rows_by_arrival(history: TimedHistory) -> DataFrame:
    """Return the first rows of every key, those equal in the order by their arrival."""
    stage, (changes,) = history.stage, history.changes
    if not isinstance(stage, DeduplicateStage):
        raise TypeError(f"a dedup shows first rows, {stage.kind} does not")
    rows = copies(changes, stage.source).where(F.col(GONE).isNull())
    comes_last = stage.columns[-1].descending != (stage.keep == "last")
    arrival = [F.col("__epoch"), F.col("__position")]
    return _ranked(stage, rows, [one.desc() if comes_last else one.asc() for one in arrival])


def first_rows_tied(stage: DeduplicateStage, tables: Sequence[DataFrame], watermark: int | None) -> DataFrame:  # noqa: ARG001 - as others
    """Return the rows of keys whose last place is that of several different rows, each once."""
    (rows,) = tables
    columns = [column_named(name) for name in stage.output.schema.names]
    keys = [column_named(name) for name in stage.keys]
    alike = Window.partitionBy(*keys, *(column_named(one.name) for one in stage.columns))
    until = Window.partitionBy(*keys).orderBy(*_order(stage)).rangeBetween(Window.unboundedPreceding, Window.currentRow)
    distinct = rows.where(F.col(WEIGHT) > 0).groupBy(*columns).agg(F.sum(WEIGHT).alias(WEIGHT))
    placed = distinct.withColumns(
        {
            "__until": F.sum(WEIGHT).over(until),
            "__own": F.sum(WEIGHT).over(alike),
            "__among": F.count(F.lit(1)).over(alike),
        }
    )
    is_tied = (F.col("__among") > 1) & (F.col("__until") > stage.n) & (F.col("__until") - F.col("__own") < stage.n)
    return placed.where(is_tied).select(*columns, F.lit(1).cast("long").alias(WEIGHT))


def _ranked(stage: DeduplicateStage, rows: DataFrame, among_equals: Sequence[Column]) -> DataFrame:
    output = [column_named(name) for name in stage.output.schema.names]
    each = rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), F.col(WEIGHT))).alias("__copy"))
    window = Window.partitionBy(*map(column_named, stage.keys)).orderBy(*_order(stage), *among_equals)
    shown = each.withColumn("__rank", F.row_number().over(window)).where(F.col("__rank") <= stage.n)
    return shown.groupBy(*output).agg(F.count(F.lit(1)).alias(WEIGHT))


def _order(stage: DeduplicateStage) -> list[Column]:
    return [_in_order(column_named(one.name), is_descending=one.descending != (stage.keep == "last")) for one in stage.columns]


def _in_order(column: Column, *, is_descending: bool) -> Column:
    return column.desc_nulls_last() if is_descending else column.asc_nulls_first()
