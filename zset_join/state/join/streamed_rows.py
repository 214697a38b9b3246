"""Streaming of rows that do not fit in memory: they are read from disk, paired and released.

The law: the answer is that of the same rows in memory. No row that passes is changed by the epoch, for those are brought in by
their identity; and where it matters whether a side has rows of a key, one that stays is in memory (`match_witnesses`).

Rows arrive in the order in which they are on disk, so the changes are worked off by ranges of their hash. Memory: the pages of
one group of rows, and a second list of the changes. Cost: the pages are read once, or twice where the insertions cannot be held
until all retractions are out.

Behind a residual predicate a row is shown or hidden by its own degree. Rows whose degree changes are written again when the
epoch is absorbed (`ColdSide.revise`), and the pages that hold them are read again for it. Remembered until then: 24 bytes
for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows
from spill.row_bytes import UnpackedRows
from zset_join.kernels.values.columns import WEIGHT
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.changed_groups import JoinParts, Pairs, Step
from zset_join.state.join.residual_degrees import shown_by_degree

__all__ = ["DegreesOnTheWay", "Gains", "Piece", "Place", "StreamedGroup", "StreamedRows", "revise_degrees"]

Place = tuple[int, ...]
Piece = tuple[Place, Callable[[int], Sequence[Step]]]
"""A part of an epoch, and what makes the steps that append its retractions (-1), its insertions (1) or both (0)."""

_Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StreamedGroup:
    """Rows of one side that pass: as they are on disk, and as records."""

    place: Place
    side: int
    lying: ColdRows
    records: UnpackedRows


class StreamedRows:
    def __init__(self, parts: JoinParts) -> None:
        self._groups = parts.groups
        self._cold = parts.cold
        self._one_sided = parts.one_sided
        self._pairs = parts.pairs
        self._output = parts.output

    def pieces(self, streams: Sequence[bool], without: Sequence[_Words], only: set[Place] | None = None) -> Iterator[Piece]:
        """Yield a piece for each group of rows; its steps are to be done before the next is requested."""
        if not any(streams):
            return
        groups = self._groups
        groups.sort_by_range()
        for part in range(groups.parts):
            if only is not None and not any(place[0] == part for place in only):
                continue
            groups.enter(part, of_ranges=True)
            for group in self.found(part, streams, without, only):
                yield group.place, partial(self._steps, group)

    def found(
        self, part: int, streams: Sequence[bool], without: Sequence[_Words], only: set[Place] | None = None
    ) -> Iterator[StreamedGroup]:
        """Yield the rows that pass for the part that was entered, by ranges, group by group; arguments as `pieces`."""
        for side, passes in enumerate(streams):
            if not passes:
                continue
            changed = self._groups.changed_codes(1 - side)
            wanted = changed[~np.isin(changed, without[side])] if len(without[side]) else changed
            for number, (lying, records) in enumerate(self._cold[side].pass_through(wanted)):
                place = (part, side, number)
                if only is None or place in only:
                    yield StreamedGroup(place, side, lying, records)
        self._groups.note_streamed()

    def _steps(self, group: StreamedGroup, sign: int) -> list[Step]:
        kind = self._one_sided[group.side]
        return [
            self._groups.streamed_step(
                group.side, group.lying.codes, group.records, kind=kind, pairs=self._pairs, sign=sign, output=self._output
            )
        ]


@dataclass(frozen=True, slots=True)
class Gains:
    """Changed match counts of streamed rows: position on disk, hash and gain of each row that gains any."""

    places: _Words
    codes: _Words
    gains: _Words


class DegreesOnTheWay:
    """Count the matches that the rows of a group gain, and return the rows that the join then emits for each alone."""

    def __init__(self, cold: ColdSide, kind: int, group: StreamedGroup) -> None:
        self._side = cold.side
        self._kind = kind
        self._found = group
        self._gains = np.zeros(group.records.count, np.int64)

    def add(self, refs: _Words, other_was: npt.NDArray[np.bool_], other_is: npt.NDArray[np.bool_]) -> None:
        """Count passing pairs: record addresses of the rows, and whether their partner was and is present."""
        rows = (refs - self._found.records.address) // self._side.layout.stride
        np.add.at(self._gains, rows, other_is.astype(np.int64) - other_was)

    def gains(self) -> Gains:
        at, lying = np.flatnonzero(self._gains), self._found.lying
        return Gains(lying.places[at], lying.codes[at], self._gains[at])

    def one_sided_rows(self) -> Pairs:
        """Return left and right refs and weights of the single rows that the join now emits."""
        stride, at = self._side.layout.stride, np.flatnonzero(self._gains)
        records = self._found.records
        before = records.words(self._side.layout.degree_offset, stride)[at]
        shown = shown_by_degree(self._kind, before + self._gains[at]) - shown_by_degree(self._kind, before)
        weights = records.words(WEIGHT, stride)[at] * shown
        refs, weights = records.address + stride * at[weights != 0], weights[weights != 0]
        padded = np.zeros(len(refs), np.int64)
        return (refs, padded, weights) if self._found.side == 0 else (padded, refs, weights)


def revise_degrees(cold: ColdSide, gained: Sequence[Gains]) -> None:
    """Write those rows of a side again that passed and whose degree changes; `ColdSide.exchange` puts them in their places."""
    places = np.concatenate([each.places for each in gained])
    order = np.argsort(places)
    places, gains = places[order], np.concatenate([each.gains for each in gained])[order]
    layout = cold.side.layout

    def revised(lying: ColdRows, records: UnpackedRows) -> npt.NDArray[np.bool_]:
        at = np.minimum(np.searchsorted(places, lying.places), len(places) - 1)
        changes: npt.NDArray[np.bool_] = places[at] == lying.places
        degrees = records.words(layout.degree_offset, layout.stride)
        degrees[changes] += gains[at[changes]]
        return changes

    if len(places):
        cold.revise(np.unique(np.concatenate([each.codes for each in gained])), revised)
