"""Joining each left row with the one right row that is valid at its time: what temporal and as-of joins have in common.

Both keep the right rows of a key in order of time and request the last one at or before the time of a left row; an as-of join
that looks forward counts time backwards. The three ways to answer:

- `once`: a left row is answered when it comes, with what is known then, and not kept.
- `on_watermark`: it waits until the watermark has passed its time, is answered once, and freed.
- `eager`: it is answered when it comes and kept; a change of a right row corrects the left rows from its time to the next one.

The law: `answer` reads the state before the epoch and changes nothing; its answer follows from the rows and watermarks alone,
not from what was freed: a right row is freed only when a newer one is past the watermark too, and no left row that counts is
older.

Remembers: see `zset_join.state.time.versioned_rows` and `expiries`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.row_conversion import conform
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows import side as s
from zset_join.kernels.time import versions as v
from zset_join.kernels.time.runs import NEVER
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.timed_join import VersionJoinShape
from zset_join.state.rows.directories import HashTables
from zset_join.state.rows.order_words import NULL_WORD, count_order_words, order_words, time_words
from zset_join.state.rows.side_changes import no_rejections
from zset_join.state.time.expiries import DueRows, PendingRows
from zset_join.state.time.joined_pairs import JoinedPairs, NearestPassing, Transitions
from zset_join.state.time.key_runs import KeyGroups, KeyRuns, RowStore
from zset_join.state.time.late_rows import (
    LATE_CORRECTION,
    NULL_KEY,
    NULL_TIME,
    TIME_JUMP,
    Arrivals,
    GivenRows,
    Passed,
    VersionEpoch,
    first_status,
    late_or_rejected_rows,
    mark_late,
    raise_for_rejections,
)
from zset_join.state.time.time_labels import TimeLabels, time_values
from zset_join.state.time.versioned_rows import ExpiringRuns, NewRows, PreparedRows, VersionedRows
from zset_join.zset import ZSet
from zset_join.zset.row_layout import RowLayout

__all__ = ["VersionJoin"]

_Words = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.bool_]

_H_RIGHT_DUE, _H_LEFT_DUE = 32, 34  # of the header of the keys; each takes two words


class VersionJoin:
    # `place` is among the joins that share the right rows of `table_of`; `eager_places` of them may have runs of left rows.
    def __init__(
        self,
        shape: VersionJoinShape,
        *,
        facts: Sequence[object],
        options: OperatorOptions,
        place: int = 0,
        eager_places: int = 0,
        table_of: VersionJoin | None = None,
    ) -> None:
        self.shape = shape
        self.on_bad_input = options.on_bad_input
        self._chunk_rows = options.chunk_rows
        self._retention_us = options.tombstone_retention_us
        left, right = shape.left, shape.right
        self._is_eager, self._waits = shape.emit == "eager", shape.emit == "on_watermark"
        self._owns_table = table_of is None
        self.labels = TimeLabels() if table_of is None and shape.times.is_labelled else None
        directory = options.directory
        if table_of is None:
            runs = 1 + max(eager_places, int(self._is_eager))
            self.keys = KeyRuns(shape.key_types, null_safe=True, runs=runs, tables=HashTables.of(options), facts=facts)
            words = 1 + count_order_words(right.schema, shape.tie_by, relation=right.name)
            self.right = VersionedRows(right.schema, self.keys, run=0, words=words, name="right", facts=facts)
        else:
            self.keys, self.right, self.labels = table_of.keys, table_of.right, table_of.labels
        name = "left" if place == 0 else f"left_{place}"
        self.left: RowStore | None = None
        if self._is_eager:
            self.left = VersionedRows(left.schema, self.keys, run=1 + place, words=1, name=name, facts=facts)
        elif self._waits:
            self.left = PendingRows(left.schema, self.keys, words=1, name=name, facts=facts)
        self._left_layout = RowLayout(left.schema, sequence_words=2) if self.left is None else self.left.layout
        self._expiring: list[ExpiringRuns] = []
        if shape.is_versioned and self._owns_table:
            self._expiring.append(
                ExpiringRuns(self.right, self.keys, keeps_newest=True, first_word=_H_RIGHT_DUE, directory=directory)
            )
        if shape.is_versioned and isinstance(self.left, VersionedRows):
            word = _H_LEFT_DUE + 2 * place
            self._expiring.append(ExpiringRuns(self.left, self.keys, keeps_newest=False, first_word=word, directory=directory))
        self.pairs = JoinedPairs(shape, self._left_layout, self.left, self.right, chunk_rows=options.chunk_rows)
        self._reach = NEVER if shape.reach is None else shape.reach - (1 if shape.is_strict else 0)
        self._nearest: NearestPassing | None = None
        if shape.condition_chooses and isinstance(self.left, VersionedRows):
            self._nearest = NearestPassing(self.keys, self.left, self.right, self.pairs, self._reach)
        self._right_deletes = right.mode == "upsert"
        self._prepared: VersionEpoch | None = None
        self._refuses_late = shape.refuses_late_changes and options.on_bad_input == "error"

    # ---------------------------------------------------------------- reading

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield retractions, then insertions."""
        if not self._has_to_do(tick, deltas):
            return
        epoch = self._prepare(tick, deltas)
        self._refuse(epoch)
        transitions = self._corrections(epoch) if self._is_eager else self._first_answers(epoch)
        if epoch.left is not None and epoch.left.removed_begin[-1]:
            # A row that went and came again cancels out.
            lines = list(self.pairs.lines(transitions))
            yield from ZSet.concat(lines, schema=self.shape.schema).tidy_chunks(self._chunk_rows)
        else:
            yield from self.pairs.lines(transitions)

    def _has_to_do(self, tick: Tick, deltas: Sequence[ZSet]) -> bool:
        if any(len(delta) for delta in deltas):
            return True
        return isinstance(self.left, PendingRows) and self._is_due(self.left, tick)

    def _is_due(self, waiting: PendingRows, tick: Tick) -> bool:
        first, passed = waiting.due.first(), self.shape.times.of_watermark(tick.watermark_us)
        return first is not None and passed is not None and first <= passed

    def _first_answers(self, epoch: VersionEpoch) -> Transitions:
        parts = []
        passed = self.shape.times.of_watermark(epoch.tick.watermark_us)
        now = epoch.given[0].status == ch.OK
        if isinstance(self.left, PendingRows):
            now = now & (epoch.left_times <= passed) if passed is not None else np.zeros(len(now), np.bool_)
            if passed is not None:
                parts.append(self._looked_up(epoch, self.left.due_rows(passed, epoch.groups)[1]))
        parts.append(self._looked_up(epoch, self._rows_of_delta(epoch, np.flatnonzero(now))))
        return Transitions.added(parts)

    def _rows_of_delta(self, epoch: VersionEpoch, places: _Words, weights: _Words | None = None) -> DueRows:
        refs = epoch.left_address + places * self._left_layout.stride
        groups = epoch.groups.group_of[0][places]
        weights = np.ascontiguousarray(epoch.deltas[0].weights) if weights is None else weights
        return DueRows(refs, epoch.groups.numbers[groups], groups, weights[places])

    def _looked_up(self, epoch: VersionEpoch, rows: DueRows) -> Transitions:
        count, right = len(rows.refs), epoch.right
        versions = np.empty(count, np.int64)
        v.look_up(
            self.keys.view,
            self.right.place,
            self.right.view,
            rows.refs,
            rows.keys,
            rows.groups,
            count,
            self._left_layout.sequence_offset,
            right.address,
            right.left,
            right.deletes,
            right.begin,
            right.order,
            right.removed_begin,
            right.removed_at,
            right.removed_weight,
            self._reach,
            versions,
        )
        return Transitions(rows.refs, np.full(count, -1, np.int64), versions, rows.weights)

    def _corrections(self, epoch: VersionEpoch) -> Transitions:
        """Return the transitions of the left rows that are kept, and of those that arrive and go."""
        left, right, groups, rows = epoch.left, epoch.right, epoch.groups, self.left
        if left is None or not isinstance(rows, VersionedRows):
            raise AssertionError("eager left rows are in runs")
        shape = (self.keys.view, self.right.place, self.right.view)
        gone = self._columns(int(left.removed_begin[-1]))
        v.probe_changes(
            *shape,
            rows.place,
            rows.view,
            groups.numbers,
            groups.count,
            left.removed_begin,
            left.removed_at,
            left.removed_weight,
            self._reach,
            *gone,
        )
        come = self._rows_of_delta(epoch, np.flatnonzero(left.left > 0), left.left)
        if self._nearest is not None:
            return self._nearest.transitions(epoch, left, (gone[0], gone[3]), come)
        room = 2 * right.count + 1024
        while True:
            moved = self._columns(room)
            lines = int(
                v.change_probes(
                    *shape,
                    self.right.columns.address,
                    rows.place,
                    rows.view,
                    groups.numbers,
                    groups.count,
                    right.address,
                    right.left,
                    right.deletes,
                    right.begin,
                    right.order,
                    right.removed_begin,
                    right.removed_at,
                    right.removed_weight,
                    left.removed_begin,
                    left.removed_at,
                    left.removed_weight,
                    self._reach,
                    *moved,
                )
            )
            if lines <= room:
                break
            room = lines
        refs, befores, afters, weights = (column[:lines] for column in moved)
        kept = Transitions(refs, befores, afters, weights, corrects=True)
        return Transitions.added([Transitions(*gone), kept, self._looked_up(epoch, come)])

    @staticmethod
    def _columns(count: int) -> tuple[_Words, _Words, _Words, _Words]:
        one, other, third, fourth = (np.empty(count, np.int64) for _ in range(4))
        return one, other, third, fourth

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return bad and late rows: `input`, `row`, `weight`, `code`, `reason`; shared right rows are listed by their owner."""
        if not any(len(delta) for delta in deltas):
            return no_rejections()
        given = self._prepare(tick, deltas).given[: 2 if self._owns_table else 1]
        return late_or_rejected_rows(given, with_late=not self._refuses_late)  # else the answer raises

    def next_due(self) -> int | None:
        """Return the watermark at which a row that waits must be answered; None when none waits."""
        first = self.left.due.first() if isinstance(self.left, PendingRows) else None
        return None if first is None else self.shape.times.as_watermark(first)

    # ---------------------------------------------------------------- preparing

    def _refuse(self, epoch: VersionEpoch) -> None:
        if self.on_bad_input == "error":
            raise_for_rejections(epoch.given, epoch.tick, of_late=self._refuses_late)

    def horizon(self, watermark: int | None) -> int | None:
        """Return the time up to which rows are past at a watermark."""
        passed, kept = self.shape.times.of_watermark(watermark), self.shape.keep_probe_for if self._is_eager else 0
        return None if passed is None or kept is None or not self.shape.is_versioned else passed - kept

    def _passed_before(self, tick: Tick) -> Passed | None:
        """Return the times that were past before an epoch; None for none."""
        passed, horizon = self.shape.times.of_watermark(tick.watermark_before_us), self.horizon(tick.watermark_before_us)
        return None if passed is None or horizon is None else Passed(passed, horizon, self._refuses_late)

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> VersionEpoch:
        kept = self._prepared
        if kept is not None and kept.tick == tick and all(a is c for a, c in zip(kept.deltas, deltas, strict=True)):
            return kept
        self._prepared = None
        shape = self.shape
        batches = [conform(delta.rows, one) for delta, one in zip(deltas, (shape.left, shape.right), strict=True)]
        weights = [np.ascontiguousarray(delta.weights) for delta in deltas]
        if self.labels is not None:  # before anything is looked up: the state may be rewritten
            self.labels.check(int(self.keys.header[s.H_ABSORBED_EPOCH]))
            sides = (1,) if self.left is None else (0, 1)
            self.labels.admit([time_values(shape.times, batches[side], side) for side in sides])
        inputs = [
            [batch.column(pair[side]) for pair in shape.key] if batch.num_rows else [] for side, batch in enumerate(batches)
        ]
        groups = self.keys.group(inputs)
        left_times, left_status = self._left_times(batches[0], weights[0], tick, groups)
        right_times, right_status = self._right_times(batches[1], weights[1], tick, groups)
        came = Arrivals(left_times, left_status, weights[0], batches[0])
        versions = Arrivals(right_times, right_status, weights[1], batches[1])
        counts = mark_late(shape, self.keys, self.right, groups, came, versions, self._passed_before(tick))
        deletes = None
        if self._right_deletes:
            deletes = (weights[1] < 0).astype(np.uint8)
        elif shape.delete_column is not None:
            flags = batches[1].column(shape.delete_column).fill_null(False)
            deletes = flags.to_numpy(zero_copy_only=False).astype(np.uint8)
        right_words = [~right_times if shape.is_mirrored else right_times]
        right_words += order_words(batches[1], shape.tie_by, [shape.tie_descending] * len(shape.tie_by))
        right = self.right.prepare(
            NewRows(batches[1], right_words, weights[1], right_status, deletes),
            groups,
            1,
            retracts=shape.right.mode == "changelog",
        )
        probe_times = self._probe_times(left_times)
        owners: list[Any] = [batches]
        left: PreparedRows | None = None
        if isinstance(self.left, VersionedRows):
            left = self.left.prepare(
                NewRows(batches[0], [probe_times], weights[0], left_status),
                groups,
                0,
                retracts=shape.left.mode == "changelog",
            )
            address = left.address
        else:
            count = batches[0].num_rows
            records = np.empty(count * self._left_layout.stride, np.uint8)
            arrivals = np.zeros(count, np.int64) if self.left is None else self.left.next_arrivals(count)
            encoded = self._left_layout.encode(batches[0], [probe_times, arrivals], records, int(records.ctypes.data))
            owners.append(encoded)
            address = encoded.address
        left_key, right_key = zip(*shape.key, strict=True)
        lefts = GivenRows(shape.left, deltas[0], left_key, left_status)
        given = lefts, GivenRows(shape.right, deltas[1], right_key, right_status)
        self._prepared = VersionEpoch(
            tick, (deltas[0], deltas[1]), groups, right, left, address, probe_times, given, counts, owners
        )
        return self._prepared

    def _probe_times(self, times: _Words) -> _Words:
        """Return the times by which left rows request the last right row at or before them."""
        missing = times == NULL_WORD
        requested = ~times if self.shape.is_mirrored else times
        requested = np.where(missing, NULL_WORD, requested - 1 if self.shape.is_strict else requested)
        return np.ascontiguousarray(requested)

    def _time_words(self, batch: pa.RecordBatch, side: int) -> tuple[_Words, _Marks | None]:
        if self.labels is None:
            return time_words(self.shape.times, batch, side)
        is_kept = side == 1 or self.left is not None
        return self.labels.words(time_values(self.shape.times, batch, side), is_kept=is_kept)

    def _left_times(
        self, batch: pa.RecordBatch, weights: _Words, tick: Tick, groups: KeyGroups
    ) -> tuple[_Words, npt.NDArray[np.uint8]]:
        times, missing = self._time_words(batch, 0)
        status = first_status(weights, is_append=self.shape.left.mode == "append")
        self._mark_bad(status, missing if self.shape.is_versioned else None, times, tick, groups.unfit[0])
        return times, status

    def _right_times(
        self, batch: pa.RecordBatch, weights: _Words, tick: Tick, groups: KeyGroups
    ) -> tuple[_Words, npt.NDArray[np.uint8]]:
        times, missing = self._time_words(batch, 1)
        status = first_status(weights, is_append=self.shape.right.mode == "append")
        null_key: _Marks | None = None
        for _, name in self.shape.key:
            column = batch.column(name)
            if column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False)
                null_key = nulls if null_key is None else null_key | nulls
        if not self.shape.is_versioned:  # such a row never matches
            for marked in (missing, null_key):
                if marked is not None:
                    status[marked & (status == ch.OK)] = ch.NOTHING
            missing = null_key = None
        self._mark_bad(status, missing, times, tick, groups.unfit[1])
        if null_key is not None:
            status[null_key & (status == ch.OK)] = NULL_KEY
        return times, status

    def _mark_bad(
        self, status: npt.NDArray[np.uint8], missing: _Marks | None, times: _Words, tick: Tick, unfit: _Marks | None
    ) -> None:
        if missing is not None:
            status[missing & (status == ch.OK)] = NULL_TIME
        if unfit is not None:
            status[unfit & (status == ch.OK)] = ch.KEY_RANGE
        before = self.shape.times.of_watermark(tick.watermark_before_us)
        if self.shape.max_watermark_jump is not None and before is not None:
            furthest = min(before + self.shape.max_watermark_jump, NEVER)
            status[(times > furthest) & (status == ch.OK)] = TIME_JUMP

    # ---------------------------------------------------------------- writing; called by `VersionJoins`

    def resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        self._refuse(self._prepare(tick, deltas))

    def fold(self, tick: Tick, deltas: Sequence[ZSet]) -> tuple[_Words, dict[str, int]]:
        """Store the resolved epoch, with right rows that it owns, free past ones; return possibly empty keys, and counts."""
        epoch = self._prepare(tick, deltas)
        rejected = list(epoch.given)
        if not self._owns_table:  # keys that another join has stored have their numbers now
            self.keys.number(epoch.groups)
            rejected = rejected[:1]
            late = int((epoch.given[0].status == LATE_CORRECTION).sum())
            epoch.counts = {"late_rows": epoch.counts.get("late_rows", 0), "late_corrections": late}
        keys = self._expire(epoch, tick, self._store(epoch, tick))
        epoch.counts["rejected"] = sum(one.rejected_count() for one in rejected)
        self._prepared = None
        return keys, epoch.counts

    def _store(self, epoch: VersionEpoch, tick: Tick) -> _Words:
        """Store the rows that arrived, release what is due; return the keys of released rows."""
        groups, right, rows = epoch.groups, epoch.right, self.left
        wanted, run_bytes = np.zeros(groups.count, np.bool_), 0
        if self._owns_table:
            wanted, run_bytes = self.right.wanted(right), self.right.run_bytes(right, groups)
        waiting = np.zeros(0, np.int64)
        numbers = waiting
        passed = self.shape.times.of_watermark(tick.watermark_us)
        if isinstance(rows, VersionedRows) and epoch.left is not None:
            wanted = wanted | rows.wanted(epoch.left)
            run_bytes += rows.run_bytes(epoch.left, groups)
        elif isinstance(rows, PendingRows):
            stays = epoch.given[0].status == ch.OK
            if passed is not None:
                stays &= epoch.left_times > passed
                numbers = rows.due_rows(passed, groups)[0]
            waiting = np.flatnonzero(stays)
            wanted[groups.group_of[0][waiting]] = True
        self.keys.store(groups, wanted, run_bytes)
        if self._owns_table:
            self.right.absorb(right, groups, supersedes=self._right_deletes)
            self.right.count_arrivals(right.count)
        if isinstance(rows, VersionedRows) and epoch.left is not None:
            rows.absorb(epoch.left, groups, supersedes=False)
            epoch.counts["answered_rows"] = int((epoch.left.left > 0).sum())
        else:
            epoch.counts["answered_rows"] = int((epoch.given[0].status == ch.OK).sum()) - len(waiting) + len(numbers)
        if rows is not None:
            rows.count_arrivals(len(epoch.deltas[0]))
        if not isinstance(rows, PendingRows) or passed is None:
            if isinstance(rows, PendingRows):
                self._wait(rows, epoch, waiting)
            return numbers
        keys = rows.release(passed, numbers)
        self._wait(rows, epoch, waiting)
        epoch.counts["freed_rows"] = len(numbers)
        return keys

    def _wait(self, rows: PendingRows, epoch: VersionEpoch, waiting: _Words) -> None:
        if len(waiting):
            weights = np.ascontiguousarray(epoch.deltas[0].weights)
            rows.store(epoch.left_address, len(weights), waiting, weights, epoch.groups, epoch.groups.group_of[0])

    def _expire(self, epoch: VersionEpoch, tick: Tick, released: _Words) -> _Words:
        numbers, empty = epoch.groups.numbers, [released]
        removed = epoch.right.removed_begin[-1] or (epoch.left is not None and epoch.left.removed_begin[-1])
        if removed:
            empty.append(numbers)
        changes = len(epoch.deltas[0]) + len(epoch.deltas[1])
        for expiring in self._expiring:
            freed, keys = expiring.expire(
                numbers,
                self.horizon(tick.watermark_us),
                now=tick.processing_time_us,
                retention=self._retention_us,
                changes=changes,
            )
            name = "freed_versions" if expiring.rows is self.right else "freed_rows"
            epoch.counts[name] = epoch.counts.get(name, 0) + freed
            empty.append(keys)
        return np.concatenate(empty)

    # ---------------------------------------------------------------- the state as a whole

    @property
    def kept(self) -> list[RowStore]:
        own: list[RowStore] = [self.right] if self._owns_table else []
        return own if self.left is None else [self.left, *own]

    def forget_epoch(self) -> None:
        self._prepared = None

    def retract(
        self, rows: RowStore, batch: pa.RecordBatch, weights: _Words, arrivals: _Words, deletes: npt.NDArray[np.uint8]
    ) -> None:
        """Take rows of a snapshot back."""
        side = 1 if rows is self.right else 0
        shape = self.shape
        columns: list[list[pa.Array]] = [[], []]
        columns[side] = [batch.column(pair[side]) for pair in shape.key]
        groups = self.keys.group(columns)
        times, _ = self._time_words(batch, side)
        status = first_status(weights, is_append=False)
        if isinstance(rows, PendingRows):
            records = np.empty(batch.num_rows * rows.layout.stride, np.uint8)
            encoded = rows.layout.encode(batch, [self._probe_times(times), arrivals], records, int(records.ctypes.data))
            self.keys.store(groups, np.ones(groups.count, np.bool_), 0)
            everything = np.arange(batch.num_rows, dtype=np.int64)
            rows.store(encoded.address, batch.num_rows, everything, weights, groups, groups.group_of[0])
            return
        if not isinstance(rows, VersionedRows):
            raise AssertionError("rows that are kept wait, or are in runs")
        if side == 1:
            words = [~times if shape.is_mirrored else times]
            words += order_words(batch, shape.tie_by, [shape.tie_descending] * len(shape.tie_by))
        else:
            words = [self._probe_times(times)]
        prepared = rows.prepare(NewRows(batch, words, weights, status, deletes, arrivals), groups, side, retracts=False)
        self.keys.store(groups, rows.wanted(prepared), rows.run_bytes(prepared, groups))
        rows.absorb(prepared, groups, supersedes=False)
        for expiring in self._expiring:
            expiring.expire(groups.numbers, None, now=None, retention=0, changes=0)

    def kept_times(self, rows: RowStore, table: pa.RecordBatch | pa.Table) -> pa.Array:
        return time_values(self.shape.times, table, 1 if rows is self.right else 0)

    def labels_of(self, rows: RowStore) -> dict[Any, int]:
        words, shape = rows.first_words(), self.shape
        if rows is not self.right and shape.is_strict:
            words = words + 1
        words = ~words if shape.is_mirrored else words
        times = [time for batch in rows.snapshot_batches() for time in self.kept_times(rows, batch).to_pylist()]
        return {time: word for time, word in zip(times, words.tolist(), strict=True) if time is not None}

    def reopen(self) -> None:
        """Clear the waiting entries, after the rows were cleared."""
        for one in self._expiring:
            one.reopen()

    def resident_bytes(self) -> int:
        """Return the bytes of what waits for a time, beside the rows."""
        return sum(one.resident_bytes() for one in self._expiring)

    def working_bytes(self) -> int:
        if self._prepared is None:
            return 0
        left, right = (len(delta) for delta in self._prepared.deltas)
        return left * (self._left_layout.stride + 80) + right * (self.right.layout.stride + 80)

    def is_current(self) -> bool:
        return all(one.is_current() for one in self._expiring)

    def close(self) -> None:
        self.forget_epoch()
        for one in self._expiring:
            one.close()
