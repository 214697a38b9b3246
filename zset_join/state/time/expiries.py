"""When the rows of a side expire: a time per row number, and a heap of when to look.

A row whose time moves on is not looked for in the heap. Its entry stays where it is; when that is due and the row is not, it is
put back at the time that counts by then. So writing a time costs O(1), and an epoch looks only at what is due.

The law: `due` names every live row whose time has come, each once, and may name others whose entry is due and whose time is
not.

Files: `<name>.times`, `<name>.due`. Bytes: 16 per row number and 16 per entry; a live row has one, and a row that went before
its time leaves one behind until then.

`PendingRows`: rows that wait for the watermark to pass their time, the earliest first.

They are under no run: only a heap by time leads to them, so that an advance of the watermark touches what is due and nothing
else. Each names its key, which is not forgotten while a row waits for it.

Files: `<name>.header`, `.rows`, `.heap`, `.due`. Bytes per row: `layout.stride`, long strings, 16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.rows import side as s
from zset_join.kernels.time import expiry as e
from zset_join.kernels.time import versions as v
from zset_join.kernels.time.runs import NEVER
from zset_join.kernels.values import keys as c
from zset_join.state.rows.host_memory import Region
from zset_join.state.rows.side import SideState
from zset_join.state.time.key_runs import KeyGroups, RowStore

__all__ = ["DueHeap", "DueRows", "Expiries", "PendingRows"]


class DueHeap:
    def __init__(self, header: npt.NDArray[np.int64], word: int, *, directory: str | None, name: str) -> None:
        path = None if directory is None else str(Path(directory) / f"{name}.due")
        self._header, self._word, self._is_file = header, word, directory is not None
        self._region = Region(1 << 12, path)

    @property
    def address(self) -> int:
        return self._region.address

    @property
    def length(self) -> int:
        return int(self._header[self._word])

    @length.setter
    def length(self, length: int) -> None:
        self._header[self._word] = length

    def rebind(self, header: npt.NDArray[np.int64]) -> None:
        """Go on with a header that has moved."""
        self._header = header

    def make_room(self, entries: int) -> None:
        self._region.ensure(16 * (self.length + entries))

    def first(self) -> int | None:
        """Return the earliest time, None when nothing waits."""
        return int(e.first_due(self.address)) if self.length else None

    def due(self, time: int) -> npt.NDArray[np.int64]:
        """Return the numbers of what is due at a time. Cost: what is due."""
        room = 1024
        while True:
            numbers, stack = np.empty(room, np.int64), np.empty(2 * room + 2, np.int64)
            due_count = int(e.list_due(self.address, self.length, time, numbers, stack))
            if due_count <= room:
                return numbers[:due_count]
            room = min(4 * room, self.length)

    def push(self, time: int, numbers: npt.NDArray[np.int64]) -> None:
        self.make_room(len(numbers))
        self.length = int(e.push_all(self.address, self.length, time, numbers))

    def push_each(self, times: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        self.make_room(len(numbers))
        self.length = int(e.push_each(self.address, self.length, times, numbers))

    def pop(self, time: int, due: int) -> None:
        if due:
            self.length = int(e.pop_due(self.address, self.length, time, due))

    def resident_bytes(self) -> int:
        return 16 * self.length

    def is_current(self) -> bool:
        return self._region.is_current()

    def close(self, *, remove: bool = False) -> None:
        self._region.close(remove=remove and self._is_file)


_Words = npt.NDArray[np.int64]
_HEADER_WORDS = 16
_LENGTH, _FIRST_COUNT = 0, 1


class Expiries:
    def __init__(self, side: SideState, *, directory: str | None, name: str) -> None:
        self._side, self._directory, self._name = side, directory, name
        side.on_compacting = self._renumber
        self._open()

    def _open(self) -> None:
        path = None if self._directory is None else str(Path(self._directory) / f"{self._name}.times")
        self._region = Region(1 << 12, path)
        self._heap = DueHeap(self._header, _LENGTH, directory=self._directory, name=self._name)

    @property
    def _header(self) -> _Words:
        header: _Words = self._words(0, _HEADER_WORDS)
        return header

    def _words(self, first: int, count: int) -> Any:
        memory: Any = (ctypes.c_int64 * count).from_address(self._region.address + 8 * first)
        return np.ndarray((count,), np.int64, buffer=memory)

    def _line(self, which: int) -> Any:
        """Return the times (0), or the places of the entries (1), by row number."""
        count = (self._region.capacity // 8 - _HEADER_WORDS) // 2
        return self._words(_HEADER_WORDS, 2 * count).reshape(count, 2)[:, which]

    def _make_room(self) -> None:
        end = int(self._side.header[s.H_ROWS_END]) + 1
        if self._region.ensure(8 * (_HEADER_WORDS + 2 * end)):
            self._heap.rebind(self._header)  # it moved with the bytes in it

    def count(self, place: int, amount: int) -> None:
        self._header[_FIRST_COUNT + place] += amount

    def counts(self, places: int) -> list[int]:
        counts: list[int] = self._header[_FIRST_COUNT : _FIRST_COUNT + places].tolist()
        return counts

    def set_counts(self, counts: list[int]) -> None:
        self._header[_FIRST_COUNT : _FIRST_COUNT + len(counts)] = counts

    def times(self, numbers: _Words) -> _Words:
        times: _Words = self._line(0)[numbers]
        return times

    def first(self) -> int | None:
        """Return a time before which no row expires; None where none will."""
        earliest = self._heap.first()
        return None if earliest is None or earliest >= NEVER else earliest

    def due(self, now: int) -> _Words:
        """Return the numbers of the rows to look at, ascending. Cost: the entries that are due."""
        numbers = np.unique(self._heap.due(now)) if self._heap.length else np.zeros(0, np.int64)
        if not len(numbers):
            return numbers
        numbers = numbers[numbers <= int(self._side.header[s.H_ROWS_END])]
        scheduled = self._line(1)[numbers]
        return np.ascontiguousarray(numbers[self._are_live(numbers) & (scheduled <= now)])

    def _are_live(self, numbers: _Words) -> npt.NDArray[np.bool_]:
        """Record whether rows are present. Cost: these rows."""
        flags = self._side.record_words("u1", c.FLAGS, int(self._side.header[s.H_ROWS_END]))
        are_live: npt.NDArray[np.bool_] = (flags[numbers - 1] & c.FLAG_LIVE) != 0
        return are_live

    def forget(self, numbers: _Words) -> None:
        if len(numbers):
            self._make_room()
            self._line(0)[numbers] = -NEVER
            self._line(1)[numbers] = NEVER

    def begin(self, numbers: _Words) -> None:
        """Let rows that arrive have no time yet, whatever their numbers had."""
        self.forget(numbers)

    def raise_to(self, numbers: _Words, times: _Words) -> None:
        """Let rows live until these times at least; a number may come twice."""
        if not len(numbers):
            return
        self._make_room()
        np.maximum.at(self._line(0), numbers, times)
        numbers = np.unique(numbers)
        self._schedule(numbers[self._line(1)[numbers] == NEVER])

    def settle(self, now: int, due: _Words, times: _Words) -> None:
        """Take out the entries that are due; put rows of `due` that are still there back at `times`."""
        if self._heap.length:
            self._heap.pop(now, len(self._heap.due(now)))
        if not len(due):
            return
        # A number may be that of another row by now, which has an entry of its own.
        stays = self._are_live(due) & (self._line(1)[due] <= now)
        due, times = due[stays], times[stays]
        self._line(1)[due] = times
        self._push(due, times)

    def _schedule(self, numbers: _Words) -> None:
        times = np.ascontiguousarray(self._line(0)[numbers])
        self._line(1)[numbers] = times
        self._push(numbers, times)

    def _push(self, numbers: _Words, times: _Words) -> None:
        ends = times < NEVER
        self._heap.push_each(np.ascontiguousarray(times[ends]), np.ascontiguousarray(numbers[ends]))

    def restore(self, numbers: _Words, times: _Words) -> None:
        self.begin(numbers)
        self.raise_to(numbers, times)

    def _renumber(self, sources: _Words, targets: _Words, used: int) -> None:
        """Follow rows to their new numbers. Cost: one pass over the rows, none over the room behind them."""
        self._make_room()
        end = int(self._side.header[s.H_ROWS_END])
        for which in (0, 1):
            line = self._line(which)
            line[targets + 1] = line[sources + 1]
            line[used + 1 : end + 1] = -NEVER if which == 0 else NEVER
        numbers = np.arange(1, used + 1, dtype=np.int64)
        self._heap.length = 0
        times = np.ascontiguousarray(self._line(1)[numbers])
        self._push(numbers, times)

    def resident_bytes(self) -> int:
        return 16 * int(self._side.header[s.H_ROWS_END]) + self._heap.resident_bytes()

    def is_current(self) -> bool:
        return self._region.is_current() and self._heap.is_current()

    def clear(self) -> None:
        """Forget everything, after the rows have been."""
        self._region.close(remove=self._directory is not None)
        self._heap.close(remove=True)
        self._open()

    def close(self) -> None:
        self._region.close()
        self._heap.close()


_H_DUE_LENGTH = 42


@dataclass(slots=True)
class DueRows:
    refs: _Words  # record addresses
    keys: _Words  # number of the key of each, 0 where the state has none
    groups: _Words  # group of each in this epoch, -1 for none
    weights: _Words


class PendingRows(RowStore):
    """Own the waiting rows of one input; the arguments are those of `RowStore`."""

    @override
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
        e.free_waiting(self.keys.view, place, self.view, self.variables.address, numbers, len(numbers), keys)
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
            e.store_waiting(
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

    @override
    def resident_bytes(self) -> int:
        return super().resident_bytes() + self.due.resident_bytes()

    @override
    def is_current(self) -> bool:
        return super().is_current() and self.due.is_current()

    @override
    def clear(self) -> None:
        self.due.close(remove=True)
        super().clear()

    @override
    def close(self) -> None:
        self.due.close()
        super().close()
