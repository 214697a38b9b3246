"""An expression tree as a Spark column, so that Spark's own batch join can check ours.

Known limits: `date_trunc` of a timestamp without zone becomes an instant here, as in Spark; `expressions.sql_text` casts it
back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.expressions import Call, Cast, Expression, Literal
from zset_join.expressions import Column as Named
from zset_join.spark.rows.schemas import spark_type

__all__ = ["to_column"]

_OPERATIONS: Mapping[str, Callable[..., Column]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq_null_safe": lambda a, b: a.eqNullSafe(b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: ~a,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "remainder": lambda a, b: a % b,
    "negate": lambda a: -a,
    "absolute": F.abs,
    "length": F.length,
    "is_null": lambda a: a.isNull(),
    "is_not_null": lambda a: a.isNotNull(),
    "starts_with": lambda a, b: a.startswith(b),
    "in": lambda a, *b: a.isin(*b),
    "add_months": lambda a, b: F.add_months(a, b),
    "ceil": F.ceil,
    "coalesce": F.coalesce,
    "concat": F.concat,
    "date_add": F.date_add,
    "date_diff": F.datediff,
    "floor": F.floor,
    "greatest": F.greatest,
    "ilike": lambda a, *b: F.ilike(a, *b),
    "least": F.least,
    "like": lambda a, *b: F.like(a, *b),
    "lower": F.lower,
    "ltrim": F.ltrim,
    "nullif": F.nullif,
    "rtrim": F.rtrim,
    "trim": F.trim,
    "upper": F.upper,
}


def to_column(expression: Expression, columns: Mapping[tuple[str, str], Column]) -> Column:
    """Return the expression over given columns.

    Args:
        expression: a checked tree.
        columns: (side, name) to the column that stands for it.
    """
    column: Column = expression.accept(_ColumnBuilder(columns))
    return column


class _ColumnBuilder:
    """Build a column, children first."""

    def __init__(self, columns: Mapping[tuple[str, str], Column]) -> None:
        self._columns = columns

    def visit_column(self, node: Named) -> Column:
        return self._columns[node.side, node.name]

    def visit_literal(self, node: Literal) -> Column:
        return F.lit(node.value).cast(spark_type(node.type))

    def visit_cast(self, node: Cast, operand: Column) -> Column:
        return operand.cast(spark_type(node.type))

    def visit_call(self, node: Call, operands: tuple[Any, ...]) -> Column:
        literals = [operand.value if isinstance(operand, Literal) else None for operand in node.operands]
        match node.operation:
            case "case":
                return _case(operands)
            case "date_trunc":
                return F.date_trunc(str(literals[0]), operands[1])
            case "extract":
                return F.extract(F.lit({"dayofyear": "doy"}.get(str(literals[0]), str(literals[0]))), operands[1]).cast("int")
            case "round":
                return F.round(operands[0], int(literals[1] or 0) if len(literals) == 2 else 0)
            case "substring":
                return F.substr(*operands)
        return _OPERATIONS[node.operation](*operands)


def _case(operands: tuple[Any, ...]) -> Column:
    branches = F.when(operands[0], operands[1])
    for place in range(2, len(operands) - 1, 2):
        branches = branches.when(operands[place], operands[place + 1])
    return branches.otherwise(operands[-1]) if len(operands) % 2 else branches
