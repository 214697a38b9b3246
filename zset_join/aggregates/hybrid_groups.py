"""Groups in memory within a budget, and the others on disk.

A group moves as a whole, with all its values: before an epoch is prepared, the groups that its delta touches are brought
in; when it has been absorbed, those that are least busy are spilled until the budget holds.

The law: what is in memory is never seen in an answer or in a snapshot. A group is in memory or on disk, never in both.

Cost: a group that is not in memory is read, found again in the tables and added up as a restored one is, about as dear as a
snapshot of it. The budget is looked at in O(1); when it is exceeded, all groups in memory are ranked, which takes 6 bytes for
each, and a part of the budget is freed. Values that grow leave blocks behind that only values of about their size use again:
where these keep the state above its limit, all groups are spilled and memory begins again, since moving them together would
need as much again.

What an epoch needs beside the groups, up to half of the budget, is taken from it as from that of a join; so is what the epoch
will bring in. What it took and freed is given back, and the index of the groups on disk where it has no room
(`zset_join.state.cold.hot_rows`).

Where groups are mapped from a directory, those on disk are in it too and are at the same epoch; marks record when they move.

Known limits: the groups that one epoch touches must fit, and so must each single group. Bytes of single groups are estimated by
their number of values; their sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.aggregates.accumulation import GroupTables, parts_of
from zset_join.aggregates.accumulators import Int64s
from zset_join.aggregates.group_state import GroupState
from zset_join.core.errors import ResourceError, StateError
from zset_join.core.options import HotBudget
from zset_join.kernels.rows.moves import piece_end
from zset_join.state.cold.cold_tables import BusyGroups, ColdTables, FoundRows
from zset_join.state.cold.hot_rows import RowLimit
from zset_join.state.rows.host_memory import UnusedMemory
from zset_join.state.rows.side_snapshot import refuse_contradictions

__all__ = ["HybridGroups"]

_GROUPS_AT_ONCE = 1 << 14
_PIECE_BYTES = 1 << 20  # of groups that keep values and are spilled at once; one group at least
_FETCHED_BYTES = 1 << 20  # the same of those that are fetched, as they are on disk
_SEEN_BYTES = 1 << 19  # a filter of the groups that are restored
_BYTES_BESIDE = 22  # a slot of 13 to 26 bytes, and the score
_MOST_SIZE = (1 << 31) - 1
_TOLERATED_PART = 32  # of the limit: what the dead may take beyond it, and how many there must be for all to be spilled
_WRITING_BYTES = 12 << 20  # a piece of groups as tables, on the way to the disk or back, beyond what rows of a join take
_WRITING_BYTES_OF_VALUES = 8 << 20  # and beyond that, where groups keep values one by one


class HybridGroups:
    def __init__(self, state: GroupState, tables: GroupTables, budget: HotBudget) -> None:
        self._state = state
        self._tables = tables
        self._busy = BusyGroups(budget)
        self._limit = RowLimit(budget.max_hot_bytes)
        self._unused = UnusedMemory(budget.max_hot_bytes or 0)
        self._is_mapped = state.directory is not None
        self._cold = ColdTables(
            state.relation,
            tables.schemas(),
            directory=state.directory,
            layout=state.fingerprint,
            budget=budget,
        )
        self._postponed: ResourceError | None = None
        self._is_moving = False
        if self._is_mapped and self._cold.epoch != state.absorbed_epoch:
            epoch = self._cold.epoch
            self.close()
            raise StateError(
                f'the cold groups of the aggregate over "{state.relation}" are at epoch {epoch}, those in memory at '
                f"{state.absorbed_epoch}. Local state is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
                directory=state.directory,
            )

    def fetch(self, rows: pa.RecordBatch, count: int) -> None:
        if self._is_moving:
            raise StateError(
                "groups were being moved between memory and disk when this process was interrupted, or what lay on the disk "
                "was damaged; the state of this aggregate is incomplete. Make a new one and restore it from a snapshot.",
                code="STATE_HALF_WRITTEN",
            )
        if self._postponed is not None:
            with self._moving():
                self._spill_down()
            self._postponed = None
        if not self._state.cold_groups:
            return
        lines = self._state.load(rows, count)
        codes = lines.key_codes[: lines.entries][lines.found[: lines.entries] == 0]
        codes.sort()  # neighbours lie together
        size = self._groups_at_once()
        for begin in range(0, len(codes), size):
            cold = self._cold.find(codes[begin : begin + size])
            if cold is not None:
                with self._moving():
                    self._take(cold)
            del cold
        self._give_back()

    def _groups_at_once(self) -> int:
        """Return how many groups are read at once: as many as a piece has on average, where they keep values."""
        if not self._tables.has_values:
            return _GROUPS_AT_ONCE
        size = self._cold.disk_bytes() // self._state.cold_groups
        return min(max(1, _FETCHED_BYTES // max(1, size)), _GROUPS_AT_ONCE)

    def _take(self, cold_groups: FoundRows) -> None:
        """Move groups that were found into memory."""
        self._cold.take(cold_groups)
        self._state.cold_groups -= cold_groups.rows[0].num_rows
        for number, held in enumerate(cold_groups.rows):
            for part in parts_of(pa.Table.from_batches([held])):
                self._tables.insert(number, part)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Mark the state as half-written while groups move; after a full disk, which shows between moves, it is whole again."""
        # After any other error, damaged files among them, the marks stay, so that the state is not used again.
        self._is_moving = True
        self._state.begin()
        try:
            yield
        except ResourceError:
            self._end_moving()
            raise
        self._end_moving()

    def _end_moving(self) -> None:
        self.commit(self._state.absorbed_epoch)
        self._state.unmark()
        self._is_moving = False

    def commit(self, epoch: int) -> None:
        """Declare the groups on disk whole at an epoch; the caller takes the mark off the state afterwards."""
        if self._is_mapped:
            self._cold.commit(epoch)

    def is_current(self) -> bool:
        """Return whether the groups on disk are still as this process left them."""
        return not self._is_moving and self._cold.is_current()

    def spill_to_budget(self, rows: pa.RecordBatch, count: int) -> None:
        """Note which groups were touched, and spill down to the budget; the next epoch raises for a full disk."""
        self._foresee(count)
        if not self._state.cold_groups and not self._is_too_much() and not self._is_loose():
            return  # as long as all fits, recency is not needed
        lines = self._state.load(rows, count)
        self._busy.touch(self._state.records, lines.found[: lines.entries].copy())
        self._give_back()
        try:
            self._spill_down()
            self._tighten()
        except ResourceError as error:
            self._postponed = error
        self._give_back()
        if self._limit.rows is not None:
            self._unused.give_back_columns()

    def restore(self, tables: Sequence[pa.Table | pa.RecordBatchReader]) -> None:
        """Replace everything by groups as they were written, all of them on disk. Memory: a part of them."""
        self._is_moving, self._postponed = False, None
        self._cold.clear()
        self._state.cold_groups = 0
        seen = np.zeros(_SEEN_BYTES, np.uint8)
        for number, table in enumerate(tables):
            for part in parts_of(table):
                codes, groups = self._coded(part)
                repeated = self._tables.repeated_values(number, part) if number else self._repeated(part, codes, groups, seen)
                refuse_contradictions(self._state.relation, repeated)
                self._cold.store([self._cold.packed(number, part, codes)])
                self._cold.tidy()
                self._state.cold_groups += 0 if number else part.num_rows

    def _repeated(self, part: pa.RecordBatch, codes: Int64s, groups: int, seen: npt.NDArray[np.uint8]) -> int:
        """Return how many groups of a part are in it twice, or on disk; `seen` is a filter of those before it."""
        may_be = self._cold.may_be_seen(codes, seen)
        stored = self._cold.find(np.sort(codes[may_be]))
        repeated: int = part.num_rows - groups
        if stored is not None:  # or others with their hash
            keys = self._state.schema
            doubtful = pa.concat_batches(
                [one.select(keys.names).cast(keys) for one in (part.filter(pa.array(may_be)), stored.rows[0])]
            )
            repeated += doubtful.num_rows - self._coded(doubtful)[1]
        return repeated

    def written(self, table: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one table for the groups on disk, in chunks."""
        return self._cold.scan(table)

    def resident_bytes(self) -> int:
        """Return the bytes of memory taken beside the groups, what allocators keep among them as far as it is known."""
        less = self._cold.resident_bytes() - self._cold.staying_bytes()
        more = self._cold.lingering_bytes() + self._state.tail_bytes()
        return self._bytes_beside() + self._unused.correction(self._held_bytes(), less_bytes=less, more_bytes=more)

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._cold.statistics(),
            "hot_groups": self._state.groups,
            "cold_groups": self._state.cold_groups,
            "postponed_spills": int(self._postponed is not None),
        }

    def close(self) -> None:
        self._unused.close()
        self._cold.close()

    # ---------------------------------------------------------------- the budget

    def _is_too_much(self) -> bool:
        return self._busy.exceeds(self._state.groups, self._group_bytes())

    def _group_bytes(self) -> int:
        state = self._state
        return state.groups * (state.record_bytes + _BYTES_BESIDE) + state.heap_used

    def _bytes_beside(self) -> int:
        return self._cold.resident_bytes() + self._busy.resident_bytes()

    def _held_bytes(self) -> int:
        return self._state.resident_bytes() + self._bytes_beside()

    def _foresee(self, delta_rows: int) -> None:
        """Set the limits for an epoch of so many rows; release the index where it has no room beside the groups."""
        state, busy_bytes = self._state, self._busy.resident_bytes()
        coming = delta_rows * (state.record_bytes + _BYTES_BESIDE)
        unreckoned = state.state_bytes(delta_rows) - state.dead_bytes() + busy_bytes - self._group_bytes() + coming
        working = state.working_bytes() + _WRITING_BYTES + self._tables.has_values * _WRITING_BYTES_OF_VALUES
        self._limit.foresee(
            delta_rows=delta_rows,
            working_bytes=working,
            unreckoned_bytes=max(0, unreckoned),
            shared_budgets=self._unused.shared_budgets(),
        )
        self._busy.limit_bytes(self._limit.rows)
        state.most_bytes = self._limit.held
        held, limit = state.state_bytes(delta_rows) + busy_bytes, self._limit.held
        index_bytes = max(0, self._cold.index_bytes() - self._limit.spared)
        self._cold.keep_index(limit is None or index_bytes == 0 or held + index_bytes <= limit, self._limit.spare)

    def _give_back(self) -> None:
        """Give back what allocators keep of the memory that an epoch took and freed, where memory is short."""
        if self._limit.rows is not None:
            self._unused.give_back(self._limit.spare, self._held_bytes())

    def _sizes(self) -> npt.NDArray[np.int32]:
        """Return the bytes of the group in each record, -1 where there is none. Cost: the records ever in use."""
        state, are_groups = self._state, self._state.are_groups()
        sizes = np.full(len(are_groups), 1, np.int32)
        if self._tables.has_values:
            for begin in range(0, len(sizes), _GROUPS_AT_ONCE):
                positions = begin + np.flatnonzero(are_groups[begin : begin + _GROUPS_AT_ONCE])
                sizes[positions] += np.minimum(self._tables.values_per_group(state.lines_at(positions)), _MOST_SIZE - 1)
        values = max(1, int(np.sum(sizes, where=are_groups, dtype=np.int64)))
        per_group, heap = state.record_bytes + _BYTES_BESIDE, state.heap_used
        for begin in range(0, len(sizes), _GROUPS_AT_ONCE):
            part = sizes[begin : begin + _GROUPS_AT_ONCE]
            part[:] = np.minimum(per_group + heap * part.astype(np.float64) / values, _MOST_SIZE)
        sizes[~are_groups] = -1
        return sizes

    def _spill_down(self) -> None:
        if self._is_too_much():
            self._spill(*self._victims())

    def _victims(self) -> tuple[Int64s, npt.NDArray[np.int32]]:
        """Return the positions of the groups to spill, and their bytes."""
        sizes = self._sizes()
        chosen = self._busy.victims(self._state.records, sizes)
        return chosen, sizes[chosen]

    def _is_loose(self) -> bool:
        """Return whether the dead keep the state above its limit. Small budgets are exempt (`state.cold.row_limit`)."""
        # Blocks that are free are used again only by values of about their size: as groups grow, the dead get more.
        state, limit = self._state, self._limit.held
        if limit is None or self._limit.spared:
            return False
        tolerated = limit // _TOLERATED_PART
        return state.state_bytes() > limit + tolerated and state.dead_bytes() > tolerated

    def _tighten(self) -> None:
        """Spill all groups where the state is loose: moving the living together would copy them, and there is no room."""
        if self._is_loose():
            every = np.flatnonzero(self._state.are_groups())
            self._spill(every, self._sizes()[every])
            self._state.compact()

    def _spill(self, chosen: Int64s, sizes: npt.NDArray[np.int32]) -> None:
        """Move groups out of memory, piece by piece."""
        state, end = self._state, 0
        while end < len(chosen):
            begin, end = end, min(end + _GROUPS_AT_ONCE, len(chosen))
            if self._tables.has_values:
                end = begin + int(piece_end(sizes[begin:end], 0, _PIECE_BYTES))
            piece = chosen[begin:end]
            # A state that grows moves, so addresses are rebuilt for each piece.
            held = self._tables.written(state.refs_at(piece), state.lines_at(piece))
            self._cold.store(
                [
                    self._cold.packed(number, part, self._coded(part)[0])
                    for number, table in enumerate(held)
                    for part in parts_of(table)
                ]
            )
            state.cold_groups += len(piece)
            self._tables.remove(held)
            del held
            self._cold.tidy()
            if self._tables.has_values:
                self._give_back()

    def _coded(self, rows: pa.RecordBatch) -> tuple[Int64s, int]:
        """Return the hash of the key of each row, and how many keys there are."""
        lines = self._state.load(rows, rows.num_rows)
        return np.ascontiguousarray(lines.key_codes[lines.entry_of[: lines.count]]), lines.entries
