"""Give stages and views the inputs that they can work with.

An upsert names the key of a row and does not contain the old row. A join keeps a table by primary key itself; an aggregate,
a union, a selection without the key, and the view do not. Before these goes a stage `latest`, once per source.

A stage compares columns. `on=lower(a.name) == b.name` gives the rows of `a` one column more, which no answer shows.

A row of weight -1 that is not there is bad input. A join or a group finds it; a view of filters, projections and unions would
show -1 copies, so the rows of an input in changelog mode are counted there. Known limit: columns without equality, such as
maps, cannot be counted; such an input is passed on as it comes.

In several buckets a stage finds the old row of a key only if it lies where the new one goes. Upserts are bucketed by what the
stage compares; where that is not part of their primary key, a table by primary key goes before it (`insert_routes`). On
executors the output and a union with answers of stages take what tasks of stages emit, so sources are passed on by a stage
there (`pass_on_sources`).
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.core.errors import PlanError
from zset_join.expressions.rows import named
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import (
    Apply,
    Forward,
    Merge,
    Node,
    Operate,
    Read,
    Root,
    each_root,
    is_derived,
    rebuilt,
    takes_as_is,
    visible,
    with_columns,
)
from zset_join.shapes.aggregate import check_grouping
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.latest import LatestRequest
from zset_join.stages.unchanged import RouteRequest, UnchangedRequest

__all__ = ["count_rows", "derive_keys", "insert_routes", "normalise_upserts", "pass_on_sources", "reduce_first"]


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


def derive_keys(root: Root) -> Root:
    """Return a tree whose stages name columns only."""

    def change(node: Node) -> Node:
        if not isinstance(node, Operate) or not any(node.computed_keys):
            return node
        inputs = [
            Apply(child, with_columns(child.relation, keys), tuple(name for name, _ in keys)) if keys else child
            for child, keys in zip(node.inputs, node.computed_keys, strict=True)
        ]
        return replace(node, request=node.request.with_keys_computed(), inputs=tuple(inputs))

    return rebuilt(root, change)


def count_rows(root: Root) -> Root:
    """Return a tree whose views read inputs that can retract through a stage that counts their rows, once per input."""
    counted: dict[int, Node] = {}

    def change(node: Node) -> Node:
        match node:
            case Read() if _can_be_counted(node):
                return counted.setdefault(id(node.source), Operate(UnchangedRequest(counts=True), (node,)))
            case Apply():
                return replace(node, child=change(node.child))
            case Merge():
                return Merge(tuple(map(change, node.parts)))
            case _:
                return node

    return each_root(root, change)


def _can_be_counted(node: Read) -> bool:
    relation = node.relation
    if relation.mode != "changelog":
        return False
    try:
        check_grouping(relation, relation.schema.names, ())
    except PlanError:
        return False
    return True


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
