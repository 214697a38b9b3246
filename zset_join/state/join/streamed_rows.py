"""Streaming of rows that do not fit in memory: they are read from disk, paired and released.

The law: the answer is that of the same rows in memory. No row that passes is changed by the epoch, for those are brought in by
their identity; and where it matters whether a side has rows of a key, one that stays is in memory (`match_witnesses`).

Rows arrive in the order in which they are on disk, so the changes are worked off by ranges of their hash. Memory: the pages of
one group of rows, and a second list of the changes. Cost: the pages are read once, or twice where the insertions cannot be held
until all retractions are out.

`OversizedRows`: the output of a key with too many rows to be brought into memory: they stay on disk and are read in chunks.

The law: the answer is that of the same rows in memory. The rows on disk of such a key are none that the epoch changes, because
those are brought in by their identity. So with the changes of the key on the other side they make a cross product,

    weight of the row * (weight of the change after - before),

of which those pairs count that pass the residual predicate. Where their side is preserved they are shown or hidden as one,
when the other side's rows of the key come or go. Whether a side has rows of a key is read off those in memory: `one_of_each`
brings one in, and it represents those on disk. With a residual predicate each row is shown or hidden by its own degree; a row
whose degree changes is written again, to replace the one on disk when the epoch is absorbed.

Memory: a chunk of about a MB, and the pairs of a part of it. Every chunk is read once for each sign that has rows to emit,
and where degrees change again to absorb them; the predicate is evaluated each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from spill.row_bytes import UnpackedRows
from zset_join.kernels.join.pairs import SHOWN_MATCHED
from zset_join.kernels.values.keys import WEIGHT
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.join.changed_groups import ChangedKey, JoinParts, Pairs, Step
from zset_join.state.rows.keyed_rows import KeyRow, equal_keys
from zset_join.state.rows.side import PreparedSide

__all__ = ["OversizedRows", "Piece", "Place", "StreamedGroup", "StreamedRows", "one_of_each"]

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


_PAIRS_AT_ONCE = 1 << 16
_FIRST_BYTES = 1 << 16
_MOST = (1 << 63) - 1
_NONE = np.empty(0, np.int64)

Flags = npt.NDArray[np.bool_]
Passes = Callable[[Int64s, Int64s], Flags]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows on disk of one key: record addresses, weights, and degrees where the rows have some."""

    refs: Int64s
    weights: Int64s
    degrees: Int64s | None


class OversizedRows:
    def __init__(self, parts: JoinParts) -> None:
        self._cold = parts.cold
        self._one_sided = parts.one_sided
        self._pairs = parts.pairs
        self._passes = parts.passes

    def answer(self, key: ChangedKey, sign: int) -> Iterator[Iterator[Pairs]]:
        """Yield per chunk the retractions or insertions that a key's changes make of the other side's rows on disk."""
        # Each is left and right refs (0: padded) and weights, in pieces that are valid until the next chunk.
        deltas = key.after - key.before
        chosen = (deltas * sign > 0) & self._pairs
        other = 1 - key.side
        flips, shown = np.zeros_like(deltas), 0
        if _has_degrees(self._cold[other]):
            flips = _flips(key)
        elif self._one_sided[other]:
            shown = key.remains - key.was if self._one_sided[other] == SHOWN_MATCHED else key.was - key.remains
        requested = np.flatnonzero(chosen | (flips != 0))
        if not len(requested) and shown * sign <= 0:
            return
        largest = int(np.abs(deltas[chosen]).max(initial=0))
        for rows in self._rows(key):
            if largest * int(rows.weights.max()) > _MOST:
                raise OverflowError("product of two weights")
            yield self._crossed(key, requested, deltas * chosen, flips, rows, shown, sign)

    def revise_degrees(self, keys: Sequence[ChangedKey]) -> None:
        """Write those rows on disk again whose degree the changes of some keys make another one."""
        for number, cold in enumerate(self._cold):
            changing: dict[int, list[ChangedKey]] = {}
            for key in keys:
                if key.side != number and _has_degrees(cold) and _flips(key).any():
                    changing.setdefault(key.code, []).append(key)
            if changing:
                cold.revise(np.array(list(changing), np.int64), partial(self._revised, cold, changing))

    def _revised(self, cold: ColdSide, changing: dict[int, list[ChangedKey]], lying: ColdRows, rows: UnpackedRows) -> Flags:
        """Change the degrees of some rows; return which are others now."""
        codes = lying.codes
        stride = cold.side.layout.stride
        refs, gains = rows.refs(stride), np.zeros(rows.count, np.int64)
        for code in np.unique(codes).tolist():
            places = np.flatnonzero(codes == code)
            for key in changing[code]:
                equal, flips = places[equal_keys(key.row, cold.side, refs[places])], _flips(key)
                for own, _, _, passes in self._judged(key, np.flatnonzero(flips), refs[equal]):
                    gains[equal] += flips[own] @ passes
        degrees = rows.words(cold.side.layout.degree_offset, stride)
        degrees += gains
        changed: Flags = gains != 0
        return changed

    def passing_changes(self, key: ChangedKey) -> Iterator[Int64s]:
        """Yield, in pieces, positions of a key's changes: one for each row on disk that a change passes the condition with."""
        every = np.arange(len(key.refs))
        for rows in self._rows(key):
            for own, _, _, passes in self._judged(key, every, rows.refs):
                yield np.repeat(key.positions[own], passes.sum(axis=1))

    def _rows(self, key: ChangedKey) -> Iterator[_Rows]:
        cold = self._cold[1 - key.side]
        stride = cold.side.layout.stride
        for _, records in cold.stream(key.code):
            refs = records.refs(stride)
            equal = equal_keys(key.row, cold.side, refs)
            if equal.any():
                degrees = records.words(cold.side.layout.degree_offset, stride)[equal] if _has_degrees(cold) else None
                yield _Rows(refs[equal], records.words(WEIGHT, stride)[equal], degrees)

    def _judged(self, key: ChangedKey, changes: Int64s, refs: Int64s) -> Iterator[tuple[Int64s, Int64s, Int64s, Flags]]:
        """Yield, piece by piece, some of a key's changes and their pairs with rows: refs, and whether they pass."""
        size = max(1, _PAIRS_AT_ONCE // len(refs)) if len(refs) else 1
        for begin in range(0, len(changes) if len(refs) else 0, size):
            own = changes[begin : begin + size]
            changed, rows = np.repeat(key.refs[own], len(refs)), np.tile(refs, len(own))
            left, right = (changed, rows) if key.side == 0 else (rows, changed)
            yield own, left, right, self._passes(left, right).reshape(len(own), len(refs))

    def _crossed(
        self, key: ChangedKey, changes: Int64s, deltas: Int64s, flips: Int64s, rows: _Rows, shown: int, sign: int
    ) -> Iterator[Pairs]:
        """Yield the pairs of some changes and rows, and the rows that arrive or go alone."""
        # `deltas` is 0 where a change makes no pair of this sign; `flips` is as `_flips`, `shown` the same for the rows; both
        # are 0 where rows have no degrees.
        gains = np.zeros(len(rows.refs), np.int64)
        for own, left, right, passes in self._judged(key, changes, rows.refs):
            if rows.degrees is not None:
                gains += flips[own] @ passes
            if not self._pairs:
                continue
            kept = (passes & (deltas[own] != 0)[:, None]).ravel()
            weights = np.multiply.outer(deltas[own], rows.weights).ravel()
            yield (left, right, weights) if kept.all() else (left[kept], right[kept], weights[kept])
        alone = rows.weights * shown
        if rows.degrees is not None:
            was, remains = rows.degrees > 0, rows.degrees + gains > 0
            changes = remains.astype(np.int64) - was
            alone = rows.weights * (changes if self._one_sided[1 - key.side] == SHOWN_MATCHED else -changes)
        kept = alone * sign > 0
        if kept.any():
            refs, padded = rows.refs[kept], np.zeros(int(kept.sum()), np.int64)
            yield (refs, padded, alone[kept]) if key.side == 1 else (padded, refs, alone[kept])


def _has_degrees(cold: ColdSide) -> bool:
    return cold.side.layout.degree_offset >= 0


def _flips(key: ChangedKey) -> Int64s:
    """Return 1 for each change that is a row which comes, -1 for one that goes, else 0."""
    flips: Int64s = (key.after > 0).astype(np.int64) - (key.before > 0)
    return flips


def one_of_each(
    number: int,
    codes: Int64s,
    opened: Sequence[ColdSide],
    prepared: Sequence[PreparedSide | None],
    witnesses: Int64s,
    stamp: int,
    clock: float,
) -> ColdRows | None:
    """Find one row on disk of each join key that some deltas change and that has one of some hashes; None if there are none."""
    # A key needs no row if one of `witnesses` (row numbers) has it and does not change. Rows that deltas name are in memory.
    pieces: list[ColdRows] = []
    cold = opened[number]
    named = [
        side.hot.probe(own, stamp, clock) if own is not None and side.side.has_identity else (_NONE, _NONE)
        for side, own in zip(opened, prepared, strict=True)
    ]
    in_memory = cold.hot.unchanged(witnesses)
    kept = cold.side.refs_of(in_memory[~np.isin(in_memory, named[number][0])])
    for code in codes.tolist():
        keys = _changed_keys(code, opened, prepared, named)
        missing = [key for key in keys if not equal_keys(key, cold.side, kept).any()]
        if not missing:
            continue
        for lying, rows in cold.stream(code, _FIRST_BYTES):
            refs = rows.refs(cold.side.layout.stride)
            for key in list(missing):
                equal = equal_keys(key, cold.side, refs)
                if equal.any():
                    pieces.append(lying.chosen(np.arange(len(refs)) == int(np.argmax(equal))))
                    missing.remove(key)
            if not missing:
                break
    if not pieces:
        return None
    return ColdRows(
        np.concatenate([rows.codes for rows in pieces]),
        np.concatenate([rows.subcodes for rows in pieces]),
        pa.concat_arrays([rows.rows for rows in pieces]),
        np.concatenate([rows.places for rows in pieces]),
    )


def _changed_keys(
    code: int,
    opened: Sequence[ColdSide],
    prepared: Sequence[PreparedSide | None],
    named: Sequence[tuple[Int64s, Int64s]],
) -> list[KeyRow]:
    """Return a row for each key with a hash that is in a delta, or in a row that a delta names."""
    keys: list[KeyRow] = []
    for side, own, (numbers, hashes) in zip(opened, prepared, named, strict=True):
        if own is None:
            continue
        state = side.side
        new = np.flatnonzero((own.join_codes[: own.count] == code) & (own.unmatchable[: own.count] == 0))
        left = np.concatenate([own.encoded.address + state.layout.stride * new, state.refs_of(numbers[hashes == code])])
        for key in keys:
            left = left[~equal_keys(key, state, left)]
        while len(left):
            keys.append(KeyRow(state, int(left[0])))
            left = left[~equal_keys(keys[-1], state, left)]
    return keys
