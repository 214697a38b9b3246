"""The engine under test: `HashJoin`, Arrow in and Arrow out.

A step is what a user of the engine pays for an epoch: every chunk of `answer`, kept until the step ends, then
`absorb`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.workloads import LEFT, Epoch
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

__all__ = ["ZsetJoinEngine"]


class ZsetJoinEngine:
    """Drive a `HashJoin` with inner join semantics and its default options.

    Args:
        relations: left and right.
    """

    def __init__(self, relations: tuple[Relation, Relation]) -> None:
        self.join = HashJoin(*relations, how="inner")
        self._epoch = 0

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Absorb first rows as an epoch of their own."""
        delta, nothing = ZSet.of(rows), ZSet.empty(self.join.inputs[1 - side].schema)
        self.join.absorb(self._next_tick(), (delta, nothing) if side == LEFT else (nothing, delta))

    def loaded(self) -> None:
        """Do nothing; the state is complete."""

    def prepare(self, epoch: Epoch) -> tuple[ZSet, ZSet]:
        """Return the deltas as they are."""
        return epoch.deltas

    def step(self, prepared: tuple[ZSet, ZSet]) -> list[ZSet]:
        """Answer one epoch, then absorb it."""
        tick = self._next_tick()
        answer = list(self.join.answer(tick, prepared))
        self.join.absorb(tick, prepared)
        return answer

    def count_rows(self, answer: list[ZSet]) -> int:
        """Count the rows of all chunks."""
        return sum(len(chunk) for chunk in answer)

    def weighted_rows(self, answer: list[ZSet]) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the rows of all chunks."""
        for chunk in answer:
            yield from chunk.to_pylist()

    def _next_tick(self) -> Tick:
        tick = Tick(self._epoch)
        self._epoch += 1
        return tick
