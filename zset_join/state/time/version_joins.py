"""Joins by key and time that share one table of right rows, and one set of keys; of most there is just one.

The law: each answers as it would with right rows of its own. All see the state before the epoch; then the right rows are stored
once, by the first join, and every join stores its left rows. A key goes when no row of any is left under it.

The joins agree on their right input, its key and how far back their left rows reach (`zset_join.plan.sharing`), so they free
the same right rows at the same watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.shapes.version_join import COUNTERS
from zset_join.state.time.row_store import RowStore
from zset_join.state.time.timed_state import TimedState
from zset_join.state.time.version_join import VersionJoin
from zset_join.zset import ZSet

__all__ = ["VersionJoins"]

_FEW_TIMES = 1024  # that no row has any more


class VersionJoins:
    """Own the state of joins; the first one owns the right rows."""

    def __init__(self, joins: Sequence[VersionJoin]) -> None:
        self.joins = tuple(joins)
        self._owner_of: dict[int, VersionJoin] = {id(rows): join for join in joins for rows in join.kept}
        kept = [rows for join in joins for rows in join.kept]
        self._state = TimedState(joins[0].keys, kept, COUNTERS, on_cleared=self._reopen)
        self._labels = joins[0].labels
        if self._labels is not None:
            self._labels.on_crowded, self._labels.on_overtaken = self._rewrite, self._load_labels

    @property
    def absorbed_epoch(self) -> int:
        return self._state.absorbed_epoch

    def absorb(self, tick: Tick, deltas: Sequence[Sequence[ZSet]]) -> None:
        tick.check_follows(self.absorbed_epoch)
        for join, given in zip(self.joins, deltas, strict=True):
            join.resolve(tick, given)
        self._state.begin()
        touched = []
        for join, given in zip(self.joins, deltas, strict=True):
            keys, counts = join.fold(tick, given)
            touched.append(keys)
            for name, amount in counts.items():
                self._state.count(name, amount)
        numbers = np.concatenate(touched)
        if len(numbers):
            self._state.keys.drop_empty(numbers)
        self._state.end(tick.epoch)
        if self._labels is not None:
            self._labels.follow(tick.epoch)
            if len(self._labels) > 2 * sum(rows.live_rows for rows in self._state.inputs) + _FEW_TIMES:
                self._load_labels()

    def _load_labels(self) -> None:
        found: dict[Any, int] = {}
        for rows in self._state.inputs:
            found |= self._owner_of[id(rows)].labels_of(rows)
        if self._labels is not None:
            self._labels.load(found)

    def _rewrite(self, more: set[Any]) -> None:
        """Give the times of the rows, and others, new labels. Cost: the rows of the state."""
        self._restore({name: reader.read_all() for name, reader in self.snapshot_readers().items()}, more)

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self._state.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._restore(tables, set())

    def _restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader], more: set[Any]) -> None:
        for join in self.joins:
            join.forget_epoch()
        if self._labels is not None:
            tables = {name: one if isinstance(one, pa.Table) else one.read_all() for name, one in tables.items()}
            for rows in self._state.inputs:
                times = self._owner_of[id(rows)].kept_times(rows, tables[rows.name])
                more |= {time for time in times.unique().to_pylist() if time is not None}
            self._labels.spread(more)
        self._state.restore(tables, self._retract)
        if self._labels is not None:
            self._labels.follow(self.absorbed_epoch)

    def _retract(
        self,
        rows: RowStore,
        batch: pa.RecordBatch,
        weights: npt.NDArray[np.int64],
        arrivals: npt.NDArray[np.int64],
        deletes: npt.NDArray[np.uint8],
    ) -> None:
        self._owner_of[id(rows)].retract(rows, batch, weights, arrivals, deletes)

    def _reopen(self) -> None:
        for join in self.joins:
            join.reopen()

    def statistics(self) -> dict[str, int]:
        return self._state.statistics()

    def resident_bytes(self) -> int:
        labels = 0 if self._labels is None else self._labels.resident_bytes()
        return self._state.resident_bytes() + labels + sum(join.resident_bytes() for join in self.joins)

    def working_bytes(self) -> int:
        return sum(join.working_bytes() for join in self.joins)

    def is_current(self) -> bool:
        return self._state.is_current() and all(join.is_current() for join in self.joins)

    def close(self) -> None:
        self._state.close()
        for join in self.joins:
            join.close()
