"""The plan of a view that is the union of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from zset_join.relation import Relation
from zset_join.spark.planning.stages import PlannedStage, shifted
from zset_join.spark.planning.view_plan import ViewPlan

__all__ = ["UnionPlan"]


@dataclass(frozen=True, kw_only=True)
class UnionPlan(ViewPlan):
    """The rows of several views, and what is done with them.

    Args:
        branches: the views, with the same columns.
    """

    branches: tuple[ViewPlan, ...] = field(default=())

    @property
    def session(self) -> SparkSession:
        """Return the session of the streams."""
        return self.branches[0].session

    @property
    def inputs(self) -> tuple[ViewPlan, ...]:
        """Return the branches."""
        return self.branches

    @cached_property
    def before_steps(self) -> Relation:
        """Return the columns of the branches; no key, for two of them may hold one row."""
        name = "_and_".join(branch.name for branch in self.branches)
        return Relation(name=name, schema=self.branches[0].output.schema, mode="changelog")

    def _described(self) -> dict[str, Any]:
        return {"union": [branch.fingerprint() for branch in self.branches]}

    def _explained(self, buckets: int | None) -> list[str]:
        lines = ["Union"]
        for at, branch in enumerate(self.branches):
            is_last = at == len(self.branches) - 1
            first, *rest = branch.explanation(buckets=buckets).splitlines()
            lines += [f"{'└─ ' if is_last else '├─ '}{first}", *(f"{'   ' if is_last else '│  '}{line}" for line in rest)]
        return lines

    def _source_stages(self) -> list[PlannedStage]:
        stages: list[PlannedStage] = []
        for branch in self.branches:
            stages += shifted(branch.unnamed_stages, len(stages))
        return stages
