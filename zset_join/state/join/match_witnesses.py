"""Rows that are read into memory for others of their key, where all that matters is whether a side has rows of a key.

The law: when an epoch has been fetched, a key that it changes has a row in memory that the epoch does not change, if there is
one anywhere. So of a key whose rows are neither paired nor shown one row arrives, and none where such a row is in memory.

Cost: the changes, and the pages of the keys that have no such row in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows, Int64s
from spill.sorting import ascending_positions
from zset_join.kernels.join.match_witnesses import choose_witnesses, mark_lacking, record_witnesses
from zset_join.state.cold.cold_side import ColdSide, matchable_rows
from zset_join.state.rows.side import PreparedSide

__all__ = ["MatchWitnesses"]

_TIMES_MORE_PASSING = 2
_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class _Keys:
    """Keys that the changes of one side name."""

    of: int
    codes: Int64s  # ascending
    names: Int64s  # records, as in `zset_join.kernels.join.match_witnesses`
    lacking: npt.NDArray[np.bool_]  # no row of the key is in memory that stays

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        self.codes, self.names, self.lacking = self.codes[kept], self.names[kept], self.lacking[kept]


class MatchWitnesses:
    def __init__(self, opened: Sequence[ColdSide]) -> None:
        self._opened = opened
        self._came = self._expected = np.zeros((2, 2), np.int64)  # per side, rows and bytes of memory
        self._streamed = 0

    def end_epoch(self) -> None:
        """Expect as many rows in the next epoch as came in this one; if few others passed by, none."""
        # Where many pass through memory, keys are brought in until it is full, and then these rows arrive on top: so they
        # must have room beforehand. Where few do, most of them would have come with their keys.
        streamed, before = sum(side.streamed_rows for side in self._opened), self._streamed
        self._expected = self._came * (streamed - before > _TIMES_MORE_PASSING * self._came[:, 0].sum())
        self._came, self._streamed = np.zeros_like(self._came), streamed

    def expected(self) -> tuple[int, int]:
        """Return how many rows, and bytes of memory, are to be expected beside those that arrived."""
        rows, size = np.maximum(0, self._expected - self._came).sum(axis=0).tolist()
        return rows, size

    def find(
        self,
        number: int,
        prepared: Sequence[PreparedSide | None],
        with_other: bool,
        without: Int64s,
        stamp: int,
        clock: float,
    ) -> Iterator[ColdRows]:
        """Yield rows on disk of one side; those that were yielded are to be taken before the next are requested."""
        side = self._opened[number]
        if not side.row_count():
            return
        own, replaced = self._changed(number, prepared, stamp, clock)
        requested = [own, self._changed(1 - number, prepared, stamp, clock)[0]] if with_other else [own]
        for keys in requested:
            if len(without):
                keys.keep(~np.isin(keys.codes, without))
            self._mark(side, keys, replaced)

        def wanted() -> Int64s:
            for keys in requested:
                keys.keep(keys.lacking)
            return np.concatenate([keys.codes for keys in requested])

        for rows in side.find_some(wanted):
            chosen = self._one_of_each(side, rows, replaced, requested)
            if len(chosen):
                self._came[number] += len(chosen), side.hot.bytes_of(chosen)
                yield chosen

    def _changed(self, number: int, prepared: Sequence[PreparedSide | None], stamp: int, clock: float) -> tuple[_Keys, Int64s]:
        """Return the keys that a delta changes on a side, as far as they can match, and the rows it replaces, ascending."""
        own, side = prepared[number], self._opened[number].side
        codes, names, replaced = _NONE, _NONE, _NONE
        if own is not None:
            new = np.flatnonzero(own.unmatchable[: own.count] == 0)
            codes, names = own.join_codes[new], own.encoded.address + side.layout.stride * new
            if side.has_identity:
                numbers, hashes = self._opened[number].hot.probe(own, stamp, clock)
                old = hashes >= 0
                replaced = np.sort(numbers[old])
                codes, names = np.concatenate([codes, hashes[old]]), np.concatenate([names, -numbers[old]])
        order = ascending_positions(codes)
        return _Keys(number, codes[order], names[order], np.ones(len(order), np.bool_)), replaced

    def _mark(self, side: ColdSide, keys: _Keys, replaced: Int64s) -> None:
        """Mark the keys that have no row on a side in memory that is not replaced."""
        own, of = side.side, self._opened[keys.of].side
        columns = own.join_columns.address, of.view, of.join_columns.address
        mark_lacking(own.view, *columns, keys.codes, keys.names, replaced, keys.lacking)

    def _one_of_each(self, side: ColdSide, rows: ColdRows, replaced: Int64s, requested: Sequence[_Keys]) -> ColdRows:
        """Return of rows on disk one of each key that has none in memory that is not replaced; these keys lack it no more."""
        matchable, own = matchable_rows(rows), side.side
        firsts, chosen = np.zeros((2, len(matchable)), np.bool_)
        codes, records, order = matchable.codes, side.hot.unpack(matchable), ascending_positions(matchable.codes)
        refs, columns = records.refs(own.layout.stride), own.join_columns.address
        choose_witnesses(own.view, columns, codes, refs, order, replaced, firsts, chosen)
        for keys in requested:
            of = self._opened[keys.of].side
            candidates = codes, refs, order, firsts
            record_witnesses(
                own.view, columns, *candidates, of.view, of.join_columns.address, keys.codes, keys.names, keys.lacking
            )
        return matchable.chosen(chosen)
