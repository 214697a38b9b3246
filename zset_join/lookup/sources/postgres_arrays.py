"""Keys as PostgreSQL's binary arrays, straight from Arrow's buffers: no Python object is made of a key.

The law: the bytes are those that psycopg makes of a list of the same values, in the binary format of a one-dimensional array:
five big-endian words (dimensions, whether there are NULLs, type of the elements, their number, the first index), then each
element behind its length. Text is UTF-8, the encoding of a lookup's connections.

Edge cases: keys are never NULL; a column with a NULL, without rows, or of a type that is not listed goes to psycopg as a list.

Source: the PostgreSQL documentation of the binary wire formats, `array_send` and its kin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.extras import needed_for

__all__ = ["BinaryArray", "binary_array", "possible_keys", "register_binary_arrays"]

_DAYS_TO_2000 = 10_957
_US_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_FIXED = {  # kind of array: Arrow type, type of an element, words on the wire, what to take off
    "boolean[]": (pa.uint8(), 16, ">u1", 0),
    "bigint[]": (pa.int64(), 20, ">i8", 0),
    "double precision[]": (pa.float64(), 701, ">f8", 0),
    "date[]": (pa.int32(), 1082, ">i4", _DAYS_TO_2000),
    "timestamp[]": (pa.int64(), 1114, ">i8", _US_TO_2000),
    "timestamptz[]": (pa.int64(), 1184, ">i8", _US_TO_2000),
}
_VARYING = {"text[]": 25, "bytea[]": 17}


@dataclass(frozen=True, slots=True)
class BinaryArray:
    """The bytes of an array."""

    data: bytes


def possible_keys(keys: pa.Table) -> pa.Table:
    """Return the keys that a row can have: no text of PostgreSQL contains U+0000, and the server refuses such a text.

    >>> possible_keys(pa.table({"k": ["a", "a" + chr(0)]})).column("k").to_pylist()
    ['a']
    """
    for name, kind in zip(keys.schema.names, keys.schema.types, strict=True):
        if pt.is_string(kind) or pt.is_large_string(kind):
            has_nul = pc.fill_null(pc.match_substring(keys.column(name), "\0"), fill_value=False)
            keys = keys.filter(pc.invert(has_nul))
    return keys


def binary_array(column: pa.ChunkedArray, kind: str) -> BinaryArray | list[Any]:
    """Return a parameter of an array type.

    >>> binary_array(pa.chunked_array([[7]], pa.int64()), "bigint[]").data.hex(" ", 4)
    '00000001 00000000 00000014 00000001 00000001 00000008 00000000 00000007'
    >>> binary_array(pa.chunked_array([[7, None]], pa.int64()), "bigint[]")
    [7, None]
    """
    values = column.combine_chunks()
    if not len(values) or values.null_count or kind not in _FIXED | _VARYING:
        return list(column.to_pylist())
    if kind in _VARYING:
        return BinaryArray(_head(_VARYING[kind], len(values)) + _varying(values))
    storage, oid, word, less = _FIXED[kind]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    elif pa.types.is_date(values.type):
        values = values.cast(pa.date32())
    numbers = values.cast(storage).to_numpy()
    sent = np.empty(len(numbers), [("length", ">i4"), ("value", word)])
    sent["length"] = np.dtype(word).itemsize
    sent["value"] = numbers - less if less else numbers
    return BinaryArray(_head(oid, len(numbers)) + sent.tobytes())


def _head(oid: int, count: int) -> bytes:
    return np.array([1, 0, oid, count, 1], ">i4").tobytes()


def _varying(values: pa.Array) -> bytes:
    """Return texts or bytes, each behind its length."""
    values = values.cast(pa.large_binary())
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    taken: npt.NDArray[np.uint8] = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    places = ((offsets[:-1] - offsets[0] + 4 * np.arange(len(values)))[:, None] + np.arange(4)).ravel()
    sent = np.empty(len(taken) + len(places), np.uint8)
    is_length = np.zeros(len(sent), np.bool_)
    is_length[places] = True
    sent[places] = lengths.astype(">i4").view(np.uint8)
    sent[~is_length] = taken
    return sent.tobytes()


def register_binary_arrays(connection: Any) -> None:
    """Let a connection of psycopg send `BinaryArray`; the statement contains its type."""
    with needed_for("a PostgreSQL lookup", "psycopg"):
        from psycopg.adapt import Dumper
        from psycopg.pq import Format

    class _Sent(Dumper):
        format = Format.BINARY
        oid = 0

        def dump(self, obj: BinaryArray) -> bytes:
            return obj.data

    connection.adapters.register_dumper(BinaryArray, _Sent)
