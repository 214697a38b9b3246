"""The assistant table: which row of the arena has this identity.

In `upsert` mode the identity is the primary key, and the row carries its sequence or, as a tombstone, the sequence it was
deleted with. In `changelog` mode the identity is the whole row. It is what turns an upsert into `-old +new`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels import side as s
from zset_join.kernels.slots import find_keys
from zset_join.state.row_arena import RowArena
from zset_join.state.slot_table import SlotTable

__all__ = ["PrimaryKeyTable"]


class PrimaryKeyTable:
    """Find rows by identity.

    Args:
        arena: where the rows are.
        identity_columns: column table of the identity.
        directory: where to map the table; None keeps it in memory.
        name: first part of the file name.
    """

    def __init__(self, arena: RowArena, identity_columns: Any, *, directory: str | None, name: str) -> None:
        self.arena = arena
        self.identity_columns = identity_columns
        self.table = SlotTable(
            arena.header, s.H_IDENTITY_COUNT, s.H_IDENTITY_BITS, directory=directory, name=f"{name}.identity"
        )

    def find(
        self, view: npt.NDArray[np.int64], count: int, keys: Any, codes: Any, found: Any
    ) -> None:
        """Write into `found` the row number of each of `count` records (addresses `keys`), 0 where there is none."""
        find_keys(
            self.table.address, self.table.bits, count, codes, keys, 0, self.identity_columns,
            view[s.ROWS], view[s.STRIDE], view[s.HEAP], self.identity_columns, found,
        )

    def make_room(self, rows: int) -> None:
        """Make room for so many more identities."""
        self.table.make_room(rows)

    def write_view(self, view: npt.NDArray[np.int64]) -> None:
        """Fill in the table's part of a side view."""
        view[s.IDENTITY_SLOTS] = self.table.address
        view[s.IDENTITY_BITS] = self.table.bits

    def close(self, *, remove: bool = False) -> None:
        """Unmap the table; the arena is closed by its owner."""
        self.table.close(remove=remove)
