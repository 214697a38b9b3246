"""The rows of an operator with a budget: what an epoch names comes into memory first, what is too much goes to disk later.

The law: with any budget, also none at all, an operator answers after every epoch what it answers with everything in memory.

Before the kernels run, `fetch` brings in the rows and tombstones that a delta names, by identity. A `Route` needs no more;
what a join needs besides is in `zset_join.state.join.hybrid_state`. A second preparation finds nothing to fetch, unless hashes
collide. `spill_to_budget` spills down to the budget when the epoch has been absorbed; `fetch` does so for rows the epoch
does not need, so that what it brings in takes their place. Tombstones go before rows, the oldest first: no reader is known
for them.

Crashes. In a directory, moving begins by marking all sides as half-written and ends by committing the stores at the epoch the
sides are at, then taking the marks away. A process that dies between leaves state that is refused and rebuilt.

Remembers, beside the rows that the budget allows, the index of the cold rows, 4.5 to 7.7 bytes each in mapped files; where it
has no room in the budget beside the rows, it leaves the process after every epoch (`zset_join.state.cold.cold_side`).

Known limits. The rows that a delta names stay in memory until it is absorbed. A disk that is full when an epoch has been
absorbed lets memory exceed the budget until the next epoch, which spills first and raises if it cannot.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from spill.cold_stores import ColdStores, closing_on_error
from spill.opening import open_stores
from spill.residency import ResidencyPolicy, lowest_scores
from zset_join.core.errors import ResourceError, StateError
from zset_join.core.options import HotBudget
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.moves import piece_end
from zset_join.state.cold.cold_side import ColdSide, matchable_codes
from zset_join.state.cold.hot_rows import RowLimit
from zset_join.state.rows.directories import PrivateDirectory
from zset_join.state.rows.host_memory import UnusedMemory
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.state.rows.side_snapshot import restore_side, snapshot_epoch
from zset_join.zset import ZSet

__all__ = ["HybridRows"]

_SLACK = 0.5  # of the budget is freed at a time: the fewer and larger the runs, the fewer are requested each row
_MOST_SLACK_BYTES = 64 << 20  # or an epoch would wait for a large budget to be written
_MOST_SLACK_ROWS = 1 << 19
_SLACK_OF_BUSY = 0.1  # the same of rows that the last epoch has looked at: the next one may need them again
_PIECE_PART = 24  # of the budget is spilled at once, within these bounds
_LEAST_PIECE_BYTES = 4 << 20
_MOST_PIECE_BYTES = 16 << 20
_TOLERATED_PART = 16  # of the budget: what the state may take beyond it before rows are moved together; of a large one less
_SPARED_DEAD_PART = 4  # of what is spared of small budgets (`row_limit`), for the same
_DEAD_PART = 16  # of the budget: what moving the rows of a side together must bring at least
_NONE = np.empty(0, np.int64)


class HybridRows:
    """Keep the hot rows of one side or two in memory and the others on disk."""

    def __init__(
        self,
        sides: Sequence[SideState],
        budget: HotBudget,
        directory: str | None,
    ) -> None:
        self._budget = budget
        self._is_mapped = directory is not None
        private = None
        if directory is not None:
            place = Path(directory) / "cold"
        else:
            private = PrivateDirectory()
            place = private.path
        self._opened: list[ColdSide] = []
        shared: list[ColdStores] = []
        self._finalizer = weakref.finalize(self, _release, self._opened, shared, private)
        with closing_on_error(self._finalizer):
            self._stores = open_stores(budget.cold_store, place, max_hot_bytes=budget.max_hot_bytes)
            shared.append(self._stores)
            for side in sides:
                self._opened.append(ColdSide(side, self._stores))
        self._stamp = 2
        self._is_looking = False
        self._is_crowded = False  # the rows in memory are too many, and the epoch needs all of them
        self._clock = 0.0
        self._is_moving = False
        self._unspilled: ResourceError | None = None
        self._postponed_spills = 0
        self._holds_index = True
        self._limit = RowLimit(budget.max_hot_bytes)
        self._is_within_budget = True
        self._delta_rows = 0
        self._working_bytes = 0
        self._unreckoned = 0
        self._unused = UnusedMemory(budget.max_hot_bytes or 0)
        if self._is_mapped and any(side.epochs != {side.side.absorbed_epoch} for side in self._opened):
            epochs = [sorted(side.epochs) for side in self._opened]
            self.close()
            raise StateError(
                f"the cold rows in {place} are at epochs {epochs}, the rows in memory at {sides[0].absorbed_epoch}. "
                "Local state is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
                directory=str(place),
            )

    # ---------------------------------------------------------------- an epoch

    def fetch(self, prepared: Sequence[PreparedSide | None]) -> None:
        """Bring in what an epoch looks at."""
        self._begin(prepared)
        is_first = self._make_room(sum(own.count for own in prepared if own is not None))
        self._is_looking = self._is_worth_looking()
        if not self._is_looking:
            return
        self._follow()
        self._stamp += 2
        self._is_crowded = False
        with self._moving():
            if is_first:
                for side in self._opened:
                    side.expect_rows()
            self._bring_in(prepared)
        self._release()
        self._give_back()

    def _bring_in(self, prepared: Sequence[PreparedSide | None]) -> None:
        self._fetch_named(prepared)

    def _make_room(self, delta_rows: int) -> bool:
        """Spill the rows that the last epoch could not, and those without room besides an epoch of so many rows."""
        self._delta_rows = delta_rows
        is_first, self._is_within_budget = self._is_within_budget, False
        if is_first:  # a second preparation finds the rows where they were
            self._unused.remember()
            self._foresee()
            self._release()
        limit = self._limit.rows
        if self._unspilled is not None or (is_first and limit is not None and self._hot_bytes() > limit):
            with self._moving():
                self._spill_down(compacts=is_first)
                self._unspilled = None
        return is_first

    def _foresee(self) -> None:
        expected = [max(self._delta_rows, side.taken_rows) for side in self._opened]
        self._unreckoned = sum(side.hot.unreckoned_bytes(more) for side, more in zip(self._opened, expected, strict=True))
        self._limit.foresee(
            delta_rows=self._delta_rows,
            working_bytes=self._working_bytes,
            unreckoned_bytes=self._unreckoned,
            index_bytes=self._index_bytes(),
            shared_budgets=self._unused.shared_budgets(),
        )

    def is_tight(self) -> bool:
        """Return whether memory is so short that what an epoch retracts is given on the way; small budgets are spared that."""
        return self._budget.max_hot_bytes is not None and not self._limit.spared and self._is_worth_looking()

    def begin_absorb(self) -> None:
        """Give back what the answer took and freed, before rows are stored."""
        if self.is_tight():
            self._unused.give_back_columns()

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Let rows on disk be written as they will be when the epoch is absorbed; absorbing follows at once."""
        self._refuse_half_written()
        self._give_back()
        with self._moving(ends=False):
            try:
                yield
            except ResourceError:
                for side in self._opened:
                    side.forget_revised()
                raise

    def note_written(self, prepared: Sequence[PreparedSide | None], rewritten: Iterable[tuple[int, Int64s]] = ()) -> None:
        """Note which rows an epoch has written, when it has been absorbed; those written again on disk take their place."""
        for side in self._opened:
            side.exchange()
        stamp = self._stamp if self._is_looking else None
        if self._is_looking or any(side.hot.has_places for side in self._opened):
            self._follow()
        for side, own in zip(self._opened, prepared, strict=True):
            if own is not None:
                side.hot.note_written(own.numbers[: own.count], stamp, self._clock)
        for number, rows in rewritten:
            self._opened[number].hot.note_written(rows, stamp, self._clock)

    def spill_to_budget(self, working_bytes: int) -> None:
        """Spill down to the budget, when the epoch has been absorbed and what it wrote is noted."""
        self._is_within_budget = True
        self._working_bytes = working_bytes
        self._foresee()
        self._unused.recall()
        self._give_back()
        try:
            self._spill_down()
        except ResourceError as error:
            # The epoch is absorbed and may not fail any more: the next one spills first, and raises if it cannot.
            self._unspilled = error
            self._postponed_spills += 1
        self._release()
        self._give_back()

    def commit(self, epoch: int) -> None:
        """Declare the cold rows whole at an epoch; the caller takes the marks off the sides afterwards."""
        if self._is_mapped:
            self._is_moving = True  # going on after an error here is refused, as in a new process
            for side in self._opened:
                side.commit(epoch)
        self._is_moving = False

    def _follow(self) -> None:
        for side in self._opened:
            side.hot.follow()

    def _begin(self, prepared: Sequence[PreparedSide | None]) -> None:
        """Refuse a state that is not whole; forget what the working arrays hold of the epoch before."""
        self._refuse_half_written()
        for own in prepared:
            if own is not None:
                own.numbers[: own.count] = 0

    def _refuse_half_written(self) -> None:
        if self._is_moving:
            raise StateError(
                "rows were being moved between memory and disk when this process was interrupted, or what lay on the disk was "
                "damaged; the state of this join is incomplete. Make a new join and restore it from a snapshot; inside Spark, "
                "restart the query: it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
            )

    def _is_worth_looking(self) -> bool:
        """Return whether there are cold rows, or soon will be, so that it matters who is busy."""
        if any(side.row_count() or side.tombstone_count() for side in self._opened):
            return True
        max_rows, max_bytes = self._budget.max_hot_keys, self._limit.rows
        return (max_rows is not None and 2 * self._hot_rows() > max_rows) or (
            max_bytes is not None and 2 * self._hot_bytes() > max_bytes
        )

    def _fetch_named(self, prepared: Sequence[PreparedSide | None]) -> list[Int64s]:
        """Bring in the rows that the deltas name; return per side the hashes of the join keys that change there."""
        changed: list[list[Int64s]] = [[_NONE] for _ in self._opened]
        missing = [_NONE for _ in self._opened]
        for number, (side, own) in enumerate(zip(self._opened, prepared, strict=True)):
            if own is not None:
                changed[number].append(own.join_codes[: own.count][own.unmatchable[: own.count] == 0])
                if side.side.has_identity:
                    numbers, hashes = side.hot.probe(own, self._stamp, self._clock)
                    missing[number] = np.flatnonzero(numbers == 0)
                    changed[number].append(hashes[hashes >= 0])
        for number, (side, own) in enumerate(zip(self._opened, prepared, strict=True)):
            if own is not None and len(missing[number]):
                for rows in side.find_named(own, missing[number]):
                    changed[number].append(matchable_codes(rows))
                    self._take(side, rows)
                for tombstones in side.find_tombstones(own, missing[number]):
                    self._make_room_for(side, tombstones)
                    side.take_tombstones(tombstones, self._stamp)
        return [np.concatenate(codes) for codes in changed]

    def _take(self, side: ColdSide, cold_rows: ColdRows) -> None:
        """Move rows that were found into memory, where there is no room in the place of others."""
        self._make_room_for(side, cold_rows)
        side.take(cold_rows, self._stamp, self._clock)

    def _make_room_for(self, side: ColdSide, cold_rows: ColdRows, more_rows: int = 0, more_bytes: int = 0) -> None:
        """Spill rows that the epoch does not need, if there is no room for those that were found, and for more to come."""
        if not self._is_crowded:
            rows, size = len(cold_rows) + more_rows, side.hot.bytes_of(cold_rows) + more_bytes
            spilled = self._spill_tombstones(rows, size, needed_since=self._stamp)
            victims = self._victims(rows, size, needed_since=self._stamp)
            self._spill(victims)
            self._is_crowded = bool(victims) and not sum(len(positions) for positions, _ in victims)
            if victims or spilled:
                self._give_back()

    # ---------------------------------------------------------------- the budget

    def _hot_rows(self) -> int:
        return sum(side.hot.live_rows + side.hot.tombstones for side in self._opened)

    def _hot_bytes(self) -> int:
        return sum(side.hot.row_bytes() for side in self._opened)

    def _victims(
        self, rows: int, size: int, *, needed_since: int | None, slack: float = _SLACK
    ) -> list[tuple[Int64s, npt.NDArray[np.int32]]]:
        """Return per side positions and bytes of the records that must go so that `rows` more of `size` bytes have room."""
        excess_rows, excess_bytes = self._excess(rows, size, slack)
        if not (excess_rows or excess_bytes):
            return []
        self._follow()
        scores, sizes = zip(*(side.hot.measure(needed_since) for side in self._opened), strict=True)
        chosen = lowest_scores(scores, sizes, excess_bytes, excess_rows)
        return [(positions, size[positions]) for positions, size in zip(chosen, sizes, strict=True)]

    def _excess(self, rows: int, size: int, slack: float) -> tuple[int, int]:
        """Return how many rows and bytes must go so that `rows` more of `size` bytes have room, with some to spare."""
        max_rows, max_bytes = self._budget.max_hot_keys, self._limit.rows
        rows, size = self._hot_rows() + rows, self._hot_bytes() + size
        if (max_rows is None or rows <= max_rows) and (max_bytes is None or size <= max_bytes):
            return 0, 0
        return _beyond(rows, max_rows, slack, _MOST_SLACK_ROWS), _beyond(size, max_bytes, slack, _MOST_SLACK_BYTES)

    def _spill_tombstones(self, rows: int, size: int, *, needed_since: int | None) -> int:
        """Spill the oldest tombstones so that `rows` more of `size` bytes have room, if they make any; return the count."""
        spilled = 0
        for side in self._opened:
            excess_rows, excess_bytes = self._excess(rows, size, _SLACK) if side.hot.tombstones else (0, 0)
            count = max(excess_rows, -(-excess_bytes // side.hot.bytes_per_row()))
            spilled += side.spill_tombstones(count, self._piece_bytes(), needed_since)
        return spilled

    def _piece_bytes(self) -> int:
        budget = self._budget.max_hot_bytes
        part = _MOST_PIECE_BYTES if budget is None else budget // _PIECE_PART
        return min(max(part, _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)

    def _spill_down(self, *, compacts: bool = True) -> None:
        """Spill down to the limit, and merge runs; before that, for merging takes memory too, compact where it pays."""
        spilled = self._spill_tombstones(0, 0, needed_since=None)
        victims = self._victims(0, 0, needed_since=self._stamp)
        self._spill(victims)
        if victims:  # there may have been too few that the last epoch did not look at
            self._spill(self._victims(0, 0, needed_since=None, slack=_SLACK_OF_BUSY))
        if compacts:
            self._tighten()
        if victims or spilled:
            self._give_back()
        for side in self._opened:
            side.tidy()

    def _tighten(self) -> None:
        """Compact where the dead are many, or where their memory keeps the state above the budget.

        Cost: the rows of a side, at most once in an epoch.
        """
        limit = self._limit.held
        if limit is None:
            return
        tolerated = min(limit // _TOLERATED_PART, self._limit.spare)
        tolerated += min(limit // 2, self._limit.spared // _SPARED_DEAD_PART)
        is_too_large = self._held_bytes() > limit + tolerated
        for side in self._opened:
            arena = side.side.arena
            if arena.is_sparse(tight=True) or (is_too_large and arena.dead_bytes() > limit // _DEAD_PART):
                side.compact()

    def _release(self) -> None:
        """Let the index of the cold rows leave this process, where it has no room beside the hot rows."""
        limit = self._limit.held
        index_bytes = max(0, self._index_bytes() - self._limit.spared)
        held = max(self._held_bytes(), self._hot_bytes() + self._unreckoned)  # tables may be about to double
        self._holds_index = limit is None or index_bytes == 0 or held + index_bytes <= limit
        self._hold_index(self._opened)

    def _hold_index(self, sides: Iterable[ColdSide]) -> None:
        for side in sides:
            side.keep_index(self._holds_index, self._limit.spare)

    def _give_back(self) -> None:
        """Give back what allocators keep of the memory that an epoch took and freed, where memory is short."""
        if self._budget.max_hot_bytes is not None and self._is_worth_looking():
            self._unused.give_back(self._limit.spare, self._known_bytes())

    def _known_bytes(self) -> int:
        return self._working_bytes + self._held_bytes() + self._resident_index_bytes()

    def _held_bytes(self) -> int:
        """Return the bytes that the rows in memory take, those of rows that are gone among them."""
        return sum(side.side.state_bytes() + side.hot.resident_bytes() for side in self._opened)

    def _resident_index_bytes(self) -> int:
        return sum(side.index_bytes() if self._holds_index else side.staying_bytes() for side in self._opened)

    def _index_bytes(self) -> int:
        return sum(side.index_bytes() for side in self._opened)

    def _spill(self, victims: Sequence[tuple[Int64s, npt.NDArray[np.int32]]]) -> None:
        piece_bytes = self._piece_bytes()
        for side, (positions, sizes) in zip(self._opened, victims, strict=False):
            begin = 0
            while begin < len(positions):
                end = int(piece_end(sizes, begin, piece_bytes))
                side.spill(positions[begin:end] + 1)
                self._advance_clock(int(sizes[begin:end].sum(dtype=np.int64)), end - begin)
                begin = end
                self._hold_index([side])

    def _advance_clock(self, size: int, rows: int) -> None:
        max_rows, max_bytes = self._budget.max_hot_keys, self._budget.max_hot_bytes
        policy = ResidencyPolicy(max_hot_keys=max_rows, max_hot_bytes=max_bytes)
        self._clock = policy.advanced(self._clock, spilled_bytes=size, spilled_keys=rows)

    @contextmanager
    def _moving(self, *, ends: bool = True) -> Iterator[None]:
        """Mark the state as half-written while rows move; after a full disk, which shows between two moves, it is whole again.

        After any other error, damaged files among them, the marks stay, so that the state is not used again.
        """
        self._is_moving = True
        epoch = self._opened[0].side.absorbed_epoch
        if self._is_mapped:
            for side in self._opened:
                side.side.begin_absorb()
        try:
            yield
        except ResourceError:
            self._end_moving(epoch)
            raise
        if ends:
            self._end_moving(epoch)

    def _end_moving(self, epoch: int) -> None:
        self.commit(epoch)
        if self._is_mapped:
            for side in self._opened:
                side.side.header[s.H_DIRTY] = 0

    # ---------------------------------------------------------------- snapshots

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot, part by part, within the budget; the caller ends absorbing. Cost: its rows."""
        self._is_moving = False
        self._unspilled = None
        for side in self._opened:
            side.side.clear()
            side.clear()
        for number, side in enumerate(self._opened):
            restore_side(
                side.side,
                tables[side.side.name],
                prepare=partial(self._prepare_part, number),
                after_part=partial(self._spill_part, number),
            )
        self.commit(snapshot_epoch(tables[self._opened[0].side.name]))

    def _prepare_part(self, number: int, delta: ZSet, words: Sequence[Int64s]) -> PreparedSide:
        """Prepare rows of one side that change no answer: bring in what they name, and nothing of the other side."""
        side = self._opened[number].side
        prepared = side.encode(delta, words=words)
        alone = [prepared if at == number else None for at in range(len(self._opened))]
        self._begin(alone)
        self._is_looking = True
        self._follow()
        self._fetch_named(alone)
        side.resolve(prepared)
        return prepared

    def _spill_part(self, number: int, prepared: PreparedSide) -> None:
        self.note_written([prepared if at == number else None for at in range(len(self._opened))])
        self.spill_to_budget(prepared.arrays.resident_bytes())
        if self._unspilled is not None:
            raise self._unspilled

    def is_current(self) -> bool:
        return not self._is_moving and all(side.is_current() for side in self._opened) and self._stores.is_current()

    def cold_side(self, number: int) -> ColdSide:
        return self._opened[number]

    # ---------------------------------------------------------------- numbers

    def resident_bytes(self) -> int:
        """Return the bytes of memory that hybrid state takes beside the sides themselves, between two epochs.

        What allocators keep of the memory that epochs took and freed is among them, as far as it can be measured; so are pages
        that rows fill in part, and an index that may not stay but was looked at.
        """
        held = self._resident_index_bytes() + sum(side.hot.resident_bytes() for side in self._opened)
        less = sum(side.index_bytes() - side.staying_bytes() for side in self._opened) if self._holds_index else 0
        more = sum(side.side.arena.tail_bytes() + side.lingering_bytes() for side in self._opened)
        return held + self._unused.correction(self._known_bytes(), less_bytes=less, more_bytes=more)

    def statistics(self) -> dict[str, int]:
        """Return counts: hot and cold rows and bytes per side, and what was moved since the state was opened."""
        counts = {"hot_bytes": self._hot_bytes(), "postponed_spills": self._postponed_spills}
        for side in self._opened:
            counts.update(side.statistics())
        return counts

    def close(self) -> None:
        """Release the files; cold rows of a state in memory are removed."""
        self._unused.close()
        self._finalizer()


def _release(opened: list[ColdSide], shared: list[ColdStores], private: PrivateDirectory | None) -> None:
    for side in opened:
        side.close()
    for stores in shared:
        stores.close()
    opened.clear()
    shared.clear()
    if private is not None:
        private.remove()


def _beyond(held: int, limit: int | None, slack: float, most: int) -> int:
    """Return the number of rows to spill beyond a limit; more are spilled at a time, so that it is rare."""
    return 0 if limit is None else max(0, held - limit + min(int(limit * slack), most))
