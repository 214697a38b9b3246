"""One copy of a table, and the joins that look up in it: an index.

    inputs: the table, then the left rows of every join; each join answers for itself, through `readers`

The law: sharing is invisible. Every reader answers, epoch by epoch, what it would with a copy of its own; what the readers
remember of their left rows is theirs.

An epoch is answered by the readers, in their order, and then folded in once, for all of them. The rows of an epoch are in one
log and one snapshot, whose tables are `right`, and per reader `left`, `left_1`, ...

The table itself emits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side_changes import no_rejections
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator, NextDue, corrections_of, due_of, earliest

__all__ = ["SharedState", "SharedTable", "TableReader"]


class SharedState(Protocol):
    """State shared by the readers."""

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded in."""

    def absorb(self, tick: Tick, deltas: Sequence[Sequence[ZSet]]) -> None:
        """Fold one epoch in, given of every reader its left and its right delta."""

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of a snapshot."""

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot."""

    def statistics(self) -> dict[str, int]:
        """Return counts for users."""

    def resident_bytes(self) -> int:
        """Return the bytes of memory."""

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays."""

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, whole."""

    def close(self) -> None:
        """Unmap the state."""


@guarded("the join")
class TableReader:
    """One join over a shared table: it answers; the table folds its rows in."""

    def __init__(self, join: DurableOperator, table: SharedState, inputs: Sequence[Relation]) -> None:
        self._join, self._table = join, table
        self.inputs: tuple[Relation, ...] = tuple(inputs)
        self.output = join.output

    @property
    def absorbed_epoch(self) -> int:
        return self._table.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        return self._join.answer(tick, self._named(deltas))

    def corrections(self) -> int | None:
        """Return how many earlier answers the last one retracted because a row of the table came, changed or went."""
        return corrections_of(self._join)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        # Answers that were requested are outdated.
        pass

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return self._join.rejections(tick, self._named(deltas))

    def _named(self, deltas: Sequence[ZSet]) -> tuple[ZSet, ZSet]:
        left, table = deltas
        return left, table.with_schema(self._join.inputs[1].schema)

    def next_due(self) -> NextDue:
        return due_of(self._join)

    def statistics(self) -> dict[str, int]:
        return self._table.statistics()

    def resident_bytes(self) -> int:
        return self._table.resident_bytes()

    def working_bytes(self) -> int:
        return self._table.working_bytes()

    def is_current(self) -> bool:
        return self._table.is_current()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        # Answers that were requested are outdated.
        pass

    def close(self) -> None:
        # The table unmaps the state.
        pass


@guarded("the shared table")
class SharedTable:
    """Fold epochs into a table and what its readers remember."""

    def __init__(
        self, joins: Sequence[DurableOperator], state: SharedState, inputs: Sequence[Sequence[Relation]] | None = None
    ) -> None:
        self._state = state
        given = [join.inputs for join in joins] if inputs is None else inputs
        self.readers = tuple(TableReader(join, state, fed) for join, fed in zip(joins, given, strict=True))
        table = joins[0].inputs[1]
        self.inputs: tuple[Relation, ...] = (table, *(join.inputs[0] for join in joins))
        self.output = table

    @property
    def absorbed_epoch(self) -> int:
        return self._state.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:  # noqa: ARG002 - as the protocol has it
        return iter(())

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        table, *lefts = deltas
        self._state.absorb(tick, [(left, table) for left in lefts])
        for reader, left in zip(self.readers, lefts, strict=True):
            reader.absorb(tick, (left, table.with_schema(reader.inputs[1].schema)))

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:  # noqa: ARG002 - as the protocol has it
        return no_rejections()

    def next_due(self) -> NextDue:
        return earliest(reader.next_due() for reader in self.readers)

    def statistics(self) -> dict[str, int]:
        return self._state.statistics()

    def resident_bytes(self) -> int:
        return self._state.resident_bytes()

    def working_bytes(self) -> int:
        return self._state.working_bytes()

    def is_current(self) -> bool:
        return self._state.is_current()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self._state.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._state.restore(tables)
        for reader in self.readers:
            reader.restore({})

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self._state.close()
