"""A query of Spark's as the driver runs it: one plan over sources that Spark collects.

The law: the plan is the one that a pipeline in process has, with one bucket. It does not depend on Spark and can be pickled;
the streams beside it stay where the query is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from zset_join.changelog import format_named
from zset_join.core.options import KeepState
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.tree import Views
from zset_join.query.reading import Reading
from zset_join.query.several import PlannedQuery
from zset_join.runners.spark.driver.collected import CollectedLayout, collected_layout
from zset_join.runners.spark.planning.lowering import LoweredTree
from zset_join.runners.spark.planning.source_stream import SourceStream

__all__ = ["DriverQuery", "collected_query", "driver_query"]


@dataclass(frozen=True, kw_only=True)
class DriverQuery:
    """A query as the driver runs it."""

    plan: QueryPlan
    streams: Mapping[str, SourceStream] = field(repr=False)
    has_several: bool = False

    @property
    def session(self) -> SparkSession:
        return next(iter(self.streams.values())).session

    @property
    def layout(self) -> CollectedLayout:
        return collected_layout(self.streams)

    @property
    def baseline_layout(self) -> CollectedLayout:
        """Return how the rows of their baselines are collected."""
        return collected_layout(self.streams, baselines=True)

    def in_order(self, names: Sequence[str]) -> DriverQuery:
        """Return it with the streams of some names first, in their order; others follow as they are."""
        known = [name for name in names if name in self.streams]
        return replace(self, streams={name: self.streams[name] for name in dict.fromkeys([*known, *self.streams])})

    @property
    def planned(self) -> PlannedQuery:
        inputs = [{"name": one.name, "operation": list(one.operation)} for one in self.streams.values()]
        return collected_query(self.plan, inputs, has_several=self.has_several)


def collected_query(plan: QueryPlan, inputs: Sequence[Mapping[str, Any]], *, has_several: bool) -> PlannedQuery:
    """Return the query of a pipeline whose rows Spark collects."""
    given = format_named("weight")
    readings = {
        source.name: Reading(source=source, given=source.relation.schema, changelog_format=given) for source in plan.sources
    }
    return PlannedQuery(plan=plan, readings=readings, has_several=has_several, inputs=tuple(inputs))


def driver_query(tree: LoweredTree, *, name: str, keep_state: KeepState = "all") -> DriverQuery:
    plan = tree.planned(name=name, keep_state=keep_state)
    used = {source.name: tree.streams[source.name] for source in plan.sources}
    return DriverQuery(plan=plan, streams=used, has_several=isinstance(tree.root, Views))
