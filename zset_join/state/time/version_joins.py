"""Joins by key and time that share one table of right rows, and one set of keys; of most there is just one.

The law: each answers as it would with right rows of its own. All see the state before the epoch; then the right rows are stored
once, by the first join, and every join stores its left rows. A key goes when no row of any is left under it.

The joins agree on their right input, its key and how far back their left rows reach (`zset_join.plan.passes.share_nodes`), so
they free the same right rows at the same watermark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.kernels.rows import side as s
from zset_join.shapes.timed_join import COUNTERS
from zset_join.state.rows.directories import check_same_epoch
from zset_join.state.rows.side_snapshot import refuse_contradictions, snapshot_epoch
from zset_join.state.time.key_runs import KeyRuns, RowStore
from zset_join.state.time.version_join import VersionJoin
from zset_join.zset import ZSet

__all__ = ["RestorePart", "TimedState", "VersionJoins"]

_FIRST_COUNT = 48  # of the header of the keys; up to the lists of free blocks
_EPOCH, _COUNTS, _FORGOTTEN = b"zset_join.absorbed_epoch", b"zset_join.counts", b"zset_join.forgotten_until"

RestorePart = Callable[[RowStore, pa.RecordBatch, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]], None]
"""Takes rows of a snapshot back: the input, rows, weights, arrivals, DELETE marks."""


class TimedState:
    def __init__(
        self,
        keys: KeyRuns,
        inputs: Sequence[RowStore],
        counters: Sequence[str],
        *,
        on_cleared: Callable[[], None] | None = None,
    ) -> None:
        self._on_cleared = on_cleared
        self.keys = keys
        self.inputs = tuple(inputs)
        self.counters = tuple(counters)
        epochs = [int(rows.arena.header[s.H_ABSORBED_EPOCH]) for rows in self.inputs]
        check_same_epoch([*epochs, self.absorbed_epoch], keys.directory)

    @property
    def absorbed_epoch(self) -> int:
        return int(self.keys.header[s.H_ABSORBED_EPOCH])

    def begin(self) -> None:
        self.keys.header[s.H_DIRTY] = 1

    def end(self, epoch: int) -> None:
        for rows in self.inputs:
            rows.arena.header[s.H_ABSORBED_EPOCH] = epoch
        self.keys.header[s.H_ABSORBED_EPOCH] = epoch
        self.keys.header[s.H_DIRTY] = 0

    def count(self, name: str, amount: int) -> None:
        self.keys.header[_FIRST_COUNT + self.counters.index(name)] += amount

    def counts(self) -> dict[str, int]:
        first = _FIRST_COUNT
        return dict(zip(self.counters, self.keys.header[first : first + len(self.counters)].tolist(), strict=True))

    def statistics(self) -> dict[str, int]:
        return {
            **{f"{rows.name}_rows": rows.live_rows for rows in self.inputs},
            "keys": self.keys.table.count,
            "bytes": self.resident_bytes(),
            **self.counts(),
        }

    def resident_bytes(self) -> int:
        return self.keys.resident_bytes() + sum(rows.resident_bytes() for rows in self.inputs)

    def is_current(self) -> bool:
        return self.keys.is_current() and all(rows.is_current() for rows in self.inputs)

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the rows of each input, batch by batch, until the state changes."""
        facts = {
            _EPOCH: str(self.absorbed_epoch),
            _COUNTS: json.dumps(list(self.counts().values())),
            _FORGOTTEN: json.dumps({"time": self.keys.forgotten_until}),
        }
        return {
            rows.name: pa.RecordBatchReader.from_batches(rows.snapshot_schema().with_metadata(facts), rows.snapshot_batches())
            for rows in self.inputs
        }

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader], take: RestorePart) -> None:
        self.clear()
        self.begin()
        epoch = -1
        for rows in self.inputs:
            given: Any = tables[rows.name]
            table = given if isinstance(given, pa.Table) else given.read_all()
            epoch = max(epoch, snapshot_epoch(table))
            for batch, weights, arrivals, deletes in rows.restored(table):
                take(rows, batch, weights, arrivals, deletes)
            refuse_contradictions(rows.name, rows.repeated(table))
            facts = table.schema.metadata or {}
            if _FORGOTTEN in facts:
                self.keys.forgotten_until = max(self.keys.forgotten_until, json.loads(facts[_FORGOTTEN])["time"])
            amounts = json.loads(facts.get(_COUNTS, b"[]"))
            if len(amounts) == len(self.counters):
                self.keys.header[_FIRST_COUNT : _FIRST_COUNT + len(amounts)] = amounts
        self.end(epoch)

    def clear(self) -> None:
        self.keys.clear()
        for rows in self.inputs:
            rows.clear()
        if self._on_cleared is not None:
            self._on_cleared()

    def close(self) -> None:
        self.keys.close()
        for rows in self.inputs:
            rows.close()


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
