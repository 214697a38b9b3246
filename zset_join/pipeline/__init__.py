"""The front door of queries in process: the words of `zset_join.query`, and `Pipeline`, which runs them.

`import zset_join.pipeline` needs neither Spark nor Java, and no database.
"""

from __future__ import annotations

from zset_join.connectors import sink
from zset_join.pipeline import functions
from zset_join.pipeline.pipeline import Pipeline
from zset_join.query import PROCESSING_TIME, Aggregated, GroupedView, StateTtl, View, appends, changes, versioned

__all__ = [
    "PROCESSING_TIME",
    "Aggregated",
    "GroupedView",
    "Pipeline",
    "StateTtl",
    "View",
    "appends",
    "changes",
    "functions",
    "sink",
    "versioned",
]
