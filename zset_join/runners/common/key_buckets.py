"""In which bucket a row is: a hash of its key, the same for equal keys whatever input they come by.

The law: rows whose keys are equal to an operator are in one bucket, NULL being a value like any other.

Cost: one record and one hash of the key columns per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.key_types import storage_type
from zset_join.kernels.values.keys import hash_rows
from zset_join.zset.row_layout import RowLayout

__all__ = ["KeyBuckets", "Positions"]

Positions = npt.NDArray[np.int64]

_HASH_KEY = (
    0x2C7A9F35 << 32
) | 0xFFFFFFFF  # not the seed of any table, so that rows of one bucket spread over all of its slots


class KeyBuckets:
    """Find the buckets of rows; one thread at a time uses it.

    Args:
        schema: of the rows.
        key: the columns whose values decide, in the order of the stage's key.
        key_types: the types they are compared in.
        buckets: how many there are.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], key_types: Sequence[pa.DataType], buckets: int) -> None:
        self._names = list(dict.fromkeys(key))
        keys = pa.schema([schema.field(name) for name in self._names])
        casts = [
            (name, kind)
            for name, kind in zip(key, key_types, strict=True)
            if storage_type(keys.field(name).type) != storage_type(kind)
        ]
        self._layout = RowLayout(keys, key_casts=casts)
        self._columns = self._layout.columns(tuple(key), null_safe=[True] * len(key), as_key=True)
        self._schema = keys
        self._buckets = buckets

    def split(self, rows: pa.RecordBatch, begin: int = 0, end: int | None = None) -> list[Positions]:
        """Return, per bucket, the positions of its rows, in their order.

        Args:
            rows: with the columns and types of the schema.
            begin: the first row that is looked at.
            end: the row behind the last one; None for all.
        """
        count = (rows.num_rows if end is None else end) - begin
        if count == 0:
            return [np.empty(0, np.int64)] * self._buckets
        columns = [rows.column(name).slice(begin, count) for name in self._names]
        keys = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        records = np.empty(count * self._layout.stride, np.uint8)
        encoded = self._layout.encode(keys, [], records, int(records.ctypes.data))
        hashes, nulls = np.empty(count, np.int64), np.empty(count, np.uint8)
        hash_rows(
            encoded.address,
            self._layout.stride,
            count,
            self._columns.address,
            _HASH_KEY,
            int(hashes.ctypes.data),
            int(nulls.ctypes.data),
        )
        buckets = (hashes * self._buckets) >> 32
        return [np.flatnonzero(buckets == bucket) + begin for bucket in range(self._buckets)]
