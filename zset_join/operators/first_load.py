"""The first rows of a join, where they are many: worked in parts, each of which fits the working arrays of an epoch.

The law: as the epoch at once. Nothing is in the state yet, so the parts go through another, empty join of the same kind, in
memory; the join takes over what that one holds when the epoch is absorbed, and drops it where it is not. So `answer` changes
nothing, and an epoch that fails has changed nothing. The epoch is worked at once where a part cannot decide alone: rows that
are refused, come too late for their sequence, or delete what is not there.

The answer is the sum of what the other join would have answered, so it is listed from its state once all parts are in. Its
rows are gathered many at a time, and emitted as slices: bringing them together again copies nothing.

Over files the other join is dropped after the answer, as its epoch is absorbed when the next one begins; it is loaded again
then, and its bytes are copied.

Cost: as the epoch, with 0.3 kB less per row, which an epoch at once takes for working arrays and does not give back.

`LoadedLatest`: the first rows of a table of upserts, where they are many: worked in parts, and emitted without a copy.

The law: as the epoch at once. The table is empty, so where every row inserts a key of its own, the answer is the delta itself,
without its hidden columns. Whether that is so is found in parts, in a table that has the keys alone and is dropped; an
epoch with another row (a key twice, a delete, a rejected row) is worked at once.

Absorbing stores part after part under one mark: nothing can refuse the epoch any more, and files that a process leaves in
between are rebuilt, as with any epoch.

Cost: the keys are hashed twice; 16 bytes of an answer per row instead of the row, and 0.2 kB less working arrays.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.side import CHANGE_WORDS
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Latest
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import HashTables
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side import PreparedSide, SideRules, SideState
from zset_join.state.rows.side_changes import no_rejections
from zset_join.zset import ZSet

__all__ = ["LoadedJoin", "LoadedLatest"]

PARTS, PART_CHANGES = 4, 4  # an epoch of fewer parts is worked at once; a part is so many times `part_changes` rows
_LISTED_AT_ONCE = 1 << 18
_HOLDING_EPOCHS = 2  # after so many Arrow gives memory back; callers hold the answer of a load until the next one
_GATHERED_ROWS = 1 << 22


@guarded("the join")
class LoadedJoin(HashJoin):
    """Join as `HashJoin`, without hybrid state; the first rows are worked in parts where they are many."""

    def __init__(self, *sides_and_how: Any, options: OperatorOptions = OperatorOptions(), **terms: Any) -> None:
        super().__init__(*sides_and_how, options=options, **terms)
        self._again = partial(HashJoin, *sides_and_how, **terms)
        self._options = replace(options, hash_seed=self._tables.hash_seed, on_bad_input="error", directory=None)
        self._is_kept = options.directory is None
        self._part_rows = PART_CHANGES * options.part_changes
        self._is_first = all(one.mode != "changelog" for one in self.inputs)
        self._gives_back = -1
        self._asked: tuple[Tick, weakref.ref[ZSet], weakref.ref[ZSet]] | None = None
        self._loaded: HashJoin | None = None

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        loaded = self._loaded_with(tick, deltas) if self._loads(deltas) else None
        self._loaded, self._asked = None, None
        if tick.epoch == self._gives_back:
            pa.default_memory_pool().release_unused()
        self._gives_back = self._gives_back if loaded is None else tick.epoch + _HOLDING_EPOCHS
        if loaded is None:
            super().absorb(tick, deltas)
        else:
            self._answers.outdate()
            for own in self._sides:
                own.begin_absorb()
            for own, other in zip(self._sides, loaded._sides, strict=True):
                own.take_over(other)
            for own in self._sides:
                own.end_absorb(tick.epoch)
        self._is_first = False

    @override
    def restore(self, tables: Any) -> None:
        self._loaded, self._asked, self._is_first = None, None, False
        super().restore(tables)

    @override
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        chunks = self._load(tick, deltas) if self._loads(deltas) else None
        if chunks is None:
            yield from super()._answer(tick, deltas)
            return
        if not self._is_kept:
            self._loaded, self._asked = None, None
        while chunks:
            yield chunks.popleft()

    def _loads(self, deltas: Sequence[ZSet]) -> bool:
        """Return whether nothing is in the state, and an epoch is large enough to be worked in parts."""
        return self._is_first and self.absorbed_epoch < 0 and sum(map(len, deltas)) >= PARTS * self._part_rows

    def _loaded_with(self, tick: Tick, deltas: Sequence[ZSet]) -> HashJoin | None:
        """Return the join that holds an epoch, loading it where it was not; None where it must be worked at once."""
        requested = self._asked
        if requested is None or requested[0] != tick or requested[1]() is not deltas[0] or requested[2]() is not deltas[1]:
            self._load(tick, deltas, is_answered=False)
        return self._loaded

    def _load(self, tick: Tick, deltas: Sequence[ZSet], *, is_answered: bool = True) -> deque[ZSet] | None:
        """Load an empty join and return the chunks of the answer (none where it is not wanted)."""
        # None: the epoch must be worked at once.
        self._loaded, self._asked = None, (tick, weakref.ref(deltas[0]), weakref.ref(deltas[1]))
        join = self._again(options=self._options)
        for side, own, delta in zip(join._sides, self._sides, deltas, strict=True):
            side.drops_unmatchable = own.drops_unmatchable
            side.make_room(len(delta), 0, join_keys=0)
        try:
            for number, part in enumerate(self._parts(deltas)):
                join.absorb(replace(tick, epoch=number), part)
            if any(any(side.ignored) for side in join._sides):
                return None
            chunks = deque(self._slices(join) if is_answered else ())
        except ZsetJoinError:
            return None  # it comes again, about the whole epoch
        self._loaded = join
        return chunks

    def _slices(self, join: HashJoin) -> Iterator[ZSet]:
        """Yield the rows of a join in chunks, which are slices of as few batches as possible."""
        pieces, count = list[list[npt.NDArray[np.int64]]](), 0
        for piece in join._listed_rows.pieces(_LISTED_AT_ONCE):
            pieces.append([line.copy() for line in piece])
            count += len(pieces[-1][0])
            if count >= _GATHERED_ROWS:
                yield from self._gathered(join, pieces)
                pieces, count = [], 0
        if pieces:
            yield from self._gathered(join, pieces)

    def _gathered(self, join: HashJoin, pieces: list[list[npt.NDArray[np.int64]]]) -> Iterator[ZSet]:
        left, right, weights = (np.concatenate(lines) for lines in zip(*pieces, strict=True))
        pieces.clear()
        refs = int(left.ctypes.data), int(right.ctypes.data)
        for first, rows in join._joined.batches(*refs, 0, len(weights), keeps_none=False):
            for begin in range(0, rows.num_rows, self._chunk_rows):
                part = rows.slice(begin, self._chunk_rows)
                yield ZSet(part, weights[first + begin : first + begin + part.num_rows])

    def _parts(self, deltas: Sequence[ZSet]) -> Iterator[list[ZSet]]:
        for side, delta in enumerate(deltas):
            for begin in range(0, len(delta), self._part_rows):
                part = [ZSet.empty(one.schema) for one in deltas]
                end = begin + self._part_rows
                part[side] = ZSet(delta.rows.slice(begin, self._part_rows), delta.weights[begin:end])
                yield part


@guarded("the table")
class LoadedLatest(Latest):
    """Emit what `Latest` emits, without hybrid state; the first rows are worked in parts where they are many."""

    def __init__(self, relation: Relation, *, options: OperatorOptions = OperatorOptions(), **terms: Any) -> None:
        super().__init__(relation, options=options, **terms)
        self._part_rows = PART_CHANGES * options.part_changes
        self._key_tables = HashTables(hash_bits=options.hash_bits, hash_seed=HashTables.of(options).hash_seed)
        self._checked: tuple[weakref.ref[ZSet], bool] | None = None

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        (delta,) = deltas
        if self._side.follows or not self._inserts(delta):
            super().absorb(tick, deltas)
            return
        tick.check_follows(self.absorbed_epoch)
        self._prepared = self._checked = None
        side = self._side
        side.begin_absorb()
        side.make_room(len(delta), 0)
        for part in self._parts(conform(delta.rows, side.relation)):
            side.absorb(_listed(side, part), tick.processing_time_us)
        side.end_absorb(tick.epoch)

    @override
    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return no_rejections() if self._inserts(deltas[0]) else super().rejections(tick, deltas)

    @override
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if not self._inserts(delta):
            yield from super()._answer(tick, deltas)
            return
        rows = conform(delta.rows, self._side.relation)
        shown = pa.RecordBatch.from_arrays([rows.column(name) for name in self.output.schema.names], schema=self.output.schema)
        weights = np.ones(len(delta), np.int64)
        for begin in range(0, len(delta), self._chunk_rows):
            end = begin + self._chunk_rows
            yield ZSet(shown.slice(begin, self._chunk_rows), weights[begin:end])

    def _inserts(self, delta: ZSet) -> bool:
        """Return whether the table is empty, and a large epoch inserts each of its keys once and does nothing else."""
        if len(delta) < PARTS * self._part_rows or _has_rows(self._side):
            return False
        if self._checked is None or self._checked[0]() is not delta:
            self._checked = weakref.ref(delta), self._has_distinct_keys(delta)
        return self._checked[1]

    def _has_distinct_keys(self, delta: ZSet) -> bool:
        relation = self._side.relation
        names = [name for name in relation.schema.names if name in {*relation.primary_key, *relation.sequence_by}]
        rows = conform(delta.rows, relation).select(names)
        if not (delta.weights == 1).all():
            return False
        keys = SideState(
            replace(relation, schema=rows.schema),
            key_types=[relation.schema.field(name).type for name in relation.primary_key],
            null_safe=[False] * len(relation.primary_key),
            tables=self._key_tables,
            name="keys",
            rules=SideRules(compared=(), arranges=False),
        )
        try:
            keys.make_room(len(delta), 0)
            return all(self._adds_all(keys, part) for part in self._parts(rows))
        finally:
            keys.close()

    @staticmethod
    def _adds_all(keys: SideState, part: ZSet) -> bool:
        before = int(keys.header[s.H_LIVE_ROWS])
        keys.absorb(_listed(keys, part), None)
        return bool(keys.header[s.H_LIVE_ROWS] == before + len(part))

    def _parts(self, rows: pa.RecordBatch) -> Iterator[ZSet]:
        for begin in range(0, rows.num_rows, self._part_rows):
            part = rows.slice(begin, self._part_rows)
            yield ZSet(part, np.ones(part.num_rows, np.int64))


def _has_rows(side: SideState) -> bool:
    """Return whether a table holds rows or remembers deleted ones."""
    return bool(side.header[s.H_LIVE_ROWS] or side.header[s.H_TOMBSTONES])


def _listed(side: SideState, part: ZSet) -> PreparedSide:
    """Return a part that was resolved and whose changes were listed, as absorbing it needs."""
    prepared = side.prepare(part)
    changes = np.empty((2 * len(part), CHANGE_WORDS), np.int64)
    side.list_changes(prepared, 0, int(changes.ctypes.data))
    return prepared
