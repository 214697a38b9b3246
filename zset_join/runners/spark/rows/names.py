"""Column names as Spark takes them: quoted, so that a dot or a blank is part of the name, and without regard to case.

`DataFrame.select` makes a dozen calls to the JVM per column, a third of a millisecond each: a table of 2,000 columns took a
minute and a half to describe. In `select_text` all of a selection travels as one text: it is `rows.selectExpr(*texts)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import PlanError
from zset_join.runners.spark.frames.facts import reader_of

__all__ = [
    "check_names",
    "column_named",
    "first_line",
    "literal",
    "names_clash",
    "quoted",
    "select_text",
    "sums_per_row",
]

_MOST_GROUPING_COLUMNS = 100


def select_text(rows: DataFrame, texts: Sequence[str]) -> DataFrame:
    return reader_of(rows.sparkSession).select_text(rows, texts)


def sums_per_row(rows: DataFrame, names: Sequence[str], sums: Sequence[str]) -> DataFrame:
    """Return the distinct rows of some columns, with sums of others."""
    if len(names) <= _MOST_GROUPING_COLUMNS:
        return rows.groupBy(*map(quoted, names)).agg(*(F.sum(name).alias(name) for name in sums))
    whole = select_text(rows, [f"struct({', '.join(map(quoted, names))}) AS __row", *sums])
    summed = whole.groupBy("__row").agg(*(F.sum(name).alias(name) for name in sums))
    return select_text(summed, [*(f"__row.{quoted(name)} AS {quoted(name)}" for name in names), *sums])


def quoted(name: str) -> str:
    """Return a column name as SQL spells it.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def column_named(name: str) -> Column:
    """Return the column of exactly that name."""
    return F.col(quoted(name))


def names_clash(names: Sequence[str]) -> list[str]:
    """Return the names that Spark takes for one.

    >>> names_clash(["id", "Id", "x"])
    ['Id', 'id']
    """
    counts = Counter(name.lower() for name in names)
    return sorted({name for name in names if counts[name.lower()] > 1})


def check_names(columns: Sequence[str]) -> None:
    """Refuse columns that Spark would take for one."""
    clashing = names_clash(columns)
    if clashing:
        raise PlanError(
            f"the view would have the columns {clashing}, which differ only by case; Spark treats them as one. Rename one.",
            code="OUTPUT_NAMES",
            columns=clashing,
        )


def first_line(error: Exception) -> str:
    """Return the first line of a message that is not empty."""
    return next(line for line in (*str(error).splitlines(), "no reason given.") if line.strip())
