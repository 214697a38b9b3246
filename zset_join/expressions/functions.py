"""Functions of rows, with the names and the meaning of `pyspark.sql.functions`, as expression trees.

    when(col("total") > 100, "large").when(col("total") > 10, "medium").otherwise("small")
    concat(upper(substring(col("name"), 1, 1)), lower(substring(col("name"), 2)))

Each builds a checked call; `function_types` says which types it takes, `function_values` computes it.

Edge cases: `coalesce`, `greatest` and `least` pass over NULL, all others are NULL where an operand is. What CASE and COALESCE
do not choose is not looked at, so it cannot fail. `greatest` takes NaN for the largest number.

Known limits: patterns and units are literals; a timestamp with a time zone can be truncated only in UTC.
"""

from __future__ import annotations

from zset_join.errors import PlanError
from zset_join.expressions.tree import Call, Expression, col, lit

__all__ = [
    "CaseBuilder",
    "add_months",
    "ceil",
    "coalesce",
    "concat",
    "date_add",
    "date_diff",
    "date_trunc",
    "extract",
    "floor",
    "greatest",
    "least",
    "lower",
    "ltrim",
    "nullif",
    "round_half_up",
    "rtrim",
    "substring",
    "trim",
    "upper",
    "when",
]


def _call(name: str, *operands: object) -> Expression:
    """Call a function; a bare str names a column, as in PySpark."""
    return Call(name, tuple(col(operand) if isinstance(operand, str) else lit(operand) for operand in operands))


class CaseBuilder:
    """A CASE that is being written; `otherwise` ends it.

    >>> from zset_join.expressions import col
    >>> when(col("x") > 0, "up").when(col("x") < 0, "down").otherwise("level")
    CASE WHEN x > 0 THEN 'up' WHEN x < 0 THEN 'down' ELSE 'level' END
    """

    __slots__ = ("operands",)

    def __init__(self, operands: tuple[Expression, ...]) -> None:
        self.operands = operands

    def when(self, condition: Expression, value: object) -> CaseBuilder:
        """Add a condition, looked at where none before it is true, and the value for it."""
        return CaseBuilder((*self.operands, condition, lit(value)))

    def otherwise(self, value: object = None) -> Expression:
        """Give the value where no condition is true: NULL, unless said."""
        return Call("case", (*self.operands, lit(value)))


def when(condition: Expression, value: object) -> CaseBuilder:
    """Begin a CASE with a condition and the value where it is true."""
    if not isinstance(condition, Expression):
        raise PlanError(
            f'when(...) takes a condition such as col("x") > 1, not {condition!r}.',
            code="NOT_AN_EXPRESSION",
            value=repr(condition),
        )
    return CaseBuilder((condition, lit(value)))


def coalesce(*values: object) -> Expression:
    """Return the first value that is not NULL."""
    return _call("coalesce", *values)


def nullif(value: object, other: object) -> Expression:
    """Return NULL where the value equals the other, else the value."""
    return _call("nullif", value, other)


def greatest(*values: object) -> Expression:
    """Return the largest of the values that are not NULL."""
    return _call("greatest", *values)


def least(*values: object) -> Expression:
    """Return the smallest of the values that are not NULL."""
    return _call("least", *values)


def lower(text: object) -> Expression:
    """Return a string in small letters."""
    return _call("lower", text)


def upper(text: object) -> Expression:
    """Return a string in capital letters."""
    return _call("upper", text)


def trim(text: object) -> Expression:
    """Return a string without spaces at its ends."""
    return _call("trim", text)


def ltrim(text: object) -> Expression:
    """Return a string without spaces at its beginning."""
    return _call("ltrim", text)


def rtrim(text: object) -> Expression:
    """Return a string without spaces at its end."""
    return _call("rtrim", text)


def substring(text: object, start: object, length: object | None = None) -> Expression:
    """Return characters of a string from a place on, the first is 1; a negative start counts from the end."""
    return _call("substring", text, start) if length is None else _call("substring", text, start, length)


def concat(*texts: object) -> Expression:
    """Return strings one after the other; NULL if one of them is."""
    return _call("concat", *texts)


def round_half_up(value: object, scale: int = 0) -> Expression:
    """Round a number to so many decimals, halves away from zero: Spark's `round`."""
    return _call("round", value, scale)


def floor(value: object) -> Expression:
    """Return the largest integer that is not larger."""
    return _call("floor", value)


def ceil(value: object) -> Expression:
    """Return the smallest integer that is not smaller."""
    return _call("ceil", value)


def date_trunc(unit: str, value: object) -> Expression:
    """Return the beginning of the year, quarter, month, week, day, hour, minute or second that a timestamp lies in."""
    return _call("date_trunc", lit(unit.lower()), value)


def extract(field: str, value: object) -> Expression:
    """Return a field of a date or a timestamp as an int.

    Args:
        field: year, quarter, month, week (ISO), day, dayofweek (1 is Sunday), dayofyear, hour, minute or second.
        value: a date or a timestamp.
    """
    return _call("extract", lit(field.lower()), value)


def date_add(value: object, days: object) -> Expression:
    """Return the date so many days later."""
    return _call("date_add", value, days)


def date_diff(end: object, start: object) -> Expression:
    """Return the days from one date to another."""
    return _call("date_diff", end, start)


def add_months(value: object, months: object) -> Expression:
    """Return the date or timestamp so many months later, the last day of a shorter month at the latest."""
    return _call("add_months", value, months)
