"""Whether rows have the join key of another one, by value; the rows may be of either side, in a state, a delta or on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zset_join.kernels.rows.eviction import mark_equal_keys
from zset_join.state.rows.side import SideState

__all__ = ["KeyRow", "equal_keys"]


@dataclass(frozen=True, slots=True)
class KeyRow:
    side: SideState
    ref: int  # address of its record, which this object keeps alive
    owner: object = None  # of the record, where nothing else keeps it in memory


def equal_keys(key: KeyRow, side: SideState, refs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which records of a side have the key of a row. Cost: the records."""
    marks = np.zeros(len(refs), np.uint8)
    mark_equal_keys(
        key.ref,
        key.side.arena.heap_address,
        key.side.join_columns.address,
        int(refs.ctypes.data),
        len(refs),
        side.arena.heap_address,
        side.join_columns.address,
        int(marks.ctypes.data),
    )
    return marks.view(np.bool_)
