"""Arrays that live for one epoch, kept between epochs so that they are not allocated and faulted in again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["WorkingArrays"]

_LEAST_SIZE = 256


class WorkingArrays:
    """Return arrays by name; a name's next array takes the place of its last one.

    Bytes kept: the largest size requested per name, at most doubled.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._addresses: dict[str, int] = {}

    def array(self, name: str, size: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Return at least `size` elements with arbitrary content."""
        kept = self._arrays.get(name)
        if kept is None or len(kept) < size:
            kept = np.empty(max(size, _LEAST_SIZE, 0 if kept is None else min(2 * len(kept), 2 * size)), dtype)
            self._arrays[name] = kept
            self._addresses[name] = int(kept.ctypes.data)
        return kept

    def address(self, name: str) -> int:
        """Return the address of a name's array."""
        return self._addresses[name]

    def table(self, name: str, entries: int) -> tuple[int, int]:
        """Return the address of a zeroed open-addressing table for up to `entries` entries, and its bits."""
        bits = max(4, (entries + entries // 2).bit_length())
        array = self.array(name, 1 << bits)
        array[: 1 << bits] = 0
        return self._addresses[name], bits

    def resident_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())
