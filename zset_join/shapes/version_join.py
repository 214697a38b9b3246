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
    """Hold which rows are matched, and when.

    Args:
        left: the left input.
        right: the right input.
        key: pairs of columns that must be equal.
        key_types: the type each pair is compared in.
        times: the event times of both.
        how: `inner` or `left`.
        emit: when to answer.
        late: the treatment of left rows at or before the watermark before their epoch.
        schema: of the output.
        sources: per output column, (side, source column).
        residual: the rest of ON, evaluated on the version of the time only, or by an as-of join on the nearest rows in turn.
        tie_by: right columns that order right rows of one time, the last one wins, after them the arrival.
        tie_descending: whether the first one in the order of `tie_by` wins instead.
        is_mirrored: look forward in time.
        is_strict: do not match a right row of the very time.
        reach: how far a right row may be away; None: any distance.
        is_versioned: right rows are versions: a NULL key or time is bad, what is past is freed.
        delete_column: a boolean right column that marks DELETEs; None: those of weight -1 in upsert mode are.
        keep_probe_for: how long after the watermark eager left rows are kept for corrections; None: as long as they live.
        refuses_late_changes: with policy `error`, a change behind that bound is an error.
        max_watermark_jump: how far ahead of the watermark a time may be; None: any distance.
    """

    left: Relation
    right: Relation
    key: tuple[tuple[str, str], ...]
    key_types: tuple[pa.DataType, ...]
    times: EventTime
    how: str
    emit: Emit
    late: Late
    schema: pa.Schema
    sources: tuple[tuple[str, str], ...]
    residual: Expression | None = None
    tie_by: tuple[str, ...] = ()
    tie_descending: bool = False
    is_mirrored: bool = False
    is_strict: bool = False
    reach: int | None = None
    is_versioned: bool = True
    delete_column: str | None = None
    keep_probe_for: int | None = 0
    refuses_late_changes: bool = False
    max_watermark_jump: int | None = None

    @property
    def condition_chooses(self) -> bool:
        """Return whether the nearest right row that passes the rest of ON is selected, instead of the nearest one."""
        return self.residual is not None and not self.is_versioned

    @property
    def left_changes(self) -> bool:
        """Return whether left rows are kept and may be retracted: late is what is behind the bound, not the watermark."""
        return self.emit == "eager" and self.left.mode != "append"
