"""The temporal join by processing time: each left row meets the right side as it is when the row arrives.

The law: only left changes emit. A row that arrives is joined with the right side as it comes after this epoch's right changes
(`snapshot="current"`) or as it was before them (`"previous"`). A row that goes retracts what it was joined with, whatever
the right side is by now. While the right side does not advance, the sum of the answers is the batch join.

Remembers every live right row, as a join does. Of an append-only left nothing; of any other its live rows, and per arrival what
it was joined with (`zset_join.state.join.lookup_rows`).

Edge cases. An update of a left row looks up again. Equal left rows: the oldest arrival goes first. The right key need not be
unique (it may be a prefix of the right primary key): then a left row meets several rows. Right copies count as in a join:
weights multiply. NULL in a key matches nothing, unless `null_safe`. With `"previous"` the rows of the first epoch match
nothing.

Joins that share one table of right rows (`LatestJoins`) each answer as with rows of their own: all see the state before the
epoch; then every join stores what is its own, the first one the right rows too.

Known limits. INNER and LEFT. The right side is its latest rows, whatever their event time.

Source: Flink's processing-time temporal join, Timeplus' lookup of a versioned stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.expressions import Expression
from zset_join.expressions import left as left_column
from zset_join.expressions import right as right_column
from zset_join.operators.join_steps import columns_compared
from zset_join.shapes.lookup import LookupShape, ProcessTimeTerms, process_time_relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.join.lookup_rows import (
    EMITTED_KINDS,
    JOINED,
    KIND,
    PADDED,
    SILENT,
    TIMES,
    Answer,
    LatestTable,
    MatchMemo,
    MemoLines,
    Retracted,
    as_answer,
    first_arrival,
    multiplied,
)
from zset_join.state.rows.directories import HashTables, check_same_epoch
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.state.rows.side import PreparedSide, SideRules, SideState
from zset_join.state.rows.side_changes import NetChanges, SideChanges, describe_rejection, no_rejections, rejection_table
from zset_join.state.rows.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.zset import ZSet

__all__ = ["LatestJoin", "LatestJoins", "ProcessTimeJoin"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Prepared:
    tick: Tick
    deltas: tuple[ZSet, ...]
    left: NetChanges | None
    right: NetChanges | None
    taken: Retracted
    answer: Answer | None = None
    kept: MemoLines | None = None

    @property
    def sides(self) -> list[PreparedSide | None]:
        return [None if changes is None else changes.prepared for changes in (self.left, self.right)]


@guarded("the temporal join")
class ProcessTimeJoin:
    """Join each left row with the right side of its moment.

    >>> orders = Relation(name="orders", schema=pa.schema({"id": pa.int64(), "what": pa.string()}), join_key=("what",))
    >>> schema = pa.schema({"what": pa.string(), "price": pa.int64()})
    >>> prices = Relation(name="prices", schema=schema, join_key=("what",), primary_key=("what",), mode="upsert")
    >>> join = ProcessTimeJoin(orders, prices, ProcessTimeTerms(using=True))
    >>> first = [ZSet.of({"id": [1], "what": ["nail"]}), ZSet.of({"what": ["nail"], "price": [3]})]
    >>> [row for chunk in join.answer(Tick(0), first) for row in chunk.to_pylist()]
    [(('nail', 1, 3), 1)]
    >>> join.absorb(Tick(0), first)
    >>> list(join.answer(Tick(1), [ZSet.empty(orders.schema), ZSet.of({"what": ["nail"], "price": [4]})]))
    []
    """

    def __init__(
        self,
        left: Relation,
        right: Relation,
        terms: ProcessTimeTerms = ProcessTimeTerms(),
        *,
        options: OperatorOptions = OperatorOptions(),
        place: int = 0,
        table_of: ProcessTimeJoin | None = None,
    ) -> None:
        shape = LookupShape.of(left, right, terms.how, using=terms.using, output_names=terms.output_names, leaves_process=False)
        self.output = process_time_relation(shape, terms.snapshot, residual=terms.residual)
        flags = [False] * len(right.join_key) if terms.null_safe is None else list(terms.null_safe)
        self._found_by = [at for at, name in enumerate(right.join_key) if terms.find_by is None or name in terms.find_by]
        safe = [flags[at] for at in self._found_by]
        compared = [
            left_column(a).eqNullSafe(right_column(b)) if flags[at] else left_column(a) == right_column(b)
            for at, (a, b) in enumerate(zip(left.join_key, right.join_key, strict=True))
            if at not in self._found_by
        ]
        residual = _all_of([*compared, *([] if terms.residual is None else [terms.residual])])
        is_append_only = left.mode == "append"
        self.how, self.snapshot_of = terms.how, terms.snapshot
        self.on_bad_input = options.on_bad_input
        self.shape = shape
        self.inputs: tuple[Relation, ...] = (left, right)
        self._residual = residual
        self._is_append_only = is_append_only
        self._chunk_rows, self._safe = options.chunk_rows, safe
        self._tables = HashTables.of(options)
        whole = left.primary_key if left.mode == "upsert" else tuple(left.schema.names)
        key_types = [shape.key_schema.field(at).type for at in self._found_by]
        suffix = "" if place == 0 else f"_{place}"
        self._left_side = SideState(
            replace(left, join_key=whole, event_time=None, watermark_delay=None),
            key_types=[left.schema.field(column).type for column in whole],
            null_safe=[True] * len(whole),
            tables=self._tables,
            name=f"left{suffix}",
            rules=SideRules(
                tombstone_retention_us=options.tombstone_retention_us,
                compared=columns_compared((left, right), residual, (terms.hidden, ()))[0],
                arranges=False,
            ),
        )
        self._owns_table = table_of is None
        self.table: LatestTable = (
            LatestTable(
                replace(right, join_key=tuple(right.join_key[at] for at in self._found_by)),
                key_types,
                null_safe=safe,
                tombstone_retention_us=options.tombstone_retention_us,
                tables=self._tables,
            )
            if table_of is None
            else table_of.table
        )
        self._left = SideChanges(self._left_side, stores=not is_append_only)
        identity = () if is_append_only else whole
        self._memo = MatchMemo(
            left.name,
            shape.joined_schema,
            identity,
            tables=self._tables,
            file_name=f"memo{suffix}",
        )
        own = {f"left{suffix}": self._left_side, f"memo{suffix}": self._memo.lines.side}
        self.sides: Mapping[str, SideState] = {**own, "right": self.table.side} if self._owns_table else own
        self.joins = LatestJoins([self])
        self._prepared: _Prepared | None = None

    # ---------------------------------------------------------------- the operator protocol

    @property
    def absorbed_epoch(self) -> int:
        return self.joins.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        if all(len(delta) == 0 for delta in deltas):
            return
        prepared = self._prepare(tick, deltas)
        self._refuse_bad_input(prepared)
        if len(deltas[0]):
            yield from self._answered(prepared).chunks(self._chunk_rows)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        self.joins.absorb(tick, [deltas])

    def resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        prepared = self._prepare(tick, deltas)
        self._refuse_bad_input(prepared)
        self._answered(prepared)

    def fold(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        prepared = self._prepared
        if prepared is None or prepared.tick != tick or any(a is not b for a, b in zip(prepared.deltas, deltas, strict=True)):
            raise AssertionError("an epoch is resolved before it is folded in")
        self._memo.remove(prepared.taken)
        self._left.absorb(prepared.left, tick.processing_time_us)
        kept = prepared.kept
        if kept is not None and not self._is_append_only:
            self._memo.add(kept.rows, kept.copies, kept.kinds, kept.arrivals, times=kept.times)
        self._prepared = None
        self._left_side.shrink_working(prepared.sides[0])
        self._memo.lines.side.shrink_working(None)
        if self._owns_table:
            self.table.absorb(prepared.right, tick.processing_time_us)
            self.table.side.shrink_working(prepared.sides[1])

    def end_absorb(self, epoch: int) -> None:
        self._left_side.end_absorb(epoch)
        self._memo.end_absorb(epoch)
        if self._owns_table:
            self.table.side.end_absorb(epoch)

    @property
    def lists_answer(self) -> bool:
        return not self._is_append_only

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:  # noqa: ARG002 - all columns are in the lines
        for rows, copies in self._memo.emitted(self._chunk_rows):
            yield ZSet(self.shape.output_rows(rows), copies)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        if all(len(delta) == 0 for delta in deltas):
            return no_rejections()
        return rejection_table(self.inputs, self._prepare(tick, deltas).sides)

    def resident_bytes(self) -> int:
        return self.joins.resident_bytes()

    def working_bytes(self) -> int:
        return self.joins.working_bytes()

    def is_current(self) -> bool:
        return self.joins.is_current()

    def statistics(self) -> dict[str, int]:
        return self.joins.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self.joins.snapshot_readers()

    def own_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {
            name: self._memo.lines.reader() if name.startswith("memo") else side_reader(side)
            for name, side in self.sides.items()
        }

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self.joins.restore(tables)

    def restore_own(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        self.table.forget_epoch()
        for name, side in self.sides.items():
            if name.startswith("memo"):
                self._memo.restore(tables[name])
            else:
                restore_side(side, tables[name])
        epoch = next(snapshot_epoch(tables[name]) for name in self.sides if name.startswith("left"))
        self.end_absorb(epoch)

    def close(self) -> None:
        self._prepared = None
        self.joins.close()

    # ---------------------------------------------------------------- resolving an epoch

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        kept = self._prepared
        right = self.table.resolve(deltas[1])
        is_same = kept is not None and kept.tick == tick and kept.right is right
        if kept is not None and is_same and all(a is b for a, b in zip(kept.deltas, deltas, strict=True)):
            return kept
        left = self._left.resolve(deltas[0]) if len(deltas[0]) else None
        taken = Retracted() if left is None else self._memo.retract(left.lost, left.lost_copies)
        self._prepared = _Prepared(tick, tuple(deltas), left, right, taken)
        return self._prepared

    def _answered(self, prepared: _Prepared) -> Answer:
        """Join the left rows that arrive, once per epoch."""
        if prepared.answer is not None:
            return prepared.answer
        tick, left = prepared.tick, prepared.left
        new = self._left.rows_of(np.zeros(0, np.int64)) if left is None else left.new
        new_copies = np.zeros(0, np.int64) if left is None else left.new_copies
        met, right_rows, times = self._meet(new, prepared.right)
        is_joined = np.zeros(new.num_rows, np.bool_)
        is_joined[met] = True
        others = np.flatnonzero(~is_joined).astype(np.int64)
        owners = np.concatenate([met, others])
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        sources = np.concatenate([np.arange(len(met), dtype=np.int64), np.full(len(others), -1, np.int64)])[order]
        times = np.concatenate([times, np.ones(len(others), np.int64)])[order]
        kinds = np.where(sources >= 0, JOINED, PADDED if self.how == "left" else SILENT)
        joined = self.shape.joined_rows(new, owners, right_rows, sources)
        copies = new_copies[owners]
        names = self.inputs[0].name, self.inputs[1].name
        memo, taken = self._memo, prepared.taken
        emitted = np.isin(memo.word(KIND, taken.numbers), EMITTED_KINDS)
        gone = taken.numbers[emitted]
        gone_copies = multiplied(taken.copies[emitted], memo.word(TIMES, gone), tick, left=names[0], right=names[1])
        prepared.answer = as_answer(
            self.shape,
            retracted=[(memo.rows(gone), gone_copies)],
            inserted=(joined, multiplied(copies, times, tick, left=names[0], right=names[1]), kinds != SILENT),
            is_plain=self._is_append_only,
        )
        arrivals = first_arrival(tick.epoch) + owners
        prepared.kept = MemoLines(joined, copies, kinds, arrivals, np.zeros(len(owners), np.int64), times=times)
        return prepared.answer

    def _meet(self, new: pa.RecordBatch, right: NetChanges | None) -> tuple[Int64s, pa.RecordBatch, Int64s]:
        """Return which left rows meet which right rows, these one by one, and how many copies of each there are."""
        side, keys = self.table.side, self.shape.keys_of(new).select(self._found_by)
        positions, numbers = self.table.finder.find(keys)
        if right is not None and self.snapshot_of == "current":
            stays = ~np.isin(numbers, right.touched)
            positions, numbers = positions[stays], numbers[stays]
        weights = side.weights(numbers) if len(numbers) else np.zeros(0, np.int64)
        rows = self.table.changes.rows_of(side.refs_of(numbers) if len(numbers) else numbers)
        if right is not None and self.snapshot_of == "current":
            came = self.table.changes.rows_of(right.after_refs)
            own = self.shape.table_keys_of(came).select(self._found_by)
            beside = KeyedRows(
                "right",
                own.schema,
                own.schema.names,
                null_safe=self._safe,
                tables=self._tables.beside(),
            )
            beside.add(own)
            met, matched = beside.find(keys)
            beside.close()
            positions = np.concatenate([positions, met])
            rows = pa.concat_batches([rows, take_rows(came, matched - 1)])
            weights = np.concatenate([weights, right.after_copies[matched - 1]])
        if self._residual is not None and len(positions):
            passes = self.shape.passing_pairs(self._residual, new, positions, rows, np.arange(len(positions)))
            positions, rows, weights = positions[passes], take_rows(rows, np.flatnonzero(passes)), weights[passes]
        return positions, rows, weights

    def _refuse_bad_input(self, prepared: _Prepared) -> None:
        if self.on_bad_input == "error" and any(side is not None and side.rejected for side in prepared.sides):
            raise describe_rejection(self.inputs, prepared.sides, prepared.tick)


def _all_of(conditions: Sequence[Expression]) -> Expression | None:
    return reduce(lambda one, other: one & other, conditions) if conditions else None


class LatestJoin(Protocol):
    """A request to one join."""

    sides: Mapping[str, SideState]

    def resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Find out what the deltas of an epoch change, and refuse bad rows."""

    def fold(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Store the epoch resolved last."""

    def end_absorb(self, epoch: int) -> None:
        """Mark its state as complete."""

    def own_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of its tables."""

    def restore_own(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace its state by a snapshot."""


class LatestJoins:
    """Own the state of joins; the first one owns the right rows."""

    def __init__(self, joins: Sequence[LatestJoin]) -> None:
        self.joins = tuple(joins)
        self._sides = {name: side for join in joins for name, side in join.sides.items()}
        sides = list(self._sides.values())
        check_same_epoch((side.absorbed_epoch for side in sides), sides[0].directory)

    @property
    def absorbed_epoch(self) -> int:
        return next(iter(self._sides.values())).absorbed_epoch

    def absorb(self, tick: Tick, deltas: Sequence[Sequence[ZSet]]) -> None:
        tick.check_follows(self.absorbed_epoch)
        for join, given in zip(self.joins, deltas, strict=True):
            join.resolve(tick, given)
        for side in self._sides.values():
            side.begin_absorb()
        for join, given in reversed(list(zip(self.joins, deltas, strict=True))):  # who owns the right rows comes last
            join.fold(tick, given)
        for join in self.joins:
            join.end_absorb(tick.epoch)

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: reader for join in self.joins for name, reader in join.own_readers().items()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        for join in self.joins:
            join.restore_own(tables)

    def statistics(self) -> dict[str, int]:
        return {name: count for side in self._sides.values() for name, count in side.statistics().items()}

    def resident_bytes(self) -> int:
        return sum(side.resident_bytes() for side in self._sides.values())

    def working_bytes(self) -> int:
        return sum(side.working_bytes() for side in self._sides.values())

    def is_current(self) -> bool:
        return all(side.is_current() for side in self._sides.values())

    def close(self) -> None:
        for side in self._sides.values():
            side.close()
