"""The plan of a view that is a join."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from zset_join.plan import JoinNode, RouteNode, explain
from zset_join.relation import Relation
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import planned_stages_of
from zset_join.spark.planning.stages import PlannedStage
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.stages import Stage

__all__ = ["JoinPlan"]


@dataclass(frozen=True, kw_only=True)
class JoinPlan(ViewPlan):
    """A join, and what is done with its rows.

    Args:
        left: the left stream, or the plan of a view.
        right: the right stream, or the plan of a view.
        node: the checked description of the join.
    """

    left: SourceStream | ViewPlan
    right: SourceStream | ViewPlan
    node: JoinNode = field(repr=False)

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.left.session

    @property
    def inputs(self) -> tuple[SourceStream | ViewPlan, SourceStream | ViewPlan]:
        """Return both sides."""
        return self.left, self.right

    @property
    def stage_before_steps(self) -> Stage:
        """Return the join as a stage."""
        return self.node.stage

    @cached_property
    def before_steps(self) -> Relation:
        """Return the columns of the join itself, without those that only order the inputs."""
        return self.node.stage.output

    @cached_property
    def joins(self) -> tuple[ViewPlan, ...]:
        """Return the joins that this one is made of, in the order of an epoch, and this one last."""
        return (*super().joins, self)

    def _described(self) -> dict[str, Any]:
        described = self.node.fingerprint()
        for side, source in zip(("left", "right"), self.inputs, strict=True):
            if isinstance(source, ViewPlan):
                described[side] = {**described[side], "view": source.fingerprint()}
            elif source.operation:
                described[side] = {**described[side], "operation": list(source.operation)}
        return described

    def _explained(self, buckets: int | None) -> list[str]:
        views = {
            side: source.explanation(buckets=buckets).splitlines()
            for side, source in enumerate(self.inputs)
            if isinstance(source, ViewPlan)
        }
        of_views = [side for side, source in enumerate(self.inputs) if isinstance(source, ViewPlan)]
        fusings = {one.side: one for one in self.fusings if one.target == self.number_before_steps and one.side in of_views}
        return explain(
            self.node,
            buckets=buckets,
            views=views,
            fusings={side: one.line(self.inputs[side].name) for side, one in fusings.items()},
            fused=[side for side, one in fusings.items() if one.why_not is None],
        ).splitlines()

    def _source_stages(self) -> list[PlannedStage]:
        # `SideNode` is a closed union: a side has a route, or it has none.
        routes = [side.stage if isinstance(side, RouteNode) else None for side in self.node.sides]
        return planned_stages_of(self.inputs, self.node.stage, routes)
