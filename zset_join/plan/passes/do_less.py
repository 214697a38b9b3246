"""Leave out stages and steps that change nothing, and the columns of external tables that the query does not read.

The law of all three: the same rows. Of a lookup the key columns and those of ON stay. A lookup join whose rows go two ways, or
past anything else than conditions to the first selection, is left as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from zset_join.expressions.rows import plain_column
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Node, Operate, Root, each_node, is_derived, rebuilt
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.request import StageRequest

__all__ = ["choose_fast_paths", "fuse_steps", "push_columns"]


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


def fuse_steps(root: Root) -> Root:
    """Return a tree with fewer row steps."""

    def change(node: Node) -> Node:
        if not isinstance(node, Apply) or not isinstance(node.step, SelectStep):
            return node
        if _changes_nothing(node, node.step):
            return node.child
        before = node.child
        if isinstance(before, Apply) and isinstance(before.step, SelectStep) and before.takes_upserts:
            picked = [(name, plain_column(expression)) for name, expression in node.step.columns]
            computed = dict(before.step.columns)
            if all(column is not None for _, column in picked) and not before.hides:
                columns = tuple((name, computed[column]) for name, column in picked if column is not None)
                return Apply(before.child, SelectStep(columns), node.hides)
        return node

    return rebuilt(root, change)


def _changes_nothing(node: Apply, step: SelectStep) -> bool:
    names = [name for name, _ in step.columns]
    is_plain = all(plain_column(expression) == name for name, expression in step.columns)
    return is_plain and names == node.child.relation.schema.names and not node.hides and node.takes_upserts


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
