"""The assistant table: which row of the arena has this identity.

In `upsert` mode the identity is the primary key, and the row carries its sequence or, as a tombstone, the sequence it was
deleted with. In `changelog` mode the identity is the whole row. It is what turns an upsert into `-old +new`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zset_join.kernels.rows import side as s
from zset_join.row_layout import ColumnTable
from zset_join.state.rows.row_arena import RowArena
from zset_join.state.rows.slot_table import SlotTable

__all__ = ["PrimaryKeyTable"]


class PrimaryKeyTable:
    """Find rows by identity.

    Args:
        arena: where the rows are.
        identity_columns: column table of the identity.
        directory: where to map the table; None keeps it in memory.
        name: first part of the file name.
    """

    def __init__(self, arena: RowArena, identity_columns: ColumnTable, *, directory: str | None, name: str) -> None:
        self.arena = arena
        self.identity_columns = identity_columns
        self.table = SlotTable(
            arena.header, s.H_IDENTITY_COUNT, s.H_IDENTITY_BITS, directory=directory, name=f"{name}.identity"
        )

    def make_room(self, rows: int) -> bool:
        """Make room for so many more identities; say whether the table moved."""
        return self.table.make_room(rows)

    def write_view(self, view: npt.NDArray[np.int64]) -> None:
        """Fill in the table's part of a side view."""
        view[s.IDENTITY_SLOTS] = self.table.address
        view[s.IDENTITY_BITS] = self.table.bits

    def close(self, *, remove: bool = False) -> None:
        """Unmap the table; the arena is closed by its owner."""
        self.table.close(remove=remove)
