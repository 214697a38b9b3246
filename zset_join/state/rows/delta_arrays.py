"""The working arrays about one delta, kept from epoch to epoch.

Room is made once for the largest delta seen; until then an epoch allocates nothing. The content is arbitrary at the start of
each delta: the kernels of `zset_join.kernels.rows.changes` write before they read.

Bytes kept: 83 per row of the largest delta, its record, and 12 to 24 for the table that groups rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels.rows import delta as d

__all__ = ["DeltaArrays", "table_bits"]

# The words of the view that hold the addresses of one line each; two at one place are never used in one mode.
_LINES = (
    (d.D_JOIN_CODES,),
    (d.D_IDENTITY_CODES,),
    (d.D_NUMBERS,),
    (d.D_FIRST_OF,),
    (d.D_LAST_OF,),
    (d.D_FOUND,),
    (d.D_AFTER_OF,),
    (d.D_INSERTED_DELETED, d.D_ENTRY_OF),
    (d.D_MOVED_OVERWRITTEN, d.D_BEFORE_OF),
    (d.D_OTHERS_LIST,),
)
_BYTE_LINES = (d.D_STATUS, d.D_UNMATCHABLE, d.D_IDENTITY_NULLS)
_LEAST_ROWS = 256


class DeltaArrays:
    def __init__(self, stride: int) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros(d.DELTA_WORDS, np.int64)
        self.address = int(self.words.ctypes.data)
        self._stride = stride
        self._rows = 0
        self._used = 0
        self._allocate(_LEAST_ROWS)

    def make_room(self, rows: int) -> None:
        """Make room for a delta of so many rows; at least doubles."""
        if rows > self._rows:
            self._allocate(max(rows, min(2 * rows, 2 * self._rows)))
        self._used = max(self._used, rows)

    def shrink(self, rows: int) -> None:
        """Give memory back that a delta of so many rows has no use for: where it takes less than an eighth."""
        if 8 * max(rows, _LEAST_ROWS) < self._rows:
            self._allocate(max(2 * rows, _LEAST_ROWS))

    def _allocate(self, rows: int) -> None:
        self._rows = rows
        self._used = 0
        self._lines: npt.NDArray[np.int64] = np.empty((len(_LINES), rows), np.int64)
        self._bytes: npt.NDArray[np.uint8] = np.empty((len(_BYTE_LINES), rows), np.uint8)
        self.records: npt.NDArray[np.uint8] = np.empty(rows * self._stride, np.uint8)
        self._table = np.empty(1 << table_bits(rows), np.int64)
        for line, places in zip(self._lines, _LINES, strict=True):
            for place in places:
                self.words[place] = line.ctypes.data
        for marks, place in zip(self._bytes, _BYTE_LINES, strict=True):
            self.words[place] = marks.ctypes.data
        self.words[d.D_ROWS] = self.records.ctypes.data
        self.words[d.D_TABLE] = self._table.ctypes.data

    def line(self, place: int) -> npt.NDArray[Any]:
        """Return the array at a word of the view."""
        if place in _BYTE_LINES:
            return np.asarray(self._bytes[_BYTE_LINES.index(place)])
        return np.asarray(self._lines[next(at for at, places in enumerate(_LINES) if place in places)])

    def resident_bytes(self) -> int:
        """Return the bytes of all arrays, as far as they were used."""
        by_row = len(_LINES) * 8 + len(_BYTE_LINES) + self._stride
        return self._used * by_row + min(int(self._table.nbytes), 8 << table_bits(self._used))


def table_bits(rows: int) -> int:
    """Return the binary logarithm of the size of the table that groups so many rows."""
    return max(4, (rows + rows // 2).bit_length())
