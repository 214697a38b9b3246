"""Planted bugs of an append-only join at its limit: each must be caught by the law named for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from property_tests.append_buffer_laws import Mutate
from zset_join.core.tick import Tick
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
