"""Count the rows of an input that can retract where no stage of a view remembers them.

A row of weight -1 that is not there is bad input. A join or a group finds it; a view of filters, projections and unions would
show -1 copies. An input in append mode needs nothing, one in upsert mode has the table of its keys.

Known limit: columns that have no equality, such as maps, cannot be counted; such an input is passed on as it comes.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.core.errors import PlanError
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, each_root
from zset_join.shapes.aggregate import check_grouping
from zset_join.stages.unchanged import UnchangedRequest

__all__ = ["count_rows"]


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
