"""Shape of a dedup: order, output and rejected arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import check_key_type
from zset_join.core.relation import Relation
from zset_join.shapes.kept_types import check_kept, count_sequence_words

__all__ = ["Keep", "OrderColumn", "check_dedup", "first_rows_relation"]


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
