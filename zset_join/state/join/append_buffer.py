"""How many bytes an append-only join holds, and which rows leave when they are too many.

The law: what an epoch does at the limit follows from the live rows, the epoch's delta and the limit alone. So answering and
absorbing, a replay and a restored state come to the same end. After an epoch the live rows are the newest ones, as many as
stay below the limit.

A row counts its record and the heap blocks of its long values (`zset_join.kernels.rows.eviction`), once, whatever its weight,
and the same on disk. Hash tables and working arrays are not counted. The header of a side holds the sums of its rows in
memory and of those on disk, so counting costs the delta.

Age: where rows may be evicted, a hidden word of each record holds when it came: epoch, then position in the epoch's delta,
left rows before right ones. It goes where the record goes, through compaction, snapshots and files. Rows leave oldest first.

Cost: the delta, and the rows that leave. The oldest rows are found by looking at all of them; an eighth of them is queued
each time, so every row that leaves pays for eight. The queue takes 25 bytes per row in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import ResourceError
from zset_join.core.options import BufferLimit
from zset_join.core.shown_values import counted
from zset_join.core.tick import Tick
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.changes import NOTHING, OK
from zset_join.kernels.rows.eviction import accepted_bytes
from zset_join.kernels.values import columns as c
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.cold.largest_key import largest_key
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.state.rows.side_snapshot import SNAPSHOT_SEQUENCE
from zset_join.zset import ZSet

__all__ = ["AppendBuffer", "BufferedEpoch", "buffer_full", "with_distinct_ages"]

_Numbers = npt.NDArray[np.int64]
_POSITION_BITS = 32
_AGE = f"{SNAPSHOT_SEQUENCE}0"
_QUEUED_PART = 8
_QUEUED_LEAST = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedEpoch:
    """Size of an append-only join after an epoch.

    Args:
        before: bytes of the left and of the right side before the epoch.
        after: bytes of either side after it.
        evicted_rows: rows of either side that leave in this epoch.
        evicted_bytes: what those counted for.
        new_rows: per side, positions in the delta of rows that leave in the epoch they came in.
        from_queue: how many rows leave that were present before.
    """

    before: tuple[int, int]
    after: tuple[int, int]
    evicted_rows: tuple[int, int] = (0, 0)
    evicted_bytes: tuple[int, int] = (0, 0)
    new_rows: tuple[_Numbers, ...] = field(default=())
    from_queue: int = 0


@dataclass(slots=True)
class _Queue:
    """The oldest rows of both sides, oldest first; `begin` of them have left already."""

    numbering: tuple[int, ...]
    sides: npt.NDArray[np.uint8]
    numbers: _Numbers
    sizes: _Numbers
    ends: _Numbers
    begin: int = 0

    def bytes_left(self) -> int:
        return int(self.ends[-1]) - self._gone() if len(self.ends) else 0

    def _gone(self) -> int:
        return int(self.ends[self.begin - 1]) if self.begin else 0

    def rows_for(self, needed: int) -> int:
        """Return how many rows must leave so that `needed` bytes do; all of them where that is not enough."""
        end = int(np.searchsorted(self.ends, self._gone() + needed, side="left")) + 1
        return min(end, len(self.ends)) - self.begin


class AppendBuffer:
    """Count the bytes of an append-only join, and enforce its limit.

    Args:
        sides: state of the left and of the right side; made `with_age` where the limit evicts.
        limit: the limit.
        cold: the rows of either side that are on disk; none of a join in memory.
    """

    def __init__(self, sides: Sequence[SideState], limit: BufferLimit, cold: Sequence[ColdSide] = ()) -> None:
        self.limit = limit
        self._cold = cold
        self._sides = sides
        self._queue: _Queue | None = None

    def ages(self, tick: Tick, deltas: Sequence[ZSet]) -> list[list[_Numbers] | None]:
        """Return, per side, the words to store with the rows of a delta; None where ages are not kept."""
        if not self.limit.evicts:
            return [None, None]
        begin, ages = tick.epoch << _POSITION_BITS, list[list[_Numbers] | None]()
        for delta in deltas:
            ages.append([np.arange(begin, begin + len(delta), dtype=np.int64)])
            begin += len(delta)
        return ages

    def plan(self, prepared: Sequence[PreparedSide | None]) -> BufferedEpoch:
        """Return the effect of an epoch at the limit, and note it in the prepared sides. Cost: delta and evicted rows.

        Args:
            prepared: what the epoch's delta is, per side; where the limit evicts, there is one for each side.
        """
        before = (self._sides[0].held_bytes, self._sides[1].held_bytes)
        arriving = [
            0 if side is None else _arriving_bytes(state, side) for state, side in zip(self._sides, prepared, strict=True)
        ]
        after = (before[0] + arriving[0], before[1] + arriving[1])
        excess = sum(after) - self.limit.max_bytes + 1
        if not self.limit.evicts or excess <= 0 or not any(side is not None and side.count for side in prepared):
            return BufferedEpoch(before=before, after=after)
        return self._plan_eviction([side for side in prepared if side is not None], before, after, excess)

    def _plan_eviction(
        self, prepared: Sequence[PreparedSide], before: tuple[int, int], after: tuple[int, int], excess: int
    ) -> BufferedEpoch:
        queue = self._oldest(excess)
        end = queue.begin + queue.rows_for(excess)
        leaving = slice(queue.begin, end)
        sides, numbers, sizes = queue.sides[leaving], queue.numbers[leaving], queue.sizes[leaving]
        rows, sums, new_rows = [0, 0], [0, 0], list[_Numbers]()
        missing = excess - int(sizes.sum())
        for number, side in enumerate(prepared):
            own = sides == number
            side.evicted = np.ascontiguousarray(numbers[own])
            side.shows_evicted = not self.limit.forgets
            positions, arrived = _accepted(self._sides[number], side)
            taken = 0 if missing <= 0 else min(int(np.searchsorted(np.cumsum(arrived), missing, side="left")) + 1, len(arrived))
            gone = int(arrived[:taken].sum())
            missing -= gone
            new_rows.append(positions[:taken])
            if not self.limit.forgets:
                side.status[positions[:taken]] = NOTHING
            rows[number] = int(own.sum()) + taken
            sums[number] = int(sizes[own].sum()) + gone
        return BufferedEpoch(
            before=before,
            after=(after[0] - sums[0], after[1] - sums[1]),
            evicted_rows=(rows[0], rows[1]),
            evicted_bytes=(sums[0], sums[1]),
            new_rows=tuple(new_rows),
            from_queue=end - queue.begin,
        )

    def refuse_if_full(self, epoch: BufferedEpoch, prepared: Sequence[PreparedSide | None], tick: Tick) -> None:
        """Raise where an epoch would reach the limit and the policy is `abort`.

        Raises:
            ResourceError: it would; the message names the bytes of both sides and the largest key.
        """
        if not self.limit.refuses or sum(epoch.after) < self.limit.max_bytes:
            return
        relations = self._sides[0].relation, self._sides[1].relation
        raise buffer_full(
            (relations[0].name, relations[1].name),
            epoch.after,
            self.limit.max_bytes,
            largest_key(self._sides, prepared, self._cold),
            tick.epoch,
        )

    def take_out(self, epoch: BufferedEpoch, prepared: Sequence[PreparedSide | None]) -> None:
        """Drop the rows that leave; called when the epoch's rows are absorbed."""
        if not sum(epoch.evicted_rows):
            return
        for number, (state, side) in enumerate(zip(self._sides, prepared, strict=True)):
            if side is None:
                continue
            leaving = side.evicted
            if self.limit.forgets:
                leaving = np.concatenate([leaving, side.numbers[epoch.new_rows[number]]])
            state.evict(leaving, epoch.evicted_rows[number], epoch.evicted_bytes[number])
        if self._queue is not None:
            self._queue.begin += epoch.from_queue

    def resident_bytes(self) -> int:
        """Return the bytes of the queue."""
        queue = self._queue
        return 0 if queue is None else queue.sides.nbytes + queue.numbers.nbytes + queue.sizes.nbytes + queue.ends.nbytes

    def _oldest(self, needed: int) -> _Queue:
        """Return a queue that begins with the oldest rows and holds `needed` bytes, or all rows that are present."""
        queue, numbering = self._queue, tuple(side.numbering for side in self._sides)
        if queue is None or queue.numbering != numbering:
            queue = self._make_queue(numbering, _QUEUED_LEAST)
        live = sum(side.arena.live_rows for side in self._sides)
        while queue.bytes_left() < needed and len(queue.numbers) - queue.begin < live:
            queue = self._make_queue(numbering, 2 * (len(queue.numbers) - queue.begin) + _QUEUED_LEAST)
        self._queue = queue
        return queue

    def _make_queue(self, numbering: tuple[int, ...], at_least: int) -> _Queue:
        """Queue the oldest rows, an eighth of them or `at_least` so many. Cost: all live rows."""
        live = [_live_ages(side) for side in self._sides]
        ages = np.concatenate([each for each, _ in live])
        numbers = np.concatenate([each for _, each in live])
        sides = np.repeat(np.array([0, 1], np.uint8), [len(each) for each, _ in live])
        size = max(at_least, len(ages) // _QUEUED_PART)
        chosen = np.argpartition(ages, size)[:size] if size < len(ages) else np.arange(len(ages))
        chosen = chosen[np.argsort(ages[chosen])]
        sides, numbers = sides[chosen], numbers[chosen]
        sizes = np.empty(len(numbers), np.int64)
        for number, side in enumerate(self._sides):
            own = sides == number
            sizes[own] = side.sizes_of(side.refs_of(numbers[own]))
        return _Queue(numbering, sides, numbers, sizes, np.cumsum(sizes))


def with_distinct_ages(table: pa.Table, side: int) -> pa.Table:
    """Return rows of a side that come from several buckets with ages that no two rows of the new bucket have in common.

    The order is that of their ages: by epoch, left rows before right ones, then by position. Rows of several buckets that have
    one position go by their order in the table, which every attempt finds the same.

    Args:
        table: a snapshot of a side in append mode; unchanged where its rows have no ages.
        side: 0 for the left, 1 for the right.
    """
    at = table.schema.get_field_index(_AGE)
    if at < 0 or not table.num_rows:
        return table
    ages = table.column(at).to_numpy()
    order = np.argsort(ages, kind="stable")
    epochs = ages[order] >> _POSITION_BITS
    begins = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    ranks = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    distinct = np.empty(len(order), np.int64)
    distinct[order] = (epochs << _POSITION_BITS) + (side << (_POSITION_BITS - 1)) + ranks
    return table.set_column(at, table.schema.field(at), pa.array(distinct))


def buffer_full(
    names: tuple[str, str],
    held: tuple[int, int],
    limit: int,
    largest: tuple[tuple[object, ...], int, int] | None,
    epoch: int,
) -> ResourceError:
    """Return the error for a join that would reach its limit.

    Args:
        names: of both inputs.
        held: bytes of either side, the epoch's rows included.
        limit: the limit.
        largest: the join key whose rows have the most bytes, how many rows and how many bytes; None where no row has a key.
        epoch: the epoch that was refused.
    """
    key, rows, key_bytes = largest or ((), 0, 0)
    largest_text = (
        f"The largest key is {key!r} with {counted(rows, 'row')} and {counted(key_bytes, 'byte')}. " if largest else ""
    )
    return ResourceError(
        f'the append-only join of "{names[0]}" and "{names[1]}" would hold {held[0]} + {held[1]} bytes after epoch {epoch}, '
        f"and join_max_buffered_bytes is {limit}; the epoch was not applied. {largest_text}Both sides of such a join keep "
        "every row for ever: raise join_max_buffered_bytes (0: no limit), declare keys so that rows are replaced and deleted, "
        'move rows to disk with join_buffer_policy="spill", or drop the oldest ones with "evict_oldest".',
        code="JOIN_BUFFER_FULL",
        left_bytes=held[0],
        right_bytes=held[1],
        limit=limit,
        key=key,
        key_rows=rows,
        key_bytes=key_bytes,
        epoch=epoch,
    )


def _arriving_bytes(state: SideState, side: PreparedSide) -> int:
    return int(accepted_bytes(side.arrays.address, state.layout.stride, state.variables_address))


def _accepted(state: SideState, side: PreparedSide) -> tuple[_Numbers, _Numbers]:
    """Return the positions of a delta's accepted rows, and the bytes each counts for."""
    positions = np.flatnonzero(side.status[: side.count] == OK)
    return positions, state.sizes_of(side.encoded.address + positions * state.layout.stride)


def _live_ages(side: SideState) -> tuple[_Numbers, _Numbers]:
    """Return the ages and the numbers of the live rows of a side."""
    end = int(side.header[s.H_ROWS_END])
    numbers = np.flatnonzero(side.record_words("u1", c.FLAGS, end) & c.FLAG_LIVE) + 1
    return side.record_words("<i8", side.layout.sequence_offset, end)[numbers - 1], numbers
