"""Column names as Spark takes them: quoted, so that a dot or a blank is part of the name, and without regard to case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import PlanError

__all__ = ["check_names", "column_named", "first_line", "literal", "names_clash", "quoted"]


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
