"""The numbers that rows are put in order by.

An order column gives one word (a wide decimal two), smaller first; a descending one the same with all bits turned. NULL is the
smallest value, as in Spark: first in ascending order, last in descending order.

Known limit: NULL shares its word with the smallest 64-bit integer, signed or not; the two are then ordered by arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.row_conversion import cast_key
from zset_join.shapes.event_time import EventTime
from zset_join.shapes.kept_types import count_sequence_words
from zset_join.state.rows.sequence import sequence_words

__all__ = ["NULL_WORD", "count_order_words", "order_words", "time_words"]

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
