"""From primary keys to join keys: where an upsert has to go, and where its old row has to leave.

Upserts are keyed by primary key, a join is partitioned by join key. When pk=1 moves from key A to key B, the two live in
different partitions and only a table by primary key knows A. `Route` keeps that table and turns a changelog in upsert mode into
one whose rows each carry the join key of the partition they belong to.

The law: applied in order, what comes out leaves the same rows behind as what came in; every delete carries the join key its row
had. Per primary key and epoch at most one delete and one upsert come out, the delete first; sequences are settled here, so
the join behind needs none.

Remembers per primary key: the key columns, the join key columns, the sequence, and for deleted keys a tombstone; with a budget
the busy ones in memory and the others on disk.

Source: the shuffle of a stream-stream join in Flink (upsert normalisation before the exchange).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.config import HotBudget
from zset_join.errors import OptionError, PlanError, StateError
from zset_join.kernels.epoch import CHANGE_WORDS
from zset_join.key_types import check_key_type
from zset_join.relation import Relation
from zset_join.row_conversion import conform, take_rows
from zset_join.state.hybrid_rows import HybridRows
from zset_join.state.rejected_rows import describe_rejection, no_rejections, rejection_table
from zset_join.state.side import PreparedSide, SideState
from zset_join.state.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["Route"]


class Route:
    """Send every change to the partition of its join key.

    Args:
        relation: the input, in upsert mode, with a join key.
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        tombstone_retention_seconds: how long a deleted key remembers its sequence (in processing time).
        chunk_rows: rows per chunk of an answer.
        hash_bits: below 32, force collisions; for tests.
        directory: map the state from files here; None keeps it in memory.
        default_hash_join: `memory` keeps all keys in memory; `hybrid` the busy ones, and the rest on disk.
        max_hot_keys: keys of a hybrid route in memory, tombstones among them; None for no limit.
        max_hot_bytes: bytes of a hybrid route in memory; None for no limit.
        cold_directory: where a hybrid route keeps cold keys; default: in `directory`, else among the host's temporary files.

    Raises:
        PlanError: a relation that needs no routing, or options (`OptionError`) that are not allowed.
        StateError: the directory holds something else.

    >>> schema = pa.schema({"id": pa.int64(), "k": pa.string()})
    >>> route = Route(Relation(name="r", schema=schema, join_key=("k",), primary_key=("id",), mode="upsert"))
    >>> route.absorb(Tick(0), [ZSet.of({"id": [1], "k": ["A"]}, schema=schema)])
    >>> moved = [ZSet.of({"id": [1], "k": ["B"]}, schema=schema)]
    >>> [row for chunk in route.answer(Tick(1), moved) for row in chunk.to_pylist()]
    [((1, 'A'), -1), ((1, 'B'), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        on_bad_input: str = "error",
        tombstone_retention_seconds: int = 172_800,
        chunk_rows: int = 65_536,
        hash_bits: int = 32,
        directory: str | None = None,
        default_hash_join: str = "memory",
        max_hot_keys: int | None = None,
        max_hot_bytes: int | None = None,
        cold_directory: str | None = None,
    ) -> None:
        if relation.mode != "upsert" or not relation.join_key:
            raise PlanError(
                f'relation "{relation.name}" is in {relation.mode} mode with join key {list(relation.join_key)}; only upserts '
                "by primary key with a join key need a route.",
                code="ROUTE_NOT_NEEDED",
                relation=relation.name,
            )
        if on_bad_input not in ("error", "quarantine"):
            raise OptionError(
                f'on_bad_input={on_bad_input!r} is unknown; use "error" or "quarantine".',
                code="UNKNOWN_POLICY",
                value=on_bad_input,
            )
        for column in (*relation.join_key, *relation.primary_key):
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
        budget = HotBudget.of(default_hash_join, max_hot_keys, max_hot_bytes, cold_directory)
        self.inputs: tuple[Relation, ...] = (relation,)
        nullable = pa.schema([field.with_nullable(True) for field in relation.schema])
        self.output = replace(relation, schema=nullable, sequence_by=())
        self.on_bad_input = on_bad_input
        self._chunk_rows = chunk_rows
        self._keys = tuple(dict.fromkeys((*relation.primary_key, *relation.join_key)))
        kept = tuple(dict.fromkeys((*self._keys, *relation.sequence_by)))
        stored = pa.schema([relation.schema.field(name) for name in kept])
        self._side = SideState(
            replace(relation, schema=stored, join_key=relation.primary_key),
            key_types=[relation.schema.field(name).type for name in relation.primary_key],
            null_safe=[False] * len(relation.primary_key),
            keeps_unmatchable=True,
            has_degree=False,
            tombstone_retention_us=tombstone_retention_seconds * 1_000_000,
            hash_bits=hash_bits,
            directory=directory,
            name="route",
            compared=self._keys,
            arranges=False,
            is_hybrid=budget is not None,
        )
        self._hybrid = None if budget is None else HybridRows([self._side], budget, directory, cold_directory)
        self._key_plan = self._side.layout.gather_plan(self._side.relation.field_indices(self._keys))
        self._prepared: tuple[Tick, ZSet, PreparedSide, Any] | None = None

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded into the state, -1 when there was none."""
        return self._side.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the routed changes: deletes with the join key they leave, then upserts.

        Raises:
            BadInputError: rows that break the relation's contract, with policy `error`.
        """
        (delta,) = deltas
        if len(delta) == 0:
            return
        prepared, old_refs = self._prepare(tick, delta)
        self._refuse_bad_input(prepared, tick)
        # An unchanged key is no change, but its payload passes on: `after_of` names the row that won.
        upserts = np.sort(prepared.after_of[: prepared.entries])
        upserts = upserts[upserts >= 0]
        for begin in range(0, len(old_refs), self._chunk_rows):
            self._check_current(prepared)
            refs = old_refs[begin : begin + self._chunk_rows]
            keys = self._key_plan.gather(int(refs.ctypes.data), len(refs), self._side.arena.heap_address)
            by_name = dict(zip(self._keys, keys, strict=True))
            columns = [
                by_name[field.name] if field.name in by_name else pa.nulls(len(refs), field.type)
                for field in self.output.schema
            ]
            yield ZSet(pa.RecordBatch.from_arrays(columns, schema=self.output.schema), np.full(len(refs), -1, np.int64))
        rows = conform(delta.rows, self.inputs[0])
        for begin in range(0, len(upserts), self._chunk_rows):
            taken = take_rows(rows, upserts[begin : begin + self._chunk_rows])
            yield ZSet(pa.RecordBatch.from_arrays(taken.columns, schema=self.output.schema), np.ones(taken.num_rows, np.int64))

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the delta of one epoch into the state.

        Raises:
            BadInputError: as `answer`; the state is unchanged.
            StateError: an epoch that was absorbed before.
        """
        tick.check_follows(self.absorbed_epoch)
        (delta,) = deltas
        prepared = None
        if len(delta):
            prepared, _ = self._prepare(tick, delta)
            self._refuse_bad_input(prepared, tick)
        if self._hybrid is not None:
            self._hybrid.begin_absorb()
        self._side.begin_absorb()
        self._side.absorb(prepared, tick.processing_time_us)
        self._prepared = None
        if self._hybrid is not None:
            self._hybrid.note_written([prepared])
            self._side.shrink_working(prepared)
            self._hybrid.settle(self.working_bytes())
            self._hybrid.commit(tick.epoch)
        self._side.end_absorb(tick.epoch)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rows that break the relation's contract: `input`, `row`, `weight`, `code`, `reason`."""
        (delta,) = deltas
        if len(delta) == 0:
            return no_rejections()
        return rejection_table(self.inputs, [self._prepare(tick, delta)[0]])

    def resident_bytes(self) -> int:
        """Return the bytes of memory of the table, of the index of cold keys and of the working arrays."""
        return self._side.resident_bytes() + (0 if self._hybrid is None else self._hybrid.resident_bytes())

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays alone; they follow the largest epoch, not the state."""
        return self._side.working_bytes()

    def is_current(self) -> bool:
        """Say whether the mapped files are still those of the directory, whole, so that the state need not be opened again."""
        return self._side.is_current() and (self._hybrid is None or self._hybrid.is_current())

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the keys as table `route`."""
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return what reads the table of `snapshot`, batch by batch, until the state changes."""
        cold = () if self._hybrid is None else (self._hybrid.cold_side(0).scan(), self._hybrid.cold_side(0).scan_tombstones())
        return {"route": side_reader(self._side, *cold)}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot. Cost: its rows."""
        self._prepared = None
        if self._hybrid is not None:
            self._hybrid.restore(tables)
        else:
            restore_side(self._side, tables["route"])
        self._side.end_absorb(snapshot_epoch(tables["route"]))

    def statistics(self) -> dict[str, int]:
        """Return counts: keys, tombstones and state bytes."""
        return self._side.statistics() | ({} if self._hybrid is None else self._hybrid.statistics())

    def close(self) -> None:
        """Unmap the state; the operator cannot be used afterwards."""
        self._prepared = None
        self._side.close()
        if self._hybrid is not None:
            self._hybrid.close()

    def _prepare(self, tick: Tick, delta: ZSet) -> tuple[PreparedSide, Any]:
        """Resolve a delta; return what was found, and the records of the rows that leave their join key."""
        kept = self._prepared
        if kept is not None and kept[0] == tick and kept[1] is delta:
            return kept[2], kept[3]
        self._prepared = None
        keys = ZSet(conform(delta.rows, self._side.relation), delta.weights)
        prepared = self._side.encode(keys)
        if self._hybrid is not None:
            self._hybrid.fetch([prepared])
        self._side.resolve(prepared)
        changes = np.empty((2 * len(delta), CHANGE_WORDS), np.int64)
        end = self._side.list_changes(prepared, 0, int(changes.ctypes.data))
        refs, before = changes[:end, 0], changes[:end, 2]
        old_refs = np.ascontiguousarray(refs[before == 1])
        self._prepared = (tick, delta, prepared, old_refs)
        return prepared, old_refs

    def _check_current(self, prepared: PreparedSide) -> None:
        if self._prepared is None or self._prepared[2] is not prepared:
            raise StateError(
                "an answer was read on after the next one had begun; finish reading an answer before asking for another.",
                code="ANSWER_OUTDATED",
            )

    def _refuse_bad_input(self, prepared: PreparedSide, tick: Tick) -> None:
        if prepared.rejected and self.on_bad_input == "error":
            raise describe_rejection(self.inputs, [prepared], tick)
