"""Upserts that may leave columns out, and truncates: what databases send of their tables, as a changelog of whole rows.

The law: as `Latest`, where a column that was not sent keeps the value that the row had just before, and a truncate is a
delete of every row that is present at its place in the order.

A hidden column `control` holds what a row omits: bit i for column i of the relation, 0 for nothing, `TRUNCATE` for a
truncate, of which only the sequence counts. PostgreSQL omits values that were not touched and are stored apart (TOAST).

Remembers what `Latest` does. Edge cases: changes are put in the order of their sequence, ties in the order they came; a row
that leaves a column out where no row is known is bad input (`UNAVAILABLE_VALUE`): the snapshot of the table was not read.

Cost: as `Latest`; an epoch with rows that leave something out sorts its changes again, one with a truncate reads the
state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from zset_join.changelog.encoding import group_keys
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.core.shown_values import counted
from zset_join.operators.upsert_table import Latest
from zset_join.shapes.deduplicate import TRUNCATE, without_control
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side import SideState
from zset_join.state.rows.side_changes import REJECTION_SCHEMA
from zset_join.zset import ZSet, single_batch

__all__ = ["PartialUpserts"]

_WEIGHT = "_zset_weight"
_REASON = (
    "leaves out the value of column {columns}, and no row of this key is known to take it from; read a snapshot of the "
    "table first, or let the source send whole rows (REPLICA IDENTITY FULL), which rows that get another key need"
)

_Int64s = npt.NDArray[np.int64]


class _Whole:
    """A delta without rows that leave something out."""

    def __init__(self, delta: ZSet, origins: _Int64s, unknown: _Int64s, missing: Sequence[str]) -> None:
        self.delta = delta
        self.origins = origins  # per row, the row of the delta as it came; -1: a delete by a truncate
        self.unknown = unknown  # rows of the delta as it came whose values are unknown
        self.missing = missing  # the columns they omit


@guarded("the table")
class PartialUpserts(Latest):
    """Emit the old and the new row of every key that changes, where changes may be partial.

    >>> schema = pa.schema({"id": pa.int64(), "a": pa.string(), "b": pa.string(), "left_out": pa.int64()})
    >>> rows = PartialUpserts(Relation(name="t", schema=schema, primary_key=("id",), mode="upsert"), control="left_out")
    >>> rows.absorb(Tick(0), [ZSet.of({"id": [1], "a": ["x"], "b": ["y"], "left_out": [0]}, schema=schema)])
    >>> partial = ZSet.of({"id": [1], "a": ["z"], "b": [None], "left_out": [4]}, schema=schema)
    >>> [row for chunk in rows.answer(Tick(1), [partial]) for row in chunk.to_pylist()]
    [((1, 'x', 'y'), -1), ((1, 'z', 'y'), 1)]
    """

    def __init__(
        self, relation: Relation, *, control: str, hidden: Sequence[str] = (), options: OperatorOptions = OperatorOptions()
    ) -> None:
        whole = without_control(relation, control)
        self._control = control
        self._whole: tuple[ZSet, _Whole] | None = None
        super().__init__(whole, hidden=hidden, options=options)
        self._rows = self.inputs[0]
        self.inputs = (relation,)
        names = self._side.relation.schema.names
        self._all = self._side.layout.gather_plan(self._side.relation.field_indices(names))

    @property
    @override
    def shared_sides(self) -> Sequence[SideState]:
        return ()  # they are fed other rows than the stage

    @override
    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        whole = self._completed(deltas[0])
        rejected = super().rejections(tick, [whole.delta])
        rows = whole.origins[np.asarray(rejected.column("row"), np.int64)]
        rejected = rejected.set_column(1, "row", pa.array(rows)).filter(pa.array(rows >= 0))
        weights = deltas[0].weights[whole.unknown]
        count = len(whole.unknown)
        reason = _REASON.format(columns=list(whole.missing))
        ours = {
            "input": [self.inputs[0].name] * count,
            "row": whole.unknown,
            "weight": weights,
            "code": ["UNAVAILABLE_VALUE"] * count,
            "reason": [reason] * count,
        }
        return pa.concat_tables([rejected.cast(REJECTION_SCHEMA), pa.table(ours, schema=REJECTION_SCHEMA)]).sort_by("row")

    @override
    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        yield from super().answer(tick, [self._accepted(tick, deltas[0])])

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        super().absorb(tick, [self._accepted(tick, deltas[0])])
        self._whole = None

    @override
    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._whole = None
        super().restore(tables)

    def _accepted(self, tick: Tick, delta: ZSet) -> ZSet:
        whole = self._completed(delta)
        if len(whole.unknown) and self.on_bad_input == "error":
            relation = self.inputs[0]
            row = int(whole.unknown[0])
            key = tuple(delta.rows.column(name)[row].as_py() for name in relation.primary_key)
            raise BadInputError(
                f'relation "{relation.name}": row {row} with key {key} in epoch {tick.epoch} '
                f'{_REASON.format(columns=list(whole.missing))}; or set on_bad_input="quarantine". '
                f"{counted(len(whole.unknown), 'such row')}; nothing of the epoch was applied.",
                code="UNAVAILABLE_VALUE",
                relation=relation.name,
                key=key,
                epoch=tick.epoch,
                rejected_rows=len(whole.unknown),
            )
        return whole.delta

    def _completed(self, delta: ZSet) -> _Whole:
        """Return the delta as whole rows; the same object again for the same delta and state."""
        if self._whole is not None and self._whole[0] is delta:
            return self._whole[1]
        self._whole = (delta, self._complete(delta))
        return self._whole[1]

    def _complete(self, delta: ZSet) -> _Whole:
        rows = conform(delta.rows, self.inputs[0])
        control = np.asarray(rows.column(rows.num_columns - 1).fill_null(0), np.int64)
        table = rows.select(self._rows.schema.names)
        origins = np.arange(len(delta))
        whole = ZSet(table, delta.weights)
        if (control == TRUNCATE).any():
            whole, origins, control = self._with_deletes(whole, control)
        control = np.where(whole.weights > 0, control, 0)  # a delete needs its key alone
        if not (control > 0).any():
            return _Whole(whole, origins, np.zeros(0, np.int64), ())
        filled, unknown, missing = self._filled(whole, control)
        if unknown.any():
            unknown &= ~self._are_stale(whole, np.flatnonzero(unknown))
        kept = np.flatnonzero(~unknown)
        complete = filled if len(kept) == len(filled) else ZSet(filled.rows.take(pa.array(kept)), filled.weights[kept])
        return _Whole(complete, origins[kept], np.sort(origins[unknown]), missing)

    # -- truncates ----------------------------------------------------------------------------------------------------

    def _with_deletes(self, delta: ZSet, control: _Int64s) -> tuple[ZSet, _Int64s, _Int64s]:
        """Put deletes of all rows that are present in the place of every truncate."""
        stored = self._stored_keys()
        parts, origins, controls = [], [], []
        begin = 0
        for at in [*np.flatnonzero(control == TRUNCATE).tolist(), len(delta)]:
            piece = np.arange(begin, at)
            parts.append(ZSet(delta.rows.slice(begin, at - begin), delta.weights[begin:at]))
            origins.append(piece)
            controls.append(control[begin:at])
            if at < len(delta):
                came = np.flatnonzero((control[:at] >= 0) & (delta.weights[:at] > 0))
                gone = self._deletes(stored, delta.rows.take(pa.array(came)), delta.rows.slice(at, 1))
                parts.append(gone)
                origins.append(np.full(len(gone), -1))
                controls.append(np.zeros(len(gone), np.int64))
            begin = at + 1
        whole = ZSet.concat(parts, schema=self._rows.schema)
        return whole, np.concatenate(origins), np.concatenate(controls)

    def _stored_keys(self) -> pa.Table:
        """Return the primary keys of all live rows. Cost: one pass over the state."""
        keys = list(self._rows.primary_key)
        live = [
            pa.table(batch.filter(pc.greater(batch.column(_WEIGHT), 0)).select(keys))
            for reader in self.snapshot_readers().values()
            for batch in reader
        ]
        fields = pa.schema([self._rows.schema.field(name) for name in keys])
        return pa.concat_tables([table.cast(fields) for table in live]) if live else fields.empty_table()

    def _deletes(self, stored: pa.Table, came: pa.RecordBatch, truncate: pa.RecordBatch) -> ZSet:
        keys = list(self._rows.primary_key)
        named = pa.concat_tables([stored, pa.Table.from_batches([came.select(keys)]).cast(stored.schema)])
        if not named.num_rows:
            return ZSet.empty(self._rows.schema)
        batch = single_batch(named)
        _, first = np.unique(group_keys(batch.columns), return_index=True)
        batch = batch.take(pa.array(np.sort(first)))
        columns = []
        for field in self._rows.schema:
            if field.name in keys:
                columns.append(batch.column(field.name))
            elif field.name in self._rows.sequence_by:
                columns.append(pa.repeat(truncate.column(field.name)[0], batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        nullable = pa.schema([field.with_nullable(True) for field in self._rows.schema])
        return ZSet(pa.RecordBatch.from_arrays(columns, schema=nullable), np.full(batch.num_rows, -1, np.int64))

    # -- values that were not sent --------------------------------------------------------------------------------------

    def _filled(self, delta: ZSet, control: _Int64s) -> tuple[ZSet, npt.NDArray[np.bool_], list[str]]:
        """Return the delta with every value, which rows have unknown values, and the columns of these."""
        keys = list(self._rows.primary_key)
        held = self._stored_rows(delta, control)
        together = single_batch(
            pa.concat_tables([pa.Table.from_batches([one]).cast(held.schema) for one in (held, delta.rows)])
        )
        count = held.num_rows
        groups = group_keys([together.column(name) for name in keys])
        order = self._in_order(together, groups)
        sorted_groups = groups[order]
        starts = np.flatnonzero(np.r_[True, sorted_groups[1:] != sorted_groups[:-1]])
        group_start = np.repeat(starts, np.diff(np.r_[starts, len(order)]))
        is_gone = np.r_[np.zeros(count, bool), delta.weights < 0][order]
        bits = np.r_[np.zeros(count, np.int64), control][order]
        place = np.arange(len(order))
        # A row is known from the last one before it that left nothing out, unless that was a delete.
        anchor = np.maximum.accumulate(np.where(bits == 0, place, 0))
        lost = (bits != 0) & ((anchor < group_start) | (bits[anchor] != 0) | is_gone[anchor])
        unknown = np.zeros(len(order), bool)
        unknown[order] = lost
        columns, missing = [], []
        for at, field in enumerate(self._rows.schema):
            column = together.column(at)
            left_out = (bits >> at) & 1 == 1
            if (left_out & lost).any():
                missing.append(field.name)
            if left_out.any():
                last = np.maximum.accumulate(np.where(left_out, 0, place))
                sources = np.empty(len(order), np.int64)
                sources[order] = np.where(left_out & ~lost, order[last], order)
                columns.append(column.take(pa.array(sources[count:])))
            else:
                columns.append(column.slice(count))
        rows = pa.RecordBatch.from_arrays(columns, schema=held.schema)
        return ZSet(rows, delta.weights), unknown[count:], missing

    def _in_order(self, rows: pa.RecordBatch, groups: _Int64s) -> _Int64s:
        """Return the rows by key, and those of a key by sequence and arrival."""
        names = [f"s{at}" for at in range(len(self._rows.sequence_by))]
        given = [rows.column(name) for name in self._rows.sequence_by]
        table = pa.table([pa.array(groups), *given, pa.array(np.arange(len(groups)))], names=["group", *names, "at"])
        return np.asarray(pc.sort_indices(table, [(name, "ascending") for name in ["group", *names, "at"]]), np.int64)

    def _stored_rows(self, delta: ZSet, control: _Int64s) -> pa.RecordBatch:
        """Return the live rows of the keys that leave something out: as the rows that deletes of them would take away."""
        requested = np.flatnonzero(control > 0)
        newest = self._newest(delta, requested)
        rows = ZSet(delta.rows.take(pa.array(newest)), np.full(len(newest), -1, np.int64))
        self._prepared = None
        _, (old, _, _) = self._prepare(Tick(self.absorbed_epoch + 1), rows)
        columns = self._all.gather(int(old.ctypes.data), len(old), self._side.arena.heap_address)
        self._prepared = None
        nullable = pa.schema([field.with_nullable(True) for field in self._side.relation.schema])
        return pa.RecordBatch.from_arrays(columns, schema=nullable).select(self._rows.schema.names)

    def _are_stale(self, delta: ZSet, requested: _Int64s) -> npt.NDArray[np.bool_]:
        """Return which of some rows of a delta are older than what the state has of their key, and so change nothing."""
        stale = np.zeros(len(delta), bool)
        groups = group_keys([delta.rows.column(name) for name in self._rows.primary_key])
        left = np.asarray(requested, np.int64)
        while len(left):
            newest = self._newest_among(delta, groups, left)
            rows = ZSet(delta.rows.take(pa.array(newest)), np.ones(len(newest), np.int64))
            self._prepared = None
            prepared, _ = self._prepare(Tick(self.absorbed_epoch + 1), rows)
            first, last = (np.array(one[: prepared.entries], np.int64) for one in (prepared.first_of, prepared.last_of))
            self._prepared = None
            is_old = np.isin(left, left[np.isin(groups[left], groups[newest[first[last < 0]]])])
            stale[left[is_old]] = True  # where the newest one is old, the others are
            left = left[~is_old & ~np.isin(left, newest)]
        return stale

    def _newest_among(self, delta: ZSet, groups: _Int64s, rows: _Int64s) -> _Int64s:
        """Return, of some rows, the one with the largest sequence per key."""
        order = rows[self._in_order(delta.rows.take(pa.array(rows)), groups[rows])]
        return order[np.r_[groups[order][1:] != groups[order][:-1], True]]

    def _newest(self, delta: ZSet, requested: _Int64s) -> _Int64s:
        """Return, per key of the rows requested, the change of it with the largest sequence."""
        rows = delta.rows
        groups = group_keys([rows.column(name) for name in self._rows.primary_key])
        wanted = np.isin(groups, groups[requested])
        order = self._in_order(rows, groups)
        order = order[wanted[order]]
        is_last = np.r_[groups[order][1:] != groups[order][:-1], True]
        return order[is_last]
