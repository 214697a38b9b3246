"""A table of upserts by primary key, for operators that need the old row of a key.

The law: what an epoch changes is read off the table before it; `absorb` writes exactly that. Sequences are settled here: of two
changes of a key the larger sequence wins, a tie the later arrival; a deleted key leaves a tombstone for a while.

Remembers per primary key the given columns; with a budget the busy rows in memory and the others on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.core.key_types import check_key_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.core.tick import Tick
from zset_join.kernels.rows.epoch import CHANGE_WORDS
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.cold.hybrid_rows import HybridRows
from zset_join.state.rows.answers import Answers
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.rejected_rows import describe_rejection, no_rejections, rejection_table
from zset_join.state.rows.side import PreparedSide, SideState
from zset_join.state.rows.side_rules import SideRules
from zset_join.state.rows.side_snapshot import restore_side, side_reader, snapshot_epoch
from zset_join.state.rows.usage import closed, make_directory
from zset_join.zset import ZSet

__all__ = ["UpsertTable"]

_REF, _BEFORE = 0, 2  # words of a change
_Refs: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


class UpsertTable:
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
        make_directory(options.directory)
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

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        (delta,) = deltas
        prepared = None
        if len(delta):
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
        """Resolve a delta; return what was found, and the addresses of the rows that go, and of those that arrive."""
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
        old_and_new = refs[goes], refs[~goes]  # a change is eight times as long
        self._prepared = (tick, delta, prepared, old_and_new)
        return prepared, old_and_new

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
