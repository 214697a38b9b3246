"""The rows of one input that end by time: what an epoch's delta is once the rows whose time has come are among those that go.

A row lives until its time: the processing time of its last write plus a duration, or its event time plus that, or as long as
its key is written or read. `resolve` reads; `absorb` writes what it found.

The law: after every epoch exactly the rows are kept that arrived, were not retracted, and whose time is after `now` of the
epoch.

Remembers every live row (`layout.stride` bytes and long strings), 13 to 26 bytes for finding it, 32 for its time; where keys
are written or read, the same per key of the last `after`.

Edge cases. A row without event time never expires. A row that retracts what is not there is counted, not refused: it cannot
be distinguished from one whose row has expired. Equal rows are copies and go together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import cast_key, take_rows
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows import side as s
from zset_join.kernels.time.runs import NEVER
from zset_join.kernels.values import keys as c
from zset_join.shapes.event_time import EventTime
from zset_join.state.rows.directories import HashTables
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.state.rows.order_words import time_words
from zset_join.state.rows.side import PreparedSide, SideRules, SideState
from zset_join.state.rows.side_changes import NetChanges, SideChanges
from zset_join.state.rows.side_snapshot import refuse_contradictions, restore_side, side_reader
from zset_join.state.time.expiries import Expiries
from zset_join.zset import ZSet

__all__ = ["COUNTERS", "ExpiringEpoch", "ExpiringRows", "TimeToLive", "ended_by", "later"]

_Words = npt.NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
COUNTERS = ("expired", "late", "already_gone")
_TIMES, _COUNTS = "_zset_expires", b"zset_join.expired"


@dataclass(frozen=True, kw_only=True)
class TimeToLive:
    after: int  # microseconds, or in the unit of an integer event time
    by_event_time: bool = False  # else by processing time
    by_key: bool = False  # the rows of a key live as long as the newest of them
    reads: bool = False  # a change of another input begins the time of the rows with its key again
    forgets: bool = False  # rows that expire are not retracted


def later(table: pa.Table, by: int) -> pa.Table:
    """Return a table of a snapshot whose rows end later, with a negative number earlier; those that never end still do not."""
    at = table.schema.get_field_index(_TIMES)
    times = table.column(at).to_numpy()
    moved = np.where(np.abs(times) >= NEVER, times, np.clip(times, -NEVER + abs(by), NEVER - abs(by)) + by)
    return table.set_column(at, table.schema.field(at), pa.array(moved, pa.int64()))


def ended_by(table: pa.Table, by: int, now: int) -> int:
    """Return how many rows of a table of a snapshot live at a time, and would not if they ended later by so much."""
    times, moved = (one.column(_TIMES).to_numpy() for one in (table, later(table, by)))
    return int(np.count_nonzero((np.abs(times) < NEVER) & (times > now) & (moved <= now)))


@dataclass(slots=True)
class _Keys:
    """Keys that an epoch writes or reads: each once, with the time up to which it lives."""

    rows: pa.RecordBatch
    times: _Words
    found: KeyedRows


@dataclass(slots=True)
class ExpiringEpoch:
    answered: ZSet  # the delta to answer
    stored: ZSet  # the delta to fold in
    changes: NetChanges | None = None
    expired: _Words = field(default_factory=lambda: _NONE)  # row numbers
    due: _Words = field(default_factory=lambda: _NONE)  # numbers of the rows that were looked at
    due_times: _Words = field(default_factory=lambda: _NONE)  # when each of them expires, as far as is known now
    keys: _Keys | None = None
    counts: tuple[int, int, int] = (0, 0, 0)  # as `COUNTERS`

    @property
    def prepared(self) -> PreparedSide | None:
        return None if self.changes is None else self.changes.prepared


class ExpiringRows:
    def __init__(
        self,
        relation: Relation,
        ttl: TimeToLive,
        *,
        key: Sequence[str],
        key_types: Sequence[pa.DataType],
        null_safe: Sequence[bool],
        name: str,
        tables: HashTables,
    ) -> None:
        self.relation, self.ttl, self.name = relation, ttl, name
        self._key, self._directory = tuple(key), tables.directory
        self._time = EventTime([relation], [str(relation.event_time)], has_watermark=True) if ttl.by_event_time else None
        self._after = ttl.after if self._time is None else self._time.of_delay(ttl.after)
        directory = tables.directory
        self._tables = tables.seeded()
        self.side = SideState(
            replace(relation, join_key=(), event_time=None, watermark_delay=None),
            key_types=[],
            null_safe=[],
            tables=self._tables,
            name=name,
            rules=SideRules(arranges=False),
        )
        self._changes = SideChanges(self.side, stores=True)
        self._expiries = Expiries(self.side, directory=directory, name=name)
        self._key_schema = pa.schema([pa.field(f"k{at}", kind) for at, kind in enumerate(key_types)])
        self._null_safe = list(null_safe)
        self._keys: KeyedRows | None = None
        if ttl.by_key or ttl.reads:
            self._keys = KeyedRows(
                f"{relation.name}.keys",
                self._key_schema,
                self._key_schema.names,
                null_safe=self._null_safe,
                tables=self._tables,
                file_name=f"{name}_keys",
            )
            self._key_expiries = Expiries(self._keys.side, directory=directory, name=f"{name}_keys")
        self.schema = self._changes.schema

    @property
    def sides(self) -> list[SideState]:
        return [self.side] if self._keys is None else [self.side, self._keys.side]

    @property
    def tables(self) -> list[str]:
        return [self.name] if self._keys is None else [self.name, f"{self.name}_keys"]

    # ---------------------------------------------------------------- reading

    def keys_of(self, rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the key of each row, in the types keys are compared in."""
        columns_of_key = [
            cast_key(rows.column(name), kind)[0] for name, kind in zip(columns, self._key_schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns_of_key, schema=self._key_schema)

    def resolve(self, tick: Tick, delta: ZSet, read: pa.RecordBatch | None) -> ExpiringEpoch:
        """Return the effect of an epoch. Cost: the rows of the delta, those that are due, and the keys that are read."""
        now, before = self._now(tick), self._before(tick)
        changes = self._changes.resolve(delta, ignores_absent=True) if len(delta) else None
        new = self._changes.rows_of(_NONE) if changes is None else changes.new
        own = self._own_times(new, tick)
        keys = self._touched(tick, new, own, read)
        new_times = self._times(new, own, keys)
        due = _NONE if now is None else self._expiries.due(now)
        due_times = self._due_times(due, keys)
        expired = _NONE if now is None else due[due_times <= now]
        copies = self.side.weights(expired) if len(expired) else _NONE
        if changes is not None and len(expired) and len(changes.touched):
            expired, copies = self._without_refreshed(expired, copies, changes)
        gone = self._changes.rows_of(self.side.refs_of(expired) if len(expired) else _NONE)
        lives = new_times > (-NEVER if now is None else now)
        is_late = new_times <= (-NEVER if before is None else before)
        lost = [] if changes is None else [ZSet(changes.lost, -changes.lost_copies)]
        new_copies = _NONE if changes is None else changes.new_copies
        stored = ZSet.concat([*lost, ZSet(gone, -copies), _chosen(new, new_copies, lives)], schema=self.schema)
        answered = stored
        if self.ttl.forgets:
            answered = ZSet.concat([*lost, _chosen(new, new_copies, ~is_late)], schema=self.schema)
        return ExpiringEpoch(
            answered,
            stored,
            changes,
            expired,
            due,
            due_times,
            keys,
            (len(expired), int(is_late.sum()), 0 if changes is None else changes.prepared.unknown_deletes),
        )

    def late_changes(self, tick: Tick, prepared: PreparedSide) -> list[dict[str, object]]:
        """Return the changes of rows that were forgotten, as lines of rejections; where rows are retracted none is lost."""
        relation, weights = self.relation, prepared.delta.weights
        if not self.ttl.forgets or relation.mode == "append":
            return []
        status, before = prepared.status[: prepared.count], self._before(tick)
        late = (status == ch.NOTHING) & (weights < 0)
        if before is not None and not self.ttl.by_key:
            late |= (status == ch.OK) & (weights > 0) & (self._own_times(prepared.delta.rows, tick) <= before)
        names = {True: ("LATE_CORRECTION", "retracts a row that state_ttl has forgotten, or that never came: its output stays"),
                 False: ("LATE_ROW", "arrived when its time and state_ttl had passed: it is not emitted")}  # fmt: skip
        return [
            {"input": relation.name, "row": at, "weight": int(weights[at])}
            | dict(zip(("code", "reason"), names[bool(weights[at] < 0)], strict=True))
            for at in np.flatnonzero(late).tolist()
        ]

    def _now(self, tick: Tick) -> int | None:
        return tick.processing_time_us if self._time is None else self._time.of_watermark(tick.watermark_us)

    def _before(self, tick: Tick) -> int | None:
        return None if self._time is None else self._time.of_watermark(tick.watermark_before_us)

    def _own_times(self, rows: pa.RecordBatch, tick: Tick) -> _Words:
        if self._time is None:
            return self._moments(rows.num_rows, tick)
        words, missing = time_words(self._time, rows, 0)
        times = np.minimum(words, NEVER - self._after) + self._after
        return times if missing is None else np.where(missing, np.int64(NEVER), times)

    def _moments(self, count: int, tick: Tick) -> _Words:
        """Return when rows expire that are written now, by processing time."""
        moment = self._read_time(tick)
        return np.full(count, NEVER if moment is None else moment, np.int64)

    def _written_times(self, numbers: _Words, tick: Tick, keys: _Keys | None) -> _Words:
        if self._time is None and self._keys is None:
            return self._moments(len(numbers), tick)
        rows = self._rows(numbers)
        return self._times(rows, self._own_times(rows, tick), keys)

    def _read_time(self, tick: Tick) -> int | None:
        now = self._now(tick)
        return None if now is None else now + self._after

    def _touched(self, tick: Tick, new: pa.RecordBatch, own: _Words, read: pa.RecordBatch | None) -> _Keys | None:
        if self._keys is None:
            return None
        rows, times = [], []
        if self.ttl.by_key and new.num_rows:
            rows.append(self.keys_of(new, self._key))
            times.append(own)
        moment = self._read_time(tick)
        if self.ttl.reads and read is not None and read.num_rows and moment is not None:
            rows.append(read)
            times.append(np.full(read.num_rows, moment, np.int64))
        if not rows:
            return None
        whole = pa.concat_batches(rows)
        distinct = ZSet(whole, np.ones(whole.num_rows, np.int64)).consolidated().rows
        keyed_rows = self._beside(distinct)
        positions, numbers = keyed_rows.find(whole)
        until = np.full(distinct.num_rows, -NEVER, np.int64)
        np.maximum.at(until, numbers - 1, np.concatenate(times)[positions])
        return _Keys(distinct, until, keyed_rows)

    def _beside(self, keys: pa.RecordBatch) -> KeyedRows:
        keyed_rows = KeyedRows(
            "keys",
            self._key_schema,
            self._key_schema.names,
            null_safe=self._null_safe,
            tables=self._tables.beside(),
        )
        keyed_rows.add(keys)
        return keyed_rows

    def _times(self, rows: pa.RecordBatch, own: _Words, keys: _Keys | None) -> _Words:
        """Return when rows expire, given their own times."""
        if self._keys is None or not rows.num_rows:
            return own
        times, requested = own.copy(), self.keys_of(rows, self._key)
        positions, numbers = self._keys.find(requested)
        np.maximum.at(times, positions, self._key_expiries.times(numbers))
        if keys is not None:
            positions, numbers = keys.found.find(requested)
            np.maximum.at(times, positions, keys.times[numbers - 1])
        return times

    def _due_times(self, due: _Words, keys: _Keys | None) -> _Words:
        if not len(due):
            return _NONE
        own = self._expiries.times(due)
        if self._keys is None:
            return own
        return self._times(self._rows(due), own, keys)

    def _without_refreshed(self, expired: _Words, copies: _Words, changes: NetChanges) -> tuple[_Words, _Words]:
        """Leave out rows that are written in this epoch, by processing time, and copies that are retracted in it."""
        order = np.argsort(changes.touched, kind="stable")
        touched = changes.touched[order]
        at = np.minimum(np.searchsorted(touched, expired), len(touched) - 1)
        is_touched = touched[at] == expired
        left = np.where(is_touched, np.minimum(copies, changes.touched_copies[order][at]), copies)
        stays = is_touched & changes.touched_gains[order][at] if self._time is None else np.zeros(len(expired), np.bool_)
        chosen = ~stays & (left > 0)
        return expired[chosen], left[chosen]

    # ---------------------------------------------------------------- writing

    def absorb(self, tick: Tick, epoch: ExpiringEpoch) -> None:
        changes, now = epoch.changes, self._now(tick)
        gone = _NONE
        if changes is not None:
            self._changes.absorb(changes, None)
            self._expiries.forget(changes.touched[changes.touched_copies == 0])
            numbers, gained = self._new_numbers(changes.prepared), changes.touched[changes.touched_gains]
            self._expiries.begin(numbers)
            gone = np.concatenate([numbers, gained])
            self._expiries.raise_to(gone, self._written_times(gone, tick, epoch.keys))
        if epoch.keys is not None:
            self._absorb_keys(epoch.keys, now)
        if now is not None:
            gone = np.unique(gone)
            gone = gone[self._due_times(gone, None) <= now]
            self._remove(np.union1d(gone, epoch.expired))
            self._expiries.settle(now, epoch.due, epoch.due_times)
            self._free_keys(now)
        for place, amount in enumerate(epoch.counts):
            self._expiries.count(place, amount)

    def _new_numbers(self, prepared: PreparedSide) -> _Words:
        numbers = prepared.numbers
        if self.relation.mode == "append":
            return np.array(numbers[: prepared.count][prepared.status[: prepared.count] == 0], np.int64)
        lines = [prepared.arrays.line(at)[: prepared.entries] for at in (s.D_FOUND, s.D_AFTER_OF, s.D_FIRST_OF)]
        before, after, first = lines
        return np.array(numbers[first[(before == 0) & (after > 0)]], np.int64)

    def _rows(self, numbers: _Words) -> pa.RecordBatch:
        return self._changes.rows_of(self.side.refs_of(numbers) if len(numbers) else _NONE)

    def _remove(self, numbers: _Words) -> None:
        if not len(numbers):
            return
        numbers = np.ascontiguousarray(numbers)
        self._expiries.forget(numbers)
        if self.relation.mode == "append":
            self.side.evict(numbers)
            return
        changes = self._changes.resolve(ZSet(self._rows(numbers), -self.side.weights(numbers)))
        self._changes.absorb(changes, None)

    def _absorb_keys(self, keys: _Keys, now: int | None) -> None:
        kept = self._keys
        assert kept is not None  # noqa: S101 - touched keys are kept keys
        positions, numbers = kept.find(keys.rows)
        self._key_expiries.raise_to(numbers, keys.times[positions])
        is_new = keys.times > (-NEVER if now is None else now)
        is_new[positions] = False
        chosen = np.flatnonzero(is_new)
        numbers = kept.add(take_rows(keys.rows, chosen))
        self._key_expiries.begin(numbers)
        self._key_expiries.raise_to(numbers, keys.times[chosen])

    def _free_keys(self, now: int) -> None:
        if self._keys is None:
            return
        due = self._key_expiries.due(now)
        times = self._key_expiries.times(due)
        gone = due[times <= now]
        self._key_expiries.forget(gone)
        self._keys.remove(gone)
        self._key_expiries.settle(now, due, times)

    # ---------------------------------------------------------------- time, snapshots, upkeep

    def first_due(self) -> int | None:
        """Return when a row may expire: a processing time, or a watermark; None when none will."""
        first = self._expiries.first()
        return first if first is None or self._time is None else self._time.as_watermark(first)

    def statistics(self) -> dict[str, int]:
        counted = zip(COUNTERS, self._expiries.counts(len(COUNTERS)), strict=True)
        rows = int(self.side.header[s.H_LIVE_ROWS])
        return {f"{self.name}_rows": rows, **{f"{self.name}_{name}": count for name, count in counted}}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the rows with their times, and where keys have times those."""
        counts = {_COUNTS: json.dumps(self._expiries.counts(len(COUNTERS))).encode()}
        readers = {self.name: _timed_reader(self.side, self._expiries, counts)}
        if self._keys is not None:
            readers[f"{self.name}_keys"] = _timed_reader(self._keys.side, self._key_expiries, {})
        return readers

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        table = _restore_timed(self.side, self._expiries, tables[self.name])
        self._expiries.set_counts(json.loads((table.schema.metadata or {}).get(_COUNTS, b"[0, 0, 0]")))
        if self._keys is not None:
            _restore_timed(self._keys.side, self._key_expiries, tables[f"{self.name}_keys"])
            header = self._keys.side.header
            refuse_contradictions(self.relation.name, int(header[s.H_LIVE_ROWS] - header[s.H_JOIN_COUNT]))

    def resident_bytes(self) -> int:
        size = self.side.resident_bytes() + self._expiries.resident_bytes()
        if self._keys is not None:
            size += self._keys.side.resident_bytes() + self._key_expiries.resident_bytes()
        return size

    def is_current(self) -> bool:
        times = [self._expiries] if self._keys is None else [self._expiries, self._key_expiries]
        return all(side.is_current() for side in self.sides) and all(one.is_current() for one in times)

    def close(self) -> None:
        self.side.close()
        self._expiries.close()
        if self._keys is not None:
            self._keys.close()
            self._key_expiries.close()


def _chosen(rows: pa.RecordBatch, copies: _Words, chosen: npt.NDArray[np.bool_]) -> ZSet:
    if chosen.all():
        return ZSet(rows, copies)
    return ZSet(take_rows(rows, np.flatnonzero(chosen)), np.ascontiguousarray(copies[chosen]))


def _timed_reader(side: SideState, expiries: Expiries, facts: Mapping[bytes, bytes]) -> pa.RecordBatchReader:
    """Return readers of the rows of a side, each with its time."""
    reader = side_reader(side)
    schema = reader.schema.append(pa.field(_TIMES, pa.int64()))
    schema = schema.with_metadata({**(reader.schema.metadata or {}), **facts})
    return pa.RecordBatchReader.from_batches(schema, _timed_batches(side, expiries, reader, schema))


def _timed_batches(
    side: SideState, expiries: Expiries, reader: pa.RecordBatchReader, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    flags: Any = side.record_words("u1", c.FLAGS, int(side.header[s.H_ROWS_END]))
    numbers = np.flatnonzero((flags & c.FLAG_LIVE) != 0).astype(np.int64) + 1  # the order of a side whose keys have one row
    begin = 0
    for batch in reader:
        times = expiries.times(numbers[begin : begin + batch.num_rows])
        begin += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(times)], schema=schema)


def _restore_timed(side: SideState, expiries: Expiries, given: pa.Table | pa.RecordBatchReader) -> pa.Table:
    table = given if isinstance(given, pa.Table) else given.read_all()
    times = table.column(_TIMES).to_numpy()
    begin = 0

    def note(prepared: PreparedSide) -> None:
        nonlocal begin
        expiries.restore(np.array(prepared.numbers[: prepared.count], np.int64), times[begin : begin + prepared.count])
        begin += prepared.count

    expiries.clear()
    restore_side(side, table, after_part=note)
    return table
