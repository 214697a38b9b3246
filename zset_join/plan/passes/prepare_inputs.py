"""Give stages and views the inputs that they can work with.

An upsert names the key of a row and does not contain the old row. A join keeps a table by primary key itself; an aggregate,
a union, a selection without the key, and the view do not. Before these goes a stage `latest`, once per source.

A stage compares columns. `on=lower(a.name) == b.name` gives the rows of `a` one column more, which no answer shows.

A row of weight -1 that is not there is bad input. A join or a group finds it; a view of filters, projections and unions would
show -1 copies, so the rows of an input in changelog mode are counted there. Known limit: columns without equality, such as
maps, cannot be counted; such an input is passed on as it comes.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.core.errors import PlanError
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, each_root, rebuilt, takes_as_is, with_columns
from zset_join.shapes.aggregate import check_grouping
from zset_join.stages.latest import LatestRequest
from zset_join.stages.unchanged import UnchangedRequest

__all__ = ["count_rows", "derive_keys", "normalise_upserts"]


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
