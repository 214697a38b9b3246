"""How far event time has come: per source, and per stage the smallest of the sources that reach it.

The law: a watermark is the largest event time seen minus the delay, and never goes back (semantics 16). A stage's tick carries
the one before the epoch's rows, against which late is measured, and the one after, against which is released. A source that has
been silent for `idle_timeout` of processing time does not hold the others up; it counts again with its next row.

Remembers three numbers per source; a checkpoint keeps them in its commit records.

Times are microseconds since 1970-01-01 UTC, or what an integer column holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.errors import PlanError
from zset_join.plan.query_plan import QueryPlan
from zset_join.zset import ZSet

__all__ = ["SourceTime", "Watermarks", "time_values"]


@dataclass(frozen=True, slots=True)
class SourceTime:
    """What is known of the event time of a source.

    Args:
        watermark_us: how far it has come; None before the first row.
        active_us: processing time of its last rows; None before.
        late_rows: rows that came at or before the watermark of their epoch, so far.
    """

    watermark_us: int | None = None
    active_us: int | None = None
    late_rows: int = 0


class Watermarks:
    """Follow the watermarks of a plan.

    Args:
        plan: the plan.
        idle_timeout_us: processing time after which a silent source is left out; None for never.
    """

    def __init__(self, plan: QueryPlan, *, idle_timeout_us: int | None = None) -> None:
        self._idle_timeout_us = idle_timeout_us
        self._timed = {
            source.name: (source.relation.event_time, source.relation.watermark_delay)
            for source in plan.sources
            if source.relation.event_time is not None and source.relation.watermark_delay is not None
        }
        self._of_stage = [plan.timed_sources(node.number) for node in plan.nodes]
        self.sources: dict[str, SourceTime] = {name: SourceTime() for name in self._timed}

    def advanced(self, deltas: Mapping[Any, ZSet], processing_time_us: int | None) -> dict[str, SourceTime]:
        """Return what is known after an epoch with these rows; nothing is changed until it is taken by `sources = ...`."""
        after = {}
        for name, before in self.sources.items():
            delta = deltas.get(name)
            after[name] = before
            if delta is None or not len(delta):
                continue
            column, delay = self._timed[name]
            times = time_values(delta.rows.column(str(column)))
            late, watermark = 0, before.watermark_us
            if len(times):
                if watermark is not None:
                    late = int((times <= watermark).sum())
                newest = int(times.max()) - int(delay or 0)
                watermark = newest if watermark is None else max(watermark, newest)
            after[name] = SourceTime(watermark, processing_time_us, before.late_rows + late)
        return after

    def of_stage(self, number: int, sources: Mapping[str, SourceTime], processing_time_us: int | None) -> int | None:
        """Return the watermark of a stage: the smallest of its sources; None while one of them has none."""
        waited_for = self._of_stage[number]
        if not waited_for:
            return None
        active = [name for name in waited_for if not self._is_idle(sources[name], processing_time_us)]
        known = [sources[name].watermark_us for name in (active or waited_for)]
        if any(one is None for one in known):
            return None
        return min(one for one in known if one is not None)

    def holding(self, number: int) -> str | None:
        """Return the source that holds the watermark of a stage; None where none does."""
        waited_for = self._of_stage[number]
        return min(waited_for, key=lambda name: _order(self.sources[name].watermark_us), default=None)

    def _is_idle(self, source: SourceTime, processing_time_us: int | None) -> bool:
        if self._idle_timeout_us is None or processing_time_us is None or source.active_us is None:
            return False
        return processing_time_us - source.active_us >= self._idle_timeout_us

    def to_json(self) -> dict[str, Any]:
        """Return what a commit record keeps."""
        return {name: [one.watermark_us, one.active_us, one.late_rows] for name, one in self.sources.items()}

    def load(self, written: Mapping[str, Sequence[Any]]) -> None:
        """Go on from what `to_json` gave."""
        self.sources = {
            name: SourceTime(*written[name]) if name in written else replace(one) for name, one in self.sources.items()
        }


def time_values(column: pa.Array) -> Any:
    """Return event times as int64, without NULLs: microseconds, or what an integer column holds.

    Raises:
        PlanError: a type that is no time.

    >>> import datetime
    >>> time_values(pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1)])).tolist()
    [1000000]
    """
    kind = column.type
    if column.null_count:
        column = column.drop_null()
    if pt.is_timestamp(kind):
        values = column.view(pa.int64()).to_numpy(zero_copy_only=False)
        factor = {"s": 1_000_000, "ms": 1_000}.get(kind.unit)
        if factor is not None:
            return values * factor
        return values // 1_000 if kind.unit == "ns" else values
    if pt.is_date(kind):
        return pc.cast(column, pa.timestamp("us")).view(pa.int64()).to_numpy(zero_copy_only=False)
    if pt.is_integer(kind):
        return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    raise PlanError(
        f"a column of type {kind} is no event time; use a timestamp, a date or an integer.",
        code="EVENT_TIME_TYPE",
        type=str(kind),
    )


def _order(watermark_us: int | None) -> tuple[bool, int]:
    return watermark_us is not None, watermark_us or 0
