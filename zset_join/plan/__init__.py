"""What a query will do, as frozen descriptions without Spark: printed, checked and written down before anything runs.

`joins` describes the join of two inputs and its sources, as the Spark runner reads it.
"""

from __future__ import annotations

from zset_join.plan.joins import InputNode, JoinNode, RouteNode, SideNode, ViewNode, explain, needs_route
from zset_join.stages.written import read_schema, write_schema

__all__ = [
    "InputNode",
    "JoinNode",
    "RouteNode",
    "SideNode",
    "ViewNode",
    "explain",
    "needs_route",
    "read_schema",
    "write_schema",
]
