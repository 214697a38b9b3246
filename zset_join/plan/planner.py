"""From a query as it was written to its plan: an ordered tuple of small passes, done once per query."""

from __future__ import annotations

from collections.abc import Callable

from zset_join.plan.passes.derive_keys import derive_keys
from zset_join.plan.passes.fuse_steps import fuse_steps
from zset_join.plan.passes.number_stages import number_stages
from zset_join.plan.passes.settle_upserts import settle_upserts
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.tree import Node

__all__ = ["PASSES", "plan_query"]

PASSES: tuple[Callable[[Node], Node], ...] = (settle_upserts, derive_keys, fuse_steps)
"""What is done to a tree, in this order, before its stages are numbered."""


def plan_query(root: Node, *, name: str = "view") -> QueryPlan:
    """Return the plan of a query.

    Args:
        root: the query as it was written.
        name: what the view is called.

    Raises:
        PlanError: it cannot be planned.
        OptionError: two sources share a name.
    """
    for run in PASSES:
        root = run(root)
    return number_stages(root, name)
