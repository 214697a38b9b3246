"""Nested values that a function of SQL reads, kept beside the query: it has their places, so it needs no type for them.

The law: a place is of one query; a text that holds no value, and NULL, have none.

Cost: value by value, as `zset_join.sources.json_values`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.sources.json_texts import read_json_texts

__all__ = ["NestedValues"]


class NestedValues:
    """The nested values of one type that a query has read.

    >>> lists = NestedValues(pa.list_(pa.int64()))
    >>> lists.at(lists(pa.array(["[1]", "no list", "[2,null]"]))).to_pylist()
    [[1], None, [2, None]]
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._read: list[pa.Array] = []
        self._count = 0

    def __call__(self, texts: Any) -> pa.Array:
        """Return the places of values in texts of JSON."""
        array = pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
        values = read_json_texts(array, self._kind).values
        places = np.arange(self._count, self._count + len(values))
        self._read.append(values)
        self._count += len(values)
        return pa.array(places, mask=np.asarray(pc.is_null(values)))

    def at(self, places: pa.Array) -> pa.Array:
        """Return the values at some places."""
        values = pa.concat_arrays(self._read) if self._read else pa.nulls(0, self._kind)
        return values.take(places)

    def clear(self) -> None:
        """Forget the values of a query."""
        self._read, self._count = [], 0
