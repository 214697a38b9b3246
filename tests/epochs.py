"""How the examples talk to an operator: one epoch after the other, changes in, changes out.

    join = Epochs(HashJoin(ORDERS, CUSTOMERS, "left"))
    answer = join.feed(insert((1, "ann")), delete(("ann", "Oslo")))
    assert answer == [((1, "ann", "ann", "Oslo"), -1), ((1, "ann", None, None), +1)]

*Changes* are `(row, weight)` pairs, and so are the lines of an answer: retractions first, each part in the order of its rows'
text, so that an example can write them down. Nothing is summed up on the way: a line too many is a wrong answer even when
another retracts it.

In rows that come back, lists and structs are tuples and every NaN is the string "NaN": such rows can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["Change", "Epochs", "delete", "delta_of", "insert", "lines_of", "net", "upsert"]

Change = tuple[tuple[Any, ...], int]


def insert(*rows: tuple[Any, ...], copies: int = 1) -> list[Change]:
    return [(row, copies) for row in rows]


def delete(*rows: tuple[Any, ...], copies: int = 1) -> list[Change]:
    """Return the changes that take rows out; in upsert mode only the primary key of a row is read."""
    return [(row, -copies) for row in rows]


upsert = insert


def delta_of(relation: Relation, changes: Sequence[Change]) -> ZSet:
    rows = [row for row, _ in changes]
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(relation.schema)]
    return ZSet.of(pa.RecordBatch.from_arrays(columns, schema=relation.schema), [weight for _, weight in changes])


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, dict):
        return tuple(_comparable(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(_comparable(part) for part in value)
    return value


def lines_of(chunks: Iterable[ZSet]) -> list[Change]:
    """Return the lines of Z-sets, in their order."""
    return [(_comparable(row), weight) for chunk in chunks for row, weight in chunk.to_pylist()]


def net(changes: Iterable[Change]) -> dict[tuple[Any, ...], int]:
    """Return every row with the sum of its weights, those with 0 omitted."""
    sums: dict[tuple[Any, ...], int] = {}
    for row, weight in changes:
        sums[row] = sums.get(row, 0) + weight
    return {row: weight for row, weight in sums.items() if weight}


class Epochs:
    """An operator that is fed one epoch after the other.

    Args:
        operator: what to feed; it has one input or two.
        first_epoch: number of the next epoch.
    """

    def __init__(self, operator: Operator, *, first_epoch: int = 0) -> None:
        self.operator = operator
        self.epoch = first_epoch
        self.history: list[Change] = []

    def deltas(self, left: Sequence[Change] = (), right: Sequence[Change] = ()) -> list[ZSet]:
        """Return the deltas of an epoch, one per input."""
        return [delta_of(relation, changes) for relation, changes in zip(self.operator.inputs, (left, right), strict=False)]

    def chunks(
        self, left: Sequence[Change] = (), right: Sequence[Change] = (), *, watermark: int | None = None
    ) -> list[list[Change]]:
        """Feed one epoch and return its answer chunk by chunk, in the order it came."""
        tick, deltas = Tick(self.epoch, watermark), self.deltas(left, right)
        chunks = [lines_of([chunk]) for chunk in self.operator.answer(tick, deltas)]
        self.operator.absorb(tick, deltas)
        self.epoch += 1
        self.history += [line for chunk in chunks for line in chunk]
        return chunks

    def feed(self, left: Sequence[Change] = (), right: Sequence[Change] = (), *, watermark: int | None = None) -> list[Change]:
        """Feed one epoch and return the lines of its answer, retractions first."""
        lines = [line for chunk in self.chunks(left, right, watermark=watermark) for line in chunk]
        return sorted(lines, key=lambda line: (line[1] > 0, repr(line)))

    def feed_all(self, epochs: Iterable[tuple[Sequence[Change], Sequence[Change]]]) -> list[list[Change]]:
        return [self.feed(left, right) for left, right in epochs]

    def sum(self) -> dict[tuple[Any, ...], int]:
        return net(self.history)
