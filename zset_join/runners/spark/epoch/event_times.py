"""Event time inside Spark: the largest time of an epoch, the watermarks that follow from it, and the tick of every stage.

    rows of an epoch, shuffled and kept -> the largest time per stream -> watermarks -> ticks -> the job of the epoch

The law: the sources are read once. A watermark is the largest event time seen minus the delay, and never goes back (semantics
16); a stage goes by the smallest of the streams that reach it, once each of them has one. A tick has the watermark before the
epoch's rows, against which late is measured, and the one after, against which rows are released. A stream that has been silent
for `idleTimeout` of processing time, counted from the start of the query at the earliest, does not hold the others up; it
counts again with its next row.

A commit record keeps the watermarks of streams under their names, and those of stages under `stage:` and theirs.

Cost: nothing where no stage waits for event time; else the rows of an epoch are kept behind the first shuffle, in memory or on
disk, and looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.record import LATE_ROWS_TOTAL, CommitRecord
from zset_join.core.epochs import Tick
from zset_join.core.shown_values import shown_value
from zset_join.runners.common.stage_bucket import check_stages
from zset_join.runners.local.watermarks import EventClock, stage_watermark
from zset_join.runners.spark.planning.stages import PlannedStage, senders_of
from zset_join.runners.spark.rows.layout import REJECTED, TARGET, SlotLayout
from zset_join.stages import StageOptions

__all__ = ["EventTimes"]

_MICROSECONDS_PER_DAY = 86_400_000_000


@dataclass(frozen=True, kw_only=True)
class _TimedStream:
    """A stream with a watermark: the stage and the input that its rows reach first, the column, the delay and two bounds.

    Rows beyond `bound` reach no stage; those beyond `jump`, measured from the watermark of the stage, are refused by it.
    """

    name: str
    number: int
    side: int
    column: str
    delay: int
    jump: int | None
    bound: int | None
    kind: pa.DataType


class EventTimes:
    """Follow the watermarks of a query."""

    def __init__(self, planned_stages: Sequence[PlannedStage], *, idle_timeout_us: int | None = None) -> None:
        self._segments = planned_stages
        self._names = {one.number: one.name for one in planned_stages}
        self.timed = frozenset(one.number for one in planned_stages if one.stage.waits_for_time)
        check_stages((one.stage for one in planned_stages), StageOptions())
        waited_for = _waited_for(planned_stages)
        needed = {name for number in self.timed for name in waited_for[number]}
        self._streams = [
            stream for stream in _timed_streams(planned_stages) if stream.name in needed or stream.bound is not None
        ]
        self._clock = EventClock([tuple(waited_for[one.number]) for one in planned_stages], idle_timeout_us=idle_timeout_us)
        self._active_us: dict[str, int | None] = {}

    @property
    def is_needed(self) -> bool:
        """Return whether a stage waits for the event time of a stream, or the rows of one may be only so far ahead of it."""
        return bool(self._streams)

    def within_bounds(
        self, rows: DataFrame, layouts: Mapping[int, SlotLayout], *, has_targets: bool, before: Mapping[str, int]
    ) -> DataFrame:
        """Return the rows of an epoch, those rejected that are too far ahead of the watermark of their stream."""
        # It is measured from the watermark before the epoch, so a second attempt judges as the first one did.
        flag, raw, is_bounded = F.col("flag"), F.col("raw") if "raw" in rows.columns else None, False
        for stream in self._streams:
            reached = before.get(stream.name)
            if stream.bound is None or reached is None:
                continue
            is_of_it, given = _rows_of(stream, layouts[stream.number], has_targets=has_targets)
            limit = reached + stream.bound
            is_far = is_of_it & F.coalesce(as_number(given, stream.kind) > F.lit(limit), F.lit(False))
            words = (
                F.lit(f"TIME_JUMP:{stream.column} = "),
                given.cast("string"),
                F.lit(f", at most {_shown(limit, stream.kind)}"),
            )
            flag, is_bounded = F.when(is_far, F.lit(stream.side + REJECTED).cast("byte")).otherwise(flag), True
            raw = None if raw is None else F.when(is_far, F.concat(*words)).otherwise(raw)
        if not is_bounded:
            return rows
        return rows.withColumns({"flag": flag, **({} if raw is None else {"raw": raw})})

    def maxima(self, layouts: Mapping[int, SlotLayout], *, has_targets: bool, before: Mapping[str, int]) -> list[Column]:
        """Return, per stream with a watermark, its largest event time and late rows, as aggregates over shuffled rows."""
        columns: list[Column] = []
        for stream in self._streams:
            is_of_it, given = _rows_of(stream, layouts[stream.number], has_targets=has_targets)
            time = F.when(is_of_it, as_number(given, stream.kind))
            reached = before.get(stage_watermark(self._names[stream.number]))
            believed = time
            if stream.jump is not None and reached is not None:  # further ahead it is bad input, and moves no watermark
                believed = F.when(time <= F.lit(reached + stream.jump), time)
            late = F.lit(0).cast("long") if stream.name not in before else F.count_if(time <= F.lit(before[stream.name]))
            columns += [F.max(believed), late]
        return columns

    def after(
        self, before: Mapping[str, int], maxima: Sequence[int | None], processing_time_us: int | None
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the watermarks after an epoch, of streams and stages, and the late rows of each stream."""
        now = 0 if processing_time_us is None else processing_time_us
        self._clock.begin(now)
        known = dict(before)
        late: dict[str, int] = {}
        for at, stream in enumerate(self._streams):
            largest, late[stream.name] = maxima[2 * at], int(maxima[2 * at + 1] or 0)
            if largest is not None:
                self._active_us[stream.name] = now
                known[stream.name] = max(known.get(stream.name, largest - stream.delay), largest - stream.delay)
        for one in self._segments:
            name = stage_watermark(one.name)
            watermark = self._clock.watermark(one.number, known.get(name), known, self._active_us, now)
            if watermark is not None:
                known[name] = watermark
        return known, late

    def next_idle(self, watermarks: Mapping[str, int], now_us: int | None) -> int | None:
        """Return the processing time at which a stream that holds others up becomes idle; None: none will."""
        return self._clock.next_idle(sorted(self.timed), watermarks, self._active_us, now_us)

    def progress(
        self,
        watermarks: Mapping[str, int],
        late_rows: Mapping[str, int],
        processing_time_us: int | None,
        last: CommitRecord | None = None,
    ) -> dict[str, Any]:
        """Return the event-time part of an epoch's progress."""
        before = {} if last is None else last.late_rows
        now = 0 if processing_time_us is None else processing_time_us
        times = {stream.name: watermarks[stream.name] + stream.delay for stream in self._streams if stream.name in watermarks}
        held = {
            one.name: self._clock.holding(one.number, watermarks, self._active_us, now)
            for one in self._segments
            if one.number in self.timed and self._clock.waited_for[one.number]
        }
        return {
            "largest_times": times,
            "watermarks": dict(watermarks),
            "held_by": held,
            "idle": [stream.name for stream in self._streams if self._clock.is_idle(self._active_us.get(stream.name), now)],
            "late_rows": dict(late_rows),
            LATE_ROWS_TOTAL: {name: before.get(name, 0) + rows for name, rows in late_rows.items()},
        }

    def ticks(
        self, epoch: int, processing_time_us: int | None, before: Mapping[str, int], after: Mapping[str, int]
    ) -> dict[int, Tick]:
        names = {one.number: stage_watermark(one.name) for one in self._segments}
        return {number: Tick(epoch, processing_time_us, before.get(name), after.get(name)) for number, name in names.items()}


def _timed_streams(planned_stages: Sequence[PlannedStage]) -> list[_TimedStream]:
    timed = []
    for one in planned_stages:
        for side, stream in sorted(one.streams.items()):
            relation = one.stage.inputs[side].relation
            if relation.event_time is not None and relation.watermark_delay is not None:
                timed.append(
                    _TimedStream(
                        name=stream.name,
                        number=one.number,
                        side=side,
                        column=relation.event_time,
                        delay=relation.watermark_delay,
                        jump=one.stage.max_watermark_jump,
                        bound=stream.max_watermark_jump,
                        kind=relation.schema.field(relation.event_time).type,
                    )
                )
    return timed


def _rows_of(stream: _TimedStream, layout: SlotLayout, *, has_targets: bool) -> tuple[Column, Column]:
    """Return which rows in slots are good ones of a stream, and their event time."""
    slot = layout.slots[stream.side][layout.schemas[stream.side].names.index(stream.column)]
    is_of_it = (F.col("flag") == stream.side) & (F.col("flag") < REJECTED)
    if has_targets:
        is_of_it &= F.col(TARGET) == stream.number
    return is_of_it, F.col(f"s{slot}")


def _shown(time: int, kind: pa.DataType) -> Any:
    """Return an event time as people are to see it."""
    given = pa.array([time], pa.int64())
    return shown_value(given if pt.is_integer(kind) else given.cast(pa.timestamp("us")), 0)


def _waited_for(planned_stages: Sequence[PlannedStage]) -> dict[int, dict[str, None]]:
    """Return, per stage, the streams whose watermarks it waits for: those whose event time reaches one of its inputs."""
    reached: dict[int, dict[str, None]] = {}
    for one in planned_stages:
        names: dict[str, None] = {}
        for side, given in enumerate(one.stage.inputs):
            if given.relation.watermark_delay is None:
                continue
            if side in one.streams:
                names[one.streams[side].name] = None
            for sender, _ in senders_of(planned_stages, one.number, side):
                names |= reached[sender.number]
        reached[one.number] = names
    return reached


def as_number(column: Column, kind: pa.DataType) -> Column:
    """Return an event time as microseconds, or as what an integer column holds."""
    if pt.is_integer(kind):
        return column.cast("long")
    if pt.is_date(kind):
        return F.unix_date(column).cast("long") * F.lit(_MICROSECONDS_PER_DAY)
    return F.unix_micros(column.cast("timestamp"))
