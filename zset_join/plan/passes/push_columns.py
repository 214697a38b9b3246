"""Ask an outside table only for the columns that the query goes on to read.

The law: what stands above the lookup join gives the same rows. The key columns and those of the ON condition stay; a column of
the table that no selection above reads is not asked for, nor journaled, nor remembered.

A lookup join whose rows go two ways, or past anything else than conditions to the first selection, is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from zset_join.expressions.rows import columns_read
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep
from zset_join.plan.tree import Apply, Node, Operate, Root, rebuilt
from zset_join.stages.lookup_join import LookupJoinRequest, LookupJoinStage

__all__ = ["push_columns"]


def push_columns(root: Root) -> Root:
    """Return a tree whose lookup joins ask for what is read."""
    nodes = list(_nodes(root))
    parents = Counter(id(child) for node in nodes for child in node.children)
    pruned: dict[int, LookupJoinRequest] = {}
    for node in nodes:
        read = _read_by(node.step) if isinstance(node, Apply) and not isinstance(node.step, WhereStep) else None
        if not isinstance(node, Apply) or read is None:
            continue
        below: Node = node.child
        while isinstance(below, Apply) and parents[id(below)] == 1:
            filtered = _filtered_by(below.step)
            if filtered is None:
                break
            read, below = read | filtered, below.child
        if isinstance(below, Operate) and isinstance(below.request, LookupJoinRequest) and parents[id(below)] == 1:
            columns = _columns(below, read)
            if columns is not None:
                pruned[id(below.request)] = replace(below.request, columns=columns)

    def change(node: Node) -> Node:
        is_pruned = isinstance(node, Operate) and id(node.request) in pruned
        return replace(node, request=pruned[id(node.request)]) if is_pruned else node  # type: ignore[union-attr,arg-type]

    return rebuilt(root, change) if pruned else root


def _read_by(step: RowStep) -> set[str] | None:
    """Return the columns that a step reads where its answer has no others; None where it may hand on any."""
    match step:
        case SelectStep():
            return {name for _, expression in step.columns for name in columns_read(expression)}
        case OpaqueStep():
            return None if step.reads is None or step.is_filter else set(step.reads)
        case _:
            return None


def _filtered_by(step: RowStep) -> set[str] | None:
    """Return the columns that a filter reads; None for another step."""
    match step:
        case WhereStep():
            return set(columns_read(step.condition))
        case OpaqueStep() if step.is_filter and step.reads is not None:
            return set(step.reads)
        case _:
            return None


def _columns(node: Operate, read: set[str]) -> tuple[str, ...] | None:
    """Return the columns that are to be asked for; None where that is what is asked for already."""
    assert isinstance(node.stage, LookupJoinStage)  # noqa: S101 - what the request makes
    fewer = node.stage.reading(read)
    return None if fewer is node.stage else fewer.columns


def _nodes(root: Root) -> Iterator[Root]:
    """Yield every node once."""
    seen: set[int] = set()
    waiting: list[Root] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(node.children)
