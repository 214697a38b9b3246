"""Look up only the columns of an external table that the query reads.

The law: what is above the lookup join gives the same rows. The key columns and those of the ON condition stay; a column of
the table that no selection above reads is not requested, nor journaled, nor remembered.

A lookup join whose rows go two ways, or past anything else than conditions to the first selection, is left as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from zset_join.plan.tree import Apply, Node, Operate, Root, each_node, rebuilt
from zset_join.stages.request import StageRequest

__all__ = ["push_columns"]


def push_columns(root: Root) -> Root:
    """Return a tree whose lookup joins request what is read."""
    nodes = list(each_node(root))
    parents = Counter(id(child) for node in nodes for child in node.children)
    pruned: dict[int, StageRequest] = {}
    for node in nodes:
        read = node.step.needs if isinstance(node, Apply) else None
        if not isinstance(node, Apply) or read is None:
            continue
        below: Node = node.child
        while isinstance(below, Apply) and parents[id(below)] == 1:
            filtered = below.step.filters_by
            if filtered is None:
                break
            read, below = read | filtered, below.child
        if isinstance(below, Operate) and parents[id(below)] == 1:
            fewer = below.request.reading(below.stage, read)
            if fewer is not below.request:
                pruned[id(below.request)] = fewer

    def change(node: Node) -> Node:
        is_pruned = isinstance(node, Operate) and id(node.request) in pruned
        return replace(node, request=pruned[id(node.request)]) if is_pruned else node  # type: ignore[union-attr,arg-type]

    return rebuilt(root, change) if pruned else root
