"""The first rows of every key in a given order: ROW_NUMBER() OVER (PARTITION BY keys ORDER BY ...) <= n.

The law: after every epoch the sum of all answers equals that query over the sum of the inputs. Copies of a row count as rows.

`keep="first"` shows the first rows in the given order, `keep="last"` those from its end. Equal ones are ordered by arrival, in
the direction of the last order column: ascending, the earlier arrival comes first; descending, the later one. Where the input
retracts rows, the oldest of equal copies goes, and when a shown row goes the next one shows.

Remembers of an input that only adds rows the n rows per key that are shown; of one with retractions, all rows.

Edge cases: NULL is a key like any other, and the smallest value of an order column. A row replaced by an equal one emits
nothing.

Known limits: order columns are numbers, dates, timestamps, booleans, decimals or structs of these; a NULL equals the
smallest 64-bit integer. No hybrid state: everything is in memory, or in mapped files.

Source: semantics section 15; deduplication and top-n of Flink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.time.candidates import first_rows
from zset_join.shapes.deduplicate import Keep, OrderColumn, check_dedup, first_rows_relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.directories import HashTables
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.order_words import count_order_words, order_words
from zset_join.state.rows.side_changes import no_rejections
from zset_join.state.time.key_runs import KeyGroups, KeyRuns, RowStore
from zset_join.state.time.late_rows import GivenRows, first_status, late_or_rejected_rows, raise_for_rejections
from zset_join.state.time.version_joins import TimedState
from zset_join.state.time.versioned_rows import NewRows, PreparedRows, VersionedRows
from zset_join.zset import ZSet

__all__ = ["Deduplicate"]


@dataclass(slots=True)
class _Epoch:
    """One epoch, resolved against the state before it."""

    tick: Tick
    delta: ZSet
    groups: KeyGroups
    rows: PreparedRows
    given: GivenRows


@guarded("the dedup")
class Deduplicate:
    """Keep the first rows of every key.

    >>> rates = Relation(name="rates", schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()}))
    >>> latest = Deduplicate(rates, keys=["currency"], order_by=["at"], keep="last")
    >>> first = [ZSet.of({"currency": ["EUR"], "rate": [1.1], "at": [500]})]
    >>> latest.absorb(Tick(0), first)
    >>> [chunk.to_pylist() for chunk in latest.answer(Tick(1), [ZSet.of({"currency": ["EUR"], "rate": [1.2], "at": [800]})])]
    [[(('EUR', 1.1, 500), -1)], [(('EUR', 1.2, 800), 1)]]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        keys: Sequence[str],
        order_by: Sequence[str | OrderColumn],
        keep: Keep = "first",
        n: int = 1,
        only_adds: bool = False,
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        self.keys = tuple(keys)
        self.order_by = tuple(OrderColumn.of(column) for column in order_by)
        self.keep, self.n = keep, n
        self._limit = n if only_adds or relation.mode == "append" else 0
        check_dedup(relation, self.keys, self.order_by, keep, n)
        self._columns = [column.name for column in self.order_by]
        self._descending = [column.descending != (keep == "last") for column in self.order_by]
        self.inputs: tuple[Relation, ...] = (relation,)
        self.output = first_rows_relation(relation, self.keys, self.order_by, keep, n)
        self.on_bad_input = options.on_bad_input
        self._chunk_rows = options.chunk_rows
        facts = (relation.name, relation.mode, self.keys, list(map(str, self.order_by)), keep, n)
        found_keys = KeyRuns(
            [storage_type(relation.schema.field(name).type) for name in self.keys],
            null_safe=True,
            runs=1,
            tables=HashTables.of(options),
            facts=facts,
        )
        self._rows = VersionedRows(
            relation.schema,
            found_keys,
            run=0,
            words=count_order_words(relation.schema, self._columns, relation=relation.name),
            name="rows",
            latest_first=self._descending[-1],
            facts=facts,
        )
        self._state = TimedState(found_keys, [self._rows], ["rejected"])
        self._gather = self._rows.layout.gather_plan(range(len(relation.schema)))
        self._prepared: _Epoch | None = None

    @property
    def absorbed_epoch(self) -> int:
        return self._state.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if not len(delta):
            return
        epoch = self._prepare(tick, delta)
        self._refuse(epoch)
        refs, weights = self._changes(epoch)
        order = np.concatenate([np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)])
        if self.n > 1:
            lines = list(self._lines(refs, weights, order))
            yield from ZSet.concat(lines, schema=self.output.schema).tidy_chunks(self._chunk_rows)
            return
        gone = int((weights < 0).sum())
        yield from self._lines(refs, weights, order[:gone])
        yield from self._lines(refs, weights, order[gone:])

    def _changes(self, epoch: _Epoch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        room = 3 * len(epoch.delta) + 16
        while True:
            refs, weights = np.empty(room, np.int64), np.empty(room, np.int64)
            lines = int(
                first_rows(
                    self._state.keys.view,
                    self._rows.place,
                    self._rows.view,
                    self._rows.columns.address,
                    epoch.rows.address,
                    epoch.rows.left,
                    epoch.groups.numbers,
                    epoch.groups.count,
                    epoch.rows.begin,
                    epoch.rows.order,
                    epoch.rows.removed_begin,
                    epoch.rows.removed_at,
                    epoch.rows.removed_weight,
                    self.n,
                    refs,
                    weights,
                )
            )
            if lines <= room:
                return refs[:lines], weights[:lines]
            room = lines

    def _lines(
        self, refs: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
    ) -> Iterator[ZSet]:
        for begin in range(0, len(order), self._chunk_rows):
            chosen = order[begin : begin + self._chunk_rows]
            part = np.ascontiguousarray(refs[chosen])
            columns = self._gather.gather(int(part.ctypes.data), len(part), self._rows.heap_address)
            yield ZSet(pa.RecordBatch.from_arrays(columns, schema=self.output.schema), weights[chosen])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        (delta,) = deltas
        epoch = self._prepare(tick, delta) if len(delta) else None
        if epoch is not None:
            self._refuse(epoch)
        self._state.begin()
        if epoch is not None:
            self._store(epoch.groups, epoch.rows)
            self._rows.count_arrivals(len(delta))
            self._state.count("rejected", epoch.rows.rejected)
        self._prepared = None
        self._state.end(tick.epoch)

    def _store(self, groups: KeyGroups, rows: PreparedRows) -> None:
        self._state.keys.store(groups, self._rows.wanted(rows), self._rows.run_bytes(rows, groups))
        self._rows.absorb(rows, groups, supersedes=False, limit=self._limit)
        if rows.removed_begin[-1]:
            self._state.keys.drop_empty(groups.numbers)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        (delta,) = deltas
        return late_or_rejected_rows([self._prepare(tick, delta).given]) if len(delta) else no_rejections()

    def resident_bytes(self) -> int:
        return self._state.resident_bytes() + self.working_bytes()

    def working_bytes(self) -> int:
        return 0 if self._prepared is None else self._prepared.rows.count * (self._rows.layout.stride + 80)

    def is_current(self) -> bool:
        return self._state.is_current()

    def statistics(self) -> dict[str, int]:
        return self._state.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self._state.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        self._state.restore(tables, self._retract)

    def _retract(
        self,
        rows: RowStore,
        batch: pa.RecordBatch,
        weights: npt.NDArray[np.int64],
        arrivals: npt.NDArray[np.int64],
        deletes: npt.NDArray[np.uint8],
    ) -> None:
        del deletes  # a dedup has none
        groups = self._state.keys.group([[batch.column(name) for name in self.keys]])
        words = order_words(batch, self._columns, self._descending)
        status = first_status(weights, is_append=False)
        del rows  # there is one input
        self._store(
            groups, self._rows.prepare(NewRows(batch, words, weights, status, arrivals=arrivals), groups, 0, retracts=True)
        )

    def close(self) -> None:
        self._prepared = None
        self._state.close()

    def _prepare(self, tick: Tick, delta: ZSet) -> _Epoch:
        kept = self._prepared
        if kept is not None and kept.tick == tick and kept.delta is delta:
            return kept
        relation = self.inputs[0]
        batch = conform(delta.rows, relation)
        groups = self._state.keys.group([[batch.column(name) for name in self.keys]])
        status = first_status(delta.weights, is_append=relation.mode == "append")
        words = order_words(batch, self._columns, self._descending)
        weights = np.ascontiguousarray(delta.weights)
        rows = self._rows.prepare(NewRows(batch, words, weights, status), groups, 0, retracts=True)
        self._prepared = _Epoch(tick, delta, groups, rows, GivenRows(relation, delta, self.keys, status))
        return self._prepared

    def _refuse(self, epoch: _Epoch) -> None:
        if self.on_bad_input == "error":
            raise_for_rejections([epoch.given], epoch.tick)
