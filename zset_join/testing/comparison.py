"""Feeding an operator, adding up what it answers, and comparing that with what it should be.

Z-sets are compared, never tables: a failure lists rows with their expected and their actual weight. Rows are equal as Spark
defines: NaN equals NaN, 0.0 equals -0.0. Where bits matter, `exact` distinguishes them.

`assert_answers_are_pure`, `assert_answers_are_tidy`: laws of every operator, as functions for your own tests.

Each law is given a way to make the operator again and the epochs to feed it, and raises `LawBrokenError`, an
`AssertionError`, where the operator breaks it. `assert_laws` checks all of them that need no oracle;
`assert_incremental_equals_batch` compares with a plain query, yours or one of `zset_join.testing.reference_tables`.

An operator is anything that has `inputs`, `answer`, `absorb`, `snapshot` and `restore` (`zset_join.Operator`): one of the
package, or a chain of them behind a class of yours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.testing.reference import Counts, row_identity, total
from zset_join.testing.reference_tables import BatchFunction, Lines, live_rows
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = [
    "LAWS",
    "EmittedRows",
    "Epoch",
    "IllegalAnswerError",
    "LawBrokenError",
    "MakeOperator",
    "OperatorRun",
    "assert_answers_are_pure",
    "assert_answers_are_tidy",
    "assert_epochs_are_invisible",
    "assert_incremental_equals_batch",
    "assert_laws",
    "assert_quiet_on_quiet",
    "assert_snapshots_are_invisible",
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


MakeOperator = Callable[[], Operator]


def assert_incremental_equals_batch(
    make_operator: MakeOperator, batch_function: BatchFunction, epochs: Sequence[Epoch]
) -> None:
    """After every epoch the sum of all answers equals the plain query over all input.

    Args:
        make_operator: makes the operator under test.
        batch_function: the plain query: takes the live rows of each input, as `(dict, weight)` pairs, and returns
            `(row, weight)` pairs, a row as a dict or as values in the order of the output's columns.
        epochs: the inputs.

    Raises:
        LawBrokenError: they differ; the message names epoch, rows and weights.
    """
    run = OperatorRun(make_operator())
    seen: list[list[object]] = [[] for _ in run.operator.inputs]
    for number, epoch in enumerate(epochs):
        run.step(epoch)
        for lines, came in zip(seen, epoch, strict=True):
            lines.extend(came)
        bags = [live_rows(relation, lines) for relation, lines in zip(run.operator.inputs, seen, strict=True)]  # type: ignore[arg-type]
        compare_counts(run.emitted.counts(), counts_of(batch_function(*bags)), f"after epoch {number}", epochs)


def assert_epochs_are_invisible(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """Fed in one epoch, or two at a time, the same changes give the same sum.

    Raises:
        LawBrokenError: the law is violated.
    """
    wanted = _sum(make_operator, epochs)
    for size in (2, max(len(epochs), 1)):
        merged = [_merged(epochs[begin : begin + size]) for begin in range(0, len(epochs), size)]
        compare_counts(_sum(make_operator, merged), wanted, f"{size} epochs in one", epochs)


def assert_answers_are_pure(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """Answers read twice, or partly, are identical, and the state is unchanged.

    A hybrid operator with a small budget and colliding hashes may emit another order, and fail.

    Raises:
        LawBrokenError: the law is violated.
    """
    run = OperatorRun(make_operator())
    for epoch in epochs:
        before = exact_tables(run.operator.snapshot())
        first = exact_answer(run.request(epoch))
        _require(exact_answer(run.request(epoch)) == first, f"epoch {run.epoch}: a repeated answer differs", epochs)
        _require(exact_tables(run.operator.snapshot()) == before, f"answering epoch {run.epoch} changes the state", epochs)
        run.step(epoch)


def assert_quiet_on_quiet(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """An epoch without rows emits nothing and changes nothing, before, between and after others.

    Operators that emit something for no rows at all (a global aggregate) emit it once, in epoch 0.

    Raises:
        LawBrokenError: something is.
    """
    run = OperatorRun(make_operator())
    run.step(run.nothing())
    for number, epoch in enumerate([run.nothing(), *epochs]):
        run.step(epoch)
        before = exact_tables(run.operator.snapshot())
        answer = run.step(run.nothing())
        _require(not answer, f"an epoch without rows after epoch {number} answers {len(answer)} chunks", epochs)
        _require(exact_tables(run.operator.snapshot()) == before, "an epoch without rows changes the state", epochs)


def assert_snapshots_are_invisible(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """Restored from a snapshot, before every epoch, an operator answers as the one that continued.

    Raises:
        LawBrokenError: it does not.
    """
    run = OperatorRun(make_operator())
    for epoch in epochs:
        restored = OperatorRun(make_operator(), first_epoch=run.epoch)
        tables = dict(run.operator.snapshot())
        restored.operator.restore(tables)
        same = exact_tables(restored.operator.snapshot()) == exact_tables(tables)
        _require(same, f"before epoch {run.epoch} a restored operator has another snapshot", epochs)
        wanted = counts_of(line for chunk in run.request(epoch) for line in chunk.to_pylist())
        got = counts_of(line for chunk in restored.request(epoch) for line in chunk.to_pylist())
        compare_counts(got, wanted, f"epoch {run.epoch} after a restore", epochs)
        run.step(epoch)


def assert_answers_are_tidy(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """No chunk is empty, no weight is 0, retractions come first, the columns are those of `output`.

    Raises:
        LawBrokenError: an answer is not like that.
    """
    run = OperatorRun(make_operator())
    for epoch in epochs:
        answer = run.step(epoch)
        for chunk in answer:
            _require(chunk.schema.equals(run.operator.output.schema), f"a chunk has the columns {chunk.schema}", epochs)
            _require(len(chunk) > 0, "a chunk is empty", epochs)
        signs = [weight > 0 for chunk in answer for weight in chunk.weights]
        _require(not any((chunk.weights == 0).any() for chunk in answer), "a line has weight 0", epochs)
        _require(signs == sorted(signs), f"epoch {run.epoch - 1}: an insertion precedes a retraction", epochs)


LAWS: tuple[Callable[[MakeOperator, Sequence[Epoch]], None], ...] = (
    assert_answers_are_pure,
    assert_answers_are_tidy,
    assert_epochs_are_invisible,
    assert_quiet_on_quiet,
    assert_snapshots_are_invisible,
)


def assert_laws(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> None:
    """Check every law of `LAWS`.

    Raises:
        LawBrokenError: one is broken.
    """
    for law in LAWS:
        law(make_operator, epochs)


def _sum(make_operator: MakeOperator, epochs: Sequence[Epoch]) -> dict[tuple[object, ...], int]:
    run = OperatorRun(make_operator())
    for epoch in epochs:
        run.step(epoch)
    return {**run.emitted.counts()}


def _merged(epochs: Sequence[Epoch]) -> Epoch:
    return [[line for lines in one_input for line in lines] for one_input in zip(*epochs, strict=True)]


def _require(holds: bool, sentence: str, epochs: Sequence[Epoch]) -> None:
    if not holds:
        raise LawBrokenError(f"{sentence}\n{epochs!r}")
