"""Watermarks of every stage, and the sources that delay them: one rule for all runners.

The law (semantics 16): a stage goes by the smallest watermark of the sources that reach it, once each of them has one; it never
goes back. A source that has been silent for `idle_timeout` of processing time, counted from the first epoch of this run at the
earliest, does not hold the others up; it counts again with its next row. Where all sources of a stage are idle, all count.

Times are microseconds since 1970-01-01 UTC; event times of integer columns are what the columns hold.

Cost: the sources of each stage, per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["STAGE_PREFIX", "EventClock", "later_of", "stage_watermark"]

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
