"""Bucket of a row: a hash of its key, the same for equal keys of all inputs.

The law: rows whose keys are equal to an operator are in one bucket, NULL being a value like any other.

Cost: one record and one hash of the key columns per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.key_types import storage_type
from zset_join.kernels.values.keys import hash_rows
from zset_join.zset.row_layout import RowLayout

__all__ = ["KeyBuckets", "MovedKeys"]

_Words = npt.NDArray[np.int64]

# Not the seed of any table, so that rows of one bucket spread over all of its slots.
_HASH_KEY = (0x2C7A9F35 << 32) | 0xFFFFFFFF


class KeyBuckets:
    """Find the buckets of rows; one thread at a time uses it."""

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

    def hashes(self, rows: pa.RecordBatch) -> _Words:
        """Return a hash of 32 bits per row."""
        count = rows.num_rows
        hashes, nulls = np.empty(count, np.int64), np.empty(count, np.uint8)
        if count:
            keys = pa.RecordBatch.from_arrays([rows.column(name) for name in self._names], schema=self._schema)
            stride = self._layout.stride
            records = np.empty(count * stride, np.uint8)
            encoded = self._layout.encode(keys, [], records, int(records.ctypes.data))
            places = int(hashes.ctypes.data), int(nulls.ctypes.data)
            hash_rows(encoded.address, stride, count, self._columns.address, _HASH_KEY, *places)
        return hashes

    def of(self, rows: pa.RecordBatch) -> _Words:
        """Return the bucket of each row."""
        return (self.hashes(rows) * self._buckets) >> 32


class MovedKeys:
    """Remember in which buckets the row of a primary key may be.

    A bucket that may have one is given a delete of it whenever its row goes elsewhere: one that is not there is no change. So a
    bucket too many costs a look, and none is ever missing: between two calls of `clear` buckets are only added, keys share
    places, and an epoch that is refused leaves what it added.

    Memory: a byte, or a word of more than 8 buckets, for each of 8 to 16 times as many places as there were keys; at least
    `2 ** bits` places.
    """

    def __init__(self, buckets: int, *, bits: int = 22) -> None:
        self._kind = np.uint8 if buckets <= 8 else np.uint64
        self._buckets, self._least_bits = buckets, bits
        self.clear(0)

    def clear(self, keys: int) -> None:
        """Forget all, before so many keys are noted."""
        self._bits = min(32, max(self._least_bits, (8 * keys).bit_length()))
        self._places: npt.NDArray[Any] = np.zeros(1 << self._bits, self._kind)
        self._noted = self._counted = self._followed = 0
        self._keys = keys

    def note(self, hashes: _Words, buckets: _Words) -> None:
        """Note rows, by the hashes of their primary keys, and the buckets they go to."""
        places = hashes >> (32 - self._bits)
        for bucket in range(self._buckets):
            self._places[places[buckets == bucket]] |= self._kind(1 << bucket)
        self._noted += len(hashes)

    def of(self, hashes: _Words) -> npt.NDArray[Any]:
        """Return, per row, the buckets that may have its primary key, a bit for each."""
        holders: npt.NDArray[Any] = self._places[hashes >> (32 - self._bits)]
        return holders

    def follow(self, deletes: int) -> bool:
        """Note that so many deletes went to buckets that may have a row; return whether noting all rows again pays off."""
        # It does where keys share too many places, or where most buckets that may have a row have lost it.
        self._followed += deletes
        if self._noted > len(self._places) // 8:
            self._counted, self._noted = int(np.count_nonzero(self._places)), 0
        is_crowded = self._bits < 32 and 4 * self._counted > len(self._places)
        return is_crowded or self._followed > 2 * max(self._keys, self._counted, 1 << 16)
