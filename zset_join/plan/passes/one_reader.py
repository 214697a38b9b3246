"""Give every stage one reader: a task on an executor sends its answer to one place.

A stage that is used twice is two stages then, each with its own state. Joins that look up in one table share its copy all the
same: `zset_join.plan.sharing` sees that what prepares their rows is alike.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Apply, Merge, Node, Operate

__all__ = ["one_reader"]


def one_reader(root: Node) -> Node:
    """Return a tree in which every stage, and every step, is there as often as it is used; sources are not copied."""
    match root:
        case Apply():
            return replace(root, child=one_reader(root.child))
        case Merge():
            return Merge(tuple(map(one_reader, root.parts)))
        case Operate():
            return replace(root, inputs=tuple(map(one_reader, root.inputs)))
        case _:
            return root
