"""The pairs of an epoch of which only some pass: matching means more than an equal key.

The law: a pair counts if it passes the whole ON condition. Every candidate pair, one with equal keys that changes, is judged
once, and the result kept as a bit, for retractions come out before insertions and an epoch may be absorbed later.
Whether a row is shown alone follows from how many of its pairs pass (`ResidualDegrees`), and so is
known when all pairs of its key were judged.

So an epoch is worked off part by part: the pairs in memory, those with rows that pass through memory
(`zset_join.state.join.streamed_rows`), and then the rows alone. Where rows pass, parts are ranges of the hash.

Remembers until the epoch is absorbed a bit per candidate pair, and what `ResidualDegrees` and `Gains` do. Cost: the candidate
pairs; rows that pass are read as often as without a predicate, and those whose degree changes again.

`ResidualDegrees`: how many matches each row has, when matching means more than an equal key.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows
from spill.row_bytes import UnpackedRows
from zset_join.kernels.join.pairs import SHOWN_UNMATCHED
from zset_join.kernels.values.keys import WEIGHT
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.changed_groups import ChangedKey, JoinParts, OutputArrays, Pairs, Step
from zset_join.state.join.streamed_rows import OversizedRows, Piece, Place, StreamedGroup, StreamedRows
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["JudgedEpoch", "ResidualPairs"]

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


_LEFT = 0
_ALONE = -1
_JUDGED_AT_ONCE = 1 << 14
_Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _JudgedPart:
    """The results for the pairs of a part: bits per piece, in pieces, and degrees per side; whole when all were judged."""

    degrees: dict[int, ResidualDegrees]
    bits: dict[Place, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)
    gains: dict[Place, Gains] = field(default_factory=dict)
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class JudgedEpoch:
    """The results for the pairs of an epoch so far, by part, and which rows are not in memory."""

    streams: tuple[bool, ...] = ()  # per side, whether what is on disk of the keys that change on the other side passes
    oversized_codes: tuple[_Words, ...] = ()  # per side, hashes of keys that are streamed instead
    parts: dict[int, _JudgedPart] = field(default_factory=dict)


class ResidualPairs:
    def __init__(self, parts: JoinParts, streamed: StreamedRows, oversized: OversizedRows, *, chunk_rows: int) -> None:
        self._sides = parts.sides
        self._groups = parts.groups
        self._cold = parts.cold
        self._streamed = streamed
        self._oversized = oversized
        self._one_sided = parts.one_sided
        self._pairs = parts.pairs
        self._passes = parts.passes
        self._output = parts.output
        self._candidates = OutputArrays(min(chunk_rows, _JUDGED_AT_ONCE), with_changes=True)
        self._touched_rows = 0  # of these arrays; the rest of them takes no memory

    def resident_bytes(self) -> int:
        """Return the bytes of the arrays of candidate pairs, as far as they were filled."""
        return 8 * len(self._candidates.words) * self._touched_rows

    # ---------------------------------------------------------------- an epoch

    def pieces(self, epoch: JudgedEpoch, only: set[Place] | None = None) -> Iterator[Piece]:
        """Yield all pieces of an epoch, or some; the steps of one are to be done before the next is requested."""
        # That of a part's pairs in memory comes first, under the part's number alone. The steps raise OverflowError when the
        # product of two weights leaves int64.
        for place, arrays in self._arrays(epoch, only):
            yield place, partial(self._steps, arrays)

    def judge(self, epoch: JudgedEpoch) -> None:
        parts = self._groups.parts
        if any(self._one_sided) and not (len(epoch.parts) == parts and all(part.is_whole for part in epoch.parts.values())):
            for _, arrays in self._arrays(epoch, None):
                for _ in arrays(0):
                    pass

    def revises(self, epoch: JudgedEpoch) -> bool:
        """Return whether rows on disk may have another degree after an epoch that was judged."""
        return self._groups.parts > 0 and any(self._one_sided) and (any(map(len, epoch.oversized_codes)) or any(epoch.streams))

    def revise(self, epoch: JudgedEpoch) -> None:
        """Write those rows on disk again whose degree an epoch that was judged makes another one."""
        if any(map(len, epoch.oversized_codes)):
            oversized_keys: list[ChangedKey] = []
            for part in range(self._groups.parts):
                self._groups.enter(part)
                oversized_keys += self._groups.changed_keys(epoch.oversized_codes)
            self._oversized.revise_degrees(oversized_keys)
        for side, cold in enumerate(self._cold):
            gained = [gains for part in epoch.parts.values() for place, gains in part.gains.items() if place[1] == side]
            if gained:
                revise_degrees(cold, gained)

    def store(self, epoch: JudgedEpoch, prepared: Sequence[PreparedSide | None]) -> list[tuple[int, _Words]]:
        """Write the degrees of rows in memory, when the rows have been absorbed; return side and numbers of unchanged rows."""
        degrees = [degrees for part in epoch.parts.values() for degrees in part.degrees.items()]
        for side, of_side in degrees:
            of_side.store(prepared[side])
        return [(side, of_side.touched) for side, of_side in degrees]

    # ---------------------------------------------------------------- a part

    def _arrays(self, epoch: JudgedEpoch, only: set[Place] | None) -> Iterator[tuple[Place, Callable[[int], Iterator[Pairs]]]]:
        """Yield what `pieces` does, as what makes the pairs of a sign."""
        groups, ranges = self._groups, any(epoch.streams)
        if ranges:
            groups.sort_by_range()
        for number in range(groups.parts):
            if only is not None and not any(place[0] == number for place in only):
                continue
            groups.enter(number, of_ranges=ranges)
            part = epoch.parts.get(number)
            if part is None or not part.is_whole:
                part = epoch.parts[number] = self._begin()
            if only is None or (number,) in only:
                yield (number,), partial(self._in_memory, epoch, part, number)
            for pairs in self._streamed.found(number, epoch.streams, epoch.oversized_codes, only):
                yield pairs.place, partial(self._with_streamed, part, pairs)
            alone = (number, _ALONE)
            if ranges and any(self._one_sided) and (only is None or alone in only):
                yield alone, partial(self._alone, epoch, part)
            part.is_whole = True

    def _steps(self, arrays: Callable[[int], Iterator[Pairs]], sign: int) -> list[Step]:
        return [self._output.copying(arrays(sign))]

    def _begin(self) -> _JudgedPart:
        return _JudgedPart(
            {
                side: ResidualDegrees(self._sides[side], kind, *self._groups.changes_of(side))
                for side, kind in enumerate(self._one_sided)
                if kind
            }
        )

    def _in_memory(self, epoch: JudgedEpoch, part: _JudgedPart, number: int, sign: int) -> Iterator[Pairs]:
        """Yield the pairs in memory; where no rows pass, then the rows alone."""
        before, after = self._groups.weights_of_changes()
        step = self._groups.pair_step(0, self._candidates)
        is_needed = self._pairs or not part.is_whole
        for (left, right, weights, *changes), passing, is_new in self._judged(part, (number,), step) if is_needed else ():
            if is_new and part.degrees:
                refs, changed = (left[passing], right[passing]), [change[passing] for change in changes]
                flags = [live_flags(change, before, after) for change in changed]
                for side, of_side in part.degrees.items():
                    of_side.add(changed[side], refs[side], *flags[1 - side])
            yield from self._shown(left, right, weights, passing, sign)
        if not any(epoch.streams):
            yield from self._alone(epoch, part, sign)

    def _with_streamed(self, part: _JudgedPart, group: StreamedGroup, sign: int) -> Iterator[Pairs]:
        """Yield the pairs with some rows that pass, and then these rows alone."""
        side, other = group.side, 1 - group.side
        before, after = self._groups.weights_of_changes()
        kind = self._one_sided[side]
        degrees = DegreesOnTheWay(self._cold[side], kind, group) if kind else None
        step = self._groups.streamed_step(
            side, group.lying.codes, group.records, kind=0, pairs=True, sign=0, output=self._candidates
        )
        for (left, right, weights, *changes), passing, is_new in self._judged(part, group.place, step):
            refs, changed = (left[passing], right[passing]), changes[other][passing]
            if degrees is not None:
                degrees.add(refs[side], *live_flags(changed, before, after))
            if is_new and other in part.degrees:
                there = np.ones(len(changed), np.bool_)
                part.degrees[other].add(changed, refs[other], there, there)
            yield from self._shown(left, right, weights, passing, sign)
        if degrees is not None:
            part.gains[group.place] = degrees.gains()
            yield from self._shown(*degrees.one_sided_rows(), None, sign)

    def _alone(self, epoch: JudgedEpoch, part: _JudgedPart, sign: int) -> Iterator[Pairs]:
        """Yield the rows that are in memory, or change, as far as they are shown or hidden alone; all pairs were judged."""
        if not part.is_whole:
            for key in self._groups.changed_keys(epoch.oversized_codes):
                for positions in self._oversized.passing_changes(key) if key.side in part.degrees else ():
                    there = np.ones(len(positions), np.bool_)
                    begin = self._groups.changes_of(key.side)[0]
                    part.degrees[key.side].add(begin + positions, positions, there, there)
            for of_side in part.degrees.values():
                of_side.finish()
            part.is_whole = True
        for side, of_side in part.degrees.items():
            refs, weights = of_side.one_sided_rows
            padded = np.zeros(len(refs), np.int64)
            left, right = (refs, padded) if side == _LEFT else (padded, refs)
            yield from self._shown(left, right, weights, None, sign)

    # ---------------------------------------------------------------- pairs

    def _judged(self, part: _JudgedPart, place: Place, step: Step) -> Iterator[tuple[list[_Words], _Flags, bool]]:
        """Yield the candidate pairs of a step, with whether they pass and whether that was judged only now."""
        # They are refs, weights and the positions of either change, some thousand at a time, each valid until the next.
        bits = part.bits.setdefault(place, [])
        number, done = 0, False
        while not done:
            count, done = step(0)
            if not count:
                continue
            self._touched_rows = max(self._touched_rows, count)
            lines = [line[:count] for line in self._candidates.words]
            is_new = number == len(bits)
            if is_new:
                passing = self._passes(lines[0], lines[1])
                bits.append(np.packbits(passing))
            else:
                passing = np.unpackbits(bits[number], count=count).view(np.bool_)
            number += 1
            yield lines, passing, is_new

    def _shown(self, left: _Words, right: _Words, weights: _Words, passing: _Flags | None, sign: int) -> Iterator[Pairs]:
        """Yield those of some pairs that pass and have a sign, 0 for either; rows alone (`passing` None) in any join."""
        if passing is not None and not self._pairs:
            return
        kept = np.ones(len(weights), np.bool_) if passing is None else passing
        if sign:
            kept = kept & ((weights > 0) == (sign > 0))
        if kept.any():
            yield left[kept], right[kept], weights[kept]
