"""The laws of the operators about time, one function each, named after its law.

A law takes a case and the way to build its operator, and raises `LawBrokenError`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from property_tests.laws import LawBrokenError
from property_tests.timed_histories import FAR, TimedCase, sum_of
from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.state.rows.directories import locked_outside
from zset_join.testing.comparison import EmittedRows, compare_counts, exact_answer, exact_tables
from zset_join.testing.reference import Counts
from zset_join.zset.protocol import CorrectingOperator

__all__ = ["TIMED_LAWS", "Make", "TimedLaw"]

Make = Callable[..., Any]
TimedLaw = Callable[[TimedCase, Make], None]


def _require(holds: bool, sentence: str, case: TimedCase) -> None:
    if not holds:
        raise LawBrokenError(f"{sentence}\n{case!r}")


def _state(operator: Any) -> dict[str, list[Any]]:
    return exact_tables(operator.snapshot())


@contextmanager
def _legal(case: TimedCase, epoch: int) -> Iterator[None]:
    """Break the law where legal input is refused."""
    try:
        yield
    except ZsetJoinError as error:
        raise LawBrokenError(f"legal input was refused in epoch {epoch}: {error}\n{case!r}") from error


def incremental_is_batch(case: TimedCase, make: Make) -> None:
    """Every answer, or the sum of all, equals the plain query's; nothing is retracted that does not exist."""
    operator, emitted = make(case), EmittedRows()
    for epoch, step in enumerate(case.steps):
        deltas = case.deltas(step.changes)
        with _legal(case, epoch):
            answer = list(operator.answer(step.tick(epoch), deltas))
        emitted.take(answer)
        if step.emitted is not None:
            compare_counts(sum_of(answer), step.emitted, f"in epoch {epoch}", case)
        if step.held is not None:
            compare_counts(emitted.counts(), step.held, f"after epoch {epoch}", case)
        operator.absorb(step.tick(epoch), deltas)


def what_is_late_is_set_aside(case: TimedCase, make: Make) -> None:
    """The rows that come too late are those of the oracle, each with its code; no other row is refused."""
    operator = make(case)
    for epoch, step in enumerate(case.steps):
        tick, deltas = step.tick(epoch), case.deltas(step.changes)
        found: dict[str, Counter[Any]] = {}
        for line in operator.rejections(tick, deltas).to_pylist():
            side = [one.name for one in operator.inputs].index(line["input"])
            row = tuple(deltas[side].rows.slice(line["row"], 1).to_pylist()[0].values())
            found.setdefault(line["code"], Counter())[row] += 1
        _require(found == step.aside, f"epoch {epoch} sets aside {found}, not {step.aside}", case)
        operator.absorb(tick, deltas)


def corrections_are_the_retracted_answers(case: TimedCase, make: Make) -> None:
    """Where no left row goes, what an answer retracts are corrections, each counted as often as its row; others have none."""
    operator = make(case)
    if not isinstance(operator, CorrectingOperator):
        return
    for epoch, step in enumerate(case.steps):
        tick, deltas = step.tick(epoch), case.deltas(step.changes)
        answer = list(operator.answer(tick, deltas))
        retracted = -sum(int(chunk.weights[chunk.weights < 0].sum()) for chunk in answer)
        counted = operator.corrections()
        _require((counted is None) == (case.kind in ("once", "on_watermark")), f"{counted} corrections of {case.kind}", case)
        if counted is None or not (deltas[0].weights < 0).any():
            _require((counted or 0) == retracted, f"epoch {epoch} retracts {retracted} and counts {counted}", case)
        operator.absorb(tick, deltas)


def _all_at_the_end(case: TimedCase, make: Make, epochs: Any) -> Counts:
    """Return the sum of all answers, with no watermark before one that passes everything."""
    operator, emitted = make(case), EmittedRows()
    for epoch, changes in enumerate(epochs):
        deltas = case.deltas(changes)
        emitted.take(operator.answer(Tick(epoch), deltas))
        operator.absorb(Tick(epoch), deltas)
    nothing = case.deltas([() for _ in operator.inputs])
    emitted.take(operator.answer(Tick(len(epochs), watermark_us=FAR), nothing))
    return emitted.counts()


def epochs_are_invisible(case: TimedCase, make: Make) -> None:
    """Any cut of the input gives the same sum, once the watermark has passed everything."""
    if case.kind == "once":
        return  # it answers with what is known on arrival, and so depends on the cut by its nature
    one = _all_at_the_end(case, make, [step.changes for step in case.steps])
    compare_counts(_all_at_the_end(case, make, case.cut_again()), one, "cut the other way", case)


def eager_and_on_watermark_agree(case: TimedCase, make: Make) -> None:
    """Both emit the same once the watermark has passed everything, where nothing is late."""
    if case.kind != "on_watermark":
        return
    epochs = [step.changes for step in case.steps]
    eager = _all_at_the_end(case.as_one_mode("eager"), lambda one: one.make(), epochs)
    compare_counts(_all_at_the_end(case, make, epochs), eager, "on_watermark beside eager", case)


def answer_is_pure(case: TimedCase, make: Make) -> None:
    """Called twice, left half-read or with another answer between, an answer is the same to the bit."""
    operator = make(case)
    for epoch, step in enumerate(case.steps):
        tick, before = step.tick(epoch), _state(operator)
        first = exact_answer(list(operator.answer(tick, case.deltas(step.changes))))
        next(iter(operator.answer(tick, case.deltas(step.changes))), None)
        list(operator.answer(tick, case.deltas([() for _ in operator.inputs])))
        again = exact_answer(list(operator.answer(tick, case.deltas(step.changes))))
        _require(again == first, f"answered again in epoch {epoch}: {again}, not {first}", case)
        _require(_state(operator) == before, f"the answer of epoch {epoch} changes the state", case)
        operator.absorb(tick, case.deltas(step.changes))


def snapshot_and_restore_are_invisible(case: TimedCase, make: Make) -> None:
    """Restored from a snapshot before every epoch, an operator continues alike."""
    original, restored = make(case), make(case)
    for epoch, step in enumerate(case.steps):
        tick, deltas = step.tick(epoch), case.deltas(step.changes)
        restored.restore(original.snapshot())
        _require(_state(restored) == _state(original), f"the snapshot before epoch {epoch} differs after a restore", case)
        _require(_due(restored) == _due(original), f"what is due after epoch {epoch} differs after a restore", case)
        wanted = sum_of(list(original.answer(tick, deltas)))
        compare_counts(sum_of(list(restored.answer(tick, deltas))), wanted, f"epoch {epoch} after a restore", case)
        original.absorb(tick, deltas)


def _due(operator: Any) -> Any:
    return operator.next_due() if hasattr(operator, "next_due") else None


def reopening_is_invisible(case: TimedCase, make: Make) -> None:
    """State in a directory, closed and opened again before every epoch, answers as if it had stayed open."""
    with tempfile.TemporaryDirectory() as directory:
        operator, stays = make(case, directory=directory), make(case)
        for epoch, step in enumerate(case.steps):
            tick, deltas = step.tick(epoch), case.deltas(step.changes)
            before = _state(operator)
            operator.close()
            operator = make(case, directory=directory)
            _require(operator.is_current() and operator.absorbed_epoch == epoch - 1, "files are not whole", case)
            _require(_state(operator) == before, f"reopening before epoch {epoch} changes the state", case)
            with _legal(case, epoch):
                answers = [list(one.answer(tick, deltas)) for one in (operator, stays)]
            compare_counts(sum_of(answers[0]), sum_of(answers[1]), f"epoch {epoch} after reopening", case)
            for one in (operator, stays):
                one.absorb(tick, deltas)
        operator.close()


def taking_turns_is_invisible(case: TimedCase, make: Make) -> None:
    """Two that keep a directory open answer alternately as one would; an overtaken one continues or raises."""
    with tempfile.TemporaryDirectory() as directory, locked_outside():
        stays = make(case)
        kept: list[Any] = [None, None]
        for epoch, step in enumerate(case.steps):
            tick, deltas, turn = step.tick(epoch), case.deltas(step.changes), epoch % 2
            if kept[turn] is not None and not kept[turn].is_current():
                kept[turn].close()
                kept[turn] = None
            operator = kept[turn] = kept[turn] or make(case, directory=directory)
            with _legal(case, epoch):
                answers = [list(one.answer(tick, deltas)) for one in (operator, stays)]
            compare_counts(sum_of(answers[0]), sum_of(answers[1]), f"epoch {epoch} in turns", case)
            _require(_due(operator) == _due(stays), f"epoch {epoch}: {_due(operator)} is due, not {_due(stays)}", case)
            for one in (operator, stays):
                one.absorb(tick, deltas)
        for operator in kept:
            if operator is not None:
                operator.close()


def answers_are_tidy(case: TimedCase, make: Make) -> None:
    """Retractions come first, no line has weight 0, and no row is retracted and inserted in one answer."""
    operator = make(case)
    for epoch, step in enumerate(case.steps):
        deltas = case.deltas(step.changes)
        lines = [line for chunk in operator.answer(step.tick(epoch), deltas) for line in chunk.to_pylist()]
        signs = [weight > 0 for _, weight in lines]
        _require(signs == sorted(signs), f"epoch {epoch}: a retraction comes after an insertion", case)
        _require(all(weight for _, weight in lines), f"epoch {epoch}: a line without weight", case)
        both = {row for row, weight in lines if weight < 0} & {row for row, weight in lines if weight > 0}
        _require(not both, f"epoch {epoch}: retracted and inserted again: {both}", case)
        operator.absorb(step.tick(epoch), deltas)


def quiet_on_quiet(case: TimedCase, make: Make) -> None:
    """Without rows there is an answer exactly when one is due."""
    operator = make(case)
    number = 0
    for step in case.steps:
        operator.absorb(step.tick(number), case.deltas(step.changes))
        number += 1
        nothing = case.deltas([() for _ in operator.inputs])
        before = _state(operator)
        waits = operator.snapshot()["left"].to_pylist() if case.kind == "on_watermark" else []
        tick = Tick(number, None, step.after, step.after)
        _require(not list(operator.answer(tick, nothing)), "an empty delta is answered though nothing is due", case)
        due = _due(operator)
        if waits:
            first = min(row["t"] for row in waits)
            _require(due.watermark_us == first, f"a row waits for {first}, and {due} is returned as due", case)
        operator.absorb(tick, nothing)
        _require(_state(operator) == before, "an empty delta changes the state", case)
        number += 1


TIMED_LAWS: dict[str, TimedLaw] = {
    law.__name__: law
    for law in (
        incremental_is_batch,
        what_is_late_is_set_aside,
        corrections_are_the_retracted_answers,
        epochs_are_invisible,
        eager_and_on_watermark_agree,
        answer_is_pure,
        snapshot_and_restore_are_invisible,
        reopening_is_invisible,
        taking_turns_is_invisible,
        answers_are_tidy,
        quiet_on_quiet,
    )
}
