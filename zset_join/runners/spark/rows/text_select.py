"""Selections and sums of many columns in one call to the JVM.

`DataFrame.select` makes a dozen calls to the JVM per column, a third of a millisecond each: a table of 2,000 columns took a
minute and a half to describe. Here all of a selection travels as one text, which the JVM takes apart.

The law: `select_text(rows, texts)` is `rows.selectExpr(*texts)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.rows.names import quoted

__all__ = ["select_text", "sums_per_row"]

_MOST_GROUPING_COLUMNS = 100


def select_text(rows: DataFrame, texts: Sequence[str]) -> DataFrame:
    """Return a selection given as SQL texts."""
    return reader_of(rows.sparkSession).select_text(rows, texts)


def sums_per_row(rows: DataFrame, names: Sequence[str], sums: Sequence[str]) -> DataFrame:
    """Return the distinct rows of some columns, with sums of others."""
    if len(names) <= _MOST_GROUPING_COLUMNS:
        return rows.groupBy(*map(quoted, names)).agg(*(F.sum(name).alias(name) for name in sums))
    whole = select_text(rows, [f"struct({', '.join(map(quoted, names))}) AS __row", *sums])
    summed = whole.groupBy("__row").agg(*(F.sum(name).alias(name) for name in sums))
    return select_text(summed, [*(f"__row.{quoted(name)} AS {quoted(name)}" for name in names), *sums])
