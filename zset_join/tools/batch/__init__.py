"""A plan as one batch query for DuckDB and for Spark: the oracle of `verify()` in both runners.

Importing this package is what registers the queries of all kinds of stages.
"""

from __future__ import annotations

from zset_join.tools.batch import aggregate, expiring, join, lookup, timed
from zset_join.tools.batch.dialect import DUCKDB, SPARK, Dialect
from zset_join.tools.batch.queries import (
    EPOCHS,
    BatchView,
    Part,
    SourceForm,
    batch_parts,
    live_name,
    marks_name,
    one_statement,
    source_name,
)
from zset_join.tools.batch.tables import BatchScope, BatchTable, BatchTimes, batch_query, register_batch_query

__all__ = [
    "DUCKDB",
    "EPOCHS",
    "SPARK",
    "BatchScope",
    "BatchTable",
    "BatchTimes",
    "BatchView",
    "Dialect",
    "Part",
    "SourceForm",
    "aggregate",
    "batch_parts",
    "batch_query",
    "expiring",
    "join",
    "live_name",
    "lookup",
    "marks_name",
    "one_statement",
    "register_batch_query",
    "source_name",
    "timed",
]
