"""Joins with one thing wrong each, for the laws to find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

__all__ = ["LEFT", "RIGHT", "EmitsZero", "ForgetsRows", "LateByAnEpoch", "SkipsCrossTerm", "Talks", "join", "spoiled"]

LEFT = Relation(
    name="left",
    schema=pa.schema({"id": pa.int64(), "k": pa.string(), "x": pa.float64()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
RIGHT = Relation(name="right", schema=pa.schema({"k": pa.string(), "y": pa.float64()}), join_key=("k",), mode="changelog")


def join(how: str = "left") -> HashJoin:
    return HashJoin(LEFT, RIGHT, how)


class Spoiled:
    """A join that passes everything on."""

    def __init__(self) -> None:
        self.inner = join()
        self.inputs, self.output = self.inner.inputs, self.inner.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class SkipsCrossTerm(Spoiled):
    """Where both sides change in one epoch, the pairs of new rows are omitted."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        left, right = deltas
        if len(left) and len(right):
            return iter(self.inner.answer(tick, [left, ZSet.empty(right.schema)]))
        return iter(self.inner.answer(tick, deltas))


class LateByAnEpoch(Spoiled):
    """Every answer is emitted one epoch late."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[ZSet] = []

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        emitted, self.waiting = self.waiting, list(self.inner.answer(tick, deltas))
        return iter(emitted)


class ForgetsRows(Spoiled):
    """A snapshot lacks the last row."""

    def snapshot(self) -> Mapping[str, pa.Table]:
        return {name: table.slice(0, max(0, table.num_rows - 1)) for name, table in self.inner.snapshot().items()}


class EmitsZero(Spoiled):
    """Every line is repeated with weight 0."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        for chunk in self.inner.answer(tick, deltas):
            yield chunk
            yield ZSet(chunk.rows, np.zeros_like(chunk.weights))


class Talks(Spoiled):
    """An epoch without rows is answered with an empty chunk."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        yield from list(self.inner.answer(tick, deltas)) or [ZSet.empty(self.output.schema)]


def spoiled(kind: type[Spoiled]) -> Any:
    """Return a spoiled join as an operator."""
    return kind()
