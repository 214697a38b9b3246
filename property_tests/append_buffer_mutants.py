"""Planted bugs of an append-only join at its limit: each must be caught by the law named for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.append_buffer_laws import Mutate
from zset_join.core.tick import Tick
from zset_join.kernels.rows.epoch import S_READS_DEGREES
from zset_join.kernels.rows.side import H_COLD_BYTES
from zset_join.operators.join import HashJoin
from zset_join.state.join.append_buffer import AppendBuffer, BufferedEpoch
from zset_join.zset import ZSet

__all__ = ["BUFFER_MUTANTS", "BufferMutant"]

_KEPT = "the_answers_are_those_of_what_is_kept"
_SURVIVES = "what_is_kept_survives"


@dataclass(frozen=True)
class BufferMutant:
    """A planted bug.

    Args:
        name: its name.
        story: what is wrong.
        caught_by: the law that must catch it.
        how: join type it shows in.
        mode: what happens at the limit.
        mutate: plants it.
    """

    name: str
    story: str
    caught_by: str
    how: str
    mode: str
    mutate: Mutate


def _with_buffer(make: Callable[[Any], AppendBuffer]) -> Mutate:
    """Plant another buffer."""

    def mutate(join: HashJoin) -> HashJoin:
        spoiled: Any = join
        spoiled._buffer = make(join)
        return join

    return mutate


def _buffer_of(kind: type[AppendBuffer]) -> Mutate:
    return _with_buffer(lambda join: kind(join._sides, join._buffer.limit, join._cold))


class _EvictsNewest(AppendBuffer):
    def _make_queue(self, arenas: Any, at_least: int) -> Any:
        queue = super()._make_queue(arenas, at_least + (1 << 40))
        for name in ("sides", "numbers", "sizes"):
            setattr(queue, name, getattr(queue, name)[::-1].copy())
        queue.ends = np.cumsum(queue.sizes)
        return queue


class _RightRowsFirst(AppendBuffer):
    def ages(self, tick: Tick, deltas: Sequence[ZSet]) -> Any:
        left, right = super().ages(tick, [deltas[1], deltas[0]])
        return [right, left]


class _OneByteLate(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        object.__setattr__(self.limit, "max_bytes", self.limit.max_bytes + 1)
        try:
            return super().plan(found)
        finally:
            object.__setattr__(self.limit, "max_bytes", self.limit.max_bytes - 1)


class _RefusesPastTheLimit(AppendBuffer):
    def refuse_if_full(self, epoch: BufferedEpoch, found: Any, tick: Tick) -> None:
        if sum(epoch.after) > self.limit.max_bytes:
            super().refuse_if_full(epoch, found, tick)


class _CountsWhatIsAllocated(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        return BufferedEpoch(before=(self._sides[0].resident_bytes(), self._sides[1].resident_bytes()), after=made.after)


class _CountsWhatItWasGiven(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        sizes = [
            0 if side is None else side.count * state.layout.stride for state, side in zip(self._sides, found, strict=True)
        ]
        after = (made.before[0] + sizes[0], made.before[1] + sizes[1])
        return BufferedEpoch(before=made.before, after=after)


class _EvictsInSilence(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        for side in found:
            if side is not None:
                side.shows_evicted = False
        return made


class _KeepsTheQueue(AppendBuffer):
    def take_out(self, epoch: BufferedEpoch, found: Any) -> None:
        """Take rows out for every answer; the queue does not notice."""
        queue = self._queue
        begin = 0 if queue is None else queue.begin
        super().take_out(epoch, found)
        if queue is not None:
            queue.begin = begin


class _CountsNoEviction(AppendBuffer):
    def take_out(self, epoch: BufferedEpoch, found: Any) -> None:
        kept = [side.evicted for side in self._sides]
        super().take_out(epoch, found)
        for side, counts in zip(self._sides, kept, strict=True):
            side.evicted = counts


class _EvictsWhileAnswering(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        made = super().plan(found)
        self._skip(made.from_queue)
        return made

    def take_out(self, epoch: BufferedEpoch, found: Any) -> None:
        super().take_out(epoch, found)
        self._skip(0)

    def _skip(self, rows: int) -> None:
        """Leave rows of the queue out, not beyond its end: the bug must show as a wrong answer, not as an IndexError."""
        if self._queue is not None:
            self._queue.begin = min(self._queue.begin + rows, len(self._queue.numbers))


def _ages_lost(join: HashJoin) -> HashJoin:
    """Snapshots lose the age of rows."""
    honest = join.snapshot

    def snapshot() -> dict[str, pa.Table]:
        tables = {}
        for name, table in honest().items():
            place = table.schema.get_field_index("_zset_sequence_0")
            tables[name] = table.set_column(place, "_zset_sequence_0", pa.array(np.zeros(table.num_rows, np.int64)))
        return tables

    spoiled: Any = join
    spoiled.snapshot = snapshot
    return join


def _no_degrees(join: HashJoin) -> HashJoin:
    """Whether a row has a match is read off the rows that are still there."""
    spoiled: Any = join
    spoiled._residual = None
    for side in (0, 1):
        spoiled._groups._side_view[side, S_READS_DEGREES] = spoiled._one_sided[1 - side] != 0
    return join


class _CountsWhatIsInMemory(AppendBuffer):
    def plan(self, found: Any) -> BufferedEpoch:
        kept = [int(side.header[H_COLD_BYTES]) for side in self._sides]
        for side in self._sides:
            side.header[H_COLD_BYTES] = 0
        try:
            return super().plan(found)
        finally:
            for side, count in zip(self._sides, kept, strict=True):
                side.header[H_COLD_BYTES] = count


def _loses_count(join: HashJoin) -> HashJoin:
    """A state that is opened again has forgotten what its rows on disk count for."""
    for side in join._sides:
        side.header[H_COLD_BYTES] = 0
    return join


def _never_spills(join: HashJoin) -> HashJoin:
    """All rows stay in memory."""
    spoiled: Any = join
    spoiled._hybrid._spill_down = lambda: None
    return join


def _absorbs_anyway(join: HashJoin) -> HashJoin:
    """Only the answer is refused."""
    spoiled: Any = join
    honest = join.absorb

    def absorb(tick: Tick, deltas: Sequence[ZSet]) -> None:
        refuse, spoiled._refuse = spoiled._refuse, lambda _: None
        try:
            honest(tick, deltas)
        finally:
            spoiled._refuse = refuse

    spoiled.absorb = absorb
    return join


_ABORT = "abort_leaves_everything_as_it_was"
BUFFER_MUTANTS: tuple[BufferMutant, ...] = (
    BufferMutant("evicts_newest", "the newest rows leave", _KEPT, "inner", "retract", _buffer_of(_EvictsNewest)),
    BufferMutant("right_rows_first", "right rows count as older", _KEPT, "full", "retract", _buffer_of(_RightRowsFirst)),
    BufferMutant("one_byte_late", "the limit itself is still allowed", _KEPT, "full", "retract", _buffer_of(_OneByteLate)),
    BufferMutant("evicts_in_silence", "joined rows of what left stay", _KEPT, "left", "retract", _buffer_of(_EvictsInSilence)),
    BufferMutant("keeps_the_queue", "rows leave that left before", _KEPT, "inner", "retract", _buffer_of(_KeepsTheQueue)),
    BufferMutant("counts_no_eviction", "evictions are not counted", _KEPT, "inner", "forget", _buffer_of(_CountsNoEviction)),
    BufferMutant("no_degrees", "a row forgets that it had a match", _KEPT, "left", "forget", _no_degrees),
    BufferMutant(
        "pads_twice",
        "a padding that was never given is retracted",
        "forgetting_retracts_no_joined_row",
        "left",
        "forget",
        _no_degrees,
    ),
    BufferMutant("ages_lost", "a snapshot forgets when rows came", _SURVIVES, "full", "retract", _ages_lost),
    BufferMutant(
        "evicts_while_answering",
        "answering takes rows from the queue",
        "answering_evicts_nothing",
        "full",
        "retract",
        _buffer_of(_EvictsWhileAnswering),
    ),
    BufferMutant(
        "refuses_past_the_limit", "the limit itself is let through", _ABORT, "full", "abort", _buffer_of(_RefusesPastTheLimit)
    ),
    BufferMutant(
        "counts_what_is_in_memory", "rows on disk are free", _ABORT, "full", "abort", _buffer_of(_CountsWhatIsInMemory)
    ),
    BufferMutant("loses_count", "opened again, rows on disk are free", _SURVIVES, "full", "spill", _loses_count),
    BufferMutant("never_spills", "memory grows", _KEPT, "left", "spill", _never_spills),
    BufferMutant("absorbs_anyway", "only the answer is refused", _ABORT, "inner", "abort", _absorbs_anyway),
    BufferMutant(
        "counts_what_it_was_given",
        "long values and dropped rows are miscounted",
        _ABORT,
        "inner",
        "abort",
        _buffer_of(_CountsWhatItWasGiven),
    ),
    BufferMutant(
        "counts_what_is_allocated",
        "tables count too",
        "bytes_do_not_depend_on_buckets",
        "inner",
        "abort",
        _buffer_of(_CountsWhatIsAllocated),
    ),
)
