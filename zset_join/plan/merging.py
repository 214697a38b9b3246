"""One more view for a plan that runs, one less, or one alone: stages stay what they are, and so keep their state.

    merged, places = merged_plan(running, added)      the stages of `running` first, as they are; those of `added` behind them
    left, places = plan_without(merged, "by_day")     the stages that serve no other view are gone

The law: a merged plan answers each view as the plan it came from. A stage of the added plan is one of the running plan where
both have one fingerprint (`zset_join.plan.fingerprints`), and its answer follows from its rows alone (`follows_from_rows` of a
stage) or no row has come to it: what the running stage has answered so far is then what the added one has answered over the
same tables. All other stages of the added plan are stages of their own, and so are joins that look up in one table of a plan.

Cost: the stages of both plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from zset_join.plan.fingerprints import Fingerprints
from zset_join.plan.query_plan import Feed, QueryPlan, SharedIndex, StageNode
from zset_join.plan.row_steps import OpaqueStep

__all__ = ["are_mergeable", "merged_plan", "one_view", "plan_without"]


def are_mergeable(plan: QueryPlan, added: QueryPlan) -> bool:
    """Return whether two plans keep the same of what both describe alike, and name their views differently."""
    known = {source.name: source for source in plan.sources}
    is_alike = all(known.get(source.name, source) == source for source in added.sources)
    is_kept_alike = plan.keep_state == added.keep_state
    return is_alike and is_kept_alike and not {view.name for view in plan.views} & {view.name for view in added.views}


def merged_plan(plan: QueryPlan, added: QueryPlan, *, untouched: Collection[str] = ()) -> tuple[QueryPlan, Mapping[int, int]]:
    """Return a plan with the views of two, and where the stages of the second one are in it."""
    nodes = list(plan.nodes)
    known: dict[str, int] = {}
    prints, those_added = Fingerprints(plan).nodes, Fingerprints(added).nodes
    settled: dict[str | int, bool] = {source.name: source.name in untouched for source in plan.sources}
    for node in plan.nodes:
        if _is_settled(node, settled):
            known.setdefault(prints[node.number], node.number)
    for number in (number for index in plan.shared for number in index.readers):
        known = {identity: one for identity, one in known.items() if one != number}
    apart = {number for index in added.shared for number in index.readers}
    places: dict[int, int] = {}
    for node in added.nodes:
        feeds = tuple(_moved(given, places) for given in node.feeds)
        place = None if node.number in apart else known.get(those_added[node.number])
        if place is None or _origins(nodes[place].feeds) != _origins(feeds):
            place = len(nodes)
            nodes.append(replace(node, number=place, feeds=feeds))
        places[node.number] = place
    names = {source.name for source in plan.sources}
    shared = [_index(index, places) for index in added.shared]
    merged = QueryPlan(
        sources=(*plan.sources, *(source for source in added.sources if source.name not in names)),
        nodes=tuple(nodes),
        views=(*plan.views, *(replace(view, feeds=_moved(view.feeds, places)) for view in added.views)),
        shared=(*plan.shared, *shared),
        copies=(*plan.copies, *((places[number], why) for number, why in added.copies)),
        keep_state=plan.keep_state,
    )
    return merged, places


def plan_without(plan: QueryPlan, name: str) -> tuple[QueryPlan, Mapping[int, int]]:
    """Return a plan without one of its views, and the new number of every stage that is left."""
    gone = plan.view(name)
    views = [view for view in plan.views if view is not gone]
    left = sorted({number for view in views for number in plan.stages_of(view.name)})
    places = {number: place for place, number in enumerate(left)}
    nodes = [
        replace(plan.nodes[number], number=place, feeds=tuple(_moved(given, places) for given in plan.nodes[number].feeds))
        for number, place in places.items()
    ]
    feeds = [feed for node in nodes for given in node.feeds for feed in given]
    read = {feed.origin for feed in (*feeds, *(feed for view in views for feed in view.feeds))}
    # The joins that look up in one table wait for time, so they are of one view, and stay or go together.
    shared = [_index(index, places) for index in plan.shared if set(index.readers) <= places.keys()]
    return (
        QueryPlan(
            sources=tuple(source for source in plan.sources if source.name in read),
            nodes=tuple(nodes),
            views=tuple(replace(view, feeds=_moved(view.feeds, places)) for view in views),
            shared=tuple(shared),
            copies=tuple((places[number], why) for number, why in plan.copies if number in places),
            keep_state=plan.keep_state,
        ),
        places,
    )


def _is_settled(node: StageNode, settled: dict[str | int, bool]) -> bool:
    """Return whether the answers of a stage follow from the rows of its sources alone."""
    feeds = [feed for given in node.feeds for feed in given]
    if any(feed.origin not in settled or any(isinstance(step, OpaqueStep) for step in feed.steps) for feed in feeds):
        return False
    is_empty = all(settled[feed.origin] for feed in feeds)
    if is_empty or node.stage.follows_from_rows:
        settled[node.number] = is_empty
        return True
    return False


def _origins(feeds: Sequence[Sequence[Feed]]) -> list[list[str | int]]:
    return [[feed.origin for feed in given] for given in feeds]


def _moved(feeds: Iterable[Feed], places: Mapping[int, int]) -> tuple[Feed, ...]:
    return tuple(feed if isinstance(feed.origin, str) else replace(feed, origin=places[feed.origin]) for feed in feeds)


def _index(index: SharedIndex, places: Mapping[int, int]) -> SharedIndex:
    return replace(index, readers=tuple(places[number] for number in index.readers))


def one_view(plan: QueryPlan, name: str | None = None) -> QueryPlan:
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
