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
        return self._join

    @property
    def absorbed_epoch(self) -> int:
        return self._joins.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        self._join.pairs.corrections = 0
        return self._join.answer(tick, deltas)

    def corrections(self) -> int | None:
        """Return how many earlier answers of an eager join the last answer retracted, because right rows changed."""
        return self._join.pairs.corrections if self._join.shape.emit == "eager" else None

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        self._joins.absorb(tick, [deltas])

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        return self._join.rejections(tick, deltas)

    def next_due(self) -> NextDue:
        due = self._join.next_due()
        return NOTHING_DUE if due is None else NextDue(watermark_us=due)

    def resident_bytes(self) -> int:
        return self._joins.resident_bytes() + self.working_bytes()

    def working_bytes(self) -> int:
        return self._joins.working_bytes()

    def is_current(self) -> bool:
        return self._joins.is_current()

    def statistics(self) -> dict[str, int]:
        return self._joins.statistics()

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: reader.read_all() for name, reader in self.snapshot_readers().items()}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return self._joins.snapshot_readers()

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        self._joins.restore(tables)

    def close(self) -> None:
        self._joins.close()
