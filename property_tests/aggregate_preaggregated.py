"""Two tasks that reduce their half of every delta, and the aggregate behind the shuffle, as one operator under the laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from property_tests.aggregate_shapes import AggregateSpec
from zset_join.aggregates.preaggregation import Preaggregation
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.aggregate import Aggregate
from zset_join.zset import ZSet

__all__ = ["PreaggregatedAggregate", "build_preaggregated"]


class PreaggregatedAggregate:
    """Reduce, then aggregate.

    Args:
        spec: what to aggregate.
        directory: where the aggregate keeps its state.
    """

    def __init__(self, spec: AggregateSpec, *, directory: str | None = None) -> None:
        calls = spec.calls()
        self._reduction = Preaggregation(spec.relation, spec.group_by, calls)
        partial = self._reduction.is_partial
        self._aggregate = Aggregate(
            spec.relation if partial else self._reduction.relation,
            spec.group_by,
            calls,
            preaggregated=partial,
            options=spec.knobs.options("error", directory, may_be_hybrid=bool(spec.group_by)),
        )
        self.inputs: tuple[Relation, ...] = spec.inputs
        self.output = self._aggregate.output

    @property
    def absorbed_epoch(self) -> int:
        """Return the aggregate's."""
        return self._aggregate.absorbed_epoch

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer the reduced delta."""
        return self._aggregate.answer(tick, [self._reduced(deltas[0])])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb the reduced delta."""
        self._aggregate.absorb(tick, [self._reduced(deltas[0])])

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return what the aggregate rejects."""
        return self._aggregate.rejections(tick, [self._reduced(deltas[0])])

    def resident_bytes(self) -> int:
        """Return the aggregate's bytes."""
        return self._aggregate.resident_bytes()

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the aggregate's tables."""
        return self._aggregate.snapshot()

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Restore the aggregate."""
        self._aggregate.restore(tables)

    def close(self) -> None:
        """Close the aggregate."""
        self._aggregate.close()

    def _reduced(self, delta: ZSet) -> ZSet:
        half = len(delta) // 2
        parts = [
            self._reduction.reduce(ZSet(delta.rows.slice(begin, end - begin), delta.weights[begin:end]))
            for begin, end in ((0, half), (half, len(delta)))
        ]
        return ZSet.concat(parts, schema=self._reduction.relation.schema)


def build_preaggregated(
    spec: AggregateSpec, *, on_bad_input: str = "error", directory: str | None = None
) -> PreaggregatedAggregate:
    """Build both stages of a spec; partial lines go with policy `error` only."""
    return PreaggregatedAggregate(spec, directory=directory)
