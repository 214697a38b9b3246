"""One view of a plan that has several, as a plan of its own: for tools that read that view alone.

The law: its stages are those the view is made of, in the order they have in the whole plan, so what is known per stage of the
whole plan is known of them, by `QueryPlan.stages_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zset_join.plan.query_plan import Feed, QueryPlan, SharedIndex

__all__ = ["one_view"]


def one_view(plan: QueryPlan, name: str | None = None) -> QueryPlan:
    """Return the plan of one view."""
    view = plan.view(name)
    if len(plan.views) == 1:
        return plan
    stages = plan.stages_of(view.name)
    numbers = {number: at for at, number in enumerate(stages)}

    def renumbered(feeds: Iterable[Feed]) -> tuple[Feed, ...]:
        return tuple(feed if isinstance(feed.origin, str) else replace(feed, origin=numbers[feed.origin]) for feed in feeds)

    nodes = tuple(
        replace(plan.nodes[number], number=at, feeds=tuple(map(renumbered, plan.nodes[number].feeds)))
        for number, at in numbers.items()
    )
    read = {feed.origin for node in nodes for feeds in node.feeds for feed in feeds} | {feed.origin for feed in view.feeds}
    shared = (replace(index, readers=tuple(numbers[one] for one in index.readers if one in numbers)) for index in plan.shared)
    return QueryPlan(
        sources=tuple(source for source in plan.sources if source.name in read),
        nodes=nodes,
        views=(replace(view, feeds=renumbered(view.feeds)),),
        shared=tuple(filter(_has_several_readers, shared)),
        copies=tuple((numbers[number], why) for number, why in plan.copies if number in numbers),
        keep_state=plan.keep_state,
    )


def _has_several_readers(index: SharedIndex) -> bool:
    return len(index.readers) > 1
