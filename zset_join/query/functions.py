"""Functions for views, under PySpark's names: of one row, and aggregates for `groupBy(...).agg(...)`.

    from zset_join.pipeline import functions as F

    orders.where(F.upper("city") == "ULM").withColumn("size", F.when(F.col("total") > 100, "large").otherwise("small"))
    orders.groupBy("city").agg(F.count().alias("orders"), F.max("total").alias("largest"))

An argument is a column name, or an expression over one row. Names, parameters, result types and the treatment of NULL are
Spark's. Functions of one row are those of `zset_join.expressions.functions`, with `col`, `lit` and `expr`. What differs in
aggregates is in `zset_join.shapes.aggregate`: float sums are exact until they are rounded once, lists and sets come in
ascending order, and `first` and `last` take the column that orders them.
"""

from __future__ import annotations

from typing import Any

from zset_join.expressions import col, functions, lit
from zset_join.expressions.functions import *  # noqa: F403 - a table of functions, each under its own name
from zset_join.query.columns import expr
from zset_join.query.grouping import Aggregated

__all__ = [
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "col",
    "collect_list",
    "collect_set",
    "column",
    "count",
    "countDistinct",
    "count_distinct",
    "count_if",
    "every",
    "expr",
    "first",
    "last",
    "lit",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "some",
    "std",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
]
__all__ += functions.__all__

Argument = Any
"""A column name, an expression over one row, or inside Spark a Column."""
column = col


def count(col: Argument = "*") -> Aggregated:
    """Return the number of rows, or of the values that are not NULL."""
    return _of("count") if isinstance(col, str) and col == "*" else _of("count", col)


def count_if(col: Argument) -> Aggregated:
    """Return the number of rows that fulfil a condition, an expression or a text of Spark's SQL."""
    shown = col if isinstance(col, str) else repr(col)
    return Aggregated(function="count", shown=f"count_if({shown})").filter(col)


def count_distinct(col: Argument, *cols: Argument) -> Aggregated:
    """Return the number of distinct values, or of distinct combinations, without those that have a NULL."""
    return _of("count_distinct", col, *cols)


countDistinct = count_distinct  # noqa: N816 - the name PySpark users type


def sum(col: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the sum; it stops the epoch when it no longer fits its type."""
    return _of("sum", col)


def avg(col: Argument) -> Aggregated:
    """Return the average."""
    return _of("avg", col)


def mean(col: Argument) -> Aggregated:
    """Return the average."""
    return _of("mean", col)


def min(col: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the least value; remembers every distinct one."""
    return _of("min", col)


def max(col: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the largest value; remembers every distinct one."""
    return _of("max", col)


def bool_and(col: Argument) -> Aggregated:
    """Return whether a boolean is true in every row where it is not NULL."""
    return _of("bool_and", col)


every = bool_and


def bool_or(col: Argument) -> Aggregated:
    """Return whether a boolean is true in some row."""
    return _of("bool_or", col)


some = bool_or


def bit_and(col: Argument) -> Aggregated:
    """Return the bits that are set in every integer that is not NULL."""
    return _of("bit_and", col)


def bit_or(col: Argument) -> Aggregated:
    """Return the bits that are set in some integer."""
    return _of("bit_or", col)


def bit_xor(col: Argument) -> Aggregated:
    """Return the bits that are set in an odd number of integers."""
    return _of("bit_xor", col)


def min_by(col: Argument, ord: Argument) -> Aggregated:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is least."""
    return _of("min_by", col, ord)


def max_by(col: Argument, ord: Argument) -> Aggregated:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is largest."""
    return _of("max_by", col, ord)


def first(col: Argument, ord: Argument) -> Aggregated:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is least; rows that change have no other first."""
    return _of("first", col, ord)


def last(col: Argument, ord: Argument) -> Aggregated:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is largest."""
    return _of("last", col, ord)


def variance(col: Argument) -> Aggregated:
    """Return the sample variance."""
    return _of("variance", col)


def var_samp(col: Argument) -> Aggregated:
    """Return the sample variance."""
    return _of("var_samp", col)


def var_pop(col: Argument) -> Aggregated:
    """Return the population variance."""
    return _of("var_pop", col)


def stddev(col: Argument) -> Aggregated:
    """Return the sample standard deviation."""
    return _of("stddev", col)


def stddev_samp(col: Argument) -> Aggregated:
    """Return the sample standard deviation."""
    return _of("stddev_samp", col)


std = stddev_samp


def stddev_pop(col: Argument) -> Aggregated:
    """Return the population standard deviation."""
    return _of("stddev_pop", col)


def collect_list(col: Argument, *, limit: int = 10_000) -> Aggregated:
    """Return all values that are not NULL, in ascending order.

    Args:
        col: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_list", col, limit=limit)


def collect_set(col: Argument, *, limit: int = 10_000) -> Aggregated:
    """Return the distinct values that are not NULL, in ascending order.

    Args:
        col: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_set", col, limit=limit)


def _of(function: str, *columns: Argument, **more: Any) -> Aggregated:
    return Aggregated(function=function, columns=columns, **more)
