"""The operator around a join by key and time: what temporal and as-of joins do alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.state.rows.guarded import guarded
from zset_join.state.time.version_join import VersionJoin
from zset_join.state.time.version_joins import VersionJoins
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, NextDue

__all__ = ["TimedJoin"]


@guarded("the join by time")
class TimedJoin:
    """Answer, absorb and keep; subclasses decide which rows meet, and when."""

    def __init__(
        self,
        shape: VersionJoinShape,
        output: Relation,
        *,
        facts: Sequence[object],
        options: OperatorOptions,
        place: int = 0,
        eager_places: int = 0,
        table_of: TimedJoin | None = None,
    ) -> None:
        self.inputs: tuple[Relation, ...] = (shape.left, shape.right)
        self.output = output
        self.on_bad_input = options.on_bad_input
        inputs = [(one.name, one.mode, one.primary_key, one.event_time) for one in self.inputs]
        self._join = VersionJoin(
            shape,
            facts=(*facts, inputs, shape.key, shape.tie_by, shape.emit),
            options=options,
            place=place,
            eager_places=eager_places,
            table_of=None if table_of is None else table_of.join,
        )
        self._joins = VersionJoins([self._join])

    @property
    def join(self) -> VersionJoin:
        """Return the join itself."""
        return self._join

    @property
    def absorbed_epoch(self) -> int:
        """Return the last absorbed epoch, -1 if there was none."""
        return self._joins.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the join: what is retracted, then what is inserted.

        Raises:
            BadInputError: rows that break a relation's contract, with policy `error`.
        """
        self._join.pairs.corrections = 0
        return self._join.answer(tick, deltas)

    def corrections(self) -> int | None:
        """Return how many earlier answers of an eager join the last answer retracted, because right rows changed."""
        return self._join.pairs.corrections if self._join.shape.emit == "eager" else None

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the deltas of one epoch into the state, and free what the watermark has passed.

        Raises:
            BadInputError: as `answer`; the state is unchanged.
            StateError: an epoch that was absorbed before.
        """
        self._joins.absorb(tick, [deltas])

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return bad rows and rows that came too late: `input`, `row`, `weight`, `code`, `reason`."""
        return self._join.rejections(tick, deltas)

    def next_due(self) -> NextDue:
        """Return the watermark that the first waiting row needs."""
        due = self._join.next_due()
        return NOTHING_DUE if due is None else NextDue(watermark_us=due)

    def resident_bytes(self) -> int:
        """Return the bytes of memory of the state and of the working arrays."""
        return self._joins.resident_bytes() + self.working_bytes()

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays; there are some only between an answer and its absorption."""
        return self._joins.working_bytes()

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, whole."""
        return self._joins.is_current()

    def statistics(self) -> dict[str, int]:
        """Return counts: rows kept per input, keys, bytes, and what was late, ignored, answered and freed so far."""
        return self._joins.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the rows that are kept, as tables `left` (where some are) and `right`."""
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return readers of the tables of `snapshot`, batch by batch, until the state changes."""
        return self._joins.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the state by a snapshot. Cost: its rows."""
        self._joins.restore(tables)

    def close(self) -> None:
        """Unmap the state; the operator cannot be used afterwards."""
        self._joins.close()
