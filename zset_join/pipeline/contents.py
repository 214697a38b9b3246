"""What a view holds: the sum of its deltas, kept as they come and brought together when it pays.

Cost: adding a delta is O(1) and its rows once more for every doubling; reading costs what came since the last reading.
Memory: at most twice the rows of the view, and those of the newest deltas.
"""

from __future__ import annotations

import pyarrow as pa

from zset_join.zset import ZSet

__all__ = ["Contents"]

_LEAST_ROWS = 4096


class Contents:
    """Keep the sum of deltas.

    Args:
        schema: their columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._consolidated = ZSet.empty(schema)
        self._pending: list[ZSet] = []
        self._pending_rows = 0

    def add(self, delta: ZSet) -> None:
        """Add a delta."""
        if not len(delta):
            return
        self._pending.append(delta)
        self._pending_rows += len(delta)
        if self._pending_rows > max(_LEAST_ROWS, len(self._consolidated)):
            self._consolidate()

    def rows(self) -> ZSet:
        """Return every distinct row with its weight."""
        self._consolidate()
        return self._consolidated

    def replace(self, rows: ZSet) -> None:
        """Hold other rows."""
        self._consolidated, self._pending, self._pending_rows = rows, [], 0

    def _consolidate(self) -> None:
        if self._pending:
            schema = self._schema
            parts = [self._consolidated, *self._pending]
            self.replace(ZSet.concat([_of_schema(part, schema) for part in parts], schema=schema).consolidated())


def _of_schema(part: ZSet, schema: pa.Schema) -> ZSet:
    """Return the rows under fields that may say otherwise what is never NULL."""
    if part.schema.equals(schema):
        return part
    return ZSet(pa.RecordBatch.from_arrays(part.rows.columns, schema=schema), part.weights)
