"""Arrays that live for one epoch, kept between epochs so that they are not allocated and faulted in again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch"]


class Scratch:
    """Hand out arrays by name; a name's next array takes the place of its last one.

    Bytes kept: the largest size asked for per name, at most doubled.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, size: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Return `size` elements with arbitrary content."""
        kept = self._arrays.get(name)
        if kept is None or len(kept) < size:
            kept = np.empty(max(size, 256, 0 if kept is None else min(2 * len(kept), 2 * size)), dtype)
            self._arrays[name] = kept
        return kept

    def table(self, name: str, entries: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return a zeroed open-addressing table for up to `entries` entries, and its bits."""
        bits = max(4, (2 * entries).bit_length())
        array = self.array(name, 1 << bits)
        array[: 1 << bits] = 0
        return array, bits

    def resident_bytes(self) -> int:
        """Return the bytes of all arrays kept."""
        return sum(array.nbytes for array in self._arrays.values())
