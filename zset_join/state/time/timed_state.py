"""All an operator about time keeps: its keys, the rows of its inputs, and counts for users.

The state is marked while it is written. A snapshot has a table per input; the keys are not in it, they are found again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels.rows import side as s
from zset_join.state.rows.side_snapshot import snapshot_epoch
from zset_join.state.rows.usage import check_same_epoch
from zset_join.state.time.key_runs import KeyRuns
from zset_join.state.time.row_store import RowStore

__all__ = ["RestorePart", "TimedState"]

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
