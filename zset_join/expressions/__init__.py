"""Expressions over one row, and conditions over both rows of a candidate pair, as checked trees with Spark's semantics.

    (col("price") * col("units")).cast("decimal(20,2)")

    left("x") < right("y")
    left("at").between(right("from"), right("until")) | right("until").isNull()

`tree` holds the expressions and their operators, `functions` what else can be called, `type_rules` defines which types go
together, `evaluation` checks a tree against two schemas and evaluates it on Arrow columns, `vectors` does the arithmetic.
"""

from __future__ import annotations

from zset_join.expressions.evaluation import check, evaluate
from zset_join.expressions.tree import (
    Call,
    Cast,
    Column,
    Expression,
    ExpressionVisitor,
    Literal,
    col,
    describe,
    left,
    lit,
    references,
    right,
)

__all__ = [
    "Call",
    "Cast",
    "Column",
    "Expression",
    "ExpressionVisitor",
    "Literal",
    "check",
    "col",
    "describe",
    "evaluate",
    "left",
    "lit",
    "references",
    "right",
]
