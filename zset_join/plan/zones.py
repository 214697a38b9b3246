"""A query in the time zone of its session: every expression of its steps and of the requests for its stages.

The law: expressions are found by walking the values that a node is made of, so none of a new step or request is forgotten. One
in a tuple, as in a pair of keys, is over the row of the input that has its place; any other is over all inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, overload

import pyarrow as pa

from zset_join.expressions import Expression
from zset_join.expressions.zones import expression_in_zone, is_utc
from zset_join.plan.tree import Apply, Node, Operate, Root, rebuilt

__all__ = ["in_zone", "node_in_zone"]

_Change = Callable[[Expression, int | None], Expression]


@overload
def in_zone(root: Node, zone: str, *, is_spread: bool = ...) -> Node: ...


@overload
def in_zone(root: Root, zone: str, *, is_spread: bool = ...) -> Root: ...


def in_zone(root: Root, zone: str, *, is_spread: bool = False) -> Root:
    """Return a query whose expressions have the values of a time zone; itself where that is UTC."""
    return root if is_utc(zone) else rebuilt(root, lambda node: node_in_zone(node, zone, is_spread=is_spread))


def node_in_zone(node: Node, zone: str, *, is_spread: bool = False) -> Node:
    """Return a node whose expressions have the values of a time zone; see `in_zone`."""
    schemas = [one.relation.schema for one in node.children]
    if isinstance(node, Apply) and not is_spread:
        step = _rewritten(node.step, lambda tree, _: expression_in_zone(tree, _sides(schemas * 2), zone))
        return node if step is node.step else replace(node, step=step)
    if not isinstance(node, Operate):
        return node
    outside = node.request.outside
    pair = schemas if outside is None else [*schemas, outside]

    def change(tree: Expression, side: int | None) -> Expression:
        if side is None:
            return expression_in_zone(tree, _sides(pair), zone)
        return tree if is_spread else expression_in_zone(tree, _sides([pair[side]] * 2), zone)

    request = _rewritten(node.request, change)
    return node if request is node.request else replace(node, request=request)


def _sides(schemas: list[pa.Schema]) -> dict[str, pa.Schema]:
    return {"row": schemas[0], "left": schemas[0], "right": schemas[-1]}


def _rewritten(value: Any, change: _Change, side: int | None = None) -> Any:
    """Return a value with every expression in it replaced; itself where there is none."""
    if isinstance(value, Expression):
        return change(value, side)
    if isinstance(value, tuple) and type(value) is tuple:
        parts = tuple(_rewritten(one, change, place) for place, one in enumerate(value))
        return value if all(one is other for one, other in zip(parts, value, strict=True)) else parts
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts_of = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    changed = {name: _rewritten(part, change) for name, part in parts_of.items()}
    changed = {name: part for name, part in changed.items() if part is not parts_of[name]}
    return replace(value, **changed) if changed else value
