"""Compute join keys that are expressions: as hidden columns, before the stage that compares them.

A stage compares columns. `on=lower(a.name) == b.name` gives the rows of `a` one column more, which no answer shows.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Apply, Node, Operate, Root, rebuilt, with_columns

__all__ = ["derive_keys"]


def derive_keys(root: Root) -> Root:
    """Return a tree whose stages name columns only."""

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or not any(node.computed_keys):
            return node
        inputs = [
            Apply(child, with_columns(child.relation, keys), tuple(name for name, _ in keys)) if keys else child
            for child, keys in zip(node.inputs, node.computed_keys, strict=True)
        ]
        return replace(node, request=node.request.with_keys_computed(), inputs=tuple(inputs))

    return rebuilt(root, change)
