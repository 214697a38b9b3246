"""Everything that came to a query, read back from its logs: what `explain_row` of a pipeline replays in process.

    logs of the stages that streams reach -> a delta per place and epoch -> `zset_join.runners.local.explaining`

The law: replayed in order through the stages of the plan it gives the rows that the query emitted. Watermarks and processing
times are those of the ticks in the logs, and the rows that a lookup join received are in its log: nothing is queried again.

Limits: the log of every stage must reach back to the first epoch, and the steps between stages be trees. A place is one bucket
here: rows of several buckets come in the order of these.

Memory: every change that arrived, on the driver. Cost: one pass over the logs of all stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.log import LoggedEpoch, read_log
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan
from zset_join.plan.row_steps import OpaqueStep
from zset_join.runners.local.history import PastEpoch
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.tools.logged_changes import stage_histories
from zset_join.stages import StageOptions
from zset_join.stages.effect import EffectStage
from zset_join.zset import ZSet

__all__ = ["past_epochs", "plan_of_places", "why_not_replayed", "why_not_whole"]


def why_not_replayed(plan: QueryPlan) -> str | None:
    """Return why a query cannot run in process, whatever is in its logs; None where it can."""
    for step in (step for feed in plan.feeds() for step in feed.steps):
        if isinstance(step, OpaqueStep):
            return f"the step {step.text} can be done in Spark only ({step.reason}); write it with zset_join.expressions"
    return None


def why_not_whole(planned_stages: Sequence[PlannedStage], checkpoint: Checkpoint) -> str | None:
    """Return why the logs of a query do not give back all that arrived; None where they do."""
    for one in planned_stages:
        histories = stage_histories(checkpoint, one.state_name)
        if any(history.snapshot is not None for history in histories):
            return f"the log of {one.name} does not reach back to its first epoch; keep it with the option retainInputLog"
        if len(histories) > 1 and any(given.everywhere is not None for given in one.stage.inputs):
            return f"the order in which changes came to several buckets of {one.name} is not in its log; run it in one bucket"
        if any(one.stage.inputs[side].reduce is not None for side in one.streams):
            return f"the log of {one.name} holds sums, not the rows of its stream"
    return None


def plan_of_places(plan: QueryPlan) -> QueryPlan:
    """Return a plan in which every input of a stage that sources feed has a source of its own, whose rows are those logged."""
    sources: list[PlanSource] = []
    nodes = []
    taken: set[str] = set()
    for node in plan.nodes:
        feeds = []
        for given, fed in zip(node.stage.inputs, node.feeds, strict=True):
            stages = tuple(feed for feed in fed if not isinstance(feed.origin, str))
            if len(stages) < len(fed):
                name, number = given.relation.name, 2
                while name in taken:
                    name, number = f"{given.relation.name}_{number}", number + 1
                taken.add(name)
                sources.append(PlanSource(relation=replace(given.relation, name=name)))
                stages = (Feed(name), *stages)
            feeds.append(stages)
        nodes.append(replace(node, feeds=tuple(feeds)))
    return replace(plan, sources=tuple(sources), nodes=tuple(nodes))


@dataclass(slots=True)
class _Past:
    """Collect one epoch from the logs of all buckets."""

    processing_time_us: int | None = None
    parts: defaultdict[tuple[int, int], list[ZSet]] = field(default_factory=lambda: defaultdict(list))
    watermarks: dict[int, int] = field(default_factory=dict)


def past_epochs(
    planned_stages: Sequence[PlannedStage], plan: QueryPlan, checkpoint: Checkpoint, options: StageOptions
) -> list[PastEpoch]:
    epochs: defaultdict[int, _Past] = defaultdict(_Past)
    for one in planned_stages:
        for logged in _logged(one, checkpoint, options):
            past, tick = epochs[logged.tick.epoch], logged.tick
            past.processing_time_us = tick.processing_time_us
            if tick.watermark_us is not None:
                past.watermarks[one.number] = tick.watermark_us
            for side, delta in enumerate(logged.deltas):
                if len(delta) and (side in one.streams or side >= len(one.stage.inputs)):
                    past.parts[one.number, side].append(delta)
    places = {
        (node.number, side): feeds[0].origin
        for node in plan.nodes
        for side, feeds in enumerate(node.feeds)
        if feeds and isinstance(feeds[0].origin, str)
    }
    answering = [(node.number, len(node.stage.inputs)) for node in plan.nodes if isinstance(node.stage, EffectStage)]
    history = []
    for number, past in sorted(epochs.items()):
        together = {place: ZSet.concat(parts, schema=parts[0].schema) for place, parts in past.parts.items()}
        deltas = {str(places[place]): delta for place, delta in together.items() if place in places}
        fetched = {place[0]: together[place] for place in answering if place in together}
        history.append(PastEpoch(number, past.processing_time_us, deltas, fetched, past.watermarks))
    return history


def _logged(one: PlannedStage, checkpoint: Checkpoint, options: StageOptions) -> Iterator[LoggedEpoch]:
    """Yield the rows for a stage, bucket by bucket, in the columns that it has for it."""
    operator = one.state_stage.build(options, None)
    schemas = [relation.schema for relation in operator.inputs]
    operator.close()
    for history in stage_histories(checkpoint, one.state_name):
        for log in history.logs:
            for logged in read_log(checkpoint.files, log, schemas=schemas):
                deltas = logged.deltas if one.shared is None else one.shared.deltas_of(logged.deltas)
                yield replace(logged, deltas=tuple(_named(deltas, [given.fed.schema for given in one.stage.inputs])))


def _named(deltas: Sequence[ZSet], schemas: Sequence[pa.Schema]) -> Iterator[ZSet]:
    for side, delta in enumerate(deltas):
        yield delta.with_schema(schemas[side]) if side < len(schemas) else delta
