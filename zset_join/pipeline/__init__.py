"""The runner in process: the fluent API over relations that need no DataFrame, and `Pipeline`, which runs it.

`import zset_join.pipeline` needs neither Spark nor Java, and no database.
"""

from __future__ import annotations

from zset_join.pipeline import functions
from zset_join.pipeline.grouping import Aggregated, GroupedView
from zset_join.pipeline.looking_up import PROCESSING_TIME
from zset_join.pipeline.pipeline import Pipeline
from zset_join.pipeline.sources import appends, changes, versioned
from zset_join.pipeline.view import View
from zset_join.stages.expiring import StateTtl

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
    "versioned",
]
