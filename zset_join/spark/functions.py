"""Aggregate functions for `groupBy(...).agg(...)` on a view, under PySpark's names.

    from zset_join.spark import functions as ZF

    flights.groupBy("carrier").agg(ZF.count().alias("flights"), ZF.max("arr_delay").alias("latest"))

An argument is a column name, or any Column of Spark's that is computed from one row. Names, result types and the treatment
of NULL are Spark's; what differs is in `zset_join.shapes.aggregate`: float sums are exact until they are rounded once,
lists and sets come in ascending order, and `first` and `last` take the column that says what comes first.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column

from zset_join.spark.api.grouped import AggregateExpression

__all__ = [
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "count",
    "countDistinct",
    "count_distinct",
    "count_if",
    "every",
    "first",
    "last",
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

Argument = str | Column


def count(col: Argument = "*") -> AggregateExpression:
    """Return the number of rows, or of the values that are not NULL."""
    return _of("count") if isinstance(col, str) and col == "*" else _of("count", col)


def count_distinct(col: Argument, *cols: Argument) -> AggregateExpression:
    """Return the number of distinct values, or of distinct combinations, without those that have a NULL."""
    return _of("count_distinct", col, *cols)


countDistinct = count_distinct  # noqa: N816 - the name PySpark users type


def count_if(col: Argument) -> AggregateExpression:
    """Return the number of rows that fulfil a condition, SQL text or a Column."""
    text = col if isinstance(col, str) else str(col).removeprefix("Column<'").removesuffix("'>")
    return AggregateExpression(function="count", condition=col, name=f"count_if({text})")


def sum(col: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the sum; it stops the epoch when it no longer fits its type."""
    return _of("sum", col)


def avg(col: Argument) -> AggregateExpression:
    """Return the average."""
    return _of("avg", col)


def mean(col: Argument) -> AggregateExpression:
    """Return the average."""
    return _of("mean", col)


def min(col: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the least value; remembers every distinct one."""
    return _of("min", col)


def max(col: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the largest value; remembers every distinct one."""
    return _of("max", col)


def min_by(col: Argument, ord: Argument) -> AggregateExpression:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is least."""
    return _of("min_by", col, ord)


def max_by(col: Argument, ord: Argument) -> AggregateExpression:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is largest."""
    return _of("max_by", col, ord)


def first(col: Argument, ord: Argument) -> AggregateExpression:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is least; rows of a stream have no other first."""
    return _of("first", col, ord)


def last(col: Argument, ord: Argument) -> AggregateExpression:  # noqa: A002 - the name PySpark users type
    """Return the value of the row where `ord` is largest."""
    return _of("last", col, ord)


def variance(col: Argument) -> AggregateExpression:
    """Return the sample variance."""
    return _of("variance", col)


def var_samp(col: Argument) -> AggregateExpression:
    """Return the sample variance."""
    return _of("var_samp", col)


def var_pop(col: Argument) -> AggregateExpression:
    """Return the population variance."""
    return _of("var_pop", col)


def stddev(col: Argument) -> AggregateExpression:
    """Return the sample standard deviation."""
    return _of("stddev", col)


def stddev_samp(col: Argument) -> AggregateExpression:
    """Return the sample standard deviation."""
    return _of("stddev_samp", col)


std = stddev_samp


def stddev_pop(col: Argument) -> AggregateExpression:
    """Return the population standard deviation."""
    return _of("stddev_pop", col)


def bool_and(col: Argument) -> AggregateExpression:
    """Return whether all values are true."""
    return _of("bool_and", col)


def bool_or(col: Argument) -> AggregateExpression:
    """Return whether any value is true."""
    return _of("bool_or", col)


every = bool_and
some = bool_or


def bit_and(col: Argument) -> AggregateExpression:
    """Return the bits that all values have."""
    return _of("bit_and", col)


def bit_or(col: Argument) -> AggregateExpression:
    """Return the bits that any value has."""
    return _of("bit_or", col)


def bit_xor(col: Argument) -> AggregateExpression:
    """Return the bits that an odd number of values have."""
    return _of("bit_xor", col)


def collect_list(col: Argument, *, limit: int = 10_000) -> AggregateExpression:
    """Return all values that are not NULL, in ascending order.

    Args:
        col: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_list", col, limit=limit)


def collect_set(col: Argument, *, limit: int = 10_000) -> AggregateExpression:
    """Return the distinct values that are not NULL, in ascending order.

    Args:
        col: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_set", col, limit=limit)


def _of(function: str, *columns: Argument, **more: Any) -> AggregateExpression:
    return AggregateExpression(function=function, columns=columns, **more)
