"""From a query as it was written to its plan: an ordered tuple of small passes, done once per query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import get_args

from zset_join.core.errors import OptionError
from zset_join.core.frames import own_frames
from zset_join.core.options import KeepState
from zset_join.plan.passes.choose_fast_paths import choose_fast_paths
from zset_join.plan.passes.count_rows import count_rows
from zset_join.plan.passes.derive_keys import derive_keys
from zset_join.plan.passes.fuse_steps import fuse_steps
from zset_join.plan.passes.insert_routes import insert_routes
from zset_join.plan.passes.normalise_upserts import normalise_upserts
from zset_join.plan.passes.number_stages import number_stages
from zset_join.plan.passes.one_reader import one_reader
from zset_join.plan.passes.pass_on_sources import pass_on_sources
from zset_join.plan.passes.prune_columns import prune_columns
from zset_join.plan.passes.push_columns import push_columns
from zset_join.plan.passes.reduce_first import reduce_first
from zset_join.plan.passes.share_equal import share_equal
from zset_join.plan.passes.share_versions import share_versions
from zset_join.plan.passes.store_once import store_once
from zset_join.plan.passes.sum_pairs import sum_pairs
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.sharing import share_tables
from zset_join.plan.tree import Root

__all__ = ["passes", "plan_query"]


def passes(
    *, buckets: int | None = 1, is_spread: bool = False, keep_state: KeepState = "all", whole: Collection[str] = ()
) -> tuple[Callable[[Root], Root], ...]:
    """Return the passes over a tree, in order, before its stages are numbered."""
    summing, pruning = ((sum_pairs,), (prune_columns,)) if keep_state == "needed" else ((), ())
    once, spread = ((), (pass_on_sources, reduce_first, one_reader)) if is_spread else ((partial(store_once, whole=whole),), ())
    return (
        *summing,
        share_versions,
        normalise_upserts,
        *once,
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
    whole: Collection[str] = (),
) -> QueryPlan:
    """Return the plan of a query."""
    if keep_state not in get_args(KeepState):
        raise OptionError(
            f'keep_state={keep_state!r} is not one of {list(get_args(KeepState))}; "needed" leaves out the columns of '
            'sources that nothing reads, "all" keeps them.',
            code="OPTION_VALUE",
            value=keep_state,
        )
    with own_frames():
        for run in passes(buckets=buckets, is_spread=is_spread, keep_state=keep_state, whole=whole):
            root = run(root)
        return replace(share_tables(number_stages(root, name), same), keep_state=keep_state)
