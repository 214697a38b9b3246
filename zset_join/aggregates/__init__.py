"""Aggregates that stay right when rows go: what a group remembers, and how its columns are read from it.

`calls` defines what can be computed and in which type; `accumulators` and `multisets` hold what a group remembers; `results`
turns that into columns; `group_state` keeps the groups; `grouped_input` puts them together for the operators.
"""

from __future__ import annotations

from zset_join.shapes.aggregate import FUNCTIONS, AggregateCall

__all__ = ["FUNCTIONS", "AggregateCall"]
