"""Aggregate functions for `groupBy(...).agg(...)` on a view, under PySpark's names.

    from zset_join.spark import functions as ZF

    flights.groupBy("carrier").agg(ZF.count().alias("flights"), ZF.max("arr_delay").alias("latest"))

An argument is a column name, or any Column of Spark's that is computed from one row. Names, result types and the treatment
of NULL are Spark's; what differs is in `zset_join.shapes.aggregate_calls`: float sums are exact until they are rounded once,
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
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
]

Argument = str | Column


def count(column: Argument = "*") -> AggregateExpression:
    """Return the number of rows, or of the values that are not NULL."""
    return _of("count") if isinstance(column, str) and column == "*" else _of("count", column)


def count_distinct(column: Argument, *more: Argument) -> AggregateExpression:
    """Return the number of distinct values, or of distinct combinations, without those that have a NULL."""
    return _of("count_distinct", column, *more)


def count_if(condition: Argument) -> AggregateExpression:
    """Return the number of rows that fulfil a condition, SQL text or a Column."""
    text = condition if isinstance(condition, str) else str(condition).removeprefix("Column<'").removesuffix("'>")
    return AggregateExpression(function="count", condition=condition, name=f"count_if({text})")


def sum(column: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the sum; it stops the epoch when it no longer fits its type."""
    return _of("sum", column)


def avg(column: Argument) -> AggregateExpression:
    """Return the average."""
    return _of("avg", column)


def mean(column: Argument) -> AggregateExpression:
    """Return the average."""
    return _of("mean", column)


def min(column: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the least value; remembers every distinct one."""
    return _of("min", column)


def max(column: Argument) -> AggregateExpression:  # noqa: A001 - the name PySpark users type
    """Return the largest value; remembers every distinct one."""
    return _of("max", column)


def min_by(column: Argument, order: Argument) -> AggregateExpression:
    """Return the value of the row where `order` is least."""
    return _of("min_by", column, order)


def max_by(column: Argument, order: Argument) -> AggregateExpression:
    """Return the value of the row where `order` is largest."""
    return _of("max_by", column, order)


def first(column: Argument, order: Argument) -> AggregateExpression:
    """Return the value of the row where `order` is least; rows of a stream have no other first."""
    return _of("first", column, order)


def last(column: Argument, order: Argument) -> AggregateExpression:
    """Return the value of the row where `order` is largest."""
    return _of("last", column, order)


def variance(column: Argument) -> AggregateExpression:
    """Return the sample variance."""
    return _of("variance", column)


def var_samp(column: Argument) -> AggregateExpression:
    """Return the sample variance."""
    return _of("var_samp", column)


def var_pop(column: Argument) -> AggregateExpression:
    """Return the population variance."""
    return _of("var_pop", column)


def stddev(column: Argument) -> AggregateExpression:
    """Return the sample standard deviation."""
    return _of("stddev", column)


def stddev_samp(column: Argument) -> AggregateExpression:
    """Return the sample standard deviation."""
    return _of("stddev_samp", column)


def stddev_pop(column: Argument) -> AggregateExpression:
    """Return the population standard deviation."""
    return _of("stddev_pop", column)


def bool_and(column: Argument) -> AggregateExpression:
    """Return whether all values are true."""
    return _of("bool_and", column)


def bool_or(column: Argument) -> AggregateExpression:
    """Return whether any value is true."""
    return _of("bool_or", column)


every = bool_and
some = bool_or


def bit_and(column: Argument) -> AggregateExpression:
    """Return the bits that all values have."""
    return _of("bit_and", column)


def bit_or(column: Argument) -> AggregateExpression:
    """Return the bits that any value has."""
    return _of("bit_or", column)


def bit_xor(column: Argument) -> AggregateExpression:
    """Return the bits that an odd number of values have."""
    return _of("bit_xor", column)


def collect_list(column: Argument, *, limit: int = 10_000) -> AggregateExpression:
    """Return all values that are not NULL, in ascending order.

    Args:
        column: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_list", column, limit=limit)


def collect_set(column: Argument, *, limit: int = 10_000) -> AggregateExpression:
    """Return the distinct values that are not NULL, in ascending order.

    Args:
        column: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_set", column, limit=limit)


def _of(function: str, *columns: Argument, **more: Any) -> AggregateExpression:
    return AggregateExpression(function=function, columns=columns, **more)
