"""Growable storage for the rows of one side.

A `RowArena` is a header page, a region of row records addressed by row id, and a heap for long strings. Freed records and
blocks are used again first. It has no keys: the tables of a `SideState` find rows in it.

Bytes: `layout.stride` per record ever in use at once, plus the heap.

`SlotTable`: a hash table of row numbers that grows.

The table holds no keys: a slot is a 32-bit hash and a row number, and the row itself is compared. It doubles when it is 5/8
full, in one forward pass (among twice as many slots a home is twice as far, so the order stays). Kernels in
`zset_join.kernels.rows.slots`.

Bytes: 12.8 to 25.6 per key, also while it doubles: what was moved is given back.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.slots import rehash
from zset_join.state.rows.host_memory import Region
from zset_join.zset.row_layout import RowLayout

__all__ = ["RowArena", "SlotTable"]

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


_FIRST_BITS = 9
_MAX_BITS = 32
_SLOTS_AT_ONCE = 1 << 18


class SlotTable:
    def __init__(
        self, header: npt.NDArray[np.int64], count_word: int, bits_word: int, *, directory: str | None, name: str
    ) -> None:
        self._header = header
        self._count_word = count_word
        self._bits_word = bits_word
        self._directory = directory
        self._name = name
        if header[bits_word] == 0:
            header[bits_word] = _FIRST_BITS
        self._slots = self._region(int(header[bits_word]))

    def _region(self, bits: int) -> Region:
        path = None
        if self._directory is not None:
            path = str(Path(self._directory) / f"{self._name}.slots{bits}")
        return Region(8 << bits, path, grows=False)

    @property
    def address(self) -> int:
        """Return where the slots start; moves when the table grows."""
        return self._slots.address

    @property
    def bits(self) -> int:
        return int(self._header[self._bits_word])

    @property
    def count(self) -> int:
        return int(self._header[self._count_word])

    def make_room(self, keys: int) -> bool:
        """Make room for so many more keys; return whether the slots moved. Cost: amortised O(1) per key."""
        header = self._header
        if _fits(header.item(self._count_word) + keys, header.item(self._bits_word)):
            return False
        bits = _bits_for(self.count + keys)
        if bits > _MAX_BITS:
            raise ResourceError(
                f"one bucket would hold {self.count + keys} keys on one side, more than a table takes; start the query again "
                'with more buckets (option "buckets").',
                code="ROW_LIMIT",
                keys=self.count + keys,
            )
        self._resize(bits)
        return True

    def shrink(self, keys: int = 0) -> None:
        """Make the table as small as its keys and so many more allow. Cost: one pass, where it is too large."""
        bits = _bits_for(self.count + keys)
        if bits < self.bits:
            self._resize(bits)

    def copy(self, other: SlotTable) -> None:
        if other.bits != self.bits:
            copied = self._region(other.bits)
            self._slots.close(remove=self._directory is not None)
            self._slots = copied
        ctypes.memmove(self._slots.address, other.address, 8 << other.bits)
        self._header[[self._count_word, self._bits_word]] = other.count, other.bits

    def _resize(self, bits: int) -> None:
        """Move to a table of another size, giving back the slots that were moved."""
        resized, old_bits = self._region(bits), self.bits
        for begin in range(0, 1 << old_bits, _SLOTS_AT_ONCE):
            end = begin + _SLOTS_AT_ONCE
            rehash(self._slots.address, old_bits, resized.address, bits, begin, end)
            self._slots.release(8 * begin, 8 * end)
        self._slots.close(remove=self._directory is not None)
        self._slots = resized
        self._header[self._bits_word] = bits

    def table_bytes(self, keys: int = 0) -> int:
        """Return the bytes of all slots, as they are or as they will be with so many more keys."""
        return 8 << max(self.bits, _bits_for(self.count + keys))

    def is_current(self) -> bool:
        """Return whether the mapped file is still the table; a grown one has a file of its own."""
        return self._slots.is_current()

    def relocate(self, directory: str) -> None:
        """Move the file to another directory of the same file system; the mapping stays."""
        self._slots.relocate(directory)
        self._directory = directory

    def close(self, *, remove: bool = False) -> None:
        self._slots.close(remove=remove)


def _bits_for(keys: int) -> int:
    """Return the binary logarithm of the number of slots that so many keys take."""
    bits = _FIRST_BITS
    while not _fits(keys, bits):
        bits += 1
    return bits


def _fits(keys: int, bits: int) -> bool:
    return keys * 8 <= 5 << bits
