"""Columns that a stage compares or orders by: none of them may have a collation, whatever stage it is.

The law: what Spark would compare under a collation, the engine does not take; it compares strings by their bytes. Columns that
only pass by keep their collation (`zset_join.runners.spark.rows.schemas`). Checked are keys of every kind, conditions, and
the arguments of aggregates but counts, which only test whether a value is present; what orders rows is never a string.
"""

from __future__ import annotations

from zset_join.runners.spark.rows.schemas import refuse_collations
from zset_join.stages import Stage

__all__ = ["refuse_compared_collations"]


def refuse_compared_collations(stage: Stage) -> None:
    """Refuse a stage that compares or orders strings under a collation."""
    for one in stage.comparisons:
        schema = one.relation.schema
        columns = [column for column in one.columns if column in schema.names]
        refuse_collations(schema, columns, relation=one.relation.name, use=one.use)
