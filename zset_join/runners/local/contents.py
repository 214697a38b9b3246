"""Contents of a view: the sum of its deltas, stored as they arrive and consolidated from time to time.

Cost: adding a delta is O(1) and its rows again for every doubling; reading costs the rows since the last reading.
Memory: at most twice the rows of the view, and those of the newest deltas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError, OptionError
from zset_join.core.shown_values import counted, shown_key
from zset_join.zset import ZSet

__all__ = ["Contents", "HeldRows", "repeated", "view_not_kept"]

_LEAST_ROWS = 4096


class HeldRows:
    """Contents of a view at one moment; nothing is copied, and any thread may read them.

    Args:
        schema: columns of the view.
        consolidated: every row once.
        pending: deltas that arrived since; only ever appended to.
        count: how many of them had come.
    """

    def __init__(self, schema: pa.Schema, consolidated: ZSet, pending: list[ZSet], count: int) -> None:
        self._schema = schema
        self._parts = consolidated, pending, count
        self._rows: ZSet | None = consolidated if not count else None

    def rows(self) -> ZSet:
        """Return every distinct row with its weight."""
        rows = self._rows
        if rows is None:
            consolidated, pending, count = self._parts
            rows = self._rows = _summed(self._schema, [consolidated, *pending[:count]])
            self._parts = rows, [], 0  # releases the deltas
        return rows


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

    def held(self) -> HeldRows:
        """Return the present contents in O(1); later deltas do not change them."""
        return HeldRows(self._schema, self._consolidated, self._pending, len(self._pending))

    def replace(self, rows: ZSet) -> None:
        """Hold other rows."""
        self._consolidated, self._pending, self._pending_rows = rows, [], 0

    def _consolidate(self) -> None:
        if self._pending:
            self.replace(_summed(self._schema, [self._consolidated, *self._pending]))


def _summed(schema: pa.Schema, parts: Sequence[ZSet]) -> ZSet:
    return ZSet.concat([_of_schema(part, schema) for part in parts], schema=schema).consolidated()


def _of_schema(part: ZSet, schema: pa.Schema) -> ZSet:
    """Return the rows under fields that may differ in what is never NULL."""
    if part.schema.equals(schema):
        return part
    return ZSet(pa.RecordBatch.from_arrays(part.rows.columns, schema=schema), part.weights)


def repeated(rows: ZSet, schema: pa.Schema) -> pa.Table:
    """Return the contents of a view as a table: a row is present as often as its weight.

    Raises:
        BadInputError: `ABSENT_ROW`, a row has a negative weight.
    """
    if len(rows) and rows.weights.min() < 0:
        first = int(np.flatnonzero(rows.weights < 0)[0])
        row, weight = shown_key(rows.rows.columns, first), int(rows.weights[first])
        raise BadInputError(
            f"the view holds the row {row} {counted(weight, 'time')}: a source that goes through no stage has retracted an "
            f"absent row. Correct the source.",
            code="ABSENT_ROW",
            row=row,
            weight=weight,
        )
    if (rows.weights == 1).all():
        return pa.Table.from_batches([rows.rows], schema)
    positions = np.repeat(np.arange(len(rows)), rows.weights)
    return pa.Table.from_batches([rows.rows.take(pa.array(positions))], schema)


def view_not_kept() -> OptionError:
    """Return the error of a pipeline that does not keep what its views hold."""
    return OptionError(
        "this pipeline was made with keep_view=False and keeps only what it needs; sum its deltas, or remove the option.",
        code="VIEW_NOT_KEPT",
    )
