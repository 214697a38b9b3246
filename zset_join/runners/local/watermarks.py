"""The times of an epoch: how far event time has come, per source and stage, and the processing time.

The law: the processing time never decreases, and lies in the years 1 to 9999. A watermark is the largest event time seen minus
the delay, and never goes back (semantics 16). A stage's tick carries the one before the epoch's rows, against which late is
measured, and the one after, against which is released. See `EventClock` for sources that are silent.

Remembers three numbers per source; a checkpoint keeps them in its commit records.

Times are microseconds since 1970-01-01 UTC, or what an integer column holds.

Watermarks of every stage, and the sources that delay them: one rule for all runners.

The law (semantics 16): a stage goes by the smallest watermark of the sources that reach it, once each of them has one; it never
goes back. A source that has been silent for `idle_timeout` of processing time, counted from the first epoch of this run at the
earliest, does not hold the others up; it counts again with its next row. Where all sources of a stage are idle, all count.

Times are microseconds since 1970-01-01 UTC; event times of integer columns are what the columns hold.

Cost: the sources of each stage, per epoch.
"""

from __future__ import annotations

import datetime
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.errors import OptionError, PlanError
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.history import PastEpoch
from zset_join.zset import ZSet

__all__ = [
    "STAGE_PREFIX",
    "EventClock",
    "KnownTimes",
    "SourceTime",
    "Watermarks",
    "later_of",
    "processing_time_us",
    "stage_watermark",
    "time_values",
]

STAGE_PREFIX = "stage:"

Watermark = int | None


def stage_watermark(name: str) -> str:
    """Return the name of a stage's watermark in a commit record; those of sources have the names of these."""
    return f"{STAGE_PREFIX}{name}"


def later_of(before: Watermark, after: Watermark) -> Watermark:
    """Return the later of two watermarks; None is before all.

    >>> later_of(None, 3), later_of(5, 3)
    (3, 5)
    """
    if before is None or after is None:
        return after if before is None else before
    return max(before, after)


class EventClock:
    """Derive the watermarks of stages from those of the sources that each waits for."""

    def __init__(self, waited_for: Sequence[Sequence[str]], *, idle_timeout_us: int | None = None) -> None:
        self.waited_for = [tuple(names) for names in waited_for]
        self._idle_timeout_us = idle_timeout_us
        self.began_us: int | None = None

    def begin(self, now_us: int | None) -> None:
        """Take the processing time of an epoch of this run; silence is counted from the first one."""
        self.began_us = now_us if self.began_us is None else self.began_us

    def is_idle(self, active_us: int | None, now_us: int | None) -> bool:
        """Return whether a source has been idle for too long; `active_us`: time of its last rows, None: not in this run."""
        begin = self.began_us if active_us is None else active_us
        if self._idle_timeout_us is None or now_us is None or begin is None:
            return False
        return now_us - begin >= self._idle_timeout_us

    def counting(self, number: int, active: Mapping[str, int | None], now_us: int | None) -> tuple[str, ...]:
        """Return the sources that a stage waits for: those that are not idle, or all where all are."""
        names = self.waited_for[number]
        if self._idle_timeout_us is None:
            return names
        return tuple(name for name in names if not self.is_idle(active.get(name), now_us)) or names

    def watermark(
        self,
        number: int,
        before: Watermark,
        sources: Mapping[str, Watermark],
        active: Mapping[str, int | None],
        now_us: int | None,
    ) -> Watermark:
        known = [sources.get(name) for name in self.counting(number, active, now_us)]
        least = [one for one in known if one is not None]
        return later_of(before, min(least)) if least and len(least) == len(known) else before

    def holding(
        self, number: int, sources: Mapping[str, Watermark], active: Mapping[str, int | None], now_us: int | None
    ) -> str | None:
        """Return the source that holds the watermark of a stage, an idle one only where all are; None where none does."""

        def order(name: str) -> tuple[bool, int]:
            watermark = sources.get(name)
            return watermark is not None, watermark or 0

        return min(self.counting(number, active, now_us), key=order, default=None)

    def next_idle(
        self, numbers: Sequence[int], sources: Mapping[str, Watermark], active: Mapping[str, int | None], now_us: int | None
    ) -> int | None:
        """Return the processing time at which a source that holds others of these stages up becomes idle; None: none will."""
        if self._idle_timeout_us is None or now_us is None:
            return None
        times = []
        for number in numbers:
            known = {name: sources.get(name) for name in self.counting(number, active, now_us)}
            furthest = max((one for one in known.values() if one is not None), default=None)
            if furthest is None:
                continue
            for name, one in known.items():
                if one is None or one < furthest:
                    active_us = active.get(name)
                    begin = self.began_us if active_us is None else active_us
                    times.append((now_us if begin is None else begin) + self._idle_timeout_us)
        return min(times, default=None)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_FIRST_US = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND


def processing_time_us(given: Any, last_us: int | None) -> int:
    """Return the processing time of an epoch.

    >>> processing_time_us(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC), None)
    86400000000
    >>> processing_time_us(7, 9)
    9
    """
    wanted = time.time_ns() // 1000 if given is None else _as_us(given)
    return wanted if last_us is None else max(wanted, last_us)


def _as_us(given: Any) -> int:
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None or given.utcoffset() is None:
            raise _refused(given, "has no time zone; give one, such as datetime.UTC")
        us = (given - _EPOCH) // _MICROSECOND
    else:
        try:
            us = operator.index(given)
        except TypeError as error:
            raise _refused(given, "is not a time; give a datetime with a time zone, or microseconds since 1970") from error
        if isinstance(given, bool):
            raise _refused(given, "is not a time; give a datetime with a time zone, or microseconds since 1970")
    if not _FIRST_US <= us <= _LAST_US:
        raise _refused(given, "is outside of the years 1 to 9999; give microseconds since 1970, not another unit")
    return us


def _refused(given: Any, what: str) -> OptionError:
    return OptionError(f"processing_time={given!r} {what}.", code="PROCESSING_TIME")


@dataclass(frozen=True, slots=True)
class SourceTime:
    watermark_us: int | None = None
    active_us: int | None = None  # processing time of its last rows
    late_rows: int = 0  # rows so far that arrived at or before the watermark of their epoch


@dataclass(frozen=True, slots=True)
class KnownTimes:
    sources: Mapping[str, SourceTime]
    stages: tuple[int | None, ...]


class Watermarks:
    def __init__(self, plan: QueryPlan, *, idle_timeout_us: int | None = None) -> None:
        waited_for = [plan.timed_sources(node.number) for node in plan.nodes]
        self.idle_timeout_us = idle_timeout_us
        self._clock = EventClock(waited_for, idle_timeout_us=idle_timeout_us)
        self._now_us: int | None = None
        self._timed = {
            source.name: (source.relation.event_time, source.relation.watermark_delay)
            for source in plan.sources
            if source.relation.event_time is not None and source.relation.watermark_delay is not None
        }
        self._jumps: dict[str, tuple[int, int]] = {}
        for node in plan.nodes:
            if node.stage.max_watermark_jump is not None:
                for name in plan.timed_sources(node.number):
                    self._jumps[name] = min(self._jumps.get(name, (1 << 62, 0)), (node.stage.max_watermark_jump, node.number))
        self._names = [stage_watermark(node.name) for node in plan.nodes]
        # After the last epoch that counts.
        self.known = KnownTimes(dict.fromkeys(self._timed, SourceTime()), (None,) * len(plan.nodes))

    def after(self, deltas: Mapping[str, ZSet], processing_time_us: int | None) -> KnownTimes:
        """Return the event time after an epoch with these rows; it counts once it is stored in `known`."""
        if not self._timed:
            return self.known
        self._clock.begin(processing_time_us)
        self._now_us = processing_time_us
        sources = dict(self.known.sources)
        for name, before in self.known.sources.items():
            delta = deltas.get(name)
            if delta is not None and len(delta):
                column, delay = self._timed[name]
                times = self._believed(name, time_values(delta.rows.column(str(column))))
                sources[name] = _moved(before, times, int(delay or 0), processing_time_us)
        reached, active = _of_sources(sources)
        stages = [
            self._clock.watermark(number, before, reached, active, processing_time_us)
            for number, before in enumerate(self.known.stages)
        ]
        return KnownTimes(sources, tuple(stages))

    def over(self, plan: QueryPlan, history: Iterable[PastEpoch]) -> Iterator[tuple[int, KnownTimes, KnownTimes]]:
        """Yield each past epoch with what was known before it and after it, as if all were of one run."""
        following = Watermarks(plan, idle_timeout_us=self.idle_timeout_us)
        for past in history:
            before, following.known = following.known, following.after(past.deltas, past.processing_time_us)
            yield past.epoch, before, following.known

    def of_plan(self, plan: QueryPlan, known: KnownTimes) -> Watermarks:
        """Return the watermarks of another plan, which continues from what is known; silence is counted as before."""
        following = Watermarks(plan, idle_timeout_us=self.idle_timeout_us)
        following.known, following._now_us = known, self._now_us
        following._clock.begin(self._clock.began_us)
        return following

    def _believed(self, name: str, times: Any) -> Any:
        """Return the times of a source without those that are bad input, being too far ahead of the watermark of a stage."""
        jump, number = self._jumps.get(name, (0, 0))
        before = self.known.stages[number] if name in self._jumps else None
        return times if before is None else times[times <= before + jump]

    def holding(self, number: int) -> str | None:
        """Return the source that holds the watermark of a stage, an idle one only where all are; None where none does."""
        return self._clock.holding(number, *_of_sources(self.known.sources), self._now_us)

    def largest_us(self, name: str) -> int | None:
        """Return the largest event time that a source has shown; None before the first."""
        watermark_us = self.known.sources[name].watermark_us
        return None if watermark_us is None else watermark_us + int(self._timed[name][1] or 0)

    def is_idle(self, name: str) -> bool:
        """Return whether a source has been silent for so long that it holds up no watermark."""
        return self._clock.is_idle(self.known.sources[name].active_us, self._now_us)

    def next_idle(self, numbers: Sequence[int]) -> int | None:
        """Return the processing time at which a source that holds one of these stages up becomes idle; None: none will."""
        return self._clock.next_idle(numbers, *_of_sources(self.known.sources), self._now_us)

    def load(self, written: Mapping[str, int], late_rows: Mapping[str, int]) -> None:
        """Go on from the watermarks of a commit record; a source counts as active until it has been silent again."""
        self.known = KnownTimes(
            {name: SourceTime(written.get(name), None, late_rows.get(name, 0)) for name in self._timed},
            tuple(written.get(name) for name in self._names),
        )

    def written(self, known: KnownTimes) -> dict[str, int]:
        """Return the watermarks of a commit record: of sources by name, of stages by theirs."""
        watermarks = {name: one.watermark_us for name, one in known.sources.items()}
        watermarks |= dict(zip(self._names, known.stages, strict=True))
        return {name: watermark for name, watermark in watermarks.items() if watermark is not None}


def _of_sources(sources: Mapping[str, SourceTime]) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Return, by name, the watermarks of sources and when their last rows arrived."""
    return {name: one.watermark_us for name, one in sources.items()}, {name: one.active_us for name, one in sources.items()}


def _moved(before: SourceTime, times: Any, delay: int, processing_time_us: int | None) -> SourceTime:
    if not len(times):
        return SourceTime(before.watermark_us, processing_time_us, before.late_rows)
    late = 0 if before.watermark_us is None else int((times <= before.watermark_us).sum())
    return SourceTime(later_of(before.watermark_us, int(times.max()) - delay), processing_time_us, before.late_rows + late)


def time_values(column: pa.Array) -> Any:
    """Return event times as int64, without NULLs: microseconds, or what an integer column holds.

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
        f"a column of type {kind} is not an event time; use a timestamp, a date or an integer.",
        code="EVENT_TIME_TYPE",
        type=str(kind),
    )
