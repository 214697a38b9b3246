"""The rows of one side that are in memory, as far as they may leave it: how large and how busy they are, the way out and in.

The law: `insert` of what `pack` returned and `drop` removed gives the side it was taken from, save for row numbers and the
order within a chain.

Remembers 16 bytes per record, in this process only: the score of `spill.residency`, the stamp of the epoch that needed the row
last, and the place in the cold store where the row still lies unchanged (-1: nowhere). On a side with a store of keys 8 more:
the hashes of join key and identity that it has an entry for. Who opens the state again starts without them, which costs some
rewriting and no row.

`RowLimit`: how much of a budget in bytes the rows in memory may take, beside the working arrays and what an epoch takes and
frees.

The law: with budgets of 64 MB and more, rows and all that an epoch needs beside them keep within the budget, a delta and a
tenth, after every epoch and within it; unless one epoch needs more than two thirds of the budget beside the rows, or looks at
more rows than fit that cannot pass through memory (`zset_join.state.join.streamed_rows`).

What an epoch needs is foreseen from the rows of its delta: the present content while rows are fetched, or while the answer is
made, which never is present at once. Small budgets are spared: each item counts only beyond 16 MB (less as the budget grows,
nothing from 64 MB on), since the rows would have no room at all. So does the index of the rows on disk, and what allocators
keep.

Where several states with the same budget share a process, as the buckets of a query do, their budgets count together: 8 of
32 MB are not small. Only one of them is at work at a time, so each leaves an equal part of the room for what an epoch takes and
frees; and of 4 MB for what allocators keep, since what one of them frees the next one can use in part only.

Remembers a few numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows, Int64s
from spill.residency import NEVER
from spill.row_bytes import UnpackedRows, pack_rows, unpack_rows
from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.rows import moves, storing
from zset_join.kernels.rows import side as s
from zset_join.kernels.values.keys import HASH, WEIGHT
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["NOWHERE", "WHOLE_BUDGET_BYTES", "HotRows", "RowLimit"]

NOWHERE = -1
_BYTES_BESIDE = 16
_PASSED_PER_CODE = 128  # records are passed over in the time that finding a code and its first rows takes
_PASSED_PER_ROW = 16  # records are passed over in the time that following a chain to the next row takes
_KNOWN_SCORES = 1 << 10
_LEAST_ROOM = 1024
_RENUMBERED_AT_ONCE = 1 << 16
_ANY_STAMP = 0x7FFFFFFF
_SLOT_BYTES = 18  # a table takes 13 to 26 bytes per key; a side without chains has one less, but more records to choose among


class HotRows:
    def __init__(self, side: SideState, *, has_entries: bool = False) -> None:
        self._side = side
        self._arena = side.arena
        self._has_entries = has_entries
        self.has_places = False  # some row may still lie unchanged in the cold store
        self._bytes_beside = _BYTES_BESIDE + 8 * has_entries + _SLOT_BYTES * (1 + side.has_identity)
        self._scores = np.empty(0, np.float32)
        self._stamps = np.empty(0, np.int32)
        self._places = np.empty(0, np.int64)
        self._entries = np.empty(0, np.int64)
        side.on_compacting = self.renumber

    def renumber(self, sources: Int64s, targets: Int64s, rows: int) -> None:
        """Follow rows that compacting moves to other positions; so many records are left."""
        if not len(self._scores):
            return
        self.follow()
        for array in (self._scores, self._stamps, self._places, self._entries):
            if len(array):
                for begin in range(0, len(sources), _RENUMBERED_AT_ONCE):
                    piece = slice(begin, begin + _RENUMBERED_AT_ONCE)
                    array[targets[piece]] = array[sources[piece]]
                array.resize(max(rows, _LEAST_ROOM), refcheck=False)

    def follow(self, more: int = 0) -> None:
        """Follow the arena: a new one has other rows, a grown one more; make room for `more` records."""
        if self._side.arena is not self._arena:
            self._arena = self._side.arena
            self._scores[:] = NEVER
            self._stamps[:] = 0
            self._places[:] = NOWHERE
            self._entries[:] = NOWHERE
            self.has_places = False
        needed = self.records + more
        if needed > len(self._scores):
            room = max(needed, len(self._scores) + len(self._scores) // 4, _LEAST_ROOM)
            _grow(self._scores, room, NEVER)
            _grow(self._stamps, room, 0)
            _grow(self._places, room, NOWHERE)
            if self._has_entries:
                _grow(self._entries, room, NOWHERE)

    @property
    def records(self) -> int:
        """Return the number of records in use or waiting to be used again."""
        return int(self._side.header[s.H_ROWS_END])

    @property
    def live_rows(self) -> int:
        return self._side.arena.live_rows

    @property
    def tombstones(self) -> int:
        return int(self._side.header[s.H_TOMBSTONES])

    def row_bytes(self) -> int:
        """Return the bytes of all live rows and tombstones: records, blocks, slots, what is beside them. Cost: O(1)."""
        rows = self.live_rows + self.tombstones
        return rows * self.bytes_per_row() + int(self._side.header[s.H_HEAP_USED])

    def bytes_per_row(self) -> int:
        return self._side.layout.stride + self._bytes_beside

    def bytes_of(self, cold_rows: ColdRows) -> int:
        return cold_rows.row_bytes + len(cold_rows) * self.bytes_per_row()

    def unreckoned_bytes(self, more: int) -> int:
        """Return the bytes of tables and of arrays beside the records with `more` rows, beyond `row_bytes`."""
        rows = self.live_rows + self.tombstones
        return self._side.table_bytes(more) + self.resident_bytes() - rows * self._bytes_beside

    # ---------------------------------------------------------------- what an epoch needs

    def probe(self, prepared: PreparedSide, stamp: int, clock: float) -> tuple[Int64s, Int64s]:
        """Touch the rows that a delta names; return per row of the delta their number (0: none) and join hash (-1: none)."""
        numbers, hashes = np.empty(prepared.count, np.int64), np.empty(prepared.count, np.int64)
        address = prepared.arrays.address
        moves.probe_identities(self._side.view, address, numbers, hashes, self._stamps, self._scores, stamp, np.float32(clock))
        return numbers, hashes

    def touch_chains(self, codes: Int64s, stamp: int, clock: float) -> None:
        """Touch the rows whose join key has one of these hashes; where hashes or rows are many, with all rows in one pass."""
        touching = (self._stamps, self._scores, stamp, np.float32(clock))
        if _PASSED_PER_CODE * len(codes) < self.records:
            most = self.records // _PASSED_PER_ROW
            if moves.touch_chains(self._side.view, codes, *touching, most):
                return
        bits = np.zeros(1 << max(6, (4 * len(codes)).bit_length()), np.uint8)
        known = np.full((2, _KNOWN_SCORES), np.nan, np.float32)
        moves.touch_codes(self._side.view, codes, bits, known, *touching)

    def note_written(self, numbers: Int64s, stamp: int | None, clock: float) -> None:
        """Note that an epoch has written rows: what the cold store may have of them is outdated. Number 0 is none."""
        # They are touched, unless busy rows are not tracked (no stamp).
        if stamp is None and not self.has_places:
            return
        numbers = numbers[numbers > 0]
        self._places[numbers - 1] = NOWHERE
        if stamp is not None:
            moves.touch_rows(numbers, self._stamps, self._scores, stamp, np.float32(clock))

    # ---------------------------------------------------------------- moving

    def unpack(self, rows: ColdRows) -> UnpackedRows:
        return unpack_rows(rows.rows, stride=self._side.layout.stride, variables=self._side.variables_address)

    def make_room(self, rows: UnpackedRows) -> None:
        side = self._side
        heap_bytes = heap_bytes_needed(rows.address, side.layout.stride, rows.count, side.variables_address)
        side.make_room(rows.count, int(heap_bytes))
        self.follow(rows.count)

    def reserve(self, rows: int) -> None:
        self._side.make_room(rows, 0)
        self.follow(rows)

    def insert(self, rows: UnpackedRows, cold: ColdRows, stamp: int, clock: float) -> Int64s:
        """Store records there is room for, and remember where they came from; return their numbers."""
        side = self._side
        numbers = np.empty(rows.count, np.int64)
        moves.insert_rows(
            side.view,
            rows.address,
            side.variables_address,
            side.join_columns.address,
            cold.subcodes,
            side.has_identity,
            numbers,
        )
        self._scores[numbers - 1] = clock
        self._stamps[numbers - 1] = stamp
        self._places[numbers - 1] = cold.places
        if self._has_entries:
            self._entries[numbers - 1] = _pairs(cold.codes, cold.subcodes)
        self.has_places = True
        return numbers

    def measure(self, below_stamp: int | None) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return score and bytes of each record; -1 bytes where there is no row that may go."""
        # May go: all live rows, or those with an older stamp. Cost: one pass over the records, and 4 bytes each.
        end = self.records
        scores, sizes = self._scores[:end], np.empty(end, np.int32)
        below = _ANY_STAMP if below_stamp is None else below_stamp
        moves.measure_rows(
            self._side.view, self._side.variables_address, self._bytes_beside, self._stamps, below, scores, sizes
        )
        return scores, sizes

    def unchanged(self, numbers: Int64s) -> Int64s:
        """Return those of some numbers at which a row is in memory that came from the cold store and was not written since."""
        numbers = numbers[numbers <= self.records]
        unchanged: Int64s = numbers[self._places[numbers - 1] != NOWHERE]
        return unchanged

    def places(self, numbers: Int64s) -> Int64s:
        """Return where rows still lie unchanged in the cold store, -1 for nowhere."""
        return self._places[numbers - 1]

    def hashes(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the hashes of join key and identity of rows; a row without identity has 0."""
        side = self._side
        subcodes = np.zeros(len(numbers), np.int64)
        if side.has_identity:
            moves.hash_identities(side.view, numbers, side.identity_columns.address, subcodes)
        return side.record_words("<u4", HASH, self.records)[numbers - 1].astype(np.int64), subcodes

    def have_entries(self, numbers: Int64s, codes: Int64s, subcodes: Int64s) -> npt.NDArray[np.bool_]:
        """Return for which rows, with the hashes they have now, the store of keys has an entry for sure."""
        known: npt.NDArray[np.bool_] = self._entries[numbers - 1] == _pairs(codes, subcodes)
        return known

    def forget_entries(self) -> None:
        """Note that the store of keys holds none of these rows."""
        self._entries[:] = NOWHERE

    def pack(self, numbers: Int64s, codes: Int64s, subcodes: Int64s) -> ColdRows:
        """Return rows, whose `hashes` these are, as a cold store takes them."""
        side = self._side
        refs = side.refs_of(numbers)
        packed = pack_rows(refs, stride=side.layout.stride, variables=side.variables_address, heap=side.arena.heap_address)
        return ColdRows(codes, subcodes, packed, self._places[numbers - 1])

    def drop(self, numbers: Int64s, subcodes: Int64s) -> None:
        """Take rows out of memory, which are elsewhere now."""
        side = self._side
        moves.drop_rows(side.view, numbers, subcodes, side.variables_address, side.has_identity)
        self._scores[numbers - 1] = NEVER
        self._places[numbers - 1] = NOWHERE

    def oldest_tombstones(self, count: int, below_stamp: int | None) -> Int64s:
        """Return the numbers of so many tombstones at most, oldest first; only those with an older stamp, if one is given."""
        self.follow()
        numbers = np.empty(min(count, self.tombstones), np.int64)
        below = _ANY_STAMP if below_stamp is None else below_stamp
        oldest: Int64s = numbers[: storing.list_tombstones(self._side.view, self._stamps, below, numbers)]
        return oldest

    def insert_tombstones(self, rows: UnpackedRows, identity_codes: Int64s, stamp: int) -> None:
        """Store tombstones there is room for; each waits among the others for its time."""
        side, numbers = self._side, np.empty(rows.count, np.int64)
        left_at = rows.words(WEIGHT, side.layout.stride)
        oldest_first = np.argsort(left_at, kind="stable")
        view, variables = side.view, side.variables_address
        storing.insert_tombstones(view, rows.address, variables, identity_codes, oldest_first, numbers)
        self._scores[numbers - 1] = NEVER
        self._stamps[numbers - 1] = stamp
        self._places[numbers - 1] = NOWHERE

    def drop_tombstones(self, numbers: Int64s, identity_codes: Int64s) -> None:
        storing.drop_tombstones(self._side.view, numbers, identity_codes, self._side.variables_address)

    def resident_bytes(self) -> int:
        return self._scores.nbytes + self._stamps.nbytes + self._places.nbytes + self._entries.nbytes


def _pairs(codes: Int64s, subcodes: Int64s) -> Int64s:
    """Return pairs of 32-bit hashes as one word each."""
    pairs: Int64s = (codes << 32) | subcodes
    return pairs


def _grow(array: npt.NDArray[Any], size: int, fill: Any) -> None:
    """Make an array longer, in place where there is room behind it."""
    before = len(array)
    array.resize(size, refcheck=False)
    array[before:] = fill


_SPARED_BYTES = 16 << 20
_SPARED_PART = 3
WHOLE_BUDGET_BYTES = 64 << 20
"""From here on a budget is that of all a process holds; below, some of what an epoch needs comes on top."""

_SPARE_PART = 32
_LEAST_SPARE_BYTES = 4 << 20
_TEMPORARY_BYTES = 10 << 20  # a group of rows that are fetched, a piece that is spilled, a chunk of the answer
_TEMPORARY_BYTES_PER_ROW = 300  # rows looked for, and rows found; or changes, groups and the answer
_LOOKED_AT_BYTES = 8 << 20  # of an index, beside what allocators may keep; a host may map up to 2 MB around what is looked at
_LEAST_PART = 3  # of the budget is for rows, whatever an epoch needs
_WORKING_BYTES_PER_ROW = 200  # the encoded delta, which is present from the beginning to the end


class RowLimit:
    """Describe how many bytes the rows in memory may take.

    >>> limit = RowLimit(120 << 20)
    >>> limit.foresee(delta_rows=100_000, working_bytes=0, unreckoned_bytes=0)
    >>> limit.rows >> 20
    62
    """

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget_bytes = budget_bytes
        self.rows = self.held = budget_bytes
        self._spare_as_of(budget_bytes or 0)

    def _spare_as_of(self, all_budgets: int) -> None:
        """Set the spared bytes for common budgets of so many bytes."""
        short = 0 if self._budget_bytes is None else max(0, WHOLE_BUDGET_BYTES - all_budgets)
        self.spared = min(_SPARED_BYTES, short // _SPARED_PART)
        self.spare = max((self._budget_bytes or 0) // _SPARE_PART, _LEAST_SPARE_BYTES) + self.spared

    def foresee(
        self,
        *,
        delta_rows: int,  # of both sides
        working_bytes: int,
        unreckoned_bytes: int,  # of tables and arrays beside the rows
        index_bytes: int = 0,
        shared_budgets: tuple[int, int] = (1, 0),  # states with this budget in the process, and their budgets together
    ) -> None:
        budget = self._budget_bytes
        if budget is None:
            return
        states, all_budgets = shared_budgets
        self._spare_as_of(max(budget, all_budgets))
        working = max(working_bytes, _WORKING_BYTES_PER_ROW * delta_rows)
        temporary = (_TEMPORARY_BYTES + _TEMPORARY_BYTES_PER_ROW * delta_rows) // states
        looked_at = min(index_bytes, _LOOKED_AT_BYTES) // states
        beside = sum(max(0, item - self.spared) for item in (working, temporary, looked_at))
        beside += max(0, budget // _SPARE_PART - _LEAST_SPARE_BYTES)
        if states > 1 and not self.spared:
            beside += _LEAST_SPARE_BYTES // states
        self.held = max(budget - beside, budget // _LEAST_PART)
        self.rows = max(0, self.held - max(0, unreckoned_bytes - self.spared))
