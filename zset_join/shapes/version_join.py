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
