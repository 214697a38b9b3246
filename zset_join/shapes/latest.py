"""Shapes of tables with one row per key: the latest rows of an upsert input, and the current ones of versions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.core.key_types import check_key_type
from zset_join.core.relation import Relation
from zset_join.shapes.deduplicate import OrderColumn, check_dedup
from zset_join.shapes.event_time import EventTime, time_column
from zset_join.shapes.kept_types import check_kept

__all__ = ["MOST_COLUMNS", "TRUNCATE", "current_relation", "latest_rows", "without_control"]

MOST_COLUMNS = 63
"""How many columns a control word has bits for."""
TRUNCATE = -1
"""The control word of a row that deletes all rows."""


def latest_rows(relation: Relation, hidden: Collection[str]) -> Relation:
    """Return the live rows of an input in upsert mode, as a changelog with their primary key."""
    if relation.mode != "upsert" or set(hidden) & set(relation.primary_key):
        raise PlanError(
            f'relation "{relation.name}" is in {relation.mode} mode with keys={list(relation.primary_key)}; only upserts '
            "whose key is shown can become a changelog.",
            code="LATEST_NOT_NEEDED",
            relation=relation.name,
        )
    shown = [field.name for field in relation.schema if field.name not in hidden]
    time = relation.event_time if relation.event_time in shown else None
    for column in relation.primary_key:
        check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
    check_kept(relation)
    return replace(
        relation,
        schema=pa.schema([relation.schema.field(name) for name in shown]),
        join_key=(),
        sequence_by=(),
        mode="changelog",
        event_time=time,
        watermark_delay=None if time is None else relation.watermark_delay,
    )


def without_control(relation: Relation, control: str) -> Relation:
    """Return an input without its last column, the control word of every change."""
    fields = [field for field in relation.schema if field.name != control]
    if control not in relation.schema.names or relation.schema.names[-1] != control or len(fields) > MOST_COLUMNS:
        raise PlanError(
            f'relation "{relation.name}": its last column must be "{control}", of at most {MOST_COLUMNS + 1}; it has '
            f"{len(relation.schema.names)}, the last is {relation.schema.names[-1]}. Leave columns out at the source.",
            code="CONTROL_COLUMN",
            relation=relation.name,
        )
    return replace(relation, schema=pa.schema(fields))


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
