"""The answer of an operator with a memo: rows that are retracted, then rows that are inserted, as chunks.

The law: retractions come before insertions, no line has weight 0, and where rows may be retracted every distinct row appears
once. Answers of an append-only input are passed on as they are, in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import WeightOverflowError
from zset_join.core.row_conversion import take_rows
from zset_join.zset import ZSet

__all__ = ["Answer", "MemoLines", "Shows", "as_answer", "multiplied"]

Int64s = npt.NDArray[np.int64]


class Shows(Protocol):
    """The columns of a joined row that are shown."""

    def output_rows(self, joined: pa.RecordBatch) -> pa.RecordBatch:
        """Return the shown columns of joined rows."""
        ...


@dataclass(slots=True)
class MemoLines:
    rows: pa.RecordBatch  # joined; the right columns are NULL where there is no right row
    copies: Int64s
    kinds: Int64s
    arrivals: Int64s
    attempts: Int64s
    due_us: int = 0
    over_limit: int = 0  # rows that should have waited, for which there was no room
    times: Int64s | None = None  # right copies each represents; None: one


@dataclass(slots=True)
class Answer:
    """Rows with weights; `is_plain`: they are to be passed on as they are."""

    rows: ZSet
    is_plain: bool

    def chunks(self, chunk_rows: int) -> Iterator[ZSet]:
        if not self.is_plain:
            yield from self.rows.tidy_chunks(chunk_rows)
            return
        for begin in range(0, len(self.rows), chunk_rows):
            yield ZSet(self.rows.rows.slice(begin, chunk_rows), self.rows.weights[begin : begin + chunk_rows])


def as_answer(
    shape: Shows,
    *,
    retracted: Sequence[tuple[pa.RecordBatch, Int64s]],
    inserted: tuple[pa.RecordBatch, Int64s, npt.NDArray[np.bool_]],
    is_plain: bool,
) -> Answer:
    rows, copies, emitted = inserted
    if not emitted.all():
        rows, copies = take_rows(rows, np.flatnonzero(emitted)), copies[emitted]
    parts = [ZSet(shape.output_rows(gone), -count) for gone, count in retracted if gone.num_rows]
    shown = ZSet(shape.output_rows(rows), np.ascontiguousarray(copies))
    if not parts:
        return Answer(shown, is_plain)
    return Answer(ZSet.concat([*parts, shown], schema=shown.schema), is_plain=False)


def multiplied(copies: Int64s, times: Int64s, tick: Tick, *, left: str, right: str) -> Int64s:
    """Return the product of two weights."""
    if len(copies) and int(np.abs(copies).max()) * int(np.abs(times).max()) >= 1 << 63:
        exact = [abs(a * b) for a, b in zip(copies.tolist(), times.tolist(), strict=True)]
        if max(exact) >= 1 << 63:
            raise WeightOverflowError(
                f'the join of "{left}" and "{right}", epoch {tick.epoch}: the product of two weights does not fit an int64; '
                "nothing was applied. Retract duplicate rows on one side; a weight is the number of copies of a row.",
                code="WEIGHT_OVERFLOW",
                epoch=tick.epoch,
            )
    return copies * times
