"""State that ends by time: an operator whose inputs' rows are taken out of its state when their time has come.

The law. Where rows are *retracted*, the sum of all answers after every epoch is that of the operator inside over the rows
that are alive: those whose time is after the epoch's. Where rows are *forgotten*, the answers are those of the operator
inside, from whose state, at the end of the epoch in which their time comes, those rows are removed silently: their
output stays.

A row's time is that of its last write plus a duration (processing time), or its event time plus it, against the watermark.
`read` begins it again for all rows of a key when another input changes under that key. `by_key` keeps the rows of a key
together: a group lives until it is written no more.

An epoch's writes and reads come first, then what is past its time goes. Rows behind their time when they come are counted as
late: they are never emitted (where rows are retracted), or not emitted where the watermark had passed them before the epoch.

Remembers the inputs' live rows a second time, beside the state of the operator inside, and 32 bytes per row.

Known limits. Inputs are appends or changelogs; upserts are brought to a changelog before, by a table whose keys do not
expire. A write that changes nothing is not seen by what is before it, and refreshes nothing.

Source: Flink's table.exec.state.ttl and STATE_TTL hint (which only forget); semantics 9 and 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.state.rows.directories import HashTables, check_same_epoch
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side import SideState
from zset_join.state.rows.side_changes import REJECTION_SCHEMA, describe_rejection, rejection_table
from zset_join.state.time.expiring_rows import ExpiringEpoch, ExpiringRows, TimeToLive
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator, NextDue, due_of, earliest

__all__ = ["Expiring", "ExpiringInput", "TimeToLive"]

_DIRECTORY = "ttl"


@dataclass(frozen=True, kw_only=True)
class ExpiringInput:
    """Describe one input."""

    relation: Relation
    key: tuple[str, ...]
    key_types: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    ttl: TimeToLive | None  # None: rows live until they are retracted


@dataclass(slots=True)
class _Prepared:
    tick: Tick
    deltas: tuple[ZSet, ...]
    inputs: list[ExpiringEpoch]


@guarded("the operator whose rows end by time")
class Expiring:
    """Let the rows of another operator's inputs end by time."""

    def __init__(
        self,
        inside: DurableOperator,
        inputs: Sequence[ExpiringInput],
        *,
        on_bad_input: str = "error",
        directory: str | None = None,
        hash_bits: int = 32,
        hash_seed: int | None = None,
    ) -> None:
        self.inputs = tuple(one.relation for one in inputs)
        self.output = inside.output
        self.on_bad_input = on_bad_input
        self._inside, self._given = inside, tuple(inputs)
        own = None if directory is None else str(Path(directory) / _DIRECTORY)
        self._rows = [
            None
            if one.ttl is None
            else ExpiringRows(
                one.relation,
                one.ttl,
                key=one.key,
                key_types=one.key_types,
                null_safe=one.null_safe,
                name=f"ttl_{number}",
                tables=HashTables(directory=own, hash_bits=hash_bits, hash_seed=hash_seed),
            )
            for number, one in enumerate(inputs)
        ]
        self._prepared: _Prepared | None = None
        epochs = [side.absorbed_epoch for rows in self._kept for side in rows.sides]
        check_same_epoch([*epochs, inside.absorbed_epoch], directory)

    @property
    def _kept(self) -> list[ExpiringRows]:
        return [rows for rows in self._rows if rows is not None]

    # ---------------------------------------------------------------- the operator protocol

    @property
    def absorbed_epoch(self) -> int:
        return self._inside.absorbed_epoch

    def next_due(self) -> NextDue:
        firsts = [(rows.first_due(), rows.ttl.by_event_time) for rows in self._kept]
        dues = [NextDue(watermark_us=first) if by_event else NextDue(processing_time_us=first) for first, by_event in firsts]
        return earliest([*dues, due_of(self._inside)])

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        prepared = self._prepare(tick, deltas)
        self._refuse(prepared)
        yield from self._inside.answer(tick, [one.answered for one in prepared.inputs])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        prepared = self._prepare(tick, deltas)
        self._refuse(prepared)
        for side in self._sides:
            side.begin_absorb()
        self._inside.absorb(tick, [one.stored for one in prepared.inputs])
        for rows, epoch in zip(self._rows, prepared.inputs, strict=True):
            if rows is not None:
                rows.absorb(tick, epoch)
        self._prepared = None
        self._end(tick.epoch)

    @property
    def _sides(self) -> list[SideState]:
        return [side for rows in self._kept for side in rows.sides]

    def _end(self, epoch: int) -> None:
        for side in self._sides:
            side.shrink_working(None)
            side.end_absorb(epoch)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        prepared = self._prepare(tick, deltas)
        tables = [rejection_table(self.inputs, [one.prepared for one in prepared.inputs])]
        for rows, one in zip(self._rows, prepared.inputs, strict=True):
            lines = [] if rows is None or one.prepared is None else rows.late_changes(tick, one.prepared)
            tables += [pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA)] if lines else []
        plain = [
            one.answered if rows is None else ZSet.empty(one.answered.schema)
            for rows, one in zip(self._rows, prepared.inputs, strict=True)
        ]
        if any(map(len, plain)):
            tables.append(self._inside.rejections(tick, plain))
        return pa.concat_tables(tables)

    def resident_bytes(self) -> int:
        return self._inside.resident_bytes() + sum(rows.resident_bytes() for rows in self._kept)

    def working_bytes(self) -> int:
        return self._inside.working_bytes() + sum(side.working_bytes() for side in self._sides)

    def is_current(self) -> bool:
        return self._inside.is_current() and all(rows.is_current() for rows in self._kept)

    def statistics(self) -> dict[str, int]:
        counts = dict(self._inside.statistics())
        for rows in self._kept:
            counts |= rows.statistics()
        return counts

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        readers = dict(self._inside.snapshot_readers())
        for rows in self._kept:
            readers |= rows.snapshot_readers()
        return readers

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        own = {name for rows in self._kept for name in rows.tables}
        self._inside.restore({name: table for name, table in tables.items() if name not in own})
        for rows in self._kept:
            rows.restore(tables)
        self._end(self._inside.absorbed_epoch)

    def close(self) -> None:
        self._prepared = None
        self._inside.close()
        for rows in self._kept:
            rows.close()

    # ---------------------------------------------------------------- resolving an epoch

    def _prepare(self, tick: Tick, deltas: Sequence[ZSet]) -> _Prepared:
        kept = self._prepared
        if kept is not None and kept.tick == tick and all(a is b for a, b in zip(kept.deltas, deltas, strict=True)):
            return kept
        epochs = []
        for number, (rows, delta) in enumerate(zip(self._rows, deltas, strict=True)):
            if rows is None:
                epochs.append(ExpiringEpoch(delta, delta))
                continue
            epochs.append(rows.resolve(tick, delta, self._read_by_others(number, rows, deltas)))
        self._prepared = _Prepared(tick, tuple(deltas), epochs)
        return self._prepared

    def _read_by_others(self, number: int, rows: ExpiringRows, deltas: Sequence[ZSet]) -> pa.RecordBatch | None:
        """Return the keys under which other inputs change."""
        if not rows.ttl.reads:
            return None
        others = [
            rows.keys_of(delta.rows, given.key)
            for place, (given, delta) in enumerate(zip(self._given, deltas, strict=True))
            if place != number and len(delta)
        ]
        return pa.concat_batches(others) if others else None

    def _refuse(self, prepared: _Prepared) -> None:
        sides = [one.prepared for one in prepared.inputs]
        if self.on_bad_input == "error" and any(side is not None and side.rejected for side in sides):
            raise describe_rejection(self.inputs, sides, prepared.tick)
