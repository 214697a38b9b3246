"""A plan on the executors: its stages with the streams that feed them, the steps between them and where rows go.

The law: a placed stage is a stage of the plan, by its number, and so are its feeds. What the plan does to rows before the first
stage is done by Spark to the stream of the source; between stages the task of the one that emits them does it.

A plan is placed once per query; an epoch plans nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stages import PlannedStage, Use
from zset_join.runners.spark.planning.stream_steps import as_input, stepped, united
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.stage import Stage

__all__ = ["placed_stages", "unique_input_names"]


def placed_stages(plan: QueryPlan, streams: Mapping[str, SourceStream]) -> tuple[PlannedStage, ...]:
    """Return the stages of a plan in the order of an epoch, each with what feeds it and where its rows go."""
    stages = [PlannedStage(number=node.number, stage=node.stage) for node in plan.nodes]

    def sends(feeds: Sequence[Feed], **where: Any) -> None:
        for feed in feeds:
            if not isinstance(feed.origin, int):
                raise PlanError(f'rows of "{feed.origin}" reach no stage.', code="PLAN_ORDER", origin=feed.origin)
            sender = stages[feed.origin]
            stages[feed.origin] = replace(sender, uses=(*sender.uses, Use(steps=feed.steps, **where)))

    for node in plan.nodes:
        fed = {}
        for side, (feeds, given) in enumerate(zip(node.feeds, node.stage.inputs, strict=True)):
            if all(isinstance(feed.origin, str) for feed in feeds):
                rows = united([reduce(stepped, feed.steps, streams[str(feed.origin)]) for feed in feeds])
                fed[side] = as_input(rows, given.relation)
            else:
                sends(feeds, target=node.number, side=side)
        stages[node.number] = replace(stages[node.number], streams=fed)
    for view in plan.views:
        sends(view.feeds, view=view.name)
    return tuple(stages)


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
