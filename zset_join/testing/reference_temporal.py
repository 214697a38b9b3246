"""The answer key of questions about time: dicts and sorted dicts, computed from everything that arrived.

*Versions* answer "what was valid at t": the newest version at or before it, a DELETE meaning nothing. *As-of* takes the nearest
row. *First rows* are ROW_NUMBER() <= n. Nothing here is incremental, and nothing imports Arrow, NumPy or the engine.

Rows are tuples. A change is `(key, time, row, weight)` beside its order of arrival. A key with None matches nothing.
Ties: the larger sequence, then the later arrival. A retraction takes the oldest equal copy.
Source: semantics sections 11, 14, 15 and 16, written down from the text and not from the code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zset_join.core.extras import needed_for
from zset_join.testing.reference import Counts, IllegalHistoryError, row_identity

with needed_for("zset_join.testing.reference_temporal, unlike the rest of zset_join.testing,"):
    from sortedcontainers import SortedDict

__all__ = [
    "LiveRows",
    "Nearest",
    "TimedRow",
    "Versions",
    "batch_as_of",
    "batch_temporal",
    "first_rows",
]

Key = tuple[Any, ...]
Predicate = Callable[[Key, Key], bool | None]


@dataclass(frozen=True, slots=True)
class TimedRow:
    """One row with what orders it."""

    key: Key
    time: Any
    row: Key
    sequence: Key = ()
    deleted: bool = False


class LiveRows:
    """The rows of a relation in order of arrival; a retraction takes the oldest equal one."""

    def __init__(self) -> None:
        self._rows: dict[int, TimedRow] = {}  # by number of arrival
        self._arrivals: dict[TimedRow, deque[int]] = {}
        self._arrived = 0

    def add(self, changes: Iterable[tuple[TimedRow, int]]) -> None:
        """Insert all that arrived in an epoch, then retract what was retracted in it."""
        given = list(changes)
        for row, weight in given:
            for _ in range(max(weight, 0)):
                self._rows[self._arrived] = row
                self._arrivals.setdefault(row, deque()).append(self._arrived)
                self._arrived += 1
        for row, weight in given:
            for _ in range(max(-weight, 0)):
                if not self._arrivals.get(row):
                    raise IllegalHistoryError(f"{row} is retracted and absent")
                del self._rows[self._arrivals[row].popleft()]

    def rows(self) -> list[TimedRow]:
        """Return the live rows, oldest arrival first."""
        return list(self._rows.values())


class Versions:
    """Versions of every key over time."""

    def __init__(self, rows: Iterable[TimedRow]) -> None:
        self._runs: dict[Key, SortedDict] = {}  # per key: time -> the version of that time, with what settles ties
        for arrival, row in enumerate(rows):
            run = self._runs.setdefault(row_identity(row.key), SortedDict())
            known = run.get(row.time)
            if known is None or known[:2] <= (row.sequence, arrival):
                run[row.time] = (row.sequence, arrival, row)

    def at(self, key: Key, time: int) -> TimedRow | None:
        """Return the newest version of a key at or before a time, a DELETE too; None when there is none."""
        if None in key:
            return None
        run = self._runs.get(row_identity(key), SortedDict())
        place = run.bisect_right(time)
        return run.peekitem(place - 1)[1][2] if place else None


def _joined(left: Key, right: Key | None, width: int, how: str, passes: Predicate | None) -> Key | None:
    """Return the output row of a left row and the one version chosen for it; None where an inner join has no row."""
    if right is not None and (passes is None or passes(left, right) is True):
        return (*left, *right)
    return (*left, *[None] * width) if how == "left" else None


def batch_temporal(
    left: Iterable[TimedRow],
    versions: Iterable[TimedRow],
    *,
    right_width: int,
    how: str = "inner",
    passes: Predicate | None = None,
) -> Counts:
    """Return the temporal join of all left rows with all versions.

    >>> rates = [TimedRow(("EUR",), 500, ("EUR", 1.1)), TimedRow(("EUR",), 800, ("EUR", 1.2))]
    >>> batch_temporal([TimedRow(("EUR",), 1000, (7, "EUR"))], rates, right_width=2)
    {(7, 'EUR', 'EUR', 1.2): 1}
    """
    known, counts = Versions(versions), dict[Key, int]()
    for row in left:
        version = known.at(row.key, row.time)
        joined = _joined(row.row, None if version is None or version.deleted else version.row, right_width, how, passes)
        if joined is not None:
            counts[row_identity(joined)] = counts.get(row_identity(joined), 0) + 1
    return counts


_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": lambda left, right: left >= right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    "<": lambda left, right: left < right,
}


@dataclass(frozen=True, slots=True)
class Nearest:
    """Choose the nearest row for which `row.time op candidate.time` holds."""

    op: str = ">="
    tie: Callable[[TimedRow], Any] | None = None
    tolerance: int | None = None
    passes: Predicate | None = None

    def to(self, row: TimedRow, candidates: Sequence[TimedRow]) -> TimedRow | None:
        """Return the candidate nearest to a left row, candidates in order of arrival; None where none is."""
        if None in row.key or row.time is None:
            return None
        holds = _HOLDS[self.op]
        matching = [one for one in candidates if one.key == row.key and one.time is not None and holds(row.time, one.time)]
        matching = [one for one in matching if self.tolerance is None or abs(row.time - one.time) <= self.tolerance]
        matching = [one for one in matching if self.passes is None or self.passes(row.row, one.row) is True]
        if not matching:
            return None
        times = [one.time for one in matching]
        near = max(times) if self.op.startswith(">") else min(times)
        tied = [one for one in matching if one.time == near]
        # Among equals of the tie rule the latest arrival wins too, so look from the back.
        return tied[-1] if self.tie is None else min(reversed(tied), key=self.tie)


def batch_as_of(
    left: Iterable[TimedRow],
    right: Sequence[TimedRow],
    nearest: Nearest,
    *,
    right_width: int,
    how: str = "inner",
) -> Counts:
    """Return the as-of join of all rows of both sides, `right` in order of arrival. Cost: every pair with one key."""
    candidates: dict[Key, list[TimedRow]] = {}
    for row in right:
        candidates.setdefault(row.key, []).append(row)
    counts = dict[Key, int]()
    for row in left:
        chosen = nearest.to(row, candidates.get(row.key, ()))
        joined = _joined(row.row, None if chosen is None else chosen.row, right_width, how, None)
        if joined is not None:
            counts[row_identity(joined)] = counts.get(row_identity(joined), 0) + 1
    return counts


def first_rows(rows: Iterable[tuple[Key, Key, Key]], *, descending: Sequence[bool], n: int = 1) -> Counts:
    """Return the rows with ROW_NUMBER() <= n."""
    groups: dict[Key, list[tuple[Key, int, Key]]] = {}
    for arrival, (key, order, row) in enumerate(rows):
        groups.setdefault(row_identity(key), []).append((order, arrival, row))
    counts = dict[Key, int]()
    for group in groups.values():
        ranked = list(group)
        ranked.sort(key=lambda entry: entry[1], reverse=bool(descending and descending[-1]))
        for place in reversed(range(len(descending))):  # a stable sort by the last column first
            ranked.sort(
                key=lambda entry, place=place: (entry[0][place] is not None, entry[0][place] or 0),  # type: ignore[misc]
                reverse=descending[place],
            )
        for _, _, row in ranked[:n]:
            counts[row_identity(row)] = counts.get(row_identity(row), 0) + 1
    return counts
