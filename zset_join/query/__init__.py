"""The words of a query: sources, and the views made of them; what a query computes, not how it runs.

A view is an immutable tree of `zset_join.plan.tree` over named sources. What the sources are fed with is beside the tree, as
`View.bindings`. The package imports no runner, and nothing of operators and their state.
"""

from __future__ import annotations

from zset_join.query import functions
from zset_join.query.grouping import Aggregated, GroupedView
from zset_join.query.joining import PROCESSING_TIME
from zset_join.query.sources import appends, changes, versioned
from zset_join.query.view import View
from zset_join.stages.expiring import StateTtl

__all__ = [
    "PROCESSING_TIME",
    "Aggregated",
    "GroupedView",
    "StateTtl",
    "View",
    "appends",
    "changes",
    "functions",
    "versioned",
]
