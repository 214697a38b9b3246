"""Route upserts whose bucket may change.

In several buckets a stage finds the old row of a key only if it lies where the new one goes. Upserts are bucketed by what the
stage compares; where that is not part of their primary key, a table by primary key goes before it and finds the old row.
In one bucket, as in process, every row is where it always was, and the pass does nothing.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Forward, Node, Operate, Root, rebuilt
from zset_join.stages.route import RouteRequest

__all__ = ["insert_routes"]


def insert_routes(root: Root, *, buckets: int | None) -> Root:
    """Return a tree whose stages are given every change in the bucket of the row it replaces."""
    if buckets == 1:
        return root

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or isinstance(node, Forward):
            return node
        inputs = list(node.inputs)
        for place, (child, wanted) in enumerate(zip(node.inputs, node.stage.inputs, strict=True)):
            relation = child.relation
            if relation.mode == "upsert" and not set(wanted.key) <= set(relation.primary_key):
                inputs[place] = Forward(RouteRequest(wanted.key), (child,))
        return node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs))

    return rebuilt(root, change)
