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
    """Effect of a delta on the multisets of one accumulator; see `zset_join.kernels.aggregate.cells`."""

    bounds: Int64s
    keys: int
    weights: Int64s
    before: Int64s
    cell_of: Int64s
    count: int
    owners: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Lines:
    """The entries of one delta."""

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
