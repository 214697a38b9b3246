"""Growable storage for the rows of one side.

A `RowArena` is a header page, a region of row records addressed by row id, and a heap for long strings. Freed records and
blocks are used again first. It has no keys: the tables of a `SideState` find rows in it.

Bytes: `layout.stride` per record ever in use at once, plus the heap.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows import side as s
from zset_join.state.rows.region import Region
from zset_join.zset.row_layout import RowLayout

__all__ = ["RowArena"]

_FIRST_ROWS = 1024
_MAX_ROWS = (1 << 32) - 2


class RowArena:
    def __init__(self, layout: RowLayout, *, directory: str | None, name: str) -> None:
        self.layout = layout
        self._header_region = Region(s.HEADER_WORDS * 8, _path(directory, name, "header"), grows=False)
        self._rows = Region(layout.stride * _FIRST_ROWS, _path(directory, name, "rows"))
        self._heap = Region(1 << 12, _path(directory, name, "heap"))
        words: Any = (ctypes.c_int64 * s.HEADER_WORDS).from_address(self._header_region.address)
        self.header: npt.NDArray[np.int64] = np.frombuffer(words, np.int64)

    @property
    def heap_address(self) -> int:
        """Return where the heap starts; moves when the arena grows."""
        return self._heap.address

    def make_room(self, rows: int, heap_bytes: int) -> bool:
        """Make room for so many more records and heap bytes; return whether they may have moved."""
        needed = int(self.header[s.H_ROWS_END]) + rows
        if needed > _MAX_ROWS:
            raise ResourceError(
                f"one bucket would hold {needed} rows on one side, more than {_MAX_ROWS}; start the query again with more "
                'buckets (option "buckets").',
                code="ROW_LIMIT",
                rows=needed,
                limit=_MAX_ROWS,
            )
        moved = self._rows.ensure(needed * self.layout.stride)
        return self._heap.ensure(int(self.header[s.H_HEAP_END]) + heap_bytes + 8) or moved

    def copy(self, other: RowArena) -> None:
        """Hold the records, blocks and counts of another arena of the same layout. Cost: a copy of its bytes."""
        # What the state was written for, its mark, its epoch and whether it is being written stay.
        self._rows.ensure(other.record_bytes())
        self._heap.ensure(other.heap_bytes() + 8)
        ctypes.memmove(self._rows.address, other._rows.address, other.record_bytes())
        ctypes.memmove(self._heap.address, other.heap_address, other.heap_bytes())
        self.header[s.H_ROWS_END :] = other.header[s.H_ROWS_END :]

    def write_view(self, view: npt.NDArray[np.int64]) -> None:
        view[s.ROWS] = self._rows.address
        view[s.STRIDE] = self.layout.stride
        view[s.HEAP] = self._heap.address
        view[s.HEADER] = self._header_region.address
        view[s.HEAD_BYTES] = self.layout.head_bytes
        view[s.SEQUENCE_OFFSET] = self.layout.sequence_offset
        view[s.SEQUENCE_WORDS] = self.layout.sequence_words
        view[s.DEGREE_OFFSET] = self.layout.degree_offset

    @property
    def live_rows(self) -> int:
        """Return how many rows are alive, tombstones not counted."""
        return int(self.header[s.H_LIVE_ROWS])

    def record_bytes(self) -> int:
        """Return the bytes of all records in use or waiting to be used again."""
        return int(self.header[s.H_ROWS_END]) * self.layout.stride

    def heap_bytes(self) -> int:
        """Return the bytes of the heap up to its end."""
        return int(self.header[s.H_HEAP_END])

    def tail_bytes(self) -> int:
        """Return the bytes that records and heap may use beyond their ends, since memory is paged."""
        return self._rows.tail_bytes(self.record_bytes()) + self._heap.tail_bytes(self.heap_bytes())

    def dead_bytes(self) -> int:
        """Return the bytes of records and blocks that wait to be used again."""
        header = self.header
        used = int(header[s.H_LIVE_ROWS]) + int(header[s.H_TOMBSTONES])
        return self.record_bytes() - used * self.layout.stride + self.heap_bytes() - int(header[s.H_HEAP_USED])

    def is_sparse(self, *, tight: bool = False) -> bool:
        """Return whether the dead outnumber the living, so that compacting pays; `tight`: memory is short."""
        header = self.header
        used = int(header[s.H_LIVE_ROWS]) + int(header[s.H_TOMBSTONES])
        share, spare_rows, spare_bytes = (1.5, 1 << 14, 1 << 20) if tight else (2.0, 1 << 16, 8 << 20)
        return bool(
            int(header[s.H_ROWS_END]) > share * used + spare_rows
            or int(header[s.H_HEAP_END]) > share * int(header[s.H_HEAP_USED]) + spare_bytes
        )

    def give_back(self) -> None:
        self._rows.release(self.record_bytes())
        self._heap.release(self.heap_bytes())

    def is_current(self) -> bool:
        return all(region.is_current() for region in (self._header_region, self._rows, self._heap))

    def relocate(self, directory: str) -> None:
        """Move the files to another directory of the same file system; the mappings stay."""
        for region in (self._header_region, self._rows, self._heap):
            region.relocate(directory)

    def close(self, *, remove: bool = False) -> None:
        """Unmap all regions; closing twice is allowed, for what failed to open again is closed too."""
        self.header = self.header[:0].copy()
        for region in (self._header_region, self._rows, self._heap):
            region.close(remove=remove)


def _path(directory: str | None, name: str, kind: str) -> str | None:
    return None if directory is None else str(Path(directory) / f"{name}.{kind}")
