"""The plan of a Spark query as the `QueryPlan` that every runner has: what its checkpoint keeps, for tools without its program.

The law: its stages are those that the query runs, in the order of an epoch, and so are its feeds. What a tree expresses is a
tree: what SQL says of rows, and selections of plain columns. Anything else that was written for Spark (text, a Column, a
function of the user's) is an opaque step: it can be shown and told apart, not run in process.

Limits: what was done to a stream before it became changes belongs to its DataFrame, and is not in the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zset_join.expressions.rows import named as column
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, StageNode
from zset_join.plan.row_steps import OpaqueStep, SelectStep
from zset_join.plan.row_steps import RowStep as PlanStep
from zset_join.spark.planning.row_steps import RowStep
from zset_join.spark.planning.stages import PlannedStage, Stream

__all__ = ["query_plan_of", "written_plan"]


def query_plan_of(planned_stages: Sequence[PlannedStage], name: str) -> QueryPlan:
    """Return the plan of a query.

    Args:
        planned_stages: in the order of an epoch.
        name: of the view.
    """
    sources = _Sources()
    steps = [tuple(map(_plan_step, one.steps)) for one in planned_stages]
    nodes = []
    for one in planned_stages:
        fed: list[tuple[Feed, ...]] = []
        for side in range(len(one.stage.inputs)):
            if side in one.streams:
                fed.append((Feed(sources.name_of(one.streams[side])),))
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
                "name": one.name,
                "target": None if one.target is None else names[one.target],
                "side": one.side,
                "stage": one.stage.to_json(),
            }
            for one in planned_stages
        ],
        "plan": query_plan_of(planned_stages, name).to_json(),
    }


class _Sources:
    """Collect the streams; one that is read twice is one source, another one of its name gets a number."""

    def __init__(self) -> None:
        self.by_name: dict[str, PlanSource] = {}

    def name_of(self, stream: Stream) -> str:
        """Return what the source of a stream is called."""
        source = PlanSource(relation=stream.relation(()), hidden=stream.hidden, has_baseline=stream.baseline is not None)
        number = 1
        while self.by_name.setdefault(source.name, source) != source:
            number += 1
            source = replace(source, relation=replace(source.relation, name=f"{stream.name}_{number}"))
        return source.name


def _plan_step(step: RowStep) -> PlanStep:
    if step.tree is not None:
        return step.tree
    after = {now: before for before, now in step.kept.items()}
    names = step.relation.schema.names
    if step.is_selection and set(names) <= set(after):
        return SelectStep(tuple((name, column(after[name])) for name in names))
    digest = hashlib.blake2b(json.dumps(step.description).encode(), digest_size=16).hexdigest()
    return OpaqueStep(step.title, digest, "it was written for Spark", step.relation)
