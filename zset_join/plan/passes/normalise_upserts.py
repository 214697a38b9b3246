"""Turn upserts into a changelog where whole rows with their old values are needed.

An upsert names the key of a row and does not contain the old row. A join keeps a table by primary key itself; an aggregate,
a union, a selection without the key, and the view do not. Before these goes a stage `latest`, once per source however many
need it.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Apply, Merge, Node, Operate, Root, each_root, rebuilt, takes_as_is
from zset_join.stages.latest import LatestRequest

__all__ = ["normalise_upserts"]


def normalise_upserts(root: Root) -> Root:
    """Return a tree whose every node can be fed as its children come."""
    latest: dict[int, tuple[Node, Operate]] = {}

    def normalised(node: Node) -> Node:
        if node.relation.mode != "upsert":
            return node
        if id(node) not in latest:
            latest[id(node)] = node, Operate(LatestRequest(), (node,))
        return latest[id(node)][1]

    def change(node: Node) -> Node:
        match node:
            case Apply() if not node.takes_upserts:
                return Apply(normalised(node.child), node.step, node.hides)
            case Merge():
                return Merge(tuple(map(normalised, node.parts)))
            case Operate():
                inputs = [child if takes_as_is(node, place) else normalised(child) for place, child in enumerate(node.inputs)]
                return replace(node, inputs=tuple(inputs))
            case _:
                return node

    return each_root(rebuilt(root, change), normalised)
