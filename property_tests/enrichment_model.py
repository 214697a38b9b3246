"""What a lookup join and a join by processing time should answer, in dicts and lists: no engine code, no Arrow.

An *arrival* is some copies of a left row that arrived in one epoch. It keeps what was emitted for it. The model is given, per
epoch, what a key finds at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
Counts = dict[tuple[Any, ...], int]


@dataclass
class Arrival:
    """Copies of one left row.

    Args:
        row: the left row.
        copies: how many are left.
        emitted: right rows it was joined with, each with its copies; None for a padded row.
        due: when it is looked up again; None: it is settled.
        attempts: how often it was looked up.
    """

    row: Row
    copies: int
    emitted: list[tuple[Row | None, int]] = field(default_factory=list)
    due: int | None = None
    attempts: int = 0


@dataclass
class EnrichmentModel:
    """Follow one operator.

    Args:
        mode: of the left input.
        how: inner or left.
        key: what of a left row is looked up; None where it has a NULL.
        identity: what names a left row.
        right_width: columns of the right side.
        passes: the residual predicate.
        max_retries: how often a miss waits.
        delay: for how long.
        padded_first: whether one that waits is shown padded.
        bugs: names of the mistakes to make.
    """

    mode: str
    how: str
    key: Callable[[Row], Hashable]
    identity: Callable[[Row], Hashable]
    right_width: int
    passes: Callable[[Row, Row], bool] = lambda *_: True
    max_retries: int = 0
    delay: int = 0
    padded_first: bool = False
    bugs: frozenset[str] = frozenset()
    arrivals: list[Arrival] = field(default_factory=list)
    live: dict[Hashable, tuple[Row, int]] = field(default_factory=dict)

    def net(self, lines: Sequence[tuple[Row, int]]) -> tuple[list[tuple[Row, int]], list[tuple[Row, int]]]:
        """Return the rows that go and those that arrive, net."""
        if self.mode == "append":
            return [], list(lines)
        before = {name: self.live.get(name) for name in dict.fromkeys(self.identity(row) for row, _ in lines)}
        after = dict(before)
        for row, weight in lines:
            name = self.identity(row)
            if self.mode == "upsert":
                after[name] = (row, 1) if weight > 0 else None
            else:
                kept = after[name]
                count = (kept[1] if kept else 0) + weight
                after[name] = ((kept[0] if kept else row), count) if count else None
        lost, new = [], []
        for name, was in before.items():
            now = after[name]
            if self.mode == "upsert":
                if was is not None and (now is None or now[0] != was[0]):
                    lost.append((was[0], 1))
                if now is not None and (was is None or now[0] != was[0]):
                    new.append((now[0], 1))
                continue
            gained = (now[1] if now else 0) - (was[1] if was else 0)
            if gained < 0:
                lost.append((was[0], -gained))
            elif gained > 0:
                new.append((now[0], gained))
        self._after = after
        return lost, new

    def wanted(self, lines: Sequence[tuple[Row, int]], now: int) -> set[Hashable]:
        """Return the keys that must be looked up."""
        lost, new = self.net(lines)
        kept = self._left_over(lost)
        due = [arrival.row for arrival, copies in kept if arrival.due is not None and arrival.due <= now and copies]
        keys = {self.key(row) for row in [row for row, _ in new] + due}
        return {key for key in keys if key is not None}

    def _left_over(self, lost: Sequence[tuple[Row, int]]) -> list[tuple[Arrival, int]]:
        gone = {self.identity(row): copies for row, copies in lost}
        kept = []
        arrivals = list(reversed(self.arrivals)) if "newest_first" in self.bugs else self.arrivals
        for arrival in arrivals:
            name = self.identity(arrival.row)
            taken = min(gone.get(name, 0), arrival.copies)
            if taken:
                gone[name] -= taken
            kept.append((arrival, arrival.copies - taken))
        return kept

    def step(self, lines: Sequence[tuple[Row, int]], now: int, found: Mapping[Hashable, Sequence[tuple[Row, int]]]) -> Counts:
        """Return what an epoch emits."""
        answer: Counts = {}

        def emit(row: Row, right: Row | None, weight: int) -> None:
            line = (*row, *(right if right is not None else (None,) * self.right_width))
            answer[line] = answer.get(line, 0) + weight

        lost, new = self.net(lines)
        if self.mode != "append":
            for name, kept in self._after.items():
                if kept is None:
                    self.live.pop(name, None)
                else:
                    self.live[name] = kept
        for arrival, copies in self._left_over(lost):
            for right, times in arrival.emitted:
                emit(arrival.row, right, -(arrival.copies - copies) * times)
            arrival.copies = copies
        self.arrivals = [arrival for arrival in self.arrivals if arrival.copies]
        fresh = [Arrival(row, copies) for row, copies in new]
        due = [arrival for arrival in self.arrivals if arrival.due is not None and arrival.due <= now]
        self.arrivals += fresh
        for arrival in [*fresh, *due]:
            self._settle(arrival, now, found, emit)
        if self.mode == "append":
            self.arrivals = [arrival for arrival in self.arrivals if arrival.due is not None]
        return {line: weight for line, weight in answer.items() if weight}

    def _settle(self, arrival: Arrival, now: int, found: Any, emit: Any) -> None:
        key = self.key(arrival.row)
        candidates = [] if key is None else list(found.get(key, ()))
        arrival.attempts += 1
        passing = [(right, times) for right, times in candidates if self.passes(arrival.row, right)]
        was_padded, arrival.due = bool(arrival.emitted), None
        waits = not candidates if "rejected_is_a_miss" not in self.bugs else not passing
        last = self.max_retries + ("one_retry_too_many" in self.bugs)
        if waits and key is not None and arrival.attempts <= last:
            arrival.due = now + self.delay
            if self.padded_first and not was_padded:
                arrival.emitted = [(None, 1)]
                emit(arrival.row, None, arrival.copies)
            return
        if passing:
            if was_padded and "pad_stays" not in self.bugs:
                emit(arrival.row, None, -arrival.copies)
            arrival.emitted = passing if "one_match_only" not in self.bugs else passing[:1]
        elif self.how == "left":
            arrival.emitted = [(None, 1)]
        if was_padded and not passing:
            return
        for right, times in arrival.emitted:
            emit(arrival.row, right, arrival.copies * times)
