"""Leave out what cannot change anything: DISTINCT over rows that are known to differ.

Rows of a stage that names a key of its answer (a group, a join by primary keys) are present once each, and so are selections of
them that keep the key.
"""

from __future__ import annotations

from zset_join.plan.tree import Node, Operate, Root, is_derived, rebuilt
from zset_join.stages.aggregate import AggregateRequest

__all__ = ["choose_fast_paths"]


def choose_fast_paths(root: Root) -> Root:
    """Return a tree without stages that do nothing."""

    def change(node: Node) -> Node:
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and not node.request.calls:
            (child,) = node.inputs
            is_whole = tuple(child.relation.schema.names) == node.request.group_by
            if is_whole and child.relation.primary_key and is_derived(child):
                return child
        return node

    return rebuilt(root, change)
