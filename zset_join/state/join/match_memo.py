"""Memo of an operator about its answered rows: the partner of each, and which ones still wait.

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
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.state.rows.hash_seed import IN_MEMORY, HashTables
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.state.rows.side_snapshot import refuse_contradictions, repeated_rows

__all__ = [
    "ARRIVAL",
    "ATTEMPTS",
    "DUE_US",
    "EMITTED_KINDS",
    "JOINED",
    "KIND",
    "PADDED",
    "PARKED",
    "PARKED_PADDED",
    "SILENT",
    "TIMES",
    "MatchMemo",
    "Retracted",
    "first_arrival",
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
