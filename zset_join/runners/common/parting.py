"""When a stage in memory is partitioned into buckets: once its epochs are large, and no longer once they are small.

    one operator  <->  `Bucketed`

Parting copies the state, and small epochs cost more in buckets than in one operator. So the state is copied once large epochs
have brought half as many rows as there are to copy, or once small ones have cost as much as copying does: whatever comes, it is
copied for no more than a part of what the epochs themselves take.

The law: which of the two it is shows in nothing but time and memory.

Cost: beside that of the operator, a few additions per epoch. While it is copied, the state is present twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.common.bucketed import in_buckets
from zset_join.runners.common.workers import Workers
from zset_join.stages.stage import Stage, StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import (
    AnswerListingOperator,
    DurableOperator,
    ListingOperator,
    NextDue,
    corrections_of,
    due_of,
    is_timed,
)

__all__ = ["Parting", "parted_when_large"]

LARGE_ROWS = 20_000
"""Rows of an epoch from which on buckets are worth their cost."""

_SMALL_ROWS = 5_000
_ROWS_OF_A_SMALL_EPOCH = 2_000
"""How many rows are copied in the time that a small epoch costs more in buckets."""


class Parting:
    """Run a stage as one operator, or in buckets."""

    def __init__(self, whole: Callable[[], DurableOperator], parted: Callable[[], DurableOperator]) -> None:
        self.inner = whole()
        self.inputs: tuple[Relation, ...] = self.inner.inputs
        self.output: Relation = self.inner.output
        self.is_parted = False
        self._whole, self._parted = whole, parted
        self._rows = self._seen = 0

    @property
    def absorbed_epoch(self) -> int:
        return self.inner.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self.inner.answer(tick, deltas)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        is_first = self.absorbed_epoch < 0
        self.inner.absorb(tick, deltas)
        rows = sum(map(len, deltas))
        self._rows += rows
        if self.is_parted:
            self._seen = 0 if rows >= LARGE_ROWS else self._seen + (_ROWS_OF_A_SMALL_EPOCH if 0 < rows < _SMALL_ROWS else 0)
            is_due = self._seen > self._rows
        else:  # the first load is no sign of what the epochs to come are like
            self._seen += rows if rows >= LARGE_ROWS and not is_first else 0
            is_due = 2 * self._seen >= self._rows > 0
        if is_due:
            self._turn()

    def _turn(self) -> None:
        """Copy the state; where there is no room for the copy, continue with what there is, and try again when it is due again.

        The epoch is folded in already, so it may not fail any more.
        """
        try:
            tables, other = self._copied()
        except MemoryError:
            self._seen = 0
            return
        before, self.inner, self.is_parted = self.inner, other, not self.is_parted
        before.close()
        self._rows, self._seen = sum(table.num_rows for table in tables.values()), 0

    def _copied(self) -> tuple[Mapping[str, pa.Table], DurableOperator]:
        tables = self.inner.snapshot()
        other = self._whole() if self.is_parted else self._parted()
        try:
            other.restore(tables)
        except BaseException:
            other.close()
            raise
        return tables, other

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return self.inner.rejections(tick, deltas)

    def corrections(self) -> int | None:
        return corrections_of(self.inner)

    def resident_bytes(self) -> int:
        return self.inner.resident_bytes()

    def working_bytes(self) -> int:
        return self.inner.working_bytes()

    def is_current(self) -> bool:
        return self.inner.is_current()

    def statistics(self) -> dict[str, int]:
        return self.inner.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return self.inner.snapshot()

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self.inner.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self.inner.restore(tables)
        self._rows, self._seen = sum(table.num_rows for table in tables.values() if isinstance(table, pa.Table)), 0

    def close(self) -> None:
        self.inner.close()


class _Timed(Parting):
    """Run a stage that may have rows to emit when time passes."""

    def next_due(self) -> NextDue:
        return due_of(self.inner)


class _Listing(Parting):
    """Run a stage that can list the rows of its answer."""

    def held(self) -> Iterator[ZSet]:
        return cast("Any", self.inner).held()  # type: ignore[no-any-return]


class _TimedListing(_Timed, _Listing):
    """Run a stage that does both."""


class _AnswerListing(Parting):
    """Run a stage that can list its answer, though it does not remember it."""

    @property
    def lists_answer(self) -> bool:
        return cast("AnswerListingOperator", self.inner).lists_answer

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:
        return cast("AnswerListingOperator", self.inner).listed(columns)


def parted_when_large(stage: Stage, options: StageOptions, workers: Workers) -> DurableOperator:
    """Return a stage in memory that is in as many buckets as there are threads while its epochs are large."""
    one = stage.build(options, None)
    kinds = {(False, False): Parting, (True, False): _Timed, (False, True): _Listing, (True, True): _TimedListing}
    kind = _AnswerListing if isinstance(one, AnswerListingOperator) else kinds[is_timed(one), isinstance(one, ListingOperator)]
    one.close()
    return kind(partial(stage.build, options, None), partial(in_buckets, stage, options, None, workers))
