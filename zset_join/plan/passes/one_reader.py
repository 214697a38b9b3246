"""Give every stage one reader: a task on an executor sends its answer to one place.

A stage that is used twice is two stages then, each with its own state. Joins that look up in one table share its copy all the
same: `zset_join.plan.sharing` sees that what prepares their rows is alike.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Apply, Merge, Node, Operate, Root, each_root

__all__ = ["one_reader"]


def one_reader(root: Root) -> Root:
    """Return a tree in which every stage, and every step, is present as often as it is used; sources are not copied."""
    return each_root(root, _copied)


def _copied(node: Node) -> Node:
    match node:
        case Apply():
            return replace(node, child=_copied(node.child))
        case Merge():
            return Merge(tuple(map(_copied, node.parts)))
        case Operate():
            return replace(node, inputs=tuple(map(_copied, node.inputs)))
        case _:
            return node
