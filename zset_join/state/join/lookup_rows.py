"""State of lookup joins and joins by processing time: rows of keys, the latest table, and answers that are remembered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import WeightOverflowError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import plain, take_rows
from zset_join.shapes.lookup import LookupShape, RetryPolicy
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.keyed_rows import KeyedRows, KeyFinder
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_changes import NetChanges, SideChanges
from zset_join.zset import ZSet, single_batch

__all__ = ["Answer", "LatestTable", "MemoLines", "Shows", "as_answer", "fetched_rows", "multiplied"]


def fetched_rows(
    shape: LookupShape, keys: pa.RecordBatch, rows: pa.Table, policy: RetryPolicy, *, hash_seed: int | None = None
) -> ZSet:
    """Return the fetched rows for requested keys and what was found; rows of other keys are omitted."""
    table_rows = single_batch(rows.select(shape.table.schema.names).cast(shape.table.schema))
    kept = KeyedRows("fetched", shape.key_schema, shape.key_schema.names, tables=HashTables(hash_seed=hash_seed))
    kept.add(shape.table_keys_of(table_rows))
    positions, numbers = kept.find(keys)
    kept.close()
    missed = np.ones(keys.num_rows, np.bool_)
    missed[positions] = False
    misses = np.flatnonzero(missed).astype(np.int64)
    hits = take_rows(table_rows, numbers - 1)
    fetched = [
        pa.concat_arrays([plain(column, storage_type(column.type)), pa.nulls(len(misses), storage_type(column.type))]).cast(
            column.type
        )
        for column in hits.columns
    ]
    requested = take_rows(keys, np.concatenate([positions, misses])).columns
    is_found = np.concatenate([np.ones(len(positions), np.bool_), np.zeros(len(misses), np.bool_)])
    words = (
        policy.max_retries,
        policy.delay_us,
        int(policy.padded_first),
        policy.max_parked_rows,
        int(policy.pads_at_limit),
    )
    carried = [pa.array(np.full(len(is_found), word, np.int64)) for word in words]
    batch = pa.RecordBatch.from_arrays([*fetched, *requested, pa.array(is_found), *carried], schema=shape.fetched.schema)
    return ZSet(batch, np.ones(batch.num_rows, np.int64))


class LatestTable:
    """Own the rows of the right side of joins by processing time."""

    def __init__(
        self,
        relation: Relation,
        key_types: Sequence[pa.DataType],
        *,
        null_safe: Sequence[bool],
        tombstone_retention_us: int,
        tables: HashTables,
    ) -> None:
        self.side = SideState(
            replace(relation, event_time=None, watermark_delay=None),
            key_types=key_types,
            null_safe=null_safe,
            tables=tables,
            name="right",
            rules=SideRules(keeps_unmatchable=False, tombstone_retention_us=tombstone_retention_us),
        )
        self.changes = SideChanges(self.side, stores=True)
        self.finder = KeyFinder(self.side, key_types, null_safe)
        self._delta: ZSet | None = None
        self._resolved: NetChanges | None = None

    def resolve(self, delta: ZSet) -> NetChanges | None:
        """Return the changes of a delta; None where it has no rows. Cost: its rows, for the first caller."""
        if self._delta is not delta:
            self._resolved = self.changes.resolve(delta) if len(delta) else None
            self._delta = delta
        return self._resolved

    def absorb(self, changes: NetChanges | None, processing_time_us: int | None) -> None:
        self._delta = self._resolved = None
        self.changes.absorb(changes, processing_time_us)

    def forget_epoch(self) -> None:
        self._delta = self._resolved = None


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
