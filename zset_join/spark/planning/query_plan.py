"""The plan of a Spark query as the `QueryPlan` that every runner has: what its checkpoint keeps, for tools without its program.

The law: its stages are those that the query runs, in the order of an epoch, and so are its feeds. What a tree expresses is a
tree: what SQL says of rows, and selections of plain columns. Anything else that was written for Spark (text, a Column, a
function of the user's) is an opaque step: it can be shown and told apart, not run in process.

Limits: what was done to a stream before it became changes belongs to its DataFrame, and is not in the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from zset_join.expressions.rows import named as column
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, StageNode
from zset_join.plan.row_steps import OpaqueStep, SelectStep
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.plan.sharing import prepared_alike, share_tables
from zset_join.spark.planning.row_steps import RowStep
from zset_join.spark.planning.stage_names import stage_name
from zset_join.spark.planning.stages import PlannedStage, Stream
from zset_join.spark.worker.shared_place import SharedPlace
from zset_join.stages.shared_table import SharedTableStage

__all__ = ["query_plan_of", "sharing", "written_plan"]


def query_plan_of(planned_stages: Sequence[PlannedStage], name: str) -> QueryPlan:
    """Return the plan of a query.

    Args:
        planned_stages: in the order of an epoch.
        name: of the view.
    """
    plan = _plan_of(planned_stages, name, _Sources())
    indexes = {one.shared.name: one.shared.index for one in planned_stages if one.shared is not None}
    return replace(plan, shared=tuple(index for index in indexes.values() if index is not None))


def sharing(planned_stages: Sequence[PlannedStage]) -> tuple[tuple[PlannedStage, ...], tuple[tuple[int, str], ...]]:
    """Say which stages look up in one copy of a table, by the pass that the runner in process has (`zset_join.plan.sharing`).

    Args:
        planned_stages: of a whole query, with their names.

    Returns:
        The same, with the tables that they share; and the numbers of those that keep another copy, with the reason.
    """
    plan = share_tables(_plan_of(planned_stages, "view", _Origins()))
    stages = list(planned_stages)
    for state in plan.states:
        if isinstance(state.stage, SharedTableStage):
            name = stage_name(state.stage.kind, stages[state.number].label)
            index = next(one for one in plan.shared if one.readers == state.readers)
            for place, number in enumerate(state.readers):
                shared = SharedPlace(name=name, stage=state.stage, place=place, readers=state.readers, index=index)
                stages[number] = replace(stages[number], shared=shared)
    for readers in prepared_alike(plan):
        first = stages[readers[0]]
        for place, number in enumerate(readers):
            shared = SharedPlace(name=first.name, stage=first.stage, place=place, readers=readers)
            stages[number] = replace(stages[number], shared=shared)
    return tuple(stages), plan.copies


def _plan_of(planned_stages: Sequence[PlannedStage], name: str, sources: _Sources) -> QueryPlan:
    steps = [tuple(map(_plan_step, one.steps)) for one in planned_stages]
    nodes = []
    for one in planned_stages:
        fed: list[tuple[Feed, ...]] = []
        for side in range(len(one.stage.inputs)):
            if side in one.streams:
                fed.append((sources.feed_of(one.streams[side]),))
            else:
                before = [other.number for other in planned_stages if (other.target, other.side) == (one.number, side)]
                fed.append(tuple(Feed(number, steps[number]) for number in before))
        nodes.append(StageNode(one.number, one.stage, tuple(fed)))
    outputs = tuple(Feed(one.number, steps[one.number]) for one in planned_stages if one.target is None)
    return QueryPlan(tuple(sources.by_name.values()), tuple(nodes), outputs, name)


def written_plan(planned_stages: Sequence[PlannedStage], name: str) -> dict[str, Any]:
    """Return what a checkpoint keeps: the stages by the names of their state, and the plan; JSON-ready.

    Args:
        planned_stages: in the order of an epoch.
        name: of the view.
    """
    names = {one.number: one.name for one in planned_stages}
    return {
        "stages": [
            {
                "name": one.state_name,
                "target": None if one.target is None else names[one.target],
                "side": one.side,
                "stage": one.state_stage.to_json(),
            }
            for one in planned_stages
            if one.shared is None or one.shared.place == 0
        ],
        "plan": query_plan_of(planned_stages, name).to_json(),
    }


class _Sources:
    """Collect the streams; one that is read twice is one source, another one of its name gets a number."""

    def __init__(self) -> None:
        self.by_name: dict[str, PlanSource] = {}

    def feed_of(self, stream: Stream) -> Feed:
        """Return where the rows of a stream come from."""
        return Feed(self.name_of(stream))

    def name_of(self, stream: Stream) -> str:
        """Return what the source of a stream is called."""
        source = PlanSource(relation=stream.relation(()), hidden=stream.hidden, has_baseline=stream.baseline is not None)
        number = 1
        while self.by_name.setdefault(source.name, source) != source:
            number += 1
            source = replace(source, relation=replace(source.relation, name=f"{stream.name}_{number}"))
        return source.name


class _Origins(_Sources):
    """Collect what streams were made of: one that has a second name, or other columns, is the same source."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Hashable, str] = {}

    def feed_of(self, stream: Stream) -> Feed:
        """Return where the rows of a stream come from, and what was done to them since."""
        origin, steps = stream.origin
        name = self._names.get(origin.identity)
        if name is None:
            name = self._names[origin.identity] = self.name_of(origin)
        return Feed(name, steps)


def _plan_step(step: RowStep) -> PlanStep:
    if step.tree is not None:
        return step.tree
    after = {now: before for before, now in step.kept.items()}
    names = step.relation.schema.names
    if step.is_selection and set(names) <= set(after):
        return SelectStep(tuple((name, column(after[name])) for name in names))
    digest = hashlib.blake2b(json.dumps(step.description).encode(), digest_size=16).hexdigest()
    return OpaqueStep(step.title, digest, "it was written for Spark", step.relation)
