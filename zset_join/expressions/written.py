"""An expression as JSON and back, so that a checkpoint can keep it.

The law: `read(write(expression))` is the same tree. Text is never evaluated: reading builds the four node classes with the
operations in `OPERATIONS` and `FUNCTIONS`, and refuses everything else; `check` looks at what was built as at any other tree.

Types and literals are kept as Arrow's own bytes in base64, so they come back exactly; an instant comes back in UTC.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.expressions.tree import FUNCTIONS, OPERATIONS, Call, Cast, Column, Expression, Literal

__all__ = ["read_expression", "write_expression"]


def write_expression(expression: Expression) -> dict[str, Any]:
    """Return an expression as something JSON-ready.

    >>> from zset_join.expressions.tree import left, right
    >>> write_expression(left("x").is_null())
    {'call': 'is_null', 'operands': [{'column': 'x', 'side': 'left'}]}
    """
    return expression.accept(_Writer())


def read_expression(fields: Mapping[str, Any]) -> Expression:
    """Build from what `write_expression` gave.

    Raises:
        PlanError: it holds something that is no expression.

    >>> from zset_join.expressions.tree import left, right
    >>> read_expression(write_expression(left("x") < right("y") + 1))
    left.x < (right.y + 1)
    """
    match fields:
        case {"column": str(name), "side": "left" | "right" | "row" as side}:
            return Column(side, name)
        case {"literal": str(text)}:
            batch = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))).read_next_batch()
            value = batch.column(0)[0].as_py()
            is_instant = isinstance(value, datetime.datetime) and value.tzinfo is not None
            return Literal(value.astimezone(datetime.UTC) if is_instant else value, batch.schema.field(0).type)
        case {"cast": str(text), "operand": operand}:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            return Cast(read_expression(operand), schema.field(0).type)
        case {"call": str(operation), "operands": list(operands)} if operation in OPERATIONS or operation in FUNCTIONS:
            return Call(operation, tuple(map(read_expression, operands)))
    raise PlanError(
        f"{dict(fields)!r} is not an expression of this version; use the version of the library that wrote it.",
        code="UNKNOWN_EXPRESSION",
        node=repr(dict(fields)),
    )


class _Writer:
    def visit_column(self, node: Column) -> dict[str, Any]:
        return {"column": node.name, "side": node.side}

    def visit_literal(self, node: Literal) -> dict[str, Any]:
        batch = pa.record_batch({"value": pa.array([node.value], node.type)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return {"literal": _text(sink.getvalue())}

    def visit_cast(self, node: Cast, operand: dict[str, Any]) -> dict[str, Any]:
        return {"cast": _text(pa.schema([("value", node.type)]).serialize()), "operand": operand}

    def visit_call(self, node: Call, operands: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {"call": node.operation, "operands": list(operands)}


def _text(data: Any) -> str:
    return base64.b64encode(data).decode()
