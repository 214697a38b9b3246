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

from zset_join.aggregates.working_arrays import WorkingArrays

__all__ = ["Cells", "Lines"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Cells:
    """Effect of a delta on the multisets of one accumulator; see `zset_join.kernels.aggregate.cells`.

    Args:
        bounds: `bounds[e] .. bounds[e + 1]` are the cells of entry e.
        keys: address of the key words of the first cell.
        weights: net weight of each cell.
        before: copies before the epoch.
        cell_of: the cell of each row of the delta, -1 for none.
        count: how many cells.
        owners: whatever the keys point into.
    """

    bounds: Int64s
    keys: int
    weights: Int64s
    before: Int64s
    cell_of: Int64s
    count: int
    owners: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Lines:
    """The entries of one delta.

    Args:
        count: rows of the delta.
        entries: groups it touches.
        line_words: words of a line, the row count included.
        entry_of: the entry of each row.
        keys: address of a record with the key of each entry.
        found: row number of each entry in the state, 0 where it is new.
        before: lines as the state has them.
        after: lines with the delta folded in.
        heap: where the heap of the state starts.
        scratch: arrays to work with.
        group_of: returns the group key of an entry, for messages.
    """

    count: int
    entries: int
    line_words: int
    entry_of: Int64s
    keys: Int64s
    key_codes: Int64s
    found: Int64s
    before: Int64s
    after: Int64s
    heap: int
    scratch: WorkingArrays
    group_of: Callable[[int], tuple[Any, ...]]
    cells: dict[int, Cells] = field(default_factory=dict)

    @property
    def before_address(self) -> int:
        """Return the address of the first line of `before`."""
        return int(self.before.ctypes.data)

    @property
    def after_address(self) -> int:
        """Return the address of the first line of `after`."""
        return int(self.after.ctypes.data)

    def reset(self) -> None:
        """Take `after` back to `before`."""
        self.after[:] = self.before
        self.cells.clear()
