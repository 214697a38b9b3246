"""A plan in several buckets: its stages, and beside them what brings rows to the bucket where they belong.

A *route* leads to an input whose upserts are named by a key that does not divide the stage: a stage finds the old row of a key
only if it lies where the new one goes. What leaves a route is in order already. A view, and a union with answers of stages, are
fed by stages alone, so rows of sources are passed on by one. Groups over answers of stages are fed sums where that is the same.

The law: the answers are those of the plan, and every stage of the plan has one here, so their states are pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, QueryPlan, SharedIndex, StageNode
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.request import shown_only
from zset_join.stages.stage import Stage, StageInput
from zset_join.stages.unchanged import RouteStage, UnchangedStage

__all__ = ["SpreadPlan", "spread"]


@dataclass(frozen=True, kw_only=True)
class SpreadPlan:
    """A plan in several buckets, and where the stages of the plan before are in it."""

    plan: QueryPlan
    numbers: tuple[int, ...]  # by the number of a stage before
    routes: Mapping[tuple[int, int], int]  # by the number of a stage before, and its input


def spread(plan: QueryPlan) -> SpreadPlan:
    return _Spreading(plan).done()


class _Spreading:
    def __init__(self, plan: QueryPlan) -> None:
        self._before = plan
        self._nodes: list[StageNode] = []
        self._numbers: list[int] = []
        self._routes: dict[tuple[int, int], int] = {}
        self._added: dict[Hashable, int] = {}

    def done(self) -> SpreadPlan:
        for node in self._before.nodes:
            fed = tuple(self._fed(node, side, feeds) for side, feeds in enumerate(node.feeds))
            stage = self._stage(node, fed)
            self._numbers.append(len(self._nodes))
            self._nodes.append(replace(node, number=len(self._nodes), stage=stage, feeds=fed))
        views = tuple(replace(view, feeds=self._passed_on(self._moved(view.feeds))) for view in self._before.views)
        plan = replace(
            self._before,
            nodes=tuple(self._nodes),
            views=views,
            shared=tuple(self._index(one) for one in self._before.shared),
            copies=tuple((self._numbers[number], why) for number, why in self._before.copies),
        )
        return SpreadPlan(plan=plan, numbers=tuple(self._numbers), routes=self._routes)

    def _index(self, index: SharedIndex) -> SharedIndex:
        return replace(index, readers=tuple(self._numbers[number] for number in index.readers))

    def _moved(self, feeds: Sequence[Feed]) -> tuple[Feed, ...]:
        return tuple(one if isinstance(one.origin, str) else replace(one, origin=self._numbers[one.origin]) for one in feeds)

    def _fed(self, node: StageNode, side: int, feeds: Sequence[Feed]) -> tuple[Feed, ...]:
        given, moved = node.stage.inputs[side], self._moved(feeds)
        if given.moves:
            self._routes[node.number, side] = number = self._route(moved, given)
            return (Feed(number),)
        is_mixed = len({isinstance(one.origin, str) for one in moved}) > 1
        return self._passed_on(moved) if is_mixed else moved

    def _stage(self, node: StageNode, fed: Sequence[Sequence[Feed]]) -> Stage:
        stage = node.stage
        for side, given in enumerate(stage.inputs):
            if given.moves:
                stage = stage.with_input(side, sequence_by=())
        is_derived = isinstance(stage, AggregateStage) and any(isinstance(one.origin, int) for one in fed[0])
        return replace(stage, reduces=True) if isinstance(stage, AggregateStage) and is_derived else stage

    def _route(self, feeds: tuple[Feed, ...], given: StageInput) -> int:
        def made() -> Stage:
            return RouteStage(source=replace(given.relation, join_key=given.key))

        return self._once(("route", feeds, given.key), feeds, made)

    def _passed_on(self, feeds: tuple[Feed, ...]) -> tuple[Feed, ...]:
        """Return feeds of stages alone: the rows of each source are passed on by one."""
        return tuple(one if isinstance(one.origin, int) else Feed(self._unchanged(one)) for one in feeds)

    def _unchanged(self, feed: Feed) -> int:
        def made() -> Stage:
            hidden = self._before.source(str(feed.origin)).hidden
            rows: Relation = replace(self._before.relation_after(feed), join_key=())
            return UnchangedStage(source=shown_only(rows, hidden))

        return self._once(("unchanged", feed), (feed,), made)

    def _once(self, key: Hashable, feeds: tuple[Feed, ...], stage: Callable[[], Stage]) -> int:
        if key not in self._added:
            self._added[key] = len(self._nodes)
            self._nodes.append(StageNode(len(self._nodes), stage(), (feeds,)))
        return self._added[key]
