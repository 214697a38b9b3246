"""A plan as one batch query for DuckDB and for Spark: the oracle of `verify()` in both runners.

The query of a kind of stage is in the file of the stage.
"""

from __future__ import annotations

from zset_join.stages.batch import DUCKDB, SPARK, BatchScope, BatchTable, BatchTimes, Dialect, batch_query, register_batch_query
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
    "batch_parts",
    "batch_query",
    "live_name",
    "marks_name",
    "one_statement",
    "register_batch_query",
    "source_name",
]
