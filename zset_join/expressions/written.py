"""An expression as JSON and back, so that a checkpoint can keep it.

The law: `read(write(expression))` is the same tree. Text is never evaluated: reading builds the four node classes with the
operations in `OPERATIONS` and `FUNCTIONS`, and refuses everything else; `check` looks at what was built as at any other tree.

A tree of more levels than a reader of JSON may open is a list of its nodes, leaves first, with the places of their operands.

Types and literals are kept as Arrow's own bytes in base64, so they come back exactly; an instant comes back in UTC.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.expressions.tree import FUNCTIONS, OPERATIONS, Call, Cast, Column, Expression, Literal, folded

__all__ = ["read_expression", "write_expression"]

_MOST_LEVELS = 32


def write_expression(expression: Expression) -> dict[str, Any]:
    """Return an expression as something JSON-ready.

    >>> from zset_join.expressions.tree import left, right
    >>> write_expression(left("x").is_null())
    {'call': 'is_null', 'operands': [{'column': 'x', 'side': 'left'}]}
    """
    levels: int = folded(expression, lambda _, below: 1 + max(below, default=0))
    if levels <= _MOST_LEVELS:
        return folded(expression, _written)
    nodes: list[dict[str, Any]] = []

    def listed(node: Expression, places: tuple[int, ...]) -> int:
        nodes.append(_written(node, places))
        return len(nodes) - 1

    folded(expression, listed)
    return {"nodes": nodes}


def read_expression(fields: Mapping[str, Any]) -> Expression:
    """Build from what `write_expression` gave.

    >>> from zset_join.expressions.tree import left, right
    >>> read_expression(write_expression(left("x") < right("y") + 1))
    left.x < (right.y + 1)
    """
    known: list[Expression] = []
    for one in fields.get("nodes", ()):
        known.append(_read(one, known))
    return known[-1] if known else _read(fields, ())


def _read(fields: Any, known: Sequence[Expression]) -> Expression:
    """Build a node; an operand is written in it, or is the place of a node that is known."""
    match fields:
        case int() if 0 <= fields < len(known):
            return known[fields]
        case {"column": str(name), "side": "left" | "right" | "row" as side}:
            return Column(side, name)
        case {"literal": str(text)}:
            batch = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))).read_next_batch()
            value = batch.column(0)[0].as_py()
            is_instant = isinstance(value, datetime.datetime) and value.tzinfo is not None
            return Literal(value.astimezone(datetime.UTC) if is_instant else value, batch.schema.field(0).type)
        case {"cast": str(text), "operand": operand}:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            return Cast(_read(operand, known), schema.field(0).type)
        case {"call": str(operation), "operands": list(operands)} if operation in OPERATIONS or operation in FUNCTIONS:
            return Call(operation, tuple(_read(operand, known) for operand in operands))
    raise PlanError(
        f"{fields!r} is not an expression of this version; use the version of the library that wrote it.",
        code="UNKNOWN_EXPRESSION",
        node=repr(fields),
    )


def _written(node: Expression, operands: Sequence[Any]) -> dict[str, Any]:
    """Return a node; its operands are written already, or places."""
    match node:
        case Column():
            return {"column": node.name, "side": node.side}
        case Literal():
            batch = pa.record_batch({"value": pa.array([node.value], node.type)})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            return {"literal": _text(sink.getvalue())}
        case Cast():
            return {"cast": _text(pa.schema([("value", node.type)]).serialize()), "operand": operands[0]}
        case Call():
            return {"call": node.operation, "operands": list(operands)}
    return dict(operands[0])  # a name is no part of a plan


def _text(data: Any) -> str:
    return base64.b64encode(data).decode()
