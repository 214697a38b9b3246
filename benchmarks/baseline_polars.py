"""Baseline: the join kept up to date by whole-table operations in polars.

Both sides are one DataFrame. An epoch finds the last change per primary key, the stored rows it replaces (a semi
join), builds the signed change of both sides and answers with `left_change JOIN right_before + left_after JOIN
right_change`. The work per epoch grows with the tables, not with the change; that is what this baseline shows. Ties:
the later arrival wins. An update equal to the stored row comes out as a retraction and an insertion. One thread:
`POLARS_MAX_THREADS=1` must be set before polars is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from benchmarks.workloads import LEFT, RIGHT, Epoch
from zset_join.core.relation import Relation

__all__ = ["PolarsJoin"]

_WEIGHT = "weight"


class PolarsJoin:
    """Keep an inner join up to date with polars.

    Args:
        relations: left and right, with one primary key column and one join key column each.
    """

    def __init__(self, relations: tuple[Relation, Relation]) -> None:
        self._relations = relations
        self._primary = tuple(relation.primary_key[0] for relation in relations)
        self._join = tuple(relation.join_key[0] for relation in relations)
        self._parts: tuple[list[pl.DataFrame], list[pl.DataFrame]] = ([], [])
        self._tables: list[pl.DataFrame] = []

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Collect first rows."""
        self._parts[side].append(_frame(rows))

    def loaded(self) -> None:
        """Make one table per side."""
        self._tables = [pl.concat(parts, rechunk=True) for parts in self._parts]
        self._parts = ([], [])

    def prepare(self, epoch: Epoch) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return both deltas as frames with a weight column, in arrival order."""
        left, right = (_frame(delta.rows).with_columns(pl.Series(_WEIGHT, delta.weights)) for delta in epoch.deltas)
        return left, right

    def step(self, prepared: tuple[pl.DataFrame, pl.DataFrame]) -> list[pl.DataFrame]:
        """Apply both deltas by whole-table operations."""
        left_change, left_after = self._change(LEFT, prepared[LEFT])
        right_change, right_after = self._change(RIGHT, prepared[RIGHT])
        answer = [
            self._joined(left_change, self._tables[RIGHT]),
            self._joined(left_after, right_change),
        ]
        self._tables = [left_after, right_after]
        return answer

    def count_rows(self, answer: list[pl.DataFrame]) -> int:
        """Count the rows of both terms."""
        return sum(part.height for part in answer)

    def weighted_rows(self, answer: list[pl.DataFrame]) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the rows of both terms."""
        for part in answer:
            for *values, weight in part.iter_rows():
                yield tuple(values), weight

    def _change(self, side: int, delta: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the signed change of one side and its table after the epoch."""
        primary, before = self._primary[side], self._tables[side]
        last = delta.unique(subset=primary, keep="last")
        replaced = before[primary].is_in(last[primary].implode())
        removed = before.filter(replaced).with_columns(pl.lit(-1, pl.Int64).alias(_WEIGHT))
        added = last.filter(pl.col(_WEIGHT) > 0)
        after = pl.concat([before.filter(~replaced), added.drop(_WEIGHT)], rechunk=True)
        return pl.concat([removed, added]), after

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        both = left.join(right, left_on=self._join[LEFT], right_on=self._join[RIGHT], how="inner", coalesce=False)
        columns = [name for relation in self._relations for name in relation.schema.names]
        return both.select(*columns, _WEIGHT)


def _frame(rows: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(pa.Table.from_batches([rows]))
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"polars made {type(frame).__name__} of a record batch, expected a DataFrame")
    return frame
