"""The columns of a join's output, gathered from pairs of record addresses.

Order: left columns, then right columns (semi and anti joins: left only). With `using`, the key columns come first and once,
as Spark's `USING` puts them; where either side may be missing (FULL) they are coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.state.rows.side import SideState

__all__ = ["JoinedRows", "from_c_library"]


class JoinedRows:
    """Gather output columns.

    Args:
        left: state of the left side.
        right: state of the right side.
        schema: the output's schema.
        sources: per output column, (side, source column), from `zset_join.shapes.join.joined_schema`.
    """

    def __init__(self, left: SideState, right: SideState, schema: pa.Schema, sources: Sequence[tuple[str, str]]) -> None:
        self._left, self._right, self._schema = left, right, schema
        self._plan: list[tuple[int, int]] = []
        self._left_positions: list[int] = []
        self._right_positions: list[int] = []
        for side, name in sources:
            left_at = right_at = -1
            if side != "right":
                left_at = len(self._left_positions)
                self._left_positions.append(left.relation.schema.get_field_index(name))
            if side != "left":
                right_at = len(self._right_positions)
                self._right_positions.append(right.relation.schema.get_field_index(name))
            self._plan.append((left_at, right_at))

        self._left_plan = left.layout.gather_plan(self._left_positions)
        self._right_plan = right.layout.gather_plan(self._right_positions)

    def gather(self, left_refs: int, right_refs: int, count: int, *, keeps_none: bool = False) -> pa.RecordBatch:
        """Return the output rows of `count` pairs whose record addresses are at two addresses; 0 is a padded side.

        Args:
            left_refs: an address.
            right_refs: an address.
            count: of the pairs.
            keeps_none: whether memory is counted, so that Arrow should keep none of batches that are gone.
        """
        allocate = from_c_library if keeps_none else pa.allocate_buffer
        left = self._left_plan.gather(left_refs, count, self._left.arena.heap_address, allocate)
        right = self._right_plan.gather(right_refs, count, self._right.arena.heap_address, allocate)
        columns = []
        for left_at, right_at in self._plan:
            if right_at < 0:
                columns.append(left[left_at])
            elif left_at < 0:
                columns.append(right[right_at])
            else:
                kind = self._schema.field(len(columns)).type
                own = left[left_at].cast(kind)
                columns.append(pc.coalesce(own, right[right_at].cast(kind)) if own.null_count else own)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def from_c_library(size: int) -> pa.Buffer:
    """Return memory that the next batch gets when this one is gone; Arrow's allocator keeps 10 to 20 MB of such."""
    return pa.py_buffer(np.empty(size, np.uint8))
