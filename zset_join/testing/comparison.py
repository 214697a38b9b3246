"""Feeding an operator, adding up what it answers, and comparing that with what it should be.

Z-sets are compared, never tables: a failure lists rows with their expected and their actual weight. Rows are equal as Spark
defines: NaN equals NaN, 0.0 equals -0.0. Where bits matter, `exact` distinguishes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.testing.reference import Counts, row_identity, total
from zset_join.testing.reference_tables import Lines
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = [
    "EmittedRows",
    "Epoch",
    "IllegalAnswerError",
    "LawBrokenError",
    "OperatorRun",
    "compare_counts",
    "counts_of",
    "delta_of",
    "exact",
    "exact_answer",
    "exact_tables",
]

Epoch = Sequence[Lines]
"""The changes of one epoch: for each input its `(row, weight)` lines, in arrival order."""


class LawBrokenError(AssertionError):
    """An operator violates a law; the message has the law and the difference."""


class IllegalAnswerError(LawBrokenError):
    """An answer that cannot be applied to the previous ones."""


def delta_of(relation: Relation, lines: Lines, *, offset: int = 0) -> ZSet:
    """Build a delta from `(row, weight)` lines.

    Args:
        relation: with the columns of the rows.
        lines: rows as dicts, or as values in column order.
        offset: rows to put in front of the record batch the delta is then a slice of.
    """
    names = relation.schema.names
    plain = [(tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row), weight) for row, weight in lines]
    padded = plain[-1:] * offset + plain
    columns: list[Any] = list(zip(*(row for row, _ in padded), strict=True)) or [()] * len(names)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, relation.schema.types, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, schema=relation.schema)
    weights = np.asarray([weight for _, weight in padded], dtype=np.int64)
    return ZSet(rows.slice(offset), weights[offset:]) if plain else ZSet(rows, weights)


class EmittedRows:
    """The sum of what an operator has answered."""

    def __init__(self) -> None:
        self._counts: Counts = {}

    def take(self, answer: Iterable[ZSet]) -> None:
        """Add the answer of one epoch."""
        gone: Counts = {}
        for row, weight in (line for chunk in answer for line in chunk.to_pylist()):
            key = row_identity(row)
            if weight < 0:
                gone[key] = gone.get(key, 0) - weight
            self._counts[key] = self._counts.get(key, 0) + weight
        for key, retracted in gone.items():
            if self._counts[key] < 0:
                raise IllegalAnswerError(f"row {key} is retracted {retracted} times and is at {self._counts[key]} afterwards")
        self._counts = {key: weight for key, weight in self._counts.items() if weight}

    def counts(self) -> Counts:
        """Return the sum: rows by identity, each with its weight."""
        return dict(self._counts)


class OperatorRun:
    """An operator on its way through epochs, and the sum of its answers."""

    def __init__(self, operator: Operator, *, first_epoch: int = 0) -> None:
        self.operator = operator
        self.epoch = first_epoch
        self.emitted = EmittedRows()

    def deltas(self, epoch: Epoch) -> list[ZSet]:
        """Return the deltas of an epoch."""
        return [delta_of(relation, lines) for relation, lines in zip(self.operator.inputs, epoch, strict=True)]

    def request(self, epoch: Epoch) -> list[ZSet]:
        """Return the answer of an epoch without absorbing it."""
        return list(self.operator.answer(Tick(self.epoch), self.deltas(epoch)))

    def step(self, epoch: Epoch) -> list[ZSet]:
        """Go through one epoch: answer, add up, absorb."""
        deltas = self.deltas(epoch)
        answer = list(self.operator.answer(Tick(self.epoch), deltas))
        self.emitted.take(answer)
        self.operator.absorb(Tick(self.epoch), deltas)
        self.epoch += 1
        return answer

    def nothing(self) -> Epoch:
        """Return an epoch without rows."""
        return [() for _ in self.operator.inputs]


def counts_of(lines: Lines) -> Counts:
    """Return the sum of lines, rows by identity."""
    return total((tuple(row.values()) if isinstance(row, Mapping) else row, weight) for row, weight in lines)


def compare_counts(actual: Counts, expected: Counts, moment: str, *context: object) -> None:
    """Raise when two sums differ."""
    if actual == expected:
        return
    rows = [key for key in {**expected, **actual} if expected.get(key) != actual.get(key)]
    lines = [f"    {key}: expected {expected.get(key, 0)}, actual {actual.get(key, 0)}" for key in rows]
    raise LawBrokenError("\n".join([f"{moment}, row: expected weight, actual weight", *lines, *map(repr, context)]))


def exact(value: Any) -> Any:
    """Return a value that is equal only to the same bits."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return tuple((name, exact(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(exact(part) for part in value)
    return value


def exact_answer(answer: Sequence[ZSet]) -> list[Any]:
    """Return an answer bit by bit: chunks, order of lines, values, weights."""
    return [[(exact(row), weight) for row, weight in chunk.to_pylist()] for chunk in answer]


def exact_tables(tables: Mapping[str, pa.Table]) -> dict[str, list[Any]]:
    """Return a snapshot bit by bit, rows in a fixed order."""
    return {name: sorted((exact(list(row.values())) for row in table.to_pylist()), key=repr) for name, table in tables.items()}
