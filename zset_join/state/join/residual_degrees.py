"""How many matches each row has, when matching means more than an equal key.

Without a residual predicate every row of a key has the same degree, and whether it is 0 can be read off the other side. With
one, each row of a preserved side keeps its own degree in its record: the number of live rows of the other side that pass the
whole ON condition. One epoch changes it by the passing candidate pairs:

    a row that is present before and after:  + 1 per partner that arrives, - 1 per partner that goes
    a new row:                             + 1 per partner that is present after the epoch

It counts rows that are present, never messages: an update that replaces a matching partner leaves the degree as it is.

Bytes during an epoch: 16 per (unchanged row, passing pair) of the touched keys of a part; until it is absorbed 16 to 24 per
row that changes or whose degree does, and 16 per row whose padding changes. In state 8 per row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zset_join.kernels.join.pairs import SHOWN_UNMATCHED
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["ResidualDegrees", "live_flags", "shown_by_degree"]

_Words = npt.NDArray[np.int64]


class ResidualDegrees:
    def __init__(self, side: SideState, kind: int, begin: int, changes: _Words) -> None:
        self._side = side
        self._kind = kind
        self._begin = begin
        self._refs, self._numbers, self._before, self._after = (words.copy() for words in changes)
        self._gained = np.zeros(len(self._refs), np.int64)
        self._touched: list[_Words] = []
        self._touched_gain: list[_Words] = []

    def add(
        self, own_change: _Words, own_refs: _Words, other_was: npt.NDArray[np.bool_], other_is: npt.NDArray[np.bool_]
    ) -> None:
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
        touched = np.concatenate([np.zeros(0, np.int64), *self._touched])
        touched, inverse = np.unique(touched, return_inverse=True)
        gains = np.zeros(len(touched), np.int64)
        np.add.at(gains, inverse, np.concatenate([np.zeros(0, np.int64), *self._touched_gain]))
        self.touched, gains = touched[gains != 0], gains[gains != 0]
        touched_before = self._side.degrees(self.touched)
        self.touched_after = touched_before + gains
        degrees_before = np.zeros(len(self._refs), np.int64)
        known = self._numbers != 0
        degrees_before[known] = self._side.degrees(self._numbers[known])
        after = degrees_before + self._gained
        self.one_sided_rows = self._one_sided(degrees_before, after, touched_before)
        there = self._after > 0
        self._stored, self.degrees_after = self._numbers[there], after[there]
        self._new_refs = self._refs[there & ~known]
        del self._refs, self._numbers, self._before, self._after, self._gained, self._touched, self._touched_gain

    def _one_sided(self, degrees_before: _Words, degrees_after: _Words, touched_before: _Words) -> tuple[_Words, _Words]:
        shown_before, shown_after = (shown_by_degree(self._kind, degrees) for degrees in (degrees_before, degrees_after))
        weights = self._after * shown_after - self._before * shown_before
        touched_refs = self._side.first_record + (self.touched - 1) * self._side.layout.stride
        shown = shown_by_degree(self._kind, self.touched_after) - shown_by_degree(self._kind, touched_before)
        refs = np.concatenate([self._refs, touched_refs])
        all_weights = np.concatenate([weights, self._side.weights(self.touched) * shown])
        kept = all_weights != 0
        return refs[kept], all_weights[kept]

    def store(self, prepared: PreparedSide | None) -> None:
        """Write the degrees after the epoch; called when the rows themselves have been absorbed."""
        self._side.store_degrees(self.touched, self.touched_after)
        numbers = self._stored
        if prepared is not None and len(self._new_refs):
            rows = (self._new_refs - prepared.encoded.address) // self._side.layout.stride
            numbers[numbers == 0] = prepared.numbers[rows]
        self._side.store_degrees(numbers, self.degrees_after)


def shown_by_degree(kind: int, degrees: _Words) -> _Words:
    """Return 1 for each row that the join shows alone because of its degree, else 0.

    >>> shown_by_degree(SHOWN_UNMATCHED, np.array([0, 1, 2])).tolist()
    [1, 0, 0]
    """
    return ((degrees == 0) if kind == SHOWN_UNMATCHED else (degrees > 0)).astype(np.int64)


def live_flags(changes: _Words, before: _Words, after: _Words) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return whether partners were and are present; change -1 is an unchanged row, there both times."""
    unchanged = changes < 0
    return unchanged | (before[changes] > 0), unchanged | (after[changes] > 0)
