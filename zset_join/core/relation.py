"""Description of one input or output of an operator.

A `Relation` is a frozen description: columns, join key, primary key, sequence and changelog mode. It holds no rows and
checks itself when it is built, so a wrong column name fails before the first epoch.

Changelog modes, and what the weights of a delta mean in each:

| mode        | weight +1                | weight -1                          | identity of a row |
|-------------|--------------------------|------------------------------------|-------------------|
| `append`    | insert                   | bad input                          | none kept         |
| `upsert`    | upsert by primary key    | delete by primary key (no payload) | primary key       |
| `changelog` | insert w copies          | retract w copies (full row)        | the whole row     |

In `upsert` mode rows of a delta are in arrival order; every non-key column of a delete may be NULL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError

__all__ = ["ChangelogMode", "Relation", "adds_columns", "with_added_nullable"]

ChangelogMode = Literal["append", "upsert", "changelog"]


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Describe one input or output.

    Args:
        name: in messages and `explain()`.
        schema: its columns, in order; key and sequence columns are among them.
        join_key: columns that the ON condition compares, in order.
        primary_key: columns that identify a live row; required in `upsert` mode.
        sequence_by: columns that order the changes of one primary key; larger wins. Empty means arrival order.
        mode: see the table above.
        event_time: the column with the time a row happened or a version began; None where rows have no time.
        watermark_delay: of its watermark behind the largest event time: microseconds, or in the unit of an integer
            event time; None: no watermark.

    Raises:
        PlanError: a column that does not exist or is named twice, or a primary key missing where the mode needs one.

    >>> Relation(name="orders", schema=pa.schema({"id": pa.int64()}), primary_key=("id",), mode="upsert").mode
    'upsert'
    """

    name: str
    schema: pa.Schema
    join_key: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    mode: ChangelogMode = "append"
    event_time: str | None = None
    watermark_delay: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(ChangelogMode):
            raise OptionError(
                f'relation "{self.name}": mode={self.mode!r} is unknown; use one of {", ".join(get_args(ChangelogMode))}.',
                code="UNKNOWN_MODE",
                relation=self.name,
                mode=self.mode,
            )
        duplicates = sorted(name for name, count in Counter(self.schema.names).items() if count > 1)
        if duplicates:
            raise PlanError(
                f'relation "{self.name}" has more than one column named {duplicates}; rename them first.',
                code="DUPLICATE_COLUMN",
                relation=self.name,
                columns=duplicates,
            )
        for role in ("join_key", "primary_key", "sequence_by"):
            self._check_columns(role, getattr(self, role))
        if self.event_time is not None:
            self._check_columns("event_time", (self.event_time,))
        if self.watermark_delay is not None and (self.event_time is None or self.watermark_delay < 0):
            raise PlanError(
                f'relation "{self.name}": watermark_delay={self.watermark_delay} needs an event_time and is 0 or more.',
                code="WATERMARK_DELAY",
                relation=self.name,
            )
        if self.mode == "upsert" and not self.primary_key:
            raise PlanError(
                f'relation "{self.name}" is in upsert mode and names no primary key; pass keys=[...].',
                code="MISSING_PRIMARY_KEY",
                relation=self.name,
            )
        if self.sequence_by and self.mode != "upsert":
            raise PlanError(
                f'relation "{self.name}": sequence_by={list(self.sequence_by)} needs mode="upsert", not "{self.mode}".',
                code="SEQUENCE_WITHOUT_UPSERT",
                relation=self.name,
            )

    def _check_columns(self, role: str, columns: Iterable[str]) -> None:
        columns = tuple(columns)
        missing = [name for name in columns if name not in self.schema.names]
        if missing:
            raise PlanError(
                f'relation "{self.name}": {role}={list(columns)} names {missing}, which is not among its columns '
                f"{self.schema.names}.",
                code="UNKNOWN_COLUMN",
                relation=self.name,
                role=role,
                missing=missing,
            )
        if len(set(columns)) != len(columns):
            raise PlanError(
                f'relation "{self.name}": {role}={list(columns)} names a column twice.',
                code="DUPLICATE_KEY_COLUMN",
                relation=self.name,
                role=role,
            )

    def field_indices(self, columns: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of `columns` in the schema."""
        return tuple(self.schema.get_field_index(name) for name in columns)


def adds_columns(before: pa.Schema, after: pa.Schema) -> bool:
    """Return whether columns are those of before with one or more behind them.

    >>> one, two = pa.schema({"k": pa.int64()}), pa.schema({"k": pa.int64(), "n": pa.int64()})
    >>> adds_columns(one, two), adds_columns(one, one), adds_columns(two, one)
    (True, False, False)
    """
    count = len(before)
    same = before.names == after.names[:count] and before.types == after.types[:count]
    return same and len(after) > count


def with_added_nullable(before: int, after: pa.Schema) -> pa.Schema:
    """Return columns of which those behind the first ones may be NULL, as they are in the rows before they came."""
    return pa.schema([field if at < before else field.with_nullable(True) for at, field in enumerate(after)])
