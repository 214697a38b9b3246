"""Joins by processing time that share one table of right rows; of most there is just one.

The law: each answers as it would with right rows of its own. All see the state before the epoch; then every join stores what is
its own, the first one the right rows too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from zset_join.core.tick import Tick
from zset_join.state.rows.side import SideState
from zset_join.state.rows.usage import check_same_epoch
from zset_join.zset import ZSet

__all__ = ["LatestJoin", "LatestJoins"]


class LatestJoin(Protocol):
    """A request to one join."""

    sides: Mapping[str, SideState]

    def resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Find out what the deltas of an epoch change, and refuse bad rows."""
        ...

    def fold(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Store the epoch resolved last."""
        ...

    def end_absorb(self, epoch: int) -> None:
        """Mark its state as complete."""
        ...

    def own_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of its tables."""
        ...

    def restore_own(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace its state by a snapshot."""
        ...


class LatestJoins:
    """Own the state of joins; the first one owns the right rows."""

    def __init__(self, joins: Sequence[LatestJoin]) -> None:
        self.joins = tuple(joins)
        self._sides = {name: side for join in joins for name, side in join.sides.items()}
        sides = list(self._sides.values())
        check_same_epoch((side.absorbed_epoch for side in sides), sides[0].directory)

    @property
    def absorbed_epoch(self) -> int:
        return next(iter(self._sides.values())).absorbed_epoch

    def absorb(self, tick: Tick, deltas: Sequence[Sequence[ZSet]]) -> None:
        tick.check_follows(self.absorbed_epoch)
        for join, given in zip(self.joins, deltas, strict=True):
            join.resolve(tick, given)
        for side in self._sides.values():
            side.begin_absorb()
        for join, given in reversed(list(zip(self.joins, deltas, strict=True))):  # who owns the right rows comes last
            join.fold(tick, given)
        for join in self.joins:
            join.end_absorb(tick.epoch)

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: reader for join in self.joins for name, reader in join.own_readers().items()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        for join in self.joins:
            join.restore_own(tables)

    def statistics(self) -> dict[str, int]:
        return {name: count for side in self._sides.values() for name, count in side.statistics().items()}

    def resident_bytes(self) -> int:
        return sum(side.resident_bytes() for side in self._sides.values())

    def working_bytes(self) -> int:
        return sum(side.working_bytes() for side in self._sides.values())

    def is_current(self) -> bool:
        return all(side.is_current() for side in self._sides.values())

    def close(self) -> None:
        for side in self._sides.values():
            side.close()
