"""Sequence columns as words that order like them.

Each column of `sequence_by` becomes one int64 word (two for decimals wider than 18 digits) such that comparing words in
order compares the columns in order. Floats order as Spark's: NaN above everything, -0.0 equal to 0.0. Strings are refused:
whether "10" comes after "9" is a question only the user can answer, by a cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

__all__ = ["sequence_nulls", "sequence_words"]

_NARROW_DECIMAL_DIGITS = 18


def sequence_nulls(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a NULL in their sequence, None when no row has."""
    marked: npt.NDArray[np.bool_] | None = None
    for column in columns:
        parts = [column, *column.flatten()] if pt.is_struct(column.type) else [column]
        for part in parts:
            if part.null_count:
                nulls = part.is_null().to_numpy(zero_copy_only=False)
                marked = nulls if marked is None else marked | nulls
    return marked


def sequence_words(columns: Sequence[pa.Array]) -> list[npt.NDArray[np.int64]]:
    """Return the words of each row, most significant first; the words of a NULL are arbitrary."""
    words: list[npt.NDArray[np.int64]] = []
    for column in columns:
        words.extend(_words(column))
    return words


def _words(column: pa.Array) -> list[npt.NDArray[np.int64]]:
    kind = column.type
    if pt.is_struct(kind):
        return sequence_words(column.flatten())
    if pt.is_decimal(kind):
        scaled = column.cast(pa.decimal128(38, kind.scale)) if not pt.is_decimal128(kind) else column
        return _decimal_words(scaled, 2 if kind.precision > _NARROW_DECIMAL_DIGITS else 1)
    if pt.is_floating(kind):
        return [_float_words(column.cast(pa.float64()))]
    if pt.is_uint64(kind):
        raw = _plain(column, np.uint64)
        return [(raw ^ np.uint64(1 << 63)).view(np.int64)]
    if pt.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pt.is_boolean(kind):
        column = column.cast(pa.int8())
    return [_plain(column.cast(pa.int64()), np.int64)]


def _plain(column: pa.Array, dtype: Any) -> Any:
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False).astype(dtype, copy=False))


def _float_words(column: pa.Array) -> npt.NDArray[np.int64]:
    values = np.array(_plain(column, np.float64), copy=True)
    values[np.isnan(values)] = np.nan
    values += 0.0
    bits = values.view(np.int64)
    return np.ascontiguousarray(np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits))


def _decimal_words(column: pa.Array, count: int) -> list[npt.NDArray[np.int64]]:
    if len(column) == 0:
        return [np.zeros(0, np.int64)] * count
    raw = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = raw[0::2], raw[1::2]
    if count == 1:
        return [np.ascontiguousarray(low)]
    return [np.ascontiguousarray(high), np.ascontiguousarray(low ^ np.int64(-(1 << 63)))]
