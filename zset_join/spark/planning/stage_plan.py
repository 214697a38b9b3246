"""The plan of a view that is the answer of a stage: what any stage becomes part of a query by, whatever it computes.

A join has a plan of its own, for what is asked of it besides (`join_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pyspark.sql import SparkSession

from zset_join.relation import Relation
from zset_join.spark.planning.row_steps import RowStep, row_step
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import PlannedStage, Step, shifted
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.stages import Stage
from zset_join.stages.effect import unchangeable

__all__ = ["StagePlan", "planned_stages_of"]


@dataclass(frozen=True, kw_only=True)
class StagePlan(ViewPlan):
    """The answer of a stage, and what is done with its rows.

    Args:
        sources: the streams and plans of views that it is fed, one per input.
        stage: what it computes.
        routes: per input that is a stream, the stage that its changes go through first; None where they do not.
    """

    sources: tuple[SourceStream | ViewPlan, ...]
    stage: Stage = field(repr=False)
    routes: tuple[Stage | None, ...] = field(repr=False)

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.sources[0].session

    @property
    def inputs(self) -> tuple[SourceStream | ViewPlan, ...]:
        """Return what the stage is fed."""
        return self.sources

    @property
    def stage_before_steps(self) -> Stage:
        """Return the stage."""
        return self.stage

    @property
    def before_steps(self) -> Relation:
        """Return the answer of the stage."""
        return self.stage.output

    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = {"stage": self.stage.kind, "is": unchangeable(self.stage)}
        described["inputs"] = [
            {"view": source.fingerprint()} if isinstance(source, ViewPlan) else _described_stream(source)
            for source in self.sources
        ]
        return described

    def _explained(self, buckets: int | None) -> list[str]:
        lines = self.stage.explain(buckets)
        for at, source in enumerate(self.sources):
            is_last = at == len(self.sources) - 1
            route = self.routes[at]
            inner = source.explanation(buckets=buckets).splitlines() if isinstance(source, ViewPlan) else [source.explained()]
            before = [] if route is None else route.explain(buckets)
            first, *rest = [*before, *(f"└─ {line}" if before else line for line in inner)]
            lines += [f"{'└─ ' if is_last else '├─ '}{first}", *(f"{'   ' if is_last else '│  '}{line}" for line in rest)]
        return lines

    def then(self, step: Step) -> Self:
        """Return the view with one more step; a selection lets a lookup join ask for no more than is read."""
        if not isinstance(step, RowStep) or not _selects(self.output, step):
            return super().then(step)
        before = [one for one in self.steps if isinstance(one, RowStep) and not _selects(self.before_steps, one)]
        fewer = self.stage.reading(step.reads.union(*(one.reads for one in before)))
        if len(before) < len(self.steps) or fewer is self.stage:
            return super().then(step)
        plan = replace(self, stage=fewer, steps=())
        for one in before:
            plan = super(StagePlan, plan).then(row_step(self.session, plan.output, one.title, one.transform))
        return super(StagePlan, plan).then(row_step(self.session, plan.output, step.title, step.transform))

    def _source_stages(self) -> list[PlannedStage]:
        return planned_stages_of(self.sources, self.stage, self.routes)


def _selects(before: Relation, step: RowStep) -> bool:
    """Say whether a step leaves columns out, so that what is read of the rows before it is known."""
    return not set(before.schema.names) <= set(step.kept)


def _described_stream(stream: SourceStream) -> dict[str, Any]:
    described: dict[str, Any] = {"name": stream.name, "operation": list(stream.operation)}
    return {**described, **({"baseline": True} if stream.baseline is not None else {})}


def planned_stages_of(
    sources: Sequence[SourceStream | ViewPlan], stage: Stage, routes: Sequence[Stage | None]
) -> list[PlannedStage]:
    """Return the planned stages of a stage and of what it is fed, numbered from 0.

    Args:
        sources: what it is fed, one per input.
        stage: what it computes; it is the last one.
        routes: per input that is a stream, what its changes go through first.
    """
    before: list[PlannedStage] = []
    ends: list[tuple[int, int]] = []
    streams: dict[int, SourceStream] = {}
    for side, (source, route) in enumerate(zip(sources, routes, strict=True)):
        if isinstance(source, ViewPlan):
            stages_before = shifted(source.unnamed_stages, len(before))
        elif route is not None:
            stages_before = [PlannedStage(number=len(before), stage=route, streams={0: source})]
        else:
            streams[side] = source
            continue
        ends += [(one.number, side) for one in stages_before if one.target is None]
        before += stages_before
    number = len(before)
    for at, side in ends:
        before[at] = replace(before[at], target=number, side=side)
    return [*before, PlannedStage(number=number, stage=stage, streams=streams)]
