"""Choice of the entries to spill when the hot ones exceed their budget.

The law: `victims` returns nothing while the budget holds, else the entries with the lowest scores, as few as bring what is left
down to the budget less a slack; equal scores go by position. It is a pure function: a second call returns the same answer.

Every entry carries a score of four bytes, which is all that is remembered of it. A touch counts 1 and counts half a half-life
later; the score is the binary logarithm of the sum, written so that scores stay comparable while nobody touches them (the
clock is added instead of taken away). Time is *turnover*: the clock moves by one when three times the budget was spilled.
So an entry that is touched again and again is worth more than one that was touched last, a sweep over cold entries spills
itself before it spills those, and a stream whose state fits never forgets who was busy.

An entry that is spilled keeps its score if its owner stores it with the row; on the traces of `benchmarks/residency.py` that
is worth up to 3 % of all touches.

Edge cases. A budget of 0 spills everything. New entries start at `NEVER`. Without a limit nothing is ever spilled.

Known limits: a score has 24 bits, so after a million turnovers touches closer than 1/10 turnover look equal.

Source: LRFU (Lee et al., IEEE Transactions on Computers 50(12), 2001), with turnover for time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.errors import OptionError
from zset_join.kernels.machine.compiled import kernel

__all__ = ["HALF_LIFE_TURNOVERS", "NEVER", "ResidencyPolicy", "Scores", "lowest_scores"]

Scores = npt.NDArray[np.float32]

HALF_LIFE_TURNOVERS = 3.0
NEVER = np.float32(-np.inf)

_BINS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy:
    """Policy that decides which entries stay in memory.

    >>> policy = ResidencyPolicy(max_hot_bytes=300, slack=0.0)
    >>> scores = policy.touched(np.full(4, NEVER), clock=0.0)
    >>> scores[[0, 2]] = policy.touched(scores[[0, 2]], clock=0.5)
    >>> policy.victims(scores, np.array([100, 100, 100, 100])).tolist()
    [1]
    """

    max_hot_bytes: int | None = None
    max_hot_keys: int | None = None
    slack: float = 0.1  # part of the budget that is freed beyond what is needed, so that spilling is rare

    def __post_init__(self) -> None:
        for option in ("max_hot_bytes", "max_hot_keys"):
            value = getattr(self, option)
            if value is not None and value < 0:
                raise OptionError(
                    f"the option {option} was given {value}; expected 0 or more, or None for no limit.",
                    code="OPTION_VALUE",
                    option=option,
                    value=value,
                )
        if not 0.0 <= self.slack <= 1.0:
            raise OptionError(
                f"the option slack was given {self.slack}; expected a part of the budget, from 0 to 1.",
                code="OPTION_VALUE",
                option="slack",
                value=self.slack,
            )

    def touched(self, scores: Scores, clock: float) -> Scores:
        """Return the scores of entries that are touched now. An entry is touched at most once per epoch."""
        now = np.float32(clock)
        grown: Scores = now + np.log2(np.float32(1) + np.exp2(scores - now, dtype=np.float32))
        return grown

    def victims(self, scores: Scores, sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the positions of the entries to spill, ascending. Cost: three passes over the scores."""
        are_entries = sizes >= 0
        excess_bytes = self._excess(int(np.sum(sizes, where=are_entries, dtype=np.int64)), self.max_hot_bytes)
        excess_entries = self._excess(int(np.count_nonzero(are_entries)), self.max_hot_keys)
        if not excess_bytes and not excess_entries:
            return np.empty(0, np.int64)
        own_scores, own_sizes = np.ascontiguousarray(scores, np.float32), np.ascontiguousarray(sizes)
        return lowest_scores([own_scores], [own_sizes], excess_bytes, excess_entries)[0]

    def _excess(self, held: int, limit: int | None) -> int:
        if limit is None or held <= limit:
            return 0
        return held - int(limit * (1.0 - self.slack))

    def advanced(self, clock: float, *, spilled_bytes: int, spilled_keys: int) -> float:
        """Return the clock after spilling, in half-lives."""
        turnovers = [
            spilled / limit
            for spilled, limit in ((spilled_bytes, self.max_hot_bytes), (spilled_keys, self.max_hot_keys))
            if limit
        ]
        return clock + max(turnovers, default=0.0) / HALF_LIFE_TURNOVERS


@kernel
def _rank(bits: int) -> int:
    """Return a number from 0 to 2^32 - 1 that orders like the float with these bits."""
    signed = bits if bits >= 0 else bits ^ 0x7FFFFFFF
    return signed + 0x80000000


def lowest_scores(
    scores: Sequence[Scores], sizes: Sequence[npt.NDArray[Any]], excess_bytes: int, excess_entries: int
) -> list[npt.NDArray[np.int64]]:
    """Return the positions, per array, of the entries of lowest score that reach both excesses together, as few as do.

    >>> lowest_scores([np.float32([2, 1]), np.float32([3, 0])], [np.array([10, 10]), np.array([10, -1])], 15, 0)
    [array([0, 1]), array([], dtype=int64)]
    """
    # The scores are counted by their upper 16 bits and, where the line falls, by their lower 16 bits. Cost: three passes;
    # memory for the positions only.
    bits = [own.view(np.int32) for own in scores]
    missing = np.array([excess_bytes, excess_entries], np.int64)
    most, border = 0, 0
    for is_upper in (True, False):
        bin_bytes, bin_entries = np.zeros(_BINS, np.int64), np.zeros(_BINS, np.int64)
        for own, own_sizes in zip(bits, sizes, strict=True):
            _count(own, own_sizes, is_upper, border, bin_bytes, bin_entries)
        line = int(_line(bin_bytes, bin_entries, missing))
        most += int(bin_entries[: line + (not is_upper)].sum())
        border = (border << 16) | line
    chosen = np.empty(most, np.int64)
    lowest: list[npt.NDArray[np.int64]] = []
    for own, own_sizes in zip(bits, sizes, strict=True):
        count = int(_list(own, own_sizes, border, missing, chosen))
        lowest.append(chosen[:count])
        chosen = chosen[count:]
    return lowest


@kernel
def _count(bits: Any, sizes: Any, is_upper: bool, line: int, bin_bytes: Any, bin_entries: Any) -> None:
    """Count bytes and entries by the upper half of their rank; or by the lower half, those whose upper half is `line`."""
    for position in range(len(bits)):
        if sizes[position] < 0:
            continue
        rank = _rank(bits[position])
        if is_upper:
            place = rank >> 16
        elif rank >> 16 == line:
            place = rank & 0xFFFF
        else:
            continue
        bin_bytes[place] += sizes[position]
        bin_entries[place] += 1


@kernel
def _line(bin_bytes: Any, bin_entries: Any, missing: Any) -> int:
    """Return the first bin that is not needed whole; what is missing from there on stays in `missing`."""
    line = 0
    while line < _BINS - 1 and (bin_bytes[line] < missing[0] or bin_entries[line] < missing[1]):
        missing[0] -= bin_bytes[line]
        missing[1] -= bin_entries[line]
        line += 1
    return line


@kernel
def _list(bits: Any, sizes: Any, border: int, missing: Any, chosen: Any) -> int:
    """List the entries below the border, and of those on it as many as are missing; return how many."""
    count = 0
    for position in range(len(bits)):
        if sizes[position] < 0:
            continue
        rank = _rank(bits[position])
        tied = rank == border and (missing[0] > 0 or missing[1] > 0)
        if rank < border or tied:
            chosen[count] = position
            count += 1
        if tied:
            missing[0] -= sizes[position]
            missing[1] -= 1
    return count
