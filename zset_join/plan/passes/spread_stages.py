"""For stages in many buckets, and in tasks on executors.

In several buckets a stage finds the old row of a key only if it lies where the new one goes. Upserts are bucketed by what the
stage compares; where that is not part of their primary key, a table by primary key goes before it (`insert_routes`).

On executors the output and a union with answers of stages take what tasks of stages emit, so sources are passed on by a stage
there (`pass_on_sources`). A task sends its answer to one place: a stage that is used twice is
two, each with its own state (`one_reader`); joins with one table still share its copy (`zset_join.plan.sharing`).
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.expressions.rows import named
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Forward, Merge, Node, Operate, Read, Root, each_root, is_derived, rebuilt, visible
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.unchanged import RouteRequest, UnchangedRequest

__all__ = ["insert_routes", "one_reader", "pass_on_sources", "reduce_first"]


def pass_on_sources(root: Root) -> Root:
    """Return a tree whose output and mixed unions are fed by stages alone, and whose output has no hidden column."""

    def change(node: Node) -> Node:
        if isinstance(node, Merge) and len({_is_of_source(part) for part in node.parts}) > 1:
            return Merge(tuple(_passed_on(part) for part in node.parts))
        return node

    return each_root(rebuilt(root, change), _shown)


def _shown(root: Node) -> Node:
    """Return the rows of a view behind a stage, without hidden columns."""
    changed = _passed_on(root)
    if not changed.hidden:
        return changed
    return Apply(changed, SelectStep(tuple((name, named(name)) for name in visible(changed))))


def _passed_on(node: Node) -> Node:
    return Operate(UnchangedRequest(), (node,)) if _is_of_source(node) else node


def _is_of_source(node: Node) -> bool:
    """Return whether rows come from sources without a stage; a union of such rows is one stream."""
    match node:
        case Read():
            return True
        case Apply(child):
            return _is_of_source(child)
        case Merge(parts):
            return all(map(_is_of_source, parts))
        case Operate():
            return False


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


def reduce_first(root: Root) -> Root:
    """Return a tree whose groups over answers of stages are fed sums where that is the same."""

    def change(node: Node) -> Node:
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and is_derived(node.inputs[0]):
            return replace(node, request=replace(node.request, reduces=True))
        return node

    return rebuilt(root, change)


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
