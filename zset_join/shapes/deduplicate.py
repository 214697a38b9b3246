"""Shapes of tables with one row per key: first rows of a dedup, latest rows of an upsert input, current ones of versions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import check_key_type
from zset_join.core.relation import Relation
from zset_join.shapes.event_time import EventTime, time_column
from zset_join.shapes.kept_types import check_kept, count_sequence_words

__all__ = [
    "MOST_COLUMNS",
    "TRUNCATE",
    "Keep",
    "OrderColumn",
    "check_dedup",
    "current_relation",
    "first_rows_relation",
    "latest_rows",
    "without_control",
]

Keep = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """One column of an order.

    >>> OrderColumn.of("price desc")
    OrderColumn(name='price', descending=True)
    """

    name: str
    descending: bool = False

    @classmethod
    def of(cls, written: str | OrderColumn) -> OrderColumn:
        """Read `"name"`, `"name asc"` or `"name desc"`."""
        if isinstance(written, OrderColumn):
            return written
        name, _, direction = written.rpartition(" ")
        if name and direction.lower() in ("asc", "desc"):
            return cls(name.strip(), direction.lower() == "desc")
        return cls(written)

    def __str__(self) -> str:
        return f"{self.name} desc" if self.descending else self.name


def first_rows_relation(
    relation: Relation, keys: Sequence[str], order_by: Sequence[OrderColumn], keep: Keep, n: int
) -> Relation:
    """Return the output relation of a dedup: keyed where one row is shown, and versioned where that is the newest one."""
    is_newest = n == 1 and len(order_by) == 1 and order_by[0].descending != (keep == "last")
    is_versioned = is_newest and order_by[0].name == relation.event_time
    return Relation(
        name=f"{relation.name}_by_{'_'.join(keys)}",
        schema=pa.schema([field.with_nullable(True) for field in relation.schema]),
        primary_key=tuple(keys) if n == 1 else (),
        mode="changelog",
        event_time=relation.event_time if is_versioned else None,
        watermark_delay=relation.watermark_delay if is_versioned else None,
    )


def check_dedup(
    relation: Relation,
    keys: Sequence[str],
    order_by: Sequence[OrderColumn],
    keep: str,
    n: int,
) -> None:
    if not keys or not order_by:
        raise PlanError(
            f'the dedup of "{relation.name}" needs keys (they distinguish rows, got {list(keys)}) and order_by (which of '
            f"them comes first, got {[str(column) for column in order_by]}).",
            code="DEDUP_COLUMNS",
            relation=relation.name,
        )
    missing = [name for name in (*keys, *(column.name for column in order_by)) if name not in relation.schema.names]
    if missing:
        raise PlanError(
            f'the dedup of "{relation.name}" names columns {missing} that it does not have; it has {relation.schema.names}.',
            code="UNKNOWN_COLUMN",
            relation=relation.name,
            columns=missing,
        )
    if relation.mode == "upsert":
        raise PlanError(
            f'the dedup of "{relation.name}" takes an append or changelog relation, not one in upsert mode, which has one row '
            f"per key {list(relation.primary_key)} already. Feed the rows as they come (no keys), or its changes with "
            "both signs.",
            code="DEDUP_OF_UPSERTS",
            relation=relation.name,
        )
    for name in keys:
        check_key_type(relation.schema.field(name).type, relation=relation.name, column=name)
    if keep not in get_args(Keep):
        raise OptionError(
            f"keep={keep!r} is not allowed; use one of {', '.join(get_args(Keep))}.",
            code="DEDUP_OPTION",
            option="keep",
            value=keep,
        )
    if n < 1:
        raise OptionError(f"n={n} is not allowed; use 1 or more.", code="DEDUP_OPTION", option="n", value=n)
    columns = [column.name for column in order_by]
    types = [relation.schema.field(name).type for name in columns]
    count_sequence_words(types, relation=relation.name, columns=columns)
    check_kept(relation)


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
