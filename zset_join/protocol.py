"""The contract of every operator.

The law: after every epoch the sum of all answers equals the plain query over the sum of all inputs.

`answer` reads the state *before* the epoch and changes nothing; asked twice it gives the same answer twice. `absorb` folds
the same deltas into the state. An operator that raises has applied nothing. It knows no Spark, clock, randomness or log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from zset_join.relation import Relation
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["Operator"]


@runtime_checkable
class Operator(Protocol):
    """What the engine, the checkpoint and the laws expect of an operator."""

    inputs: tuple[Relation, ...]
    output: Relation

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the change of the output in bounded chunks; retractions come before insertions."""
        ...

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the deltas of one epoch into the state; not those of an epoch whose `answer` raised."""
        ...

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the input rows that break their relation's contract: `input`, `row`, `weight`, `code`, `reason`."""
        ...

    def resident_bytes(self) -> int:
        """Return the bytes of state held in memory."""
        ...

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the live rows, one table per kind of state; indexes are not part of it."""
        ...

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Replace the state by a snapshot."""
        ...
