"""Unique names of the inputs of stages: messages and dead letters identify inputs by these."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.stage import Stage

__all__ = ["unique_input_names"]


def unique_input_names(plan: QueryPlan) -> QueryPlan:
    """Return a plan in which every input of a stage has a name of its own; a route is called as what it leads to."""
    names = _Names()
    nodes: list[StageNode] = []
    for node in plan.nodes:
        filled = {place for place, feeds in enumerate(node.feeds) if _is_filled(nodes, feeds)}
        nodes.append(node if node.stage.forwards else replace(node, stage=names.apart(node.stage, filled)))
    for node in nodes:
        for feeds, given in zip(node.feeds, node.stage.inputs, strict=True):
            for feed in feeds:
                if isinstance(feed.origin, int) and nodes[feed.origin].stage.forwards:
                    nodes[feed.origin] = _called(nodes[feed.origin], given.relation.name)
    return replace(plan, nodes=tuple(nodes))


def _is_filled(nodes: Sequence[StageNode], feeds: Sequence[Feed]) -> bool:
    """Return whether rows are those of a stream, filled by the stage before: the same input, under the same name."""
    return len(feeds) == 1 and isinstance(feeds[0].origin, int) and nodes[feeds[0].origin].stage.kind == "latest"


def _called(node: StageNode, name: str) -> StageNode:
    stage: Any = node.stage
    return replace(node, stage=replace(stage, source=replace(stage.source, name=name)))


class _Names:
    """Give names, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def apart(self, stage: Stage, filled: Collection[int]) -> Stage:
        """Return a stage whose inputs have names that no other one has; those that are filled keep theirs."""
        if isinstance(stage, ExpiringStage):
            inside: Any = self.apart(stage.inside, filled)
            sources = [
                replace(source, name=given.relation.name) for source, given in zip(stage.sources, inside.inputs, strict=True)
            ]
            return replace(stage, inside=inside, sources=tuple(sources))
        described: Any = stage
        changed: dict[str, Relation] = {}
        relations = [one.name for one in fields(described) if isinstance(getattr(described, one.name), Relation)]
        for place, argument in enumerate(relations):
            relation: Relation = getattr(described, argument)
            name = relation.name if place in filled else self._free(relation.name)
            if name != relation.name:
                changed[argument] = replace(relation, name=name)
        return replace(described, **changed) if changed else stage

    def _free(self, name: str) -> str:
        wanted, number = name, 2
        while wanted in self._taken:
            wanted, number = f"{name}_{number}", number + 1
        self._taken.add(wanted)
        return wanted
