"""Which rows a join by key and time matches, and when it emits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.shapes.event_time import EventTime

__all__ = ["COUNTERS", "Emit", "Late", "VersionJoinShape"]

Emit = Literal["once", "on_watermark", "eager"]
Late = Literal["side_output", "drop", "join"]
COUNTERS = (
    "rejected",
    "late_rows",
    "late_versions",
    "ignored_versions",
    "late_corrections",
    "answered_rows",
    "freed_versions",
    "freed_rows",
)
"""What is counted over all epochs."""


@dataclass(frozen=True, kw_only=True)
class VersionJoinShape:
    """Hold which rows are matched, and when."""

    left: Relation
    right: Relation
    key: tuple[tuple[str, str], ...]  # pairs of columns
    key_types: tuple[pa.DataType, ...]
    times: EventTime
    how: str
    emit: Emit
    late: Late
    schema: pa.Schema
    sources: tuple[tuple[str, str], ...]  # per output column, (side, source column)
    residual: Expression | None = None  # an as-of join evaluates it on the nearest rows in turn
    tie_by: tuple[str, ...] = ()  # right columns that order rows of one time, then the arrival; the last one wins
    tie_descending: bool = False  # the first one wins instead
    is_mirrored: bool = False  # look forward in time
    is_strict: bool = False  # a right row of the very time does not match
    reach: int | None = None  # how far a right row may be away
    is_versioned: bool = True  # right rows are versions: a NULL key or time is bad, what is past is freed
    delete_column: str | None = None  # boolean, on the right; None: rows of weight -1 in upsert mode are DELETEs
    keep_probe_for: int | None = 0  # after the watermark, of eager left rows; None: as long as they live
    refuses_late_changes: bool = False  # with policy `error`, a change behind that bound is an error
    max_watermark_jump: int | None = None  # how far ahead of the watermark a time may be

    @property
    def condition_chooses(self) -> bool:
        """Return whether the nearest right row that passes the rest of ON is selected, instead of the nearest one."""
        return self.residual is not None and not self.is_versioned

    @property
    def left_changes(self) -> bool:
        """Return whether left rows are kept and may be retracted: late is what is behind the bound, not the watermark."""
        return self.emit == "eager" and self.left.mode != "append"
