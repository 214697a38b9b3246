"""How many bytes an append-only join holds, and the refusal of an epoch that would reach its limit.

A row counts its record and the heap blocks of its long values (`zset_join.kernels.rows.eviction`), once, whatever its weight,
and the same on disk. Hash tables and working arrays are not counted. The header of a side holds the sums of its rows in
memory and of those on disk, so counting costs the delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.core.errors import ResourceError
from zset_join.core.options import BufferLimit
from zset_join.core.shown_values import counted
from zset_join.kernels.rows.eviction import accepted_bytes
from zset_join.state.cold.cold_side import ColdSide
from zset_join.state.cold.largest_key import largest_key
from zset_join.state.join.residual_pairs import JudgedEpoch
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.zset import ZSet

__all__ = ["AppendBuffer", "BufferedEpoch", "PreparedEpoch", "buffer_full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedEpoch:
    before: tuple[int, int]  # bytes of the left and of the right side
    after: tuple[int, int]


class AppendBuffer:
    """Count the bytes of an append-only join, and enforce its limit."""

    def __init__(self, sides: Sequence[SideState], limit: BufferLimit, cold: Sequence[ColdSide] = ()) -> None:
        self.limit = limit
        self._cold = cold
        self._sides = sides

    def plan(self, prepared: Sequence[PreparedSide | None]) -> BufferedEpoch:
        """Return the size of the join after an epoch. Cost: the delta."""
        before = (self._sides[0].held_bytes, self._sides[1].held_bytes)
        arriving = [
            0 if side is None else _arriving_bytes(state, side) for state, side in zip(self._sides, prepared, strict=True)
        ]
        return BufferedEpoch(before=before, after=(before[0] + arriving[0], before[1] + arriving[1]))

    def refuse_if_full(self, epoch: BufferedEpoch, prepared: Sequence[PreparedSide | None], tick: Tick) -> None:
        """Raise where an epoch would reach the limit and the policy is `abort`."""
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


def buffer_full(
    names: tuple[str, str],
    held: tuple[int, int],
    limit: int,
    largest: tuple[tuple[object, ...], int, int] | None,
    epoch: int,
) -> ResourceError:
    """Return the error for a join that would reach its limit."""
    key, rows, key_bytes = largest or ((), 0, 0)
    largest_text = (
        f"The largest key is {key!r} with {counted(rows, 'row')} and {counted(key_bytes, 'byte')}. " if largest else ""
    )
    return ResourceError(
        f'the append-only join of "{names[0]}" and "{names[1]}" would hold {held[0]} + {held[1]} bytes after epoch {epoch}, '
        f"and join_max_buffered_bytes is {limit}; the epoch was not applied. {largest_text}Both sides of such a join keep "
        "every row for ever: raise join_max_buffered_bytes (0: no limit), declare keys so that rows are replaced and deleted, "
        'or move rows to disk with join_buffer_policy="spill".',
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


@dataclass(slots=True)
class PreparedEpoch:
    tick: Tick
    deltas: tuple[ZSet, ZSet]
    sides: tuple[PreparedSide | None, PreparedSide | None]  # None for an empty delta
    rejected: int
    buffered: BufferedEpoch | None = None
    oversized_codes: tuple[npt.NDArray[np.int64], ...] = ()  # per side, hashes of keys whose rows stay on disk
    streams: tuple[bool, ...] = ()  # per side, whether rows on disk are read as they are needed
    judged: JudgedEpoch = field(default_factory=JudgedEpoch)
