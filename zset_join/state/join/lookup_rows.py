"""State of lookup joins and joins by processing time: rows of keys, the latest table, and answers that are remembered.

`MatchMemo`: memo of an operator about its answered rows: the partner of each, and which ones still wait.

The outside, or the other side, may have changed by the time a row is retracted. So the retraction queries nothing: it retracts
what was emitted. Every arrival of a left row is remembered as one *line* per row it met, or one line without a right row.

The law: `retract` of w copies names the lines of the w oldest copies of that row, whole arrivals first, and never one twice.

A line is the joined row with hidden columns: what it is (`KIND`), which arrival (`ARRIVAL`: epoch and place), how many
right copies it represents (`TIMES`), and for one that waits when it is due (`DUE_US`) and how often it was looked up
(`ATTEMPTS`). Copies of the left row are its weight.

Remembers `stride` bytes per line, 13 to 26 per distinct left row, and 8 per parked one. With an append-only left only parked
rows are kept, without an index. `due` costs the rows that are due; so does `next_due_us`, O(1). Opening costs one pass over the
lines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError, WeightOverflowError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import plain, take_rows
from zset_join.shapes.lookup import LookupShape, RetryPolicy
from zset_join.state.rows.directories import IN_MEMORY, HashTables
from zset_join.state.rows.keyed_rows import KeyedRows, KeyFinder
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_changes import NetChanges, SideChanges
from zset_join.state.rows.side_snapshot import refuse_contradictions, repeated_rows
from zset_join.zset import ZSet, single_batch

__all__ = [
    "ARRIVAL",
    "ATTEMPTS",
    "EMITTED_KINDS",
    "JOINED",
    "KIND",
    "PADDED",
    "PARKED",
    "PARKED_PADDED",
    "SILENT",
    "TIMES",
    "Answer",
    "LatestTable",
    "MatchMemo",
    "MemoLines",
    "Retracted",
    "as_answer",
    "fetched_rows",
    "first_arrival",
    "multiplied",
]

Int64s = npt.NDArray[np.int64]

JOINED, PADDED, SILENT, PARKED, PARKED_PADDED = 1, 2, 3, 4, 5
EMITTED_KINDS = (JOINED, PADDED, PARKED_PADDED)

KIND, ARRIVAL, TIMES = "_zset_kind", "_zset_arrival", "_zset_times"
DUE_US, ATTEMPTS = "_zset_due_us", "_zset_attempts"
_HIDDEN = (KIND, ARRIVAL, TIMES, DUE_US, ATTEMPTS)
_NONE = np.zeros(0, np.int64)


def first_arrival(epoch: int) -> int:
    """Return the number of the first arrival of an epoch; an epoch has room for 2^31 of them."""
    return epoch << 31


@dataclass(slots=True)
class Retracted:
    numbers: Int64s = field(default_factory=lambda: _NONE)  # of the lines
    copies: Int64s = field(default_factory=lambda: _NONE)

    def copies_of(self, numbers: Int64s) -> Int64s:
        """Return how many copies are taken of some lines."""
        order = np.argsort(self.numbers, kind="stable")
        places = np.minimum(np.searchsorted(self.numbers, numbers, sorter=order), max(len(order) - 1, 0))
        if not len(order):
            return np.zeros(len(numbers), np.int64)
        at = order[places]
        return np.where(self.numbers[at] == numbers, self.copies[at], 0)


class MatchMemo:
    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        identity: Sequence[str],
        *,
        tables: HashTables = IN_MEMORY,
        file_name: str = "memo",
    ) -> None:
        self.joined_names = list(schema.names)
        kept = pa.schema([*(at.with_nullable(True) for at in schema), *(pa.field(hidden, pa.int64()) for hidden in _HIDDEN)])
        self.lines = KeyedRows(
            f"{name}.memo",
            kept,
            identity,
            null_safe=True,
            tables=tables,
            file_name=file_name,
        )
        self.identity = tuple(identity)
        self._name = name
        self._index()

    # ---------------------------------------------------------------- reading

    @property
    def parked_rows(self) -> int:
        return self._parked

    @property
    def next_due_us(self) -> int | None:
        """Return when the first parked row may be due; None when none waits."""
        return self._dues[0] if self._dues and self._parked else None

    def word(self, column: str, numbers: Int64s) -> Int64s:
        words: Int64s = self.lines.words(column)[numbers - 1]
        return words

    def due(self, now_us: int) -> Int64s:
        """Return the parked lines that are due, the oldest arrivals first. Cost: these lines."""
        numbers_due = [numbers for due_us in self._dues if due_us <= now_us for numbers in self._valid(due_us)]
        if not numbers_due:
            return _NONE
        numbers = np.unique(np.concatenate(numbers_due))
        return numbers[np.argsort(self.word(ARRIVAL, numbers), kind="stable")]

    def _valid(self, due_us: int) -> list[Int64s]:
        kept = []
        for numbers in self._by_due[due_us]:
            kinds, dues = self.word(KIND, numbers), self.word(DUE_US, numbers)
            is_there = self.lines.is_live()[numbers - 1] & (kinds >= PARKED) & (dues == due_us)
            kept.append(numbers[is_there])
        return kept

    def retract(self, rows: pa.RecordBatch, copies: Int64s) -> Retracted:
        """Name the lines of rows that go, oldest first."""
        if not rows.num_rows:
            return Retracted()
        positions, numbers = self.lines.find(rows.select(list(self.identity)))
        arrivals = self.word(ARRIVAL, numbers)
        order = np.lexsort((arrivals, positions))
        positions, numbers, arrivals = positions[order], numbers[order], arrivals[order]
        begins = np.ones(len(numbers), np.bool_)
        begins[1:] = (positions[1:] != positions[:-1]) | (arrivals[1:] != arrivals[:-1])
        group = np.cumsum(begins) - 1
        group_copies, group_positions = self.lines.weights(numbers[begins]), positions[begins]
        through = np.cumsum(group_copies)
        first_of_row = np.ones(len(group_positions), np.bool_)
        first_of_row[1:] = group_positions[1:] != group_positions[:-1]
        before_row = (through - group_copies)[first_of_row][np.cumsum(first_of_row) - 1]
        older = through - group_copies - before_row
        taken = np.clip(copies[group_positions] - older, 0, group_copies)
        if int(taken.sum()) != int(copies.sum()):
            raise StateError(
                f'the memo of "{self._name}" has {int(taken.sum())} of the {int(copies.sum())} copies that are retracted; '
                "the state is damaged. It is a cache: delete its directory and it is rebuilt from the checkpoint.",
                code="MEMO_INCOMPLETE",
                relation=self._name,
            )
        per_line = taken[group]
        return Retracted(numbers[per_line > 0], per_line[per_line > 0])

    def rows(self, numbers: Int64s) -> pa.RecordBatch:
        return self.lines.gather(numbers, self.joined_names)

    def emitted(self, chunk_rows: int) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Yield the joined rows of all lines that are in the answer, each with its copies; an append-only left keeps none."""
        shown = self.lines.is_live() & np.isin(self.lines.words(KIND), EMITTED_KINDS)
        there = np.flatnonzero(shown).astype(np.int64) + 1
        for begin in range(0, len(there), chunk_rows):
            numbers = there[begin : begin + chunk_rows]
            yield self.rows(numbers), self.lines.weights(numbers) * self.word(TIMES, numbers)

    def is_current(self) -> bool:
        """Return whether the files are still those of the directory, and nobody else has folded an epoch into them."""
        # Which lines wait, and for when, is known to this process alone: one that was overtaken must open them again.
        side = self.lines.side
        return side.is_current() and side.absorbed_epoch == self._indexed_epoch

    # ---------------------------------------------------------------- writing

    def remove(self, taken: Retracted) -> None:
        """Take copies away, and lines of which none is left."""
        if not len(taken.numbers):
            return
        left = self.lines.weights(taken.numbers) - taken.copies
        gone, kept = taken.numbers[left == 0], taken.numbers[left > 0]
        self._parked -= int(np.count_nonzero(self.word(KIND, gone) >= PARKED))
        self.lines.set_weights(kept, left[left > 0])
        self.lines.remove(gone)

    def forget_due(self, now_us: int) -> None:
        """Forget that lines were due, once they have been taken out."""
        while self._dues and self._dues[0] <= now_us:
            del self._by_due[heapq.heappop(self._dues)]

    def add(
        self,
        rows: pa.RecordBatch,
        copies: Int64s,
        kinds: Int64s,
        arrivals: Int64s,
        *,
        times: Int64s | None = None,
        due_us: int = 0,
        attempts: Int64s | None = None,
    ) -> None:
        count = rows.num_rows
        if not count:
            return
        waits = kinds >= PARKED
        hidden = (
            kinds,
            arrivals,
            np.ones(count, np.int64) if times is None else times,
            np.where(waits, due_us, 0),
            np.zeros(count, np.int64) if attempts is None else attempts,
        )
        schema = self.lines.relation.schema
        batch = pa.RecordBatch.from_arrays([*rows.columns, *(pa.array(words) for words in hidden)], schema=schema)
        numbers = self.lines.add(batch, copies)
        if waits.any():
            self._parked += int(np.count_nonzero(waits))
            self._note(due_us, numbers[waits])

    def end_absorb(self, epoch: int) -> None:
        numbering = self.lines.side.numbering
        self.lines.side.end_absorb(epoch)
        self._indexed_epoch = epoch
        if self.lines.side.numbering != numbering:
            self._index()

    def restore(self, table: pa.Table | pa.RecordBatchReader) -> None:
        self.lines.restore(table)
        self._index()
        # A row may have met equal rows; without one, or while it waits, it has one line.
        alone = np.flatnonzero(self.lines.is_live() & (self.lines.words(KIND) != JOINED)).astype(np.int64) + 1
        refuse_contradictions(self._name, repeated_rows(self.lines.gather(alone), ARRIVAL))

    def _note(self, due_us: int, numbers: Int64s) -> None:
        if due_us not in self._by_due:
            self._by_due[due_us] = []
            heapq.heappush(self._dues, due_us)
        self._by_due[due_us].append(numbers)

    def _index(self) -> None:
        """Find out again which lines wait, and for when. Cost: one pass over the lines."""
        self._indexed_epoch = self.lines.side.absorbed_epoch
        self._by_due: dict[int, list[Int64s]] = {}
        self._dues: list[int] = []
        waiting = np.flatnonzero(self.lines.is_live() & (self.lines.words(KIND) >= PARKED)).astype(np.int64) + 1
        self._parked = len(waiting)
        dues = self.word(DUE_US, waiting)
        order = np.argsort(dues, kind="stable")
        waiting, dues = waiting[order], dues[order]
        values, begins = np.unique(dues, return_index=True)
        for due_us, numbers in zip(values.tolist(), np.split(waiting, begins[1:]), strict=False):
            self._note(due_us, numbers)


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


class Shows(Protocol):
    """The columns of a joined row that are shown."""

    def output_rows(self, joined: pa.RecordBatch) -> pa.RecordBatch:
        """Return the shown columns of joined rows."""


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
