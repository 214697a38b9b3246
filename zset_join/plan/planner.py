"""From a query as it was written to its plan: an ordered tuple of small passes, done once per query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import get_args

from zset_join.core.errors import OptionError
from zset_join.core.frames import own_frames
from zset_join.core.options import KeepState
from zset_join.plan.passes.do_less import choose_fast_paths, fuse_steps, push_columns
from zset_join.plan.passes.prepare_inputs import (
    count_rows,
    derive_keys,
    insert_routes,
    normalise_upserts,
    pass_on_sources,
    reduce_first,
)
from zset_join.plan.passes.prune_columns import prune_columns
from zset_join.plan.passes.share_nodes import share_equal, share_versions, store_once
from zset_join.plan.passes.sum_pairs import sum_pairs
from zset_join.plan.query_plan import Feed, PlanSource, PlanView, QueryPlan, StageNode
from zset_join.plan.sharing import share_tables
from zset_join.plan.tree import Apply, Merge, Node, Operate, Read, Root, Views

__all__ = ["number_stages", "passes", "plan_query"]


def passes(
    *, buckets: int | None = 1, is_spread: bool = False, keep_state: KeepState = "all"
) -> tuple[Callable[[Root], Root], ...]:
    """Return the passes over a tree, in order, before its stages are numbered."""
    summing, pruning = ((sum_pairs,), (prune_columns,)) if keep_state == "needed" else ((), ())
    spread = (pass_on_sources, reduce_first) if is_spread else ()
    return (
        *summing,
        share_versions,
        normalise_upserts,
        store_once,
        count_rows,
        derive_keys,
        partial(insert_routes, buckets=buckets),
        choose_fast_paths,
        fuse_steps,
        share_equal,
        *pruning,
        push_columns,
        *spread,
    )


def plan_query(
    root: Root,
    *,
    name: str = "view",
    buckets: int | None = 1,
    is_spread: bool = False,
    same: Mapping[str, str] | None = None,
    keep_state: KeepState = "all",
) -> QueryPlan:
    if keep_state not in get_args(KeepState):
        raise OptionError(
            f'keep_state={keep_state!r} is not one of {list(get_args(KeepState))}; "needed" leaves out the columns of '
            'sources that nothing reads, "all" keeps them.',
            code="OPTION_VALUE",
            value=keep_state,
        )
    with own_frames():
        for run in passes(buckets=buckets, is_spread=is_spread, keep_state=keep_state):
            root = run(root)
        return replace(share_tables(number_stages(root, name), same), keep_state=keep_state)


def number_stages(root: Root, name: str) -> QueryPlan:
    sources: dict[int, PlanSource] = {}
    nodes: list[StageNode] = []
    numbers: dict[int, int] = {}

    def feeds(node: Node) -> tuple[Feed, ...]:
        match node:
            case Read(source):
                sources[id(source)] = source
                return (Feed(source.name),)
            case Apply(child, step):
                return tuple(replace(feed, steps=(*feed.steps, step)) for feed in feeds(child))
            case Merge(parts):
                return tuple(feed for part in parts for feed in feeds(part))
            case Operate():
                return (Feed(placed(node)),)

    def placed(node: Operate) -> int:
        if id(node) not in numbers:
            fed = tuple(map(feeds, node.inputs))
            numbers[id(node)] = len(nodes)
            nodes.append(StageNode(len(nodes), node.stage, fed, node.own, node.since))
        return numbers[id(node)]

    named = zip(root.names, root.parts, strict=True) if isinstance(root, Views) else ((name, root),)
    views = tuple(PlanView(one, feeds(part)) for one, part in named)
    return QueryPlan(tuple(sources.values()), tuple(nodes), views)
