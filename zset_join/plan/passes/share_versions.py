"""Keep the current versions of a table once: joins by processing time that look up in the same versions read one stage.

Two such stages are the same where their requests are equal by value and their versions are the same node, or the same steps
behind it. Everything else stays as it was written: a query that names a group twice has it twice.
"""

from __future__ import annotations

from collections.abc import Hashable

from zset_join.plan.tree import Apply, Node, Operate, Root, rebuilt

__all__ = ["share_versions"]


def share_versions(root: Root) -> Root:
    """Return a tree in which equal current versions are one node."""
    known: dict[Hashable, Node] = {}

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or node.request.picks_current is None:
            return node
        return known.setdefault((node.request, _rows_of(node.inputs[0])), node)

    return rebuilt(root, change)


def _rows_of(node: Node) -> Hashable:
    """Return an identity of rows: a node, and the steps behind it by value."""
    steps: list[Hashable] = []
    while isinstance(node, Apply):
        steps.append((node.step, node.hides))
        node = node.child
    return id(node), tuple(steps)
