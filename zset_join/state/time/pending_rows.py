"""Rows that wait for the watermark to pass their time, the earliest first.

They are under no run: only a heap by time leads to them, so that an advance of the watermark touches what is due and nothing
else. Each names its key, which is not forgotten while a row waits for it.

Files: `<name>.header`, `.rows`, `.heap`, `.due`. Bytes per row: `layout.stride`, long strings, 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.time import versions as v
from zset_join.kernels.time import waiting as w
from zset_join.state.time.expiries import DueHeap
from zset_join.state.time.key_runs import KeyGroups
from zset_join.state.time.row_store import RowStore

__all__ = ["DueRows", "PendingRows"]

_Words = npt.NDArray[np.int64]
_H_DUE_LENGTH = 42


@dataclass(slots=True)
class DueRows:
    refs: _Words  # record addresses
    keys: _Words  # number of the key of each, 0 where the state has none
    groups: _Words  # group of each in this epoch, -1 for none
    weights: _Words


class PendingRows(RowStore):
    """Own the waiting rows of one input; the arguments are those of `RowStore`."""

    def _open(self) -> None:
        super()._open()
        self.due = DueHeap(self.arena.header, _H_DUE_LENGTH, directory=self._directory, name=self.name)

    def due_rows(self, time: int, groups: KeyGroups) -> tuple[_Words, DueRows]:
        """Return the numbers of the rows that are due, and the rows."""
        numbers = self.due.due(time)
        count = len(numbers)
        due = DueRows(*(np.empty(count, np.int64) for _ in range(4)))
        v.rows_of_waiting(
            self.keys.view,
            self.view,
            numbers,
            count,
            groups.table,
            groups.bits,
            groups.numbers,
            due.refs,
            due.keys,
            due.groups,
            due.weights,
        )
        return numbers, due

    def release(self, time: int, numbers: _Words) -> _Words:
        """Free rows that are due at a time, all of them; return their keys."""
        keys = np.empty(len(numbers), np.int64)
        place = self.keys.waiting_place
        w.free_waiting(self.keys.view, place, self.view, self.variables.address, numbers, len(numbers), keys)
        self.due.pop(time, len(numbers))
        return keys

    def store(self, address: int, rows: int, chosen: _Words, weights: _Words, groups: KeyGroups, group_of: _Words) -> None:
        """Let rows of a delta wait: those at the positions `chosen` of `rows` records; their keys have numbers."""
        heap_bytes = 0
        if len(self.variables):
            heap_bytes = int(heap_bytes_needed(address, self.layout.stride, rows, self.variables.address))
        self.make_room(len(chosen), heap_bytes)
        self.due.make_room(len(chosen))
        self.due.length = int(
            w.store_waiting(
                self.keys.view,
                self.keys.waiting_place,
                self.view,
                self.variables.address,
                address,
                chosen,
                weights,
                group_of,
                groups.numbers,
                self.due.address,
                self.due.length,
            )
        )

    def resident_bytes(self) -> int:
        return super().resident_bytes() + self.due.resident_bytes()

    def is_current(self) -> bool:
        return super().is_current() and self.due.is_current()

    def clear(self) -> None:
        self.due.close(remove=True)
        super().clear()

    def close(self) -> None:
        self.due.close()
        super().close()
