"""The front door of queries in process: the words of `zset_join.query`, and `Pipeline`, which runs them.

`import zset_join.pipeline` needs neither Spark nor Java, and no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zset_join.connectors import sink
from zset_join.pipeline import functions
from zset_join.query import PROCESSING_TIME, Aggregated, GroupedView, StateTtl, View, appends, changes, versioned
from zset_join.runners.local.pipeline import Pipeline

if TYPE_CHECKING:
    from zset_join.query.records import Baseline, records
    from zset_join.runners.local.outputs import FunctionSink
    from zset_join.runners.local.running import run
else:
    from zset_join.core.extras import lazy_names

    __homes__ = {
        "Baseline": "zset_join.query.records",
        "FunctionSink": "zset_join.runners.local.outputs",
        "records": "zset_join.query.records",
        "run": "zset_join.runners.local.running",
    }
    __getattr__, __dir__ = lazy_names(__name__, __homes__)

__all__ = [
    "PROCESSING_TIME",
    "Aggregated",
    "Baseline",
    "FunctionSink",
    "GroupedView",
    "Pipeline",
    "StateTtl",
    "View",
    "appends",
    "changes",
    "functions",
    "records",
    "run",
    "sink",
    "versioned",
]
