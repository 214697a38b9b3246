"""Aggregate functions for `groupBy(...).agg(...)` on a view of a pipeline, under PySpark's names.

    from zset_join.query import functions as F

    orders.groupBy("city").agg(F.count().alias("orders"), F.max("total").alias("largest"))

An argument is a column name, or an expression over one row. Names, result types and the treatment of NULL are Spark's; what
differs is in `zset_join.shapes.aggregate`: float sums are exact until they are rounded once, lists and sets come in
ascending order, and `first` and `last` take the column that says what comes first.
"""

from __future__ import annotations

from typing import Any

from zset_join.expressions import Expression
from zset_join.query.grouping import Aggregated

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

Argument = str | Expression


def count(column: Argument = "*") -> Aggregated:
    """Return the number of rows, or of the values that are not NULL."""
    return _of("count") if isinstance(column, str) and column == "*" else _of("count", column)


def count_if(condition: Expression) -> Aggregated:
    """Return the number of rows that fulfil a condition."""
    return Aggregated(function="count", condition=condition, shown=f"count_if({condition!r})")


def count_distinct(column: Argument, *more: Argument) -> Aggregated:
    """Return the number of distinct values, or of distinct combinations, without those that have a NULL."""
    return _of("count_distinct", column, *more)


def sum(column: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the sum; it stops the epoch when it no longer fits its type."""
    return _of("sum", column)


def avg(column: Argument) -> Aggregated:
    """Return the average."""
    return _of("avg", column)


def mean(column: Argument) -> Aggregated:
    """Return the average."""
    return _of("mean", column)


def min(column: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the least value; remembers every distinct one."""
    return _of("min", column)


def max(column: Argument) -> Aggregated:  # noqa: A001 - the name PySpark users type
    """Return the largest value; remembers every distinct one."""
    return _of("max", column)


def bool_and(column: Argument) -> Aggregated:
    """Say whether a boolean is true in every row where it is not NULL."""
    return _of("bool_and", column)


every = bool_and


def bool_or(column: Argument) -> Aggregated:
    """Say whether a boolean is true in some row."""
    return _of("bool_or", column)


some = bool_or


def bit_and(column: Argument) -> Aggregated:
    """Return the bits that are set in every integer that is not NULL."""
    return _of("bit_and", column)


def bit_or(column: Argument) -> Aggregated:
    """Return the bits that are set in some integer."""
    return _of("bit_or", column)


def bit_xor(column: Argument) -> Aggregated:
    """Return the bits that are set in an odd number of integers."""
    return _of("bit_xor", column)


def min_by(column: Argument, order: Argument) -> Aggregated:
    """Return the value of the row where `order` is least."""
    return _of("min_by", column, order)


def max_by(column: Argument, order: Argument) -> Aggregated:
    """Return the value of the row where `order` is largest."""
    return _of("max_by", column, order)


def first(column: Argument, order: Argument) -> Aggregated:
    """Return the value of the row where `order` is least; rows that change have no other first."""
    return _of("first", column, order)


def last(column: Argument, order: Argument) -> Aggregated:
    """Return the value of the row where `order` is largest."""
    return _of("last", column, order)


def variance(column: Argument) -> Aggregated:
    """Return the sample variance."""
    return _of("variance", column)


def var_samp(column: Argument) -> Aggregated:
    """Return the sample variance."""
    return _of("var_samp", column)


def var_pop(column: Argument) -> Aggregated:
    """Return the population variance."""
    return _of("var_pop", column)


def stddev(column: Argument) -> Aggregated:
    """Return the sample standard deviation."""
    return _of("stddev", column)


def stddev_samp(column: Argument) -> Aggregated:
    """Return the sample standard deviation."""
    return _of("stddev_samp", column)


def stddev_pop(column: Argument) -> Aggregated:
    """Return the population standard deviation."""
    return _of("stddev_pop", column)


def collect_list(column: Argument, *, limit: int = 10_000) -> Aggregated:
    """Return all values that are not NULL, in ascending order.

    Args:
        column: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_list", column, limit=limit)


def collect_set(column: Argument, *, limit: int = 10_000) -> Aggregated:
    """Return the distinct values that are not NULL, in ascending order.

    Args:
        column: the values.
        limit: a group with more of them stops the epoch.
    """
    return _of("collect_set", column, limit=limit)


def _of(function: str, *columns: Argument, **more: Any) -> Aggregated:
    return Aggregated(function=function, columns=columns, **more)
