"""The rows of one side, found by join key.

An `Arrangement` is a `RowArena` plus a hash table from join key to the first row of a chain; the rows of a key are linked
through the `next` and `previous` words of their records. It remembers every live row; a row whose key can never match is
stored (an update must find it) but not arranged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zset_join.kernels.rows import side as s
from zset_join.row_layout import ColumnTable
from zset_join.state.rows.row_arena import RowArena
from zset_join.state.rows.slot_table import SlotTable

__all__ = ["Arrangement"]


class Arrangement:
    """Arrange an arena by join key.

    Args:
        arena: where the rows are.
        key_columns: column table of the join key, in the type it is compared in.
        directory: where to map the table; None keeps it in memory.
        name: first part of the file name.
    """

    def __init__(self, arena: RowArena, key_columns: ColumnTable, *, directory: str | None, name: str) -> None:
        self.arena = arena
        self.key_columns = key_columns
        self.table = SlotTable(arena.header, s.H_JOIN_COUNT, s.H_JOIN_BITS, directory=directory, name=f"{name}.join")

    def make_room(self, rows: int) -> bool:
        """Make room for so many more join keys; say whether the table moved."""
        return self.table.make_room(rows)

    def write_view(self, view: npt.NDArray[np.int64]) -> None:
        """Fill in the arrangement's part of a side view."""
        view[s.JOIN_SLOTS] = self.table.address
        view[s.JOIN_BITS] = self.table.bits

    def close(self, *, remove: bool = False) -> None:
        """Unmap the table; the arena is closed by its owner."""
        self.table.close(remove=remove)
