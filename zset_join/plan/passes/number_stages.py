"""Put the stages into the order of an epoch, and write down what feeds them.

Leaves come first, so a stage reads only what is answered before it; a stage that is used twice has one number. What is
between stages becomes the steps of feeds, a union several feeds of one input.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StageNode
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views

__all__ = ["number_stages"]


def number_stages(root: Root, name: str) -> QueryPlan:
    """Return the plan of a tree."""
    sources: dict[int, PlanSource] = {}
    nodes: list[StageNode] = []
    numbers: dict[int, int] = {}

    def feeds(node: Node) -> tuple[Feed, ...]:
        match node:
            case Read(source):
                sources[id(source)] = source
                return (Feed(source.name),)
            case Apply(child, step):
                return tuple(replace(feed, steps=(*feed.steps, step)) for feed in feeds(child))
            case Merge(parts):
                return tuple(feed for part in parts for feed in feeds(part))
            case Operate():
                return (Feed(placed(node)),)

    def placed(node: Operate) -> int:
        if id(node) not in numbers:
            fed = tuple(map(feeds, node.inputs))
            numbers[id(node)] = len(nodes)
            nodes.append(StageNode(len(nodes), node.stage, fed, node.own, node.since))
        return numbers[id(node)]

    named = zip(root.names, root.parts, strict=True) if isinstance(root, Views) else ((name, root),)
    views = tuple(PlanView(one, feeds(part)) for one, part in named)
    return QueryPlan(tuple(sources.values()), tuple(nodes), views)
