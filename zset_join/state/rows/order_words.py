"""Columns as words that order like them: of a sequence, of a time, of ORDER BY.

`sequence_words`: sequence columns as words that order like them.

Each column of `sequence_by` becomes one int64 word (two for decimals wider than 18 digits) such that comparing words in
order compares the columns in order. Floats order as Spark's: NaN above everything, -0.0 equal to 0.0. Strings are refused:
whether "10" comes after "9" is a question only the user can answer, by a cast.

`order_words`: the numbers that rows are put in order by.

An order column gives one word (a wide decimal two), smaller first; a descending one the same with all bits turned. NULL is the
smallest value, as in Spark: first in ascending order, last in descending order.

Known limit: NULL shares its word with the smallest 64-bit integer, signed or not; the two are then ordered by arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.row_conversion import cast_key
from zset_join.shapes.event_time import EventTime
from zset_join.shapes.kept_types import count_sequence_words

__all__ = ["NULL_WORD", "count_order_words", "order_words", "sequence_nulls", "sequence_words", "time_words"]

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


NULL_WORD = -(1 << 63)


def count_order_words(schema: pa.Schema, columns: Sequence[str], *, relation: str) -> int:
    return count_sequence_words([schema.field(name).type for name in columns], relation=relation, columns=columns)


def order_words(rows: pa.RecordBatch, columns: Sequence[str], descending: Sequence[bool]) -> list[npt.NDArray[np.int64]]:
    """Return the words of each row, most significant first."""
    words = []
    for name, turned in zip(columns, descending, strict=True):
        column = rows.column(name)
        own = sequence_words([column])
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            own = [np.where(nulls, np.int64(NULL_WORD), one) for one in own]
        words += [np.ascontiguousarray(~one if turned else one) for one in own]
    return words


def time_words(
    times: EventTime, rows: pa.RecordBatch, which: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the time of each row of an input, and which have none (NULL, or out of range); None when all have one."""
    column = rows.column(times.columns[which])
    if column.type != times.kind:
        column, _ = cast_key(column, times.kind)  # what does not fit is NULL then
    (words,) = sequence_words([column])
    if not column.null_count:
        return words, None
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing, np.int64(NULL_WORD), words), missing
