"""The groups that one delta touches, as dense copies that accumulators write to.

Line e of `before` and of `after` holds the row count of entry e and then the state words of every accumulator, in their order.
`before` is the value of the state, `after` starts as a copy of it.

Bytes: twice the state words of the touched groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Cells", "Lines", "WorkingArrays"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Cells:
    """Effect of a delta on the multisets of one accumulator; see `zset_join.kernels.aggregate.cells`."""

    bounds: Int64s  # `bounds[e] .. bounds[e + 1]` are the cells of entry e
    keys: int  # address of the key words of the first cell
    weights: Int64s  # net, of each cell
    before: Int64s  # copies before the epoch
    cell_of: Int64s  # of each row of the delta, -1 for none
    count: int  # of cells
    owners: list[Any] = field(default_factory=list)  # what the keys point into
    limits: tuple[Int64s, Int64s] | None = None  # other cells of rows, and what these had, by which rows are refused


@dataclass(slots=True)
class Lines:
    """The entries of one delta."""

    count: int  # rows of the delta
    entries: int  # groups it touches
    line_words: int  # the row count included
    entry_of: Int64s  # of each row
    keys: Int64s  # address of a record with the key of each entry
    key_codes: Int64s
    found: Int64s  # row number in the state, 0 where new
    before: Int64s  # lines as the state has them
    after: Int64s  # with the delta folded in
    heap: int  # where that of the state starts
    scratch: WorkingArrays
    group_of: Callable[[int], tuple[Any, ...]]  # the group key of an entry, for messages
    cells: dict[int, Cells] = field(default_factory=dict)

    @property
    def before_address(self) -> int:
        return int(self.before.ctypes.data)

    @property
    def after_address(self) -> int:
        return int(self.after.ctypes.data)

    def reset(self) -> None:
        self.after[:] = self.before
        self.cells.clear()


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
