"""Counts of injected faults, observed effects and comparisons.

A suite that injects faults can pass because it injected none. So every search counts: `injected` when it requests a fault,
`observed` when the fault is seen to have happened (the process died of the signal, the operation raised, the state on the disk
differs), `compared` when a sum of deltas was held against the oracle. Tests hold floors against these counts.

>>> tally = Tally()
>>> tally.count("kills observed", 3)
>>> tally.of("kills observed"), str(tally)
(3, '3 kills observed, 0 lost, 0 doubled')
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from zset_join.testing.reference import Counts

__all__ = ["Tally", "difference"]


@dataclass
class Tally:
    """Count by name; `lost` and `doubled` rows and problems in words are printed first.

    Attributes:
        problems: what went wrong, in words; the tests want none.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a count."""
        self.counts[name] += by

    def of(self, name: str) -> int:
        """Return a count; 0 when nothing was counted."""
        return self.counts[name]

    def compare(self, actual: Counts, expected: Counts, where: str) -> None:
        """A sum of deltas against the oracle's."""
        self.count("comparisons")
        lost, doubled = difference(actual, expected)
        self.lost += lost
        self.doubled += doubled
        if lost or doubled:
            self.problem(f"{where}: {lost} rows lost and {doubled} doubled; is {actual}, should be {expected}")

    def problem(self, what: str) -> None:
        """Note what went wrong."""
        self.problems.append(what)

    def add(self, other: Tally) -> None:
        """Add what somebody else counted."""
        self.counts.update(other.counts)
        self.problems += other.problems
        self.lost += other.lost
        self.doubled += other.doubled

    @property
    def seconds(self) -> float:
        """Return the wall-clock seconds since counting began."""
        return time.monotonic() - self._begun

    def __str__(self) -> str:
        counted = [f"{count:,} {name}" for name, count in self.counts.items()]
        return ", ".join([*counted, f"{self.lost} lost", f"{self.doubled} doubled"])


def difference(actual: Counts, expected: Counts) -> tuple[int, int]:
    """Return how many rows are missing from a sum, and how many are too many.

    >>> difference({("a",): 1, ("b",): 2}, {("a",): 2, ("b",): 1})
    (1, 1)
    """
    excess = [actual.get(row, 0) - expected.get(row, 0) for row in actual.keys() | expected.keys()]
    return -sum(count for count in excess if count < 0), sum(count for count in excess if count > 0)
