"""Expressions over one row: their types, and their values for many rows at once.

A tree over one row names its columns without a side; one made with `left(...)` alone means the same. As in `evaluation`, what
Spark does not look at does not raise, and what cannot be computed raises with the part that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import PlanError
from zset_join.expressions.evaluation import result_type, vector_of
from zset_join.expressions.tree import Alias, Call, Cast, Column, Expression, Literal, describe, folded, walk
from zset_join.expressions.vectors import Bools, Vector, to_arrow

__all__ = [
    "check_condition",
    "columns_read",
    "compute",
    "conjuncts",
    "is_plain",
    "named",
    "plain_column",
    "rewritten",
    "rows_where",
    "value_type",
    "with_columns_called",
]

_SIDES = ("left", "right", "row")
_PLAIN = frozenset({Call, Cast, Column, Literal})


def columns_read(expression: Expression) -> frozenset[str]:
    """Return the names of the columns that an expression reads."""
    return frozenset(node.name for node in walk(expression) if isinstance(node, Column))


def conjuncts(condition: Expression) -> Iterator[Expression]:
    """Yield the parts of a condition that AND connects, in their order."""
    waiting = [condition]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Call) and one.operation == "and":
            waiting += reversed(one.operands)
        else:
            yield one


def named(column: str) -> Expression:
    return Column("row", column)


def plain_column(expression: Expression) -> str | None:
    """Return the name of the column that an expression is; None where something is computed."""
    return expression.name if isinstance(expression, Column) else None


def with_columns_called(expression: Expression, side: str, names: Mapping[str, str]) -> Expression:
    """Return an expression that calls columns of one side otherwise.

    >>> from zset_join.expressions.tree import left, right
    >>> with_columns_called(left("a") < right("a"), "right", {"a": "b"})
    left.a < right.b
    """

    def call(column: Column) -> Expression:
        return Column(column.side, names.get(column.name, column.name)) if column.side == side else column

    return rewritten(expression, call)


def rewritten(expression: Expression, change: Callable[[Column], Expression]) -> Expression:
    """Return an expression with every column replaced, of plain nodes alone: names of values are taken off."""

    def replaced(node: Expression, operands: tuple[Expression, ...]) -> Expression:
        match node:
            case Column():
                return change(node)
            case Alias():
                return operands[0]
            case Cast():
                return Cast(operands[0], node.type)
            case Call():
                return Call(node.operation, operands)
            case _:
                return node

    return folded(expression, replaced)


def is_plain(expression: object) -> bool:
    """Return whether something is a tree of plain nodes, as a plan holds: no name, text, or column of a certain view."""
    return isinstance(expression, Expression) and all(type(node) in _PLAIN for node in walk(expression))


def value_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type of an expression over rows of a schema; a column has its own."""
    column = plain_column(expression)
    if column is not None and column in schema.names:
        return schema.field(column).type
    return _narrow(result_type(expression, dict.fromkeys(_SIDES, schema)))


def compute(expression: Expression, columns: Mapping[str, pa.Array], length: int) -> pa.Array:
    """Return the value of an expression for every row."""
    column = plain_column(expression)
    if column is not None:
        return columns[column]
    values = _of_length(_vector(expression, columns, length), length)
    kind = _narrow(values.type)
    return values if kind == values.type else values.cast(kind)


def rows_where(
    condition: Expression,
    columns: Mapping[str, pa.Array],
    length: int,
    loaded: dict[tuple[str, str], Vector] | None = None,
) -> Bools:
    """Return for every row whether a condition is true; NULL is not. `loaded`: as `vector_of` has it."""
    vector = _vector(condition, columns, length, loaded)
    passes: Bools = vector.values & vector.valid
    return passes if len(passes) == length else np.array(np.broadcast_to(passes, length))


def _vector(
    expression: Expression,
    columns: Mapping[str, pa.Array],
    length: int,
    loaded: dict[tuple[str, str], Vector] | None = None,
) -> Vector:
    by_side = dict.fromkeys(_SIDES, columns)
    return vector_of(expression, by_side, length, what="expression", of_what="rows", loaded=loaded)


def _of_length(vector: Vector, length: int) -> pa.Array:
    """Return a vector as an array of so many values, NULL where it is not valid."""
    if pa.types.is_null(vector.type):
        return pa.nulls(length)
    valid = np.broadcast_to(vector.valid, length)
    if not isinstance(vector.values, pa.Array):
        return to_arrow(Vector(vector.type, np.ascontiguousarray(np.broadcast_to(vector.values, length)), valid))
    values = vector.values
    if len(values) != length:
        values = pa.repeat(values[0], length)
    return values if valid.all() else pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))


def _narrow(kind: pa.DataType) -> pa.DataType:
    """Return the type that users know a value by: strings and binaries without the wide offsets they are computed with."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def check_condition(condition: Expression, schema: pa.Schema) -> None:
    """Refuse a condition that is not boolean, or reads what is absent."""
    kind = value_type(condition, schema)
    if not pa.types.is_boolean(kind):
        raise PlanError(
            f"the condition {describe(condition)} is of type {kind}; a condition must be boolean. Compare it with something.",
            code="NOT_BOOLEAN",
            expression=describe(condition),
            type=str(kind),
        )
