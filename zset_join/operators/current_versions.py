"""The version of every key that holds now: of a versioned table, the newest one at or before the processing time.

The law: after every epoch the sum of all answers has, per key, the newest version whose time is at or before the epoch's
processing time, or nothing where that one is a DELETE. Of several at one time the larger sequence, then the later arrival wins.

It is before a join by processing time whose right side is versioned (semantics 12). A version of the future waits, and is
emitted in the first epoch whose processing time has reached it, even without input.

The epoch in which a version comes is not part of the answer: versions of one time that become due together take the order in
which they arrived, and precede what arrives in the epoch in which they become due.

Remembers per key the version that holds, a DELETE too, for good; of versions that may be retracted (changelog mode) all.
Beside them every version of the future with its arrival, 8 bytes, and 32 bytes for its time; in changelog mode its net rows
again, against which retractions are checked.

Edge cases. A version older than the one that holds emits nothing. In upsert mode weight -1 is a DELETE at its own time; in
changelog mode it retracts a version. NULL in the time or in the key is bad input. A timestamp without zone and a date are
UTC.

Known limits. Only timestamps and dates are moments that a clock could reach: of any other type the newest version holds. No
hybrid state.

Source: semantics section 12.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.kernels.rows import changes as ch
from zset_join.operators.deduplicate import Deduplicate
from zset_join.shapes.deduplicate import current_relation
from zset_join.shapes.event_time import EventTime, has_clock, time_column
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import HashTables, check_same_epoch
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.order_words import time_words
from zset_join.state.rows.side import SideState
from zset_join.state.rows.side_snapshot import refuse_contradictions, repeated_rows
from zset_join.state.time.expiring_rows import ExpiringEpoch, ExpiringRows, TimeToLive
from zset_join.state.time.late_rows import (
    NULL_KEY,
    NULL_TIME,
    GivenRows,
    first_status,
    late_or_rejected_rows,
    raise_for_rejections,
)
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import NOTHING_DUE, NextDue

__all__ = ["GONE", "HELD", "HELD_NET", "CurrentVersions"]

GONE, HELD, HELD_NET = "__gone", "held", "held_net"
_ARRIVED, _CHANGE = "__arrived", "__change"
_EPOCH_BITS = 32  # an arrival is the epoch, and in its lower bits the position within the delta


@dataclass(slots=True)
class _Prepared:
    tick: Tick
    delta: ZSet
    given: GivenRows
    fed: ZSet
    held: ExpiringEpoch | None
    net: ExpiringEpoch | None


@guarded("the table of current versions")
class CurrentVersions:
    """Keep the version of every key that holds now.

    >>> schema = pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us")})
    >>> rates = Relation(name="rates", schema=schema, primary_key=("currency",), mode="upsert", event_time="at")
    >>> current = CurrentVersions(rates, key=["currency"])
    >>> first = [ZSet.of({"currency": ["EUR", "EUR"], "rate": [1.1, 1.2], "at": [5, 9]}, schema=rates.schema)]
    >>> [row[:2] for chunk in current.answer(Tick(0, processing_time_us=7), first) for row, _ in chunk.to_pylist()]
    [('EUR', 1.1)]
    >>> current.absorb(Tick(0, processing_time_us=7), first)
    >>> current.next_due()
    NextDue(watermark_us=None, processing_time_us=9)
    """

    def __init__(
        self,
        versions: Relation,
        *,
        key: Sequence[str],
        delete_column: str | None = None,
        hidden: Sequence[str] = (),
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        self.key, self.on_bad_input = tuple(key), options.on_bad_input
        self.inputs: tuple[Relation, ...] = (versions,)
        self.output = current_relation(versions, key, delete_column, hidden)
        self._is_upsert = versions.mode == "upsert"
        self._gone = GONE if self._is_upsert else delete_column
        time = time_column(versions, role="versioned side")
        fields = [field.with_nullable(True) for field in versions.schema]
        self._schema = pa.schema([*fields, pa.field(GONE, pa.bool_())] if self._is_upsert else fields)
        kept = Relation(
            name=versions.name,
            schema=self._schema,
            mode="changelog" if versions.mode == "changelog" else "append",
            event_time=time,
            watermark_delay=0,
        )
        self._times = EventTime([versions], [time])
        self._held: ExpiringRows | None = None
        self._net: ExpiringRows | None = None
        tables = HashTables.of(options)
        if has_clock(self._times.kind):
            numbers = [pa.field(_CHANGE, pa.int64()), pa.field(_ARRIVED, pa.int64())]
            arrivals = replace(kept, schema=pa.schema([*self._schema, *numbers]), mode="append")
            self._held = _rows_of_the_future(arrivals, HELD, tables)
            self._net = _rows_of_the_future(kept, HELD_NET, tables) if versions.mode == "changelog" else None
        self._shown = Deduplicate(
            replace(kept, event_time=None, watermark_delay=None),
            keys=self.key,
            order_by=[f"{name} desc" for name in dict.fromkeys((time, *versions.sequence_by))],
            options=replace(options, on_bad_input="quarantine"),
        )
        self._prepared: _Prepared | None = None
        check_same_epoch([*(side.absorbed_epoch for side in self._sides), self.absorbed_epoch], options.directory)

    @property
    def _sides(self) -> list[SideState]:
        return [side for rows in self._future for side in rows.sides]

    @property
    def _future(self) -> list[ExpiringRows]:
        return [rows for rows in (self._held, self._net) if rows is not None]

    @property
    def absorbed_epoch(self) -> int:
        return self._shown.absorbed_epoch

    def next_due(self) -> NextDue:
        first = None if self._held is None else self._held.first_due()
        return NOTHING_DUE if first is None else NextDue(processing_time_us=first)

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        prepared = self._prepare(tick, deltas)
        for chunk in self._shown.answer(tick, [prepared.fed]):
            holds = self._without_gone(chunk)
            if len(holds):
                yield holds

    def _without_gone(self, chunk: ZSet) -> ZSet:
        rows, weights = chunk.rows, chunk.weights
        if self._gone is not None:
            stays = np.flatnonzero(~pc.fill_null(rows.column(self._gone), False).to_numpy(zero_copy_only=False))
            if len(stays) < rows.num_rows:
                rows, weights = take_rows(rows, stays), np.ascontiguousarray(weights[stays])
        columns = [rows.column(name) for name in self.output.schema.names]
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=self.output.schema), weights)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        prepared = self._prepare(tick, deltas)
        for side in self._sides:
            side.begin_absorb()
        for rows, found in ((self._held, prepared.held), (self._net, prepared.net)):
            if rows is not None and found is not None:
                rows.absorb(_by_clock(tick), found)
        self._shown.absorb(tick, [prepared.fed])
        self._prepared = None
        self._end(tick.epoch)

    def _end(self, epoch: int) -> None:
        for side in self._sides:
            side.shrink_working(None)
            side.end_absorb(epoch)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return late_or_rejected_rows([self._resolve(tick, deltas).given])

    def resident_bytes(self) -> int:
        return self._shown.resident_bytes() + sum(rows.resident_bytes() for rows in self._future)

    def working_bytes(self) -> int:
        return self._shown.working_bytes() + sum(side.working_bytes() for side in self._sides)

    def is_current(self) -> bool:
        return self._shown.is_current() and all(rows.is_current() for rows in self._future)

    def statistics(self) -> dict[str, int]:
        held = {} if self._held is None else {"held_rows": self._held.statistics()[f"{HELD}_rows"]}
        return {**self._shown.statistics(), **held}

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        readers = dict(self._shown.snapshot_readers())
        for rows in self._future:
            readers |= rows.snapshot_readers()
        return readers

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        if isinstance(held := tables.get(HELD), pa.RecordBatchReader):
            tables = {**tables, HELD: held.read_all()}
        self._shown.restore({name: table for name, table in tables.items() if name not in (HELD, HELD_NET)})
        for rows in self._future:
            rows.restore(tables)
        if self._held is not None:
            refuse_contradictions(self.inputs[0].name, repeated_rows(single_batch(tables[HELD]), _ARRIVED))
        self._end(self._shown.absorbed_epoch)

    def close(self) -> None:
        self._prepared = None
        self._shown.close()
        for rows in self._future:
            rows.close()

    # ---------------------------------------------------------------- resolving an epoch

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        prepared = self._resolve(tick, deltas)
        if self.on_bad_input == "error":
            raise_for_rejections([prepared.given], tick)
        return prepared

    def _resolve(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        (delta,) = deltas
        kept = self._prepared
        if kept is not None and kept.tick == tick and kept.delta is delta:
            return kept
        versions = self.inputs[0]
        batch = conform(delta.rows, versions)
        status = first_status(delta.weights, is_append=versions.mode == "append")
        words, missing = time_words(self._times, batch, 0)
        if missing is not None:
            status[(status <= ch.LAST_HARMLESS) & missing] = NULL_TIME
        for name in self.key:
            column = batch.column(name)
            if column.null_count:
                status[(status <= ch.LAST_HARMLESS) & column.is_null().to_numpy(zero_copy_only=False)] = NULL_KEY
        rows, weights = batch, np.ascontiguousarray(delta.weights)
        if self._is_upsert:
            rows = pa.RecordBatch.from_arrays([*batch.columns, pa.array(weights < 0)], schema=self._schema)
            weights = np.abs(weights)
        elif not rows.schema.equals(self._schema):
            rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        now = None if self._held is None else self._times.of_watermark(tick.processing_time_us)
        is_taken = status == ch.OK
        is_future = is_taken & (words > now) if now is not None else np.zeros(len(words), np.bool_)
        passing = np.flatnonzero(is_taken & ~is_future)
        begun, held, net = ZSet.empty(self._schema), None, None
        if self._held is not None:
            waiting = np.flatnonzero(is_future)
            if self._net is not None:
                future = ZSet(take_rows(rows, waiting), np.ascontiguousarray(weights[waiting]))
                net = self._net.resolve(_by_clock(tick), future, None)
                # A version that arrives and is not stored was never there; one taken out without having ended begins to hold.
                absent = ZSet.concat([future, -net.stored], schema=self._schema).consolidated()
                _mark_absent(status, future, waiting, take_rows(absent.rows, np.flatnonzero(absent.weights < 0)))
                waiting = waiting[status[waiting] == ch.OK]
            held = self._held.resolve(_by_clock(tick), self._arriving(rows, weights, waiting, tick), None)
            begun = self._begun(held.stored)
        fed = ZSet.concat([begun, ZSet(take_rows(rows, passing), np.ascontiguousarray(weights[passing]))], schema=self._schema)
        if versions.mode == "changelog" and len(fed):
            absent_rows = self._shown.rejections(tick, [fed]).column("row").to_numpy() - len(begun)
            status[passing[absent_rows[absent_rows >= 0]]] = ch.ABSENT_ROW
        self._prepared = _Prepared(tick, delta, GivenRows(versions, delta, self.key, status), fed, held, net)
        return self._prepared

    def _arriving(
        self, rows: pa.RecordBatch, weights: npt.NDArray[np.int64], waiting: npt.NDArray[np.int64], tick: Tick
    ) -> ZSet:
        """Return changes of the future as rows that are only added, each with its weight and its arrival."""
        assert self._held is not None  # noqa: S101  # its caller has checked
        arrived = (tick.epoch << _EPOCH_BITS) + waiting
        columns = [*take_rows(rows, waiting).columns, pa.array(weights[waiting]), pa.array(arrived, pa.int64())]
        schema = self._held.relation.schema
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), np.ones(len(waiting), np.int64))

    def _begun(self, stored: ZSet) -> ZSet:
        """Return the changes that leave the future, in order of arrival."""
        leaving = np.flatnonzero(stored.weights < 0)
        if not len(leaving):
            return ZSet.empty(self._schema)
        rows = take_rows(stored.rows, leaving)
        order = np.argsort(rows.column(_ARRIVED).to_numpy(), kind="stable")
        rows = take_rows(rows, order)
        columns = [rows.column(name) for name in self._schema.names]
        weights = np.ascontiguousarray(rows.column(_CHANGE).to_numpy())
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=self._schema), weights)


def _rows_of_the_future(relation: Relation, name: str, tables: HashTables) -> ExpiringRows:
    to_live = TimeToLive(after=0, by_event_time=True)
    return ExpiringRows(relation, to_live, key=(), key_types=(), null_safe=(), name=name, tables=tables)


def _by_clock(tick: Tick) -> Tick:
    """Return the moment as what holds rows of the future sees it: its watermark is the clock."""
    return Tick(tick.epoch, watermark_us=tick.processing_time_us)


def _mark_absent(status: npt.NDArray[np.uint8], future: ZSet, waiting: npt.NDArray[np.int64], absent: pa.RecordBatch) -> None:
    """Mark retractions of versions of the future that were never there; only bad input comes here."""
    rows = {tuple(row.values()) for row in absent.to_pylist()}
    for position, row, weight in zip(waiting.tolist(), future.rows.to_pylist(), future.weights.tolist(), strict=True):
        if weight < 0 and tuple(row.values()) in rows:
            status[position] = ch.ABSENT_ROW
