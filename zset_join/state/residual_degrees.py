"""How many matches each row has, when matching means more than an equal key.

Without a residual predicate every row of a key has the same degree, and whether it is 0 can be read off the other side. With
one, each row of a preserved side keeps its own degree in its record: the number of live rows of the other side that pass the
whole ON condition. One epoch changes it by what the passing candidate pairs say:

    a row that is there before and after:  + 1 per partner that comes, - 1 per partner that goes
    a new row:                             + 1 per partner that is there after the epoch

It counts rows that are there, never messages: an update that replaces a matching partner leaves the degree as it is.

Bytes during an epoch: 16 per (unchanged row, passing pair) of the touched keys; in state 8 per row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zset_join.kernels.pairs import LONE_MISSING
from zset_join.state.side import PreparedSide, SideState

__all__ = ["ResidualDegrees", "live_flags"]

_Words = npt.NDArray[np.int64]


class ResidualDegrees:
    """Collect the degrees of one side in one epoch.

    Args:
        side: state of the side.
        kind: `LONE_MISSING` or `LONE_MATCHED`, what the join says about its lone rows.
        begin: position of the side's first change.
        refs: record address of each change.
        numbers: row number of each change in the state, 0 for a new row.
        before: weights before.
        after: weights after.
    """

    def __init__(
        self, side: SideState, kind: int, begin: int, refs: _Words, numbers: _Words, before: _Words, after: _Words
    ) -> None:
        self._side = side
        self._kind = kind
        self._begin = begin
        self._refs, self._numbers = refs.copy(), numbers.copy()
        self._before, self._after = before.copy(), after.copy()
        self.degrees_before = np.zeros(len(refs), np.int64)
        known = numbers != 0
        self.degrees_before[known] = side.degrees(numbers[known])
        self._gained = np.zeros(len(refs), np.int64)
        self._touched: list[_Words] = []
        self._touched_gain: list[_Words] = []

    def add(
        self, own_change: _Words, own_refs: _Words, other_was: npt.NDArray[np.bool_], other_is: npt.NDArray[np.bool_]
    ) -> None:
        """Count passing candidate pairs.

        Args:
            own_change: position of this side's change, -1 for an unchanged row.
            own_refs: record address of this side's row.
            other_was: whether the partner was there before the epoch.
            other_is: whether it is there after.
        """
        is_change = own_change >= 0
        if is_change.any():
            at = own_change[is_change] - self._begin
            was_there = self._before[at] > 0
            gain = other_is[is_change].astype(np.int64) - (was_there & other_was[is_change])
            np.add.at(self._gained, at, gain)
        unchanged = ~is_change
        if unchanged.any():
            rows = (own_refs[unchanged] - self._side.first_record) // self._side.layout.stride + 1
            gain = other_is[unchanged].astype(np.int64) - other_was[unchanged]
            numbers, inverse = np.unique(rows, return_inverse=True)
            gains = np.zeros(len(numbers), np.int64)
            np.add.at(gains, inverse, gain)
            self._touched.append(numbers)
            self._touched_gain.append(gains)

    def finish(self) -> None:
        """Sum up what was added."""
        if self._touched:
            self.touched, inverse = np.unique(np.concatenate(self._touched), return_inverse=True)
            gains = np.zeros(len(self.touched), np.int64)
            np.add.at(gains, inverse, np.concatenate(self._touched_gain))
        else:
            self.touched, gains = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.touched_before = self._side.degrees(self.touched)
        self.touched_after = self.touched_before + gains
        self.degrees_after = self.degrees_before + self._gained

    def lone_rows(self) -> tuple[_Words, _Words]:
        """Return record addresses and weights of what the join now says about single rows."""
        touched_refs = self._side.first_record + (self.touched - 1) * self._side.layout.stride
        touched_weights = self._side.weights(self.touched)
        if self._kind == LONE_MISSING:
            shown_before, shown_after = self.degrees_before == 0, self.degrees_after == 0
            touched_shown = (self.touched_after == 0).astype(np.int64) - (self.touched_before == 0)
        else:
            shown_before, shown_after = self.degrees_before > 0, self.degrees_after > 0
            touched_shown = (self.touched_after > 0).astype(np.int64) - (self.touched_before > 0)
        weights = self._after * shown_after - self._before * shown_before
        refs = np.concatenate([self._refs, touched_refs])
        all_weights = np.concatenate([weights, touched_weights * touched_shown])
        kept = all_weights != 0
        return refs[kept], all_weights[kept]

    def store(self, prepared: PreparedSide | None) -> None:
        """Write the degrees after the epoch; called when the rows themselves have been absorbed."""
        self._side.store_degrees(self.touched, self.touched_after)
        there = self._after > 0
        numbers = self._numbers.copy()
        new = there & (numbers == 0)
        if prepared is not None and new.any():
            rows = (self._refs[new] - prepared.encoded.address) // self._side.layout.stride
            numbers[new] = prepared.numbers[rows]
        self._side.store_degrees(numbers[there], self.degrees_after[there])


def live_flags(changes: _Words, before: _Words, after: _Words) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return whether partners were and are there; change -1 is an unchanged row, there both times."""
    unchanged = changes < 0
    return unchanged | (before[changes] > 0), unchanged | (after[changes] > 0)
