"""Stages of a query that run in one task of a bucket: what `zset_join.plan.passes.fuse_stages` found, as placed stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zset_join.plan.passes.fuse_stages import Fusing, fuse_stages, fused_together
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.spark.planning.normalise import hashed_name
from zset_join.runners.spark.planning.stages import PlannedStage

__all__ = ["FusedStages", "fused_stages_of", "fusings_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedStages:
    """Stages that run in one task of a bucket."""

    members: tuple[PlannedStage, ...]

    @property
    def last(self) -> PlannedStage:
        """Return the member whose rows leave."""
        return self.members[-1]

    @property
    def functions(self) -> tuple[tuple[PlannedStage, ...], ...]:
        """Return the members by Python function: expressions of Spark are between one and the next."""
        behind: dict[int | None, int] = {self.last.number: 0}
        for one in reversed(self.members[:-1]):
            behind[one.number] = behind[one.target] + bool(one.steps)
        return tuple(
            tuple(one for one in self.members if behind[one.number] == at) for at in sorted(set(behind.values()), reverse=True)
        )

    @property
    def fed(self) -> tuple[int, ...]:
        """Return the numbers of its stages that streams feed."""
        return tuple(one.number for one in self.members if one.streams)


def fusings_of(plan: QueryPlan) -> tuple[Fusing, ...]:
    """Return, for every input of a stage that earlier stages make, whether it is fused, with keys hashed as Spark does."""
    return fuse_stages(plan, hashed=hashed_name)


def fused_stages_of(
    plan: QueryPlan, planned_stages: Sequence[PlannedStage], fusings: Sequence[Fusing]
) -> tuple[FusedStages, ...]:
    """Return the stages of a query, those together that are fused, in the order of an epoch."""
    groups = fused_together(plan, fusings)
    return tuple(FusedStages(members=tuple(planned_stages[number] for number in numbers)) for numbers in groups)
