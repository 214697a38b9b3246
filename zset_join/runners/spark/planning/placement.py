"""A plan on the executors: its stages with the streams that feed them, the expressions between them and where rows go.

The law: a placed stage is a stage of the plan, by its number, and so are its feeds. What the plan does to rows is evaluated by
Spark: before the first stage on the stream of the source, between stages behind the one that emits them.

A plan is placed once per query; an epoch plans nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.plan.planner import plan_query
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, StageNode
from zset_join.plan.row_steps import OpaqueStep
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.plan.tree import Apply, Node, Operate, Read, in_zone, rebuilt, without_order
from zset_join.runners.spark.planning.row_steps import ZONE, RowStep, Transform, row_step
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.planning.stream_steps import as_input, spark_step, stepped, united
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.latest import LatestRequest
from zset_join.stages.stage import Stage

__all__ = ["Bindings", "BoundStep", "bound_plan", "placed_stages", "unique_input_names"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundStep:
    """A step that only Spark can run."""

    call: str
    transform: Transform
    step: RowStep
    before: pa.Schema
    condition: str | Column | None = None

    def over(self, session: SparkSession, before: Relation) -> RowStep:
        """Return the step over rows that may have fewer columns than those it was written for."""
        if before.schema.equals(self.before):
            return self.step
        return row_step(session, before, self.call, self.transform, is_internal=True)


@dataclass(frozen=True)
class Bindings:
    """Map the names of a plan to what they represent inside Spark."""

    streams: Mapping[str, SourceStream]
    steps: Mapping[int, BoundStep] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        return next(iter(self.streams.values())).session


def bound_plan(
    root: Node, streams: Callable[[PlanSource], SourceStream], *, name: str
) -> tuple[QueryPlan, dict[str, SourceStream]]:
    """Return the plan of a query for executors, over sources that are what their streams are; and the streams by name."""
    found: dict[str, SourceStream] = {}
    sources: dict[int, tuple[PlanSource, PlanSource]] = {}

    def change(node: Node) -> Node:
        if not isinstance(node, Read):
            return without_order(node) if isinstance(node, Apply) else node
        written = node.source
        if id(written) not in sources:
            stream = streams(written)
            source = PlanSource(
                relation=replace(stream.relation(()), name=written.name),
                hidden=stream.hidden,
                has_baseline=stream.baseline is not None,
                max_watermark_jump=stream.max_watermark_jump,
            )
            found.setdefault(source.name, stream)
            sources[id(written)] = written, source
        source = sources[id(written)][1]
        stream = found[source.name]
        read = node if source == written else Read(source)
        if source.relation.mode == "upsert" and (stream.control is not None or (source.hidden and not written.hidden)):
            # What orders the changes of its keys is not in the query, whose steps would leave it out.
            return Operate(LatestRequest(control=stream.control), (read,))
        return read

    bound = rebuilt(root, change)
    zone = next(iter(found.values())).session.conf.get(ZONE)
    bound = in_zone(bound, str(zone), is_spread=True)
    first: dict[Hashable, str] = {}
    same = {known: first.setdefault(stream.identity, known) for known, stream in found.items()}
    plan = plan_query(bound, name=name, buckets=None, is_spread=True, same=same)
    return unique_input_names(plan), found


def placed_stages(plan: QueryPlan, bindings: Bindings) -> tuple[PlannedStage, ...]:
    """Return the stages of a plan in the order of an epoch, each with what feeds it and where its rows go."""
    stages = [PlannedStage(number=node.number, stage=node.stage) for node in plan.nodes]

    def sends(feeds: Sequence[Feed], target: int | None, side: int) -> None:
        for feed in feeds:
            if not isinstance(feed.origin, int):
                raise PlanError(f'rows of "{feed.origin}" reach no stage.', code="PLAN_ORDER", origin=feed.origin)
            sender = stages[feed.origin]
            steps = _expressed(bindings, sender.before, feed.steps)
            stages[feed.origin] = replace(sender, steps=steps, target=target, side=side)

    for node in plan.nodes:
        streams = {}
        for side, (feeds, given) in enumerate(zip(node.feeds, node.stage.inputs, strict=True)):
            if all(isinstance(feed.origin, str) for feed in feeds):
                rows = united([_stream(bindings, feed) for feed in feeds])
                streams[side] = as_input(rows, given.relation)
            else:
                sends(feeds, node.number, side)
        stages[node.number] = replace(stages[node.number], streams=streams)
    sends(plan.outputs, None, 0)
    return tuple(stages)


def _stream(bindings: Bindings, feed: Feed) -> SourceStream:
    stream = bindings.streams[str(feed.origin)]
    for step in feed.steps:
        stream = stepped(stream, step)
    return stream


def _expressed(bindings: Bindings, before: Relation, steps: Sequence[PlanStep]) -> tuple[RowStep, ...]:
    expressed: list[RowStep] = []
    for step in steps:
        session = bindings.session
        if isinstance(step, OpaqueStep):
            one = bindings.steps[id(step)].over(session, before)
        else:
            one = spark_step(session, before, step)
        expressed.append(one)
        before = one.relation
    return tuple(expressed)


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
