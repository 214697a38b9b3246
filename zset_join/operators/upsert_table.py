"""Tables of upserts by primary key: `Latest` turns upserts into a changelog, `Route` sends them where their join key belongs.

The law: what an epoch changes is read off the table before it; `absorb` writes exactly that. Sequences are settled here: of two
changes of a key the larger sequence wins, a tie the later arrival; a deleted key leaves a tombstone for a while.

`Latest`: after every epoch the sum of all answers holds the live row of every primary key, once. A row that is replaced by an
equal one emits nothing, however its sequence moved. Of several changes of a key in one epoch only the first row before and the
last one after are emitted. A delete of an unknown key is counted and emits nothing. Columns that only order changes are hidden.

`Route`: upserts are keyed by primary key, a join is partitioned by join key. When pk=1 moves from key A to key B, the two live
in different partitions and only a table by primary key has A. Applied in order, the output leaves the same rows behind as the
input; every delete carries the join key its row had, and the sequence of the change that ended it: what is behind the route
settles sequences as if there were none. Per primary key and epoch at most one delete and one upsert come out, the delete first.

Remembers per primary key the given columns (of a route the keys alone), the sequence, and for deleted keys a tombstone; with a
budget the busy rows in memory and the others on disk.

Source: Flink's upsert normalisation (ChangelogNormalize), and its shuffle of a stream-stream join.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.errors import PlanError, StateError
from zset_join.core.key_types import check_key_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.kernels.rows.side import CHANGE_WORDS, D_FOUND
from zset_join.shapes.deduplicate import latest_rows
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.cold.hybrid_rows import HybridRows
from zset_join.state.rows.directories import HashTables, closed
from zset_join.state.rows.guarded import Answers, guarded
from zset_join.state.rows.side import PreparedSide, SideRules, SideState
from zset_join.state.rows.side_changes import describe_rejection, no_rejections, rejection_table
from zset_join.state.rows.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.zset import ZSet

__all__ = ["Latest", "Route", "UpsertTable"]

_REF, _NUMBER, _BEFORE = 0, 1, 2  # words of a change
_LISTED_ROWS = 1 << 16
_Refs: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class UpsertTable(ABC):
    """Base of operators over one input in upsert mode."""

    def __init__(
        self,
        relation: Relation,
        output: Relation,
        *,
        table: str,
        kept: Sequence[str],
        compared: Sequence[str],
        options: OperatorOptions,
    ) -> None:
        for column in (*relation.join_key, *relation.primary_key):
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
        self.inputs: tuple[Relation, ...] = (relation,)
        self.output = output
        self.on_bad_input = options.on_bad_input
        self._table = table
        self._chunk_rows = options.chunk_rows
        self._is_closed = False
        self._side = SideState(
            replace(
                relation,
                schema=pa.schema([relation.schema.field(name) for name in kept]),
                join_key=relation.primary_key,
                event_time=None,
                watermark_delay=None,
            ),
            key_types=[relation.schema.field(name).type for name in relation.primary_key],
            null_safe=[False] * len(relation.primary_key),
            tables=HashTables.of(options),
            name=table,
            rules=SideRules(
                tombstone_retention_us=options.tombstone_retention_us,
                compared=compared,
                arranges=False,
                is_hybrid=options.budget is not None,
            ),
        )
        self._hybrid = None if options.budget is None else HybridRows([self._side], options.budget, options.directory)
        self._prepared: tuple[Tick, ZSet, PreparedSide, _Refs] | None = None
        self._answers = Answers()

    @property
    def absorbed_epoch(self) -> int:
        if self._is_closed:
            raise closed("the table")
        return self._side.absorbed_epoch

    @property
    def shared_sides(self) -> Sequence[SideState]:
        """Return the sides that may hold their rows with others; see `zset_join.state.rows.side`."""
        return [self._side]

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._answers.guarded(self._answer(tick, deltas))

    @abstractmethod
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]: ...

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        (delta,) = deltas
        prepared = None
        if len(delta) and not self._side.follows:
            prepared, _ = self._prepare(tick, delta)
            self._refuse_bad_input(prepared, tick)
        self._answers.outdate()
        if self._hybrid is not None:
            self._hybrid.begin_absorb()
        self._side.begin_absorb()
        self._side.absorb(prepared, tick.processing_time_us)
        self._prepared = None
        if self._hybrid is not None:
            self._hybrid.note_written([prepared])
            self._side.shrink_working(prepared)
            self._hybrid.spill_to_budget(self.working_bytes())
            self._hybrid.commit(tick.epoch)
        else:
            self._side.shrink_working(prepared)
        self._side.end_absorb(tick.epoch)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        (delta,) = deltas
        if len(delta) == 0:
            return no_rejections()
        return rejection_table(self.inputs, [self._prepare(tick, delta)[0]])

    def resident_bytes(self) -> int:
        return self._side.resident_bytes() + (0 if self._hybrid is None else self._hybrid.resident_bytes())

    def working_bytes(self) -> int:
        return self._side.working_bytes()

    def is_current(self) -> bool:
        return self._side.is_current() and (self._hybrid is None or self._hybrid.is_current())

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        cold = () if self._hybrid is None else (self._hybrid.cold_side(0).scan(), self._hybrid.cold_side(0).scan_tombstones())
        return {self._table: side_reader(self._side, *cold)}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._prepared = None
        self._answers.outdate()
        if self._hybrid is not None:
            self._hybrid.restore(tables)
        else:
            restore_side(self._side, tables[self._table])
        self._side.end_absorb(snapshot_epoch(tables[self._table]))

    def statistics(self) -> dict[str, int]:
        return self._side.statistics() | ({} if self._hybrid is None else self._hybrid.statistics())

    def close(self) -> None:
        self._is_closed = True
        self._prepared = None
        self._answers.outdate()
        self._side.close()
        if self._hybrid is not None:
            self._hybrid.close()

    def _prepare(self, tick: Tick, delta: ZSet) -> tuple[PreparedSide, _Refs]:
        """Resolve a delta; return what was found, and the rows that go and arrive by address, and those that go by number."""
        if self._is_closed:
            raise closed("the table")
        kept = self._prepared
        if kept is not None and kept[0] == tick and kept[1] is delta:
            return kept[2], kept[3]
        self._prepared = None
        rows = ZSet(conform(delta.rows, self._side.relation), delta.weights)
        prepared = self._side.encode(rows)
        if self._hybrid is not None:
            self._hybrid.fetch([prepared])
        self._side.resolve(prepared)
        changes = np.empty((2 * len(delta), CHANGE_WORDS), np.int64)
        changes = changes[: self._side.list_changes(prepared, 0, int(changes.ctypes.data))]
        goes = changes[:, _BEFORE] == 1
        refs = changes[:, _REF]
        changed = refs[goes], refs[~goes], changes[goes, _NUMBER]  # a change is eight times as long
        self._prepared = (tick, delta, prepared, changed)
        return prepared, changed

    def _in_chunks(self, prepared: PreparedSide, refs: npt.NDArray[np.int64], plan: Any) -> Iterator[list[pa.Array]]:
        """Yield the columns of some row records, in chunks."""
        for begin in range(0, len(refs), self._chunk_rows):
            self._check_current(prepared)
            chunk = refs[begin : begin + self._chunk_rows]
            yield plan.gather(int(chunk.ctypes.data), len(chunk), self._side.arena.heap_address)

    def _check_current(self, prepared: PreparedSide) -> None:
        if self._prepared is None or self._prepared[2] is not prepared:
            raise StateError(
                "an answer was read on after the next one had begun; finish reading an answer before requesting another.",
                code="ANSWER_OUTDATED",
            )

    def _refuse_bad_input(self, prepared: PreparedSide, tick: Tick) -> None:
        if prepared.rejected and self.on_bad_input == "error":
            raise describe_rejection(self.inputs, [prepared], tick)


@guarded("the table")
class Latest(UpsertTable):
    """Emit the old and the new row of every key that changes.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> latest = Latest(Relation(name="customers", schema=schema, primary_key=("id",), mode="upsert"))
    >>> latest.absorb(Tick(0), [ZSet.of({"id": [1], "name": ["Ada"]}, schema=schema)])
    >>> renamed = [ZSet.of({"id": [1], "name": ["Ada L."]}, schema=schema)]
    >>> [row for chunk in latest.answer(Tick(1), renamed) for row in chunk.to_pylist()]
    [((1, 'Ada'), -1), ((1, 'Ada L.'), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        hidden: Collection[str] = (),
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        output = latest_rows(relation, hidden)
        shown = output.schema.names
        super().__init__(
            relation,
            output,
            table="latest",
            kept=relation.schema.names,
            compared=shown,
            options=options,
        )
        self._plan = self._side.layout.gather_plan(self._side.relation.field_indices(shown))

    @override
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta) == 0:
            return
        prepared, (old, new, _) = self._prepare(tick, delta)
        self._refuse_bad_input(prepared, tick)
        for refs, weight in ((old, -1), (new, 1)):
            for columns in self._in_chunks(prepared, refs, self._plan):
                rows = pa.RecordBatch.from_arrays(columns, schema=self.output.schema)
                yield ZSet(rows, np.full(rows.num_rows, weight, np.int64))

    @property
    def lists_answer(self) -> bool:
        return self._hybrid is None

    def listed(self, columns: Collection[str] | None = None) -> Iterator[ZSet]:
        if self._is_closed:
            raise closed("the table")
        return self._answers.guarded(self._list(columns))

    def _list(self, columns: Collection[str] | None) -> Iterator[ZSet]:
        schema = pa.schema([field for field in self.output.schema if columns is None or field.name in columns])
        plan = self._side.layout.gather_plan(self._side.relation.field_indices(schema.names))
        live, _ = self._side.live_refs()
        for begin in range(0, len(live), _LISTED_ROWS):
            refs = np.ascontiguousarray(live[begin : begin + _LISTED_ROWS])
            arrays = plan.gather(int(refs.ctypes.data), len(refs), self._side.arena.heap_address)
            yield ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), np.ones(len(refs), np.int64))


@guarded("the route")
class Route(UpsertTable):
    """Send every change to the partition of its join key.

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
        options: OperatorOptions = OperatorOptions(),
    ) -> None:
        if relation.mode != "upsert" or not relation.join_key:
            raise PlanError(
                f'relation "{relation.name}" is in {relation.mode} mode with join key {list(relation.join_key)}; only upserts '
                "by primary key with a join key need a route.",
                code="ROUTE_NOT_NEEDED",
                relation=relation.name,
            )
        nullable = pa.schema([field.with_nullable(True) for field in relation.schema])
        self._keys = tuple(dict.fromkeys((*relation.primary_key, *relation.join_key)))
        super().__init__(
            relation,
            replace(relation, schema=nullable),
            table="route",
            kept=tuple(dict.fromkeys((*self._keys, *relation.sequence_by))),
            compared=self._keys,
            options=options,
        )
        self._sequence = [name for name in relation.sequence_by if name not in self._keys]
        self._key_plan = self._side.layout.gather_plan(self._side.relation.field_indices(self._keys))

    @override
    def _answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        (delta,) = deltas
        if len(delta) == 0:
            return
        prepared, (old, _, numbers) = self._prepare(tick, delta)
        self._refuse_bad_input(prepared, tick)
        schema, rows = self.output.schema, conform(delta.rows, self.inputs[0])
        deciding = prepared.last_of[: prepared.entries]
        # Rows that go are listed in the order of their keys, each of which was found once.
        found = prepared.arrays.line(D_FOUND)[: prepared.entries]
        ending = deciding[np.isin(found, numbers)] if self._sequence else numbers
        begin = 0
        for keys in self._in_chunks(prepared, old, self._key_plan):
            by_name = dict(zip(self._keys, keys, strict=True))
            count = len(keys[0])
            ended = take_rows(rows.select(self._sequence), ending[begin : begin + count])
            by_name |= dict(zip(self._sequence, ended.columns, strict=True))
            columns = [by_name[field.name] if field.name in by_name else pa.nulls(count, field.type) for field in schema]
            yield ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), np.full(count, -1, np.int64))
            begin += count
        # An unchanged key is no change, but its payload passes on: `after_of` names the row that won.
        upserts = np.sort(prepared.after_of[: prepared.entries])
        upserts = upserts[upserts >= 0]
        for begin in range(0, len(upserts), self._chunk_rows):
            taken = take_rows(rows, upserts[begin : begin + self._chunk_rows])
            yield ZSet(pa.RecordBatch.from_arrays(taken.columns, schema=schema), np.ones(taken.num_rows, np.int64))
