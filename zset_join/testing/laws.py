"""Laws of every operator, as functions for your own tests.

Each law is given a way to make the operator again and the epochs to feed it, and raises `LawBrokenError`, an
`AssertionError`, where the operator breaks it. `assert_laws` checks all of them that need no oracle;
`assert_incremental_equals_batch` compares with a plain query, yours or one of `zset_join.testing.reference_tables`.

An operator is anything that has `inputs`, `answer`, `absorb`, `snapshot` and `restore` (`zset_join.Operator`): one of the
package, or a chain of them behind a class of yours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zset_join.testing.comparison import (
    Epoch,
    LawBrokenError,
    OperatorRun,
    compare_counts,
    counts_of,
    exact_answer,
    exact_tables,
)
from zset_join.testing.reference_tables import BatchFunction, live_rows
from zset_join.zset.protocol import Operator

__all__ = [
    "LAWS",
    "MakeOperator",
    "assert_answers_are_pure",
    "assert_answers_are_tidy",
    "assert_epochs_are_invisible",
    "assert_incremental_equals_batch",
    "assert_laws",
    "assert_quiet_on_quiet",
    "assert_snapshots_are_invisible",
]

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
