"""Stages of a query for the tools: in the order of an epoch, with their feeds.

The law: these stages are those that an epoch runs, so nothing that a tool finds depends on how the query was written or
planned. A union is no stage: several stages feed one input, or the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from zset_join.core.relation import Relation
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.spark.planning.stages import PlannedStage, Stream
from zset_join.stages import Stage

__all__ = ["Placed", "ends_of", "forwards_rows", "visible_columns_of"]

_FORWARDING = frozenset({"latest", "route", "unchanged"})


class Placed(Protocol):
    """A query whose stages are placed."""

    @property
    def output(self) -> Relation: ...

    @property
    def planned_stages(self) -> tuple[PlannedStage, ...]:
        """Return the stages in the order of an epoch."""
        ...

    @property
    def query_plan(self) -> QueryPlan:
        """Return the plan that does not depend on Spark; its stages have the numbers of the placed ones."""
        ...

    @property
    def session(self) -> SparkSession: ...


def ends_of(planned_stages: Sequence[PlannedStage]) -> list[PlannedStage]:
    """Return the stages whose rows are the output."""
    return [one for one in planned_stages if one.target is None]


def forwards_rows(stage: Stage) -> bool:
    """Return whether the answer of a stage is the table of its input, which is the only one."""
    return stage.kind in _FORWARDING


def visible_columns_of(stream: Stream) -> list[str]:
    return [name for name in stream.schema.names if name not in stream.hidden]
