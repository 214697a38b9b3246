"""Shape of the table of current versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.shapes.deduplicate import OrderColumn, check_dedup
from zset_join.shapes.event_time import EventTime, time_column

__all__ = ["current_relation"]


def current_relation(versions: Relation, key: Sequence[str], delete_column: str | None, hidden: Sequence[str] = ()) -> Relation:
    """Return the current rows: the columns of the versions but for marks and hidden ones, one row per key."""
    time = time_column(versions, role="versioned side")
    EventTime([versions], [time])  # refuses types without an order
    order = [OrderColumn(name, descending=True) for name in dict.fromkeys((time, *versions.sequence_by))]
    rows = replace(versions, primary_key=(), sequence_by=(), join_key=(), mode="append")
    check_dedup(rows, key, order, "first", 1)
    left_out = {*hidden, delete_column}
    fields = [field.with_nullable(True) for field in versions.schema if field.name not in left_out]
    return Relation(name=f"{versions.name}_now", schema=pa.schema(fields), primary_key=tuple(key), mode="changelog")
