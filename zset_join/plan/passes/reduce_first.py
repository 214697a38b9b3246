"""Bring the rows of a stage down before they travel to a group: one line of sums per group and task."""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.tree import Node, Operate, Root, is_derived, rebuilt
from zset_join.stages.aggregate import AggregateRequest

__all__ = ["reduce_first"]


def reduce_first(root: Root) -> Root:
    """Return a tree whose groups over answers of stages are fed sums where that is the same."""

    def change(node: Node) -> Node:
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and is_derived(node.inputs[0]):
            return replace(node, request=replace(node.request, reduces=True))
        return node

    return rebuilt(root, change)
