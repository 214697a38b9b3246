"""One ordered multiset of integers in a heap, driven kernel by kernel."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.kernels.aggregate.cells import match_cells, sort_cells
from zset_join.kernels.aggregate.read import list_values, read_ends
from zset_join.kernels.aggregate.store import store_cells
from zset_join.kernels.aggregate.tree import V_WORDS
from zset_join.kernels.rows import side as s
from zset_join.state.rows.row_arena import RowArena
from zset_join.zset.row_layout import RowLayout

__all__ = ["Multiset"]


class Multiset:
    """Values with copies; `line` has a row count nobody reads and the three words of the multiset."""

    def __init__(self) -> None:
        self.arena = RowArena(RowLayout(pa.schema({"k": pa.int64()})), directory=None, name="multiset")
        self.arena.make_room(0, 1 << 24)
        self.view = np.zeros(s.VIEW_WORDS, np.int64)
        self.arena.write_view(self.view)
        self.line = np.zeros(1 + V_WORDS, np.int64)
        self.prepare({})

    def prepare(self, changes: dict[int, int]) -> bool:
        """Look some changes up without storing them; return whether a value falls below 0 copies."""
        count = len(changes)
        values, weights = np.array([*changes], np.int64), np.array([*changes.values()], np.int64)
        self.after, self.bounds = self.line.copy(), np.empty(3, np.int64)
        self.keys, self.before = np.empty(count, np.int64), np.empty(count, np.int64)
        self.weights, spare = np.empty(count, np.int64), np.empty((3, count), np.int64)
        flags, entries = np.ones(count, np.uint8), np.zeros(count, np.int64)
        sort_cells(
            1, count, entries, weights, flags, int(values.ctypes.data), 1, 0, self.bounds, *spare,
            int(self.keys.ctypes.data), self.weights,
        )  # fmt: skip
        return bool(
            match_cells(
                self.heap, 1, 1 + V_WORDS, 1, int(self.after.ctypes.data), self.bounds, int(self.keys.ctypes.data),
                self.weights, self.before, 1, 0,
            )
        )  # fmt: skip

    @property
    def heap(self) -> int:
        """Return where the heap starts."""
        return self.arena.heap_address

    def store(self, *, room: int = 1 << 22) -> int:
        """Store the prepared rows, in calls that are granted so much heap each; return how many calls it took."""
        spare = np.empty(1 << 20, np.uint8)
        entry, cell, calls = 0, 0, 0
        while entry < 1:
            limit = int(self.arena.header[s.H_HEAP_END]) + room
            entry, cell, needed = store_cells(
                int(self.view.ctypes.data), entry, 1, 1 + V_WORDS, 1, int(self.after.ctypes.data), self.bounds, cell,
                int(self.keys.ctypes.data), self.weights, self.before, 1, 0, limit, int(spare.ctypes.data),
            )  # fmt: skip
            room = max(room, needed)
            calls += 1
        self.line = self.after
        self.prepare({})
        return calls

    def change(self, changes: dict[int, int]) -> None:
        """Prepare and store."""
        assert not self.prepare(changes)
        self.store()

    def values(self, *, after: bool = False) -> list[int]:
        """Return all values with their copies, as they are or as they will be."""
        line = self.after if after else self.line
        made = np.empty(int(line[3]), np.int64)
        list_values(
            self.heap, np.zeros(1, np.int64), 1, 1 + V_WORDS, 1, int(self.line.ctypes.data), self.bounds,
            int(self.keys.ctypes.data), self.weights, self.before, 1, 0, after, True, int(made.ctypes.data),
        )  # fmt: skip
        return made.tolist()

    def end(self, *, high: bool) -> tuple[int | None, int | None]:
        """Return the first or last value as it is and as it will be; None where there is none."""
        ends, valid = np.empty(2, np.int64), np.empty((2, 1), np.uint8)
        place = int(ends.ctypes.data)
        read_ends(
            self.heap, 1, 1 + V_WORDS, 1, int(self.line.ctypes.data), self.bounds, int(self.keys.ctypes.data), self.weights,
            self.before, 1, 0, high, place, place + 8, *valid,
        )  # fmt: skip
        old, new = (int(end) if flag[0] else None for end, flag in zip(ends, valid, strict=True))
        return old, new

    def heap_used(self) -> int:
        """Return the bytes of the heap in use."""
        return int(self.arena.header[s.H_HEAP_USED])
