"""Changes of a delta on one side, as removed and added rows.

`SideChanges` turns a delta of any changelog mode into *net* changes: per identity at most one row that goes (or loses copies)
and one that arrives (or gains copies). An identical upsert is no change, nor is a row that arrives and goes in the same epoch.

Where nothing is stored, as for an append-only left input, rows are looked at and passed on.

Remembers every live row otherwise, as a `SideState` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows.epoch import CHANGE_WORDS
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.zset import ZSet

__all__ = ["NetChanges", "SideChanges"]


@dataclass(slots=True)
class NetChanges:
    prepared: PreparedSide
    lost: pa.RecordBatch  # rows that go, or lose copies
    lost_copies: npt.NDArray[np.int64]
    new: pa.RecordBatch  # in the order they came
    new_copies: npt.NDArray[np.int64]
    touched: npt.NDArray[np.int64]  # numbers of the state rows that change
    touched_copies: npt.NDArray[np.int64]  # present afterwards
    touched_gains: npt.NDArray[np.bool_]
    after_refs: npt.NDArray[np.int64]  # records of the changed rows that are present afterwards
    after_copies: npt.NDArray[np.int64]


class SideChanges:
    def __init__(self, side: SideState, *, stores: bool) -> None:
        self.side = side
        self.stores = stores
        self._plan = side.layout.gather_plan(range(len(side.relation.schema)))
        self.schema = pa.schema([field.with_nullable(True) for field in side.relation.schema])

    def resolve(self, delta: ZSet, *, ignores_absent: bool = False) -> NetChanges:
        """Return the changes of a delta. Cost: the rows of the delta."""
        prepared = self.side.prepare(delta)
        if ignores_absent and prepared.rejected:
            status = prepared.status[: prepared.count]
            absent = status == ch.ABSENT_ROW
            status[absent] = ch.NOTHING
            prepared.rejected -= int(absent.sum())
            prepared.unknown_deletes += int(absent.sum())
        changes = np.empty((prepared.most_changes, CHANGE_WORDS), np.int64)
        end = self.side.list_changes(prepared, 0, int(changes.ctypes.data))
        refs, numbers, after = changes[:end, 0], changes[:end, 1], changes[:end, 3]
        gained = changes[:end, 3] - changes[:end, 2]
        return NetChanges(
            prepared,
            self.rows_of(refs[gained < 0]),
            -gained[gained < 0],
            self.rows_of(refs[gained > 0]),
            gained[gained > 0],
            numbers[numbers > 0],
            after[numbers > 0],
            gained[numbers > 0] > 0,
            refs[after > 0],
            after[after > 0],
        )

    def rows_of(self, refs: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows of some records, of the state or of the delta that was resolved last."""
        refs = np.ascontiguousarray(refs)
        if not len(refs):
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        columns = self._plan.gather(int(refs.ctypes.data), len(refs), self.side.arena.heap_address)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def absorb(self, changes: NetChanges | None, processing_time_us: int | None) -> None:
        self.side.absorb(None if changes is None or not self.stores else changes.prepared, processing_time_us)
