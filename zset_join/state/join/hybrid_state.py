"""Both sides of a join with a budget: what it looks at beside the rows that a delta names, and how that is read into memory.

The law: with any budget, also none at all, a join answers after every epoch what it answers with everything in memory.

Before the kernels run, `fetch` brings in (side X, other side Y):

1. the rows that X's delta replaces or retracts, by identity (`zset_join.state.cold.hybrid_rows`);
2. all rows of X whose join key changes on Y: the keys of Y's delta, and those of the old rows that 1 found on Y;
3. where Y's rows are shown or hidden by whether X has rows of their key, one row of each key that changes on X, unless one is
   in memory that does not change (`MatchWitnesses`). If that is all X is requested, 2 is no more, either.

So chains are whole where they are walked, and may be in memory in part elsewhere.

Of keys that are too large (`OversizedKeys`) 2 and 3 bring in no row, or one where it matters whether
there is one: the answer streams them (`zset_join.state.join.streamed_rows`). Where memory is full of what the epoch needs,
the rest of 2 is left on disk, but for 3, and passes through memory while the answer is made
(`zset_join.state.join.streamed_rows`); not so with small budgets in bytes.

An epoch that is answered again on rebuilt state, or after an answer about other changes, has the same rows, but those of one
key perhaps in another order: it is that in which they came into memory. So does, in rare cases, a second answer at once, where
another row has the hash of one that is named: on disk it comes along, in memory it may go to make room.

Known limits. The rows of 3 stay in memory until the delta is absorbed, and with a small budget all, large keys excepted.

`MatchWitnesses`: rows that are read into memory for others of their key, where all that matters is whether a side has rows of a
key.

The law: when an epoch has been fetched, a key that it changes has a row in memory that the epoch does not change, if there is
one anywhere. So of a key whose rows are neither paired nor shown one row arrives, and none where such a row is in memory.

Cost: the changes, and the pages of the keys that have no such row in memory.

`OversizedKeys`: which keys of an epoch are too large to be brought into memory, so that its answer streams their rows
(`oversized_rows`).

A key is left on disk whose rows there take half of the budget, and 1 MB at least: so many would not stay in memory, since
spilling frees half of it. So are the largest keys, of 256 KB and more, that have no room together beside the rows in memory
that the epoch needs: they would come and go in every epoch, and memory would exceed the budget meanwhile. Both go by what is on
disk; a key that is in memory has nothing to stream, and memory stays filled with what fits.

Of all other keys a side brings rows in as long as there is room; where there is none, and memory is full of rows that the epoch
needs, what is still on disk passes through memory (`streamed_rows`).

A key that is left on disk stays there until an epoch is absorbed: an answer again at once has its rows in the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from spill.cold_store import ColdRows, Int64s
from spill.write_kernels import ascending_positions
from zset_join.core.options import HotBudget
from zset_join.kernels.join.streamed_rows import choose_witnesses, mark_lacking, record_witnesses
from zset_join.state.cold.cold_side import ColdSide, matchable_rows
from zset_join.state.cold.hybrid_rows import HybridRows
from zset_join.state.join.streamed_rows import one_of_each
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["HybridState"]

_TIMES_MORE_PASSING = 2
_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class _Keys:
    """Keys that the changes of one side name."""

    of: int
    codes: Int64s  # ascending
    names: Int64s  # records, as in `zset_join.kernels.join.streamed_rows`
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


BYTES_BESIDE_ON_DISK = 12
"""Code, subcode and length of a row on disk, without the links of its record."""
_LEAST_LONG_BYTES = 1 << 20
_LEAST_LARGE_BYTES = 1 << 18  # to stream a key costs a millisecond beside its rows
_PART_WITH_ROOM = 4  # of what makes one key long: keys that take no more together are taken to have room


class OversizedKeys:
    def __init__(self, opened: Sequence[ColdSide], fetched_by_own: Sequence[bool], budget: HotBudget) -> None:
        self._opened = opened
        self._fetched_by_own = tuple(fetched_by_own)
        # Per side: a key with so many bytes on disk stays there whatever room there is.
        self.least_bytes = [_least_bytes(side, budget) for side in opened]
        self.forget()

    def begin(self) -> None:
        self.codes = [_NONE, _NONE]

    def forget(self) -> None:
        """Clear the remainder after an epoch was absorbed."""
        self.codes = [_NONE, _NONE]  # per side, the join hashes whose rows stay on disk, ascending
        self.streams = [False, False]  # per side, whether what is on disk of other requested keys passes through memory
        self._asked = [_NONE, _NONE]  # codes that were left since an epoch was absorbed
        self._witnesses = [_NONE, _NONE]  # numbers of rows that were brought in for them; in memory, unless spilled meanwhile

    def leave(
        self,
        number: int,
        codes: Int64s,
        prepared: Sequence[PreparedSide | None],
        room: Callable[[ColdSide], int],
        stamp: int,
        clock: float,
    ) -> None:
        """Leave rows of one side on disk, or of each key all but one, which is brought in, where degrees are read."""
        side, requested = self._opened[number], self._asked[number]
        if not (side.row_count() or len(requested)):
            return
        least = self.least_bytes[number]
        large, sizes = side.oversized_keys(codes, min(least, _LEAST_LARGE_BYTES))
        is_long = sizes >= least
        others = sizes[~is_long]
        if others.sum() > least // _PART_WITH_ROOM:
            is_long[~is_long] = _without_room(others, room(side))
        long = large[is_long]
        if len(requested):
            long = np.union1d(long, codes[np.isin(codes, requested)])
        if not len(long):
            return
        self.codes[number] = long
        self._asked[number] = np.union1d(requested, long)
        if self._fetched_by_own[number]:
            witnesses = one_of_each(number, long, self._opened, prepared, self._witnesses[number], stamp, clock)
            if witnesses is not None:
                self._witnesses[number] = np.union1d(self._witnesses[number], side.take(witnesses, stamp, clock))

    def others(self, number: int, codes: Int64s) -> Int64s:
        """Return those of some join hashes whose rows are not left on one side's disk, but for passing through memory."""
        left = self.codes[number]
        return codes[~np.isin(codes, left)] if len(left) else codes


def _without_room(sizes: Int64s, room: int) -> npt.NDArray[np.bool_]:
    """Return which of some keys must be left so that the others have room: the largest.

    >>> _without_room(np.array([30, 10, 50, 20]), 65).tolist()
    [False, False, True, False]
    """
    order = np.argsort(sizes)
    without = np.empty(len(sizes), np.bool_)
    without[order] = np.cumsum(sizes[order]) > room
    return without


def _least_bytes(side: ColdSide, budget: HotBudget) -> int:
    """Return the bytes on disk from which on the rows of a key would take most of the budget, and a chunk at least."""
    on_disk = side.side.layout.stride + BYTES_BESIDE_ON_DISK
    limits = [
        limit // 2 * unit for limit, unit in ((budget.max_hot_bytes, 1), (budget.max_hot_keys, on_disk)) if limit is not None
    ]
    return max(_LEAST_LONG_BYTES, min(limits))


class HybridState(HybridRows):
    """Keep the hot rows of both sides of a join in memory and the others on disk.

    Attributes:
        left: keys whose rows the epoch that was fetched last leaves on disk.
    """

    def __init__(
        self,
        sides: Sequence[SideState],
        fetched_by_own: Sequence[bool],
        shown: Sequence[bool],
        budget: HotBudget,
        directory: str | None,
    ) -> None:
        super().__init__(sides, budget, directory)
        self._fetched_by_own = tuple(fetched_by_own)
        self._shown = tuple(shown)
        self.oversized = OversizedKeys(self._opened, fetched_by_own, budget)
        self._witnesses = MatchWitnesses(self._opened)

    @override
    def fetch(self, prepared: Sequence[PreparedSide | None]) -> None:
        """Bring in what an epoch looks at, as `HybridRows.fetch`; `left` is what is not brought in."""
        self.oversized.begin()
        super().fetch(prepared)

    @override
    def _bring_in(self, prepared: Sequence[PreparedSide | None]) -> None:
        changed = self._fetch_named(prepared)
        own = [codes if is_requested else _NONE for codes, is_requested in zip(changed, self._fetched_by_own, strict=True)]
        requested = [np.concatenate([changed[1 - number], own[number]]) for number in (0, 1)]
        for side, codes in zip(self._opened, requested, strict=True):
            side.hot.touch_chains(codes, self._stamp, self._clock)
        for number, codes in enumerate(requested):
            self.oversized.leave(number, codes, prepared, self._room, self._stamp, self._clock)
        for number, codes in enumerate(reversed(changed)):
            if self._shown[number]:
                self._fetch_keys(number, self.oversized.others(number, codes))
            if self._fetched_by_own[number]:
                self._fetch_witnesses(number, prepared)

    def _fetch_keys(self, number: int, codes: Int64s) -> None:
        """Bring in the rows with some join hashes; where there is no room for more, they are left to pass."""
        side = self._opened[number]
        for rows in side.find_keys(codes) if not self.oversized.streams[number] else ():
            self._make_room_for(side, rows, *self._witnesses.expected())
            if self._is_crowded and not self._limit.spared:
                self.oversized.streams[number] = True
                break
            side.take(rows, self._stamp, self._clock)

    def _fetch_witnesses(self, number: int, prepared: Sequence[PreparedSide | None]) -> None:
        """Bring in one row of each key of which only matters whether a side has rows."""
        with_other, without = self.oversized.streams[number] or not self._shown[number], self.oversized.codes[number]
        for rows in self._witnesses.find(number, prepared, with_other, without, self._stamp, self._clock):
            self._take(self._opened[number], rows)

    def _room(self, side: ColdSide) -> int:
        """Return how many bytes on disk of a side have room beside the rows that the epoch needs. Cost: the rows in memory."""
        on_disk, in_memory = side.side.layout.stride + BYTES_BESIDE_ON_DISK, side.hot.bytes_per_row()
        unneeded = [sizes[sizes >= 0] for _, sizes in (each.hot.measure(self._stamp) for each in self._opened)]
        tombstones = [each.hot.tombstones for each in self._opened]
        rooms = []
        if self._budget.max_hot_keys is not None:
            rooms.append((self._budget.max_hot_keys - self._hot_rows() + sum(map(len, unneeded)) + sum(tombstones)) * on_disk)
        if self._limit.rows is not None:
            free = self._limit.rows - self._hot_bytes() + sum(int(sizes.sum(dtype=np.int64)) for sizes in unneeded)
            free += sum(count * each.hot.bytes_per_row() for count, each in zip(tombstones, self._opened, strict=True))
            rooms.append(free * on_disk // in_memory)
        return min(rooms)

    @override
    def spill_to_budget(self, working_bytes: int) -> None:
        """Spill down to the budget, as `HybridRows` does; oversized keys and match witnesses are forgotten."""
        self.oversized.forget()
        self._witnesses.end_epoch()
        super().spill_to_budget(working_bytes)
