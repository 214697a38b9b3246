"""Heap of entries that wait for a time, in mapped memory; the earliest comes first.

Kernels in `zset_join.kernels.time.due_heap`.

Files: `<name>.due`. Bytes: 16 per entry.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from zset_join.kernels.time import due_heap as d
from zset_join.state.rows.region import Region

__all__ = ["DueHeap"]


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
        return int(d.first_due(self.address)) if self.length else None

    def due(self, time: int) -> npt.NDArray[np.int64]:
        """Return the numbers of what is due at a time. Cost: what is due."""
        room = 1024
        while True:
            numbers, stack = np.empty(room, np.int64), np.empty(2 * room + 2, np.int64)
            due_count = int(d.list_due(self.address, self.length, time, numbers, stack))
            if due_count <= room:
                return numbers[:due_count]
            room = min(4 * room, self.length)

    def push(self, time: int, numbers: npt.NDArray[np.int64]) -> None:
        self.make_room(len(numbers))
        self.length = int(d.push_all(self.address, self.length, time, numbers))

    def push_each(self, times: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        self.make_room(len(numbers))
        self.length = int(d.push_each(self.address, self.length, times, numbers))

    def pop(self, time: int, due: int) -> None:
        if due:
            self.length = int(d.pop_due(self.address, self.length, time, due))

    def resident_bytes(self) -> int:
        return 16 * self.length

    def is_current(self) -> bool:
        return self._region.is_current()

    def close(self, *, remove: bool = False) -> None:
        self._region.close(remove=remove and self._is_file)
