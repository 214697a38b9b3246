"""The laws every operator obeys, one function each.

A law takes a subject (an operator description and the way to build it) and a legal history, and raises `LawBrokenError`
when the operator breaks it. Laws do not depend on joins: what is expected comes from the subject's oracle, what is excused
from the registry. Z-sets are compared, never tables: a failure lists rows with their expected and actual weights.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from property_tests.profiles import profile_name
from property_tests.registry import IllegalAnswerError, Subject
from property_tests.shapes import BUDGETS, MEDIA, Change, Knobs, RouteSpec, live_rows, oracle_side, watermark_of
from property_tests.strategies import Epoch, History, plant_bad_lines, split
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.state.rows.directories import locked_outside
from zset_join.testing.comparison import LawBrokenError, compare_counts, delta_of, exact, exact_answer, exact_tables
from zset_join.testing.reference import Counts, row_identity, total
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["LAWS", "Law", "LawBrokenError", "Run", "compare", "exact", "undo_changes"]

_FAR_SEQUENCE = 10**6
_LONG_AFTER = 1_800_000_000_000_000  # a watermark years after all others, past every retention


@dataclass(frozen=True)
class Law:
    """A law and what it needs drawn.

    Args:
        name: the function's name; a true sentence.
        check: raises `LawBrokenError`.
        with_bad_lines: whether the history must bring genes for bad lines.
    """

    name: str
    check: Callable[[Subject, History], None]
    with_bad_lines: bool = False


class Run:
    """An operator on its way through epochs, with the reader of its output."""

    def __init__(self, subject: Subject, *, on_bad_input: str = "error", directory: str | None = None) -> None:
        self.subject = subject
        self.operator: Operator = subject.operator(on_bad_input=on_bad_input, directory=directory)
        self.view = subject.view()
        self.epoch = 0
        self.seen: list[Change] = []
        self._made: tuple[Epoch, list[ZSet]] = ((), [])

    def tick(self) -> Tick:
        return Tick(self.epoch, watermark_of(self.subject.spec.knobs, self.epoch))

    def deltas(self, changes: Epoch) -> list[ZSet]:
        """Return the deltas of an epoch: rebuilt, or the same objects as before where the subject requests it."""
        knobs = self.subject.spec.knobs
        if not (knobs.one_delta and self._made[0] is changes and self._made[1]):
            made = [
                delta_of(
                    relation, [(change.row, change.weight) for change in changes if change.side == number], offset=knobs.offset
                )
                for number, relation in enumerate(self.subject.spec.inputs)
            ]
            self._made = (changes, made)
        return self._made[1]

    def request(self, changes: Epoch = ()) -> list[ZSet]:
        """Request the answer of the current epoch; a refusal of legal input breaks the law that called."""
        try:
            return list(self.operator.answer(self.tick(), self.deltas(changes)))
        except ZsetJoinError as error:
            raise LawBrokenError(f"legal input was refused in epoch {self.epoch}: {error}") from error

    def absorb(self, changes: Epoch = ()) -> None:
        """End the current epoch."""
        try:
            self.operator.absorb(self.tick(), self.deltas(changes))
        except ZsetJoinError as error:
            raise LawBrokenError(f"legal input was not absorbed in epoch {self.epoch}: {error}") from error
        self.seen += changes
        self.epoch += 1

    def take(self, answer: Sequence[ZSet]) -> None:
        try:
            self.view.take(answer)
        except IllegalAnswerError as error:
            raise LawBrokenError(f"epoch {self.epoch}: {error}") from error

    def step(self, changes: Epoch = ()) -> list[ZSet]:
        """Go through one epoch whole."""
        answer = self.request(changes)
        self.take(answer)
        self.absorb(changes)
        return answer

    def close(self) -> None:
        """Release files, where the operator has any."""
        close = getattr(self.operator, "close", None)
        if close is not None:
            close()

    def expected(self) -> Counts:
        return self.subject.spec.expected(self.seen)

    def check(self, history: History) -> None:
        """Compare what the reader holds with the oracle."""
        compare(self.view.counts(), self.expected(), f"after epoch {self.epoch - 1}", self.subject, history)


def compare(actual: Counts, expected: Counts, moment: str, subject: Subject, history: History) -> None:
    compare_counts(actual, expected, moment, subject, history)


def _require(holds: bool, sentence: str, subject: Subject, history: History) -> None:
    if not holds:
        raise LawBrokenError(f"{sentence}\n{subject!r}\n{history!r}")


def _exact_snapshot(operator: Operator) -> dict[str, list[Any]]:
    """Return the snapshot bit by bit, rows in a fixed order."""
    return exact_tables(operator.snapshot())


def _sum(answer: Sequence[ZSet]) -> Counts:
    return total(line for chunk in answer for line in chunk.to_pylist())


def undo_changes(subject: Subject, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that retract every live row."""
    undone: list[Change] = []
    for number, relation in enumerate(subject.spec.inputs):
        side = oracle_side(relation)
        for row, weight in live_rows(side, changes, number):
            values = dict(row)
            if relation.mode == "upsert":
                kept = {*side.primary_key, *side.sequence_by}
                values = {name: value if name in kept else None for name, value in row.items()}
                values |= dict.fromkeys(side.sequence_by[:1], _FAR_SEQUENCE)
                weight = 1
            undone.append(Change(number, tuple(values.values()), -weight))
    return undone


class _Walked:
    """Runs that are through a history: laws of one history leave them to each other, for to go there is most of their time."""

    def __init__(self) -> None:
        self._left: list[tuple[History, Run]] = []

    def take(self, subject: Subject, history: History) -> Run:
        """Return a run behind the last epoch of a history; it is the caller's."""
        if self._left and self._left[-1][0] is history and self._left[-1][1].subject is subject:
            return self._left.pop()[1]
        run = Run(subject)
        for changes in history.epochs():
            run.step(changes)
        return run

    def leave(self, history: History, *runs: Run) -> None:
        """Keep runs for the laws that follow; they take the last one first."""
        self._left = [(history, run) for run in runs]


_WALKED = _Walked()


def incremental_is_batch(subject: Subject, history: History) -> None:
    """After every epoch the sum of the answers equals the plain query over all input."""
    run = Run(subject)
    for changes in history.epochs():
        run.step(changes)
        run.check(history)
    _WALKED.leave(history, run)


def epochs_are_invisible(subject: Subject, history: History) -> None:
    """Any split of the input into epochs gives the same sum."""
    one, other = _WALKED.take(subject, history), Run(subject)
    for changes in history.other_epochs():
        other.step(changes)
    compare(other.view.counts(), one.view.counts(), "cut the other way", subject, history)
    _WALKED.leave(history, other, one)


def undo_is_complete(subject: Subject, history: History) -> None:
    """Retracting every live row empties the output and the state, and time empties it of tombstones."""
    run = _WALKED.take(subject, history)
    for changes in split(undo_changes(subject, run.seen), history.other_cuts):
        run.step(changes)
    compare(run.view.counts(), subject.spec.expected(()), "after retracting everything", subject, history)
    left_behind = subject.live_rows(run.operator)
    _require(left_behind == 0, f"{left_behind} live rows are left in the state", subject, history)
    if subject.spec.knobs.ticking:
        run.operator.absorb(Tick(run.epoch, _LONG_AFTER), run.deltas(()))
        rows = sum(table.num_rows for table in run.operator.snapshot().values())
        _require(rows == 0, f"{rows} tombstones outlive their retention", subject, history)


def quiet_on_quiet(subject: Subject, history: History) -> None:
    """An empty delta yields nothing and changes nothing, before, between and after other epochs."""
    run = Run(subject)
    for changes in [(), *history.epochs()]:
        run.step(changes)
        before = _exact_snapshot(run.operator)
        answer = run.step()
        _require(not answer, f"an empty delta yields {len(answer)} chunks", subject, history)
        _require(_exact_snapshot(run.operator) == before, "an empty delta changes the state", subject, history)


def answer_is_pure(subject: Subject, history: History) -> None:
    """Called twice, left half-read or with another answer between, an answer is the same to the bit and stays so.

    With a budget it is the same lines to the bit, but perhaps in another order and in other chunks, for an answer
    between moves rows; with nothing else between, only where hashes collide.
    """
    run = Run(subject)
    is_hybrid, collides = subject.spec.knobs.budget is not None, subject.spec.knobs.hash_bits < Knobs.hash_bits
    kept: list[tuple[list[ZSet], list[Any]]] = []
    for changes in history.epochs():
        before = _exact_snapshot(run.operator)
        answer = run.request(changes)
        kept.append((answer, exact_answer(answer)))
        half_read = iter(run.operator.answer(run.tick(), run.deltas(changes)))
        next(half_read, None)
        del half_read
        _require_same(
            run.request(changes), kept[-1][1], is_hybrid and collides, f"answered again in epoch {run.epoch}", subject, history
        )
        _check_aside(run, changes[: len(changes) // 2], history)
        _require_same(
            run.request(changes), kept[-1][1], is_hybrid, f"answered after others in epoch {run.epoch}", subject, history
        )
        _require(_exact_snapshot(run.operator) == before, f"answer of epoch {run.epoch} changes the state", subject, history)
        _check_aside(run, changes[:-1], history)  # what is absorbed need not be what was answered last
        run.take(answer)
        run.absorb(changes)
    for epoch, (answer, first) in enumerate(kept):
        _require(exact_answer(answer) == first, f"the answer of epoch {epoch} changed after it was given", subject, history)


def _require_same(
    answer: Sequence[ZSet], first: list[Any], in_any_order: bool, moment: str, subject: Subject, history: History
) -> None:
    """Compare an answer bit by bit with the exact one that was given first: chunks and order too, or lines only."""
    again = exact_answer(answer)
    if in_any_order:
        again, first = (sorted((line for chunk in each for line in chunk), key=repr) for each in (again, first))
    _require(again == first, f"{moment}, the answer is\n{again}\nnot\n{first}", subject, history)


def _check_aside(run: Run, changes: Epoch, history: History) -> None:
    """Answer other changes of the same epoch, without continuing from there."""
    view = copy.deepcopy(run.view)
    view.take(run.request(changes))
    expected = run.subject.spec.expected([*run.seen, *changes])
    compare(view.counts(), expected, f"answered aside in epoch {run.epoch}", run.subject, history)


def snapshot_and_restore_are_invisible(subject: Subject, history: History) -> None:
    """Restored from a snapshot, fresh or after use, or fed with the log without answers, an operator continues alike."""
    original = Run(subject)
    epochs = history.epochs()
    moment = history.moment % (len(epochs) + 1)
    fresh, used, folded = Run(subject), _WALKED.take(subject, history), Run(subject)
    for changes in epochs[:moment]:
        original.step(changes)
        folded.absorb(changes)
    snapshot = dict(original.operator.snapshot())
    before = exact_tables(snapshot)
    for restored in (fresh, used):
        restored.operator.restore(snapshot)
        restored.epoch = original.epoch
    for other in (fresh, used, folded):
        same = _exact_snapshot(other.operator) == before
        _require(same, "the snapshot differs after a restore, or after folding the log", subject, history)
    late = _late(subject, original.seen)  # delivered again, to see that sequences and tombstones came along
    for changes in [late, *epochs[moment:]]:
        wanted = _sum(original.step(changes))
        for other in (fresh, used, folded):
            compare(_sum(other.request(changes)), wanted, f"epoch {other.epoch} after a restore", subject, history)
            other.absorb(changes)
    _require(exact_tables(snapshot) == before, "the snapshot changed after it was taken", subject, history)


def reopening_is_invisible(subject: Subject, history: History) -> None:
    """State in a directory, opened again before every epoch or by two in turns, answers as if one had kept it open."""
    if history.moment % 2:
        _take_turns(subject, history)
        return
    with tempfile.TemporaryDirectory() as directory:
        run = Run(subject, directory=directory)
        for changes in history.epochs():
            before = _exact_snapshot(run.operator)
            run.close()
            run.operator = subject.operator(directory=directory)
            _require(
                _exact_snapshot(run.operator) == before,
                f"reopening before epoch {run.epoch} changes the state",
                subject,
                history,
            )
            absorbed = getattr(run.operator, "absorbed_epoch", None)
            _require(absorbed == run.epoch - 1, f"absorbed_epoch is {absorbed}, not {run.epoch - 1}", subject, history)
            run.step(changes)
            run.check(history)
        run.close()


def _take_turns(subject: Subject, history: History) -> None:
    """Alternate two operators over one directory, as workers do that keep them open; an overtaken one may raise."""
    with tempfile.TemporaryDirectory() as directory, locked_outside():
        run = Run(subject, directory=directory)
        others: list[Operator] = [run.operator]
        for changes in history.epochs():
            kept = others.pop(0) if len(others) > 1 else None
            if kept is not None and not _is_current(kept):
                _close(kept)
                kept = None
            run.operator = subject.operator(directory=directory) if kept is None else kept
            others.append(run.operator)
            run.step(changes)
            run.check(history)
        for kept in others:
            _close(kept)


def _is_current(operator: Operator) -> bool:
    is_current = getattr(operator, "is_current", None)
    return is_current is not None and bool(is_current())


def _close(operator: Operator) -> None:
    close = getattr(operator, "close", None)
    if close is not None:
        close()


def replay_after_crash_is_invisible(subject: Subject, history: History) -> None:
    """An epoch that was answered but not absorbed when the process died gets the same answer from state opened again."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(subject, directory=directory)
        for changes in history.epochs():
            first = _sum(run.request(changes))
            run.close()
            run.operator = subject.operator(directory=directory)
            again = run.request(changes)
            compare(_sum(again), first, f"epoch {run.epoch} answered again after a crash", subject, history)
            run.take(again)
            run.absorb(changes)
            run.check(history)
        run.close()


def budget_is_invisible(subject: Subject, history: History) -> None:
    """With nothing, one row or everything in memory, and the rest on disk, every epoch is answered as without a budget.

    DuckDB takes milliseconds where files take microseconds, so on a push one example of eight has its rows there.
    """
    unlimited = Run(subject.with_budget(None))
    if profile_name() == "nightly":
        budgets = [(budget, medium) for medium in MEDIA for budget in BUDGETS]
    else:
        budgets = [(BUDGETS[1], "duckdb")] if history.moment % 8 == 0 else [(budget, "files") for budget in BUDGETS]
    runs = [Run(subject.with_budget(*each)) for each in budgets]
    for changes in history.epochs():
        wanted = _sum(unlimited.step(changes))
        state = _exact_snapshot(unlimited.operator)
        for run, ((option, limit), medium) in zip(runs, budgets, strict=True):
            answer = _sum(run.step(changes))
            compare(answer, wanted, f"epoch {run.epoch - 1} with {option}={limit} in {medium}", run.subject, history)
            run.check(history)
            same = _exact_snapshot(run.operator) == state
            _require(same, f"epoch {run.epoch - 1} with {option}={limit} leaves another state", run.subject, history)
            hot = _hot_rows(run.operator)
            _require(hot <= limit, f"{hot} rows are in memory with {option}={limit}", run.subject, history)
    for run in runs:
        run.close()


def _hot_rows(operator: Operator) -> int:
    """Return how many live rows and tombstones, or groups, an operator with a budget has in memory."""
    counts: Mapping[str, int] = getattr(operator, "statistics", dict)()
    return sum(count for name, count in counts.items() if name.endswith(("_hot_rows", "_hot_tombstones", "hot_groups")))


def duplicate_delivery_is_invisible(subject: Subject, history: History) -> None:
    """Upserts delivered again, those made void by a later sequence or all in their old order, yield nothing at all."""
    run = Run(subject)
    for changes in history.epochs():
        run.step(changes)
        seen = list(run.seen)
        for again in (_late(subject, seen), _upserts(subject, seen)):
            answer = run.step(again)
            quiet = not _lines(answer) or _is_route(subject)  # a route does not see payloads and passes equal ones on
            _require(quiet, f"a second delivery of {again} answers {_lines(answer)}", subject, history)
        run.seen = seen
        run.check(history)


def legal_in_legal_out(subject: Subject, history: History) -> None:
    """Every retraction retracts rows that are present before the epoch; no weight ever falls below 0."""
    run = Run(subject)
    for changes in history.epochs():
        before = run.view.counts()
        answer = run.step(changes)
        gone: Counts = {}
        for row, weight in _lines(answer):
            gone[row_identity(row)] = gone.get(row_identity(row), 0) - min(weight, 0)
        phantom = {} if _is_route(subject) else {row: n for row, n in gone.items() if n > before.get(row, 0)}
        _require(not phantom, f"epoch {run.epoch - 1} retracts more than was there: {phantom}", subject, history)


def answers_are_tidy(subject: Subject, history: History) -> None:
    """No weight 0, no empty chunk, chunks within bounds, retractions first, and no row both retracted and inserted."""
    run = Run(subject)
    for changes in history.epochs():
        answer = run.step(changes)
        for chunk in answer:
            _require(chunk.schema.equals(run.operator.output.schema), f"chunk has schema {chunk.schema}", subject, history)
            bounded = 0 < len(chunk) <= subject.spec.knobs.chunk_rows
            _require(bounded, f"a chunk has {len(chunk)} rows", subject, history)
        lines = _lines(answer)
        weights = [weight for _, weight in lines]
        _require(0 not in weights, f"a line has weight 0: {lines}", subject, history)
        sorted_weights = sorted(weights, key=lambda weight: weight > 0)
        _require(weights == sorted_weights, f"an insertion precedes a retraction: {lines}", subject, history)
        both = {row_identity(row) for row, weight in lines if weight < 0} & {
            row_identity(row) for row, weight in lines if weight > 0
        }
        _require(not both or _is_route(subject), f"both retracted and inserted: {both}", subject, history)


def late_reading_is_refused(subject: Subject, history: History) -> None:
    """An answer that is read only after its epoch was absorbed is refused, or is the one it would have been."""
    run = Run(subject)
    for changes in history.epochs():
        late = run.operator.answer(run.tick(), run.deltas(changes))
        answer = run.step(changes)
        try:
            read = list(late)
        except ZsetJoinError as error:
            _require(error.code == "ANSWER_OUTDATED", f"a late answer raises {error}", subject, history)
        else:
            same = _sum(read) == _sum(answer)
            _require(same, f"read late, the answer of epoch {run.epoch - 1} is {_lines(read)}", subject, history)


def quarantine_keeps_the_books(subject: Subject, history: History) -> None:
    """Rows in = rows applied + rows rejected: exactly the bad lines are reported and the rest goes through."""
    epochs, bad = plant_bad_lines(subject.spec, history.epochs(), history.bad_genes)
    run = Run(subject, on_bad_input="quarantine")
    for number, changes in enumerate(epochs):
        wanted = _places(subject, changes, {position for epoch, position in bad if epoch == number})
        table = run.operator.rejections(run.tick(), run.deltas(changes))
        reported = [(line["input"], line["row"], line["weight"]) for line in table.to_pylist()]
        _require(sorted(reported) == wanted, f"epoch {number} rejects {reported}, not {wanted}, of {changes}", subject, history)
        reported = all(line["code"] and line["reason"] for line in table.to_pylist())
        _require(reported, f"epoch {number}: a rejection lacks code or reason", subject, history)
        run.take(run.request(changes))
        run.absorb(changes)
        run.seen = [
            change for n, epoch in enumerate(epochs[: number + 1]) for p, change in enumerate(epoch) if (n, p) not in bad
        ]
        run.check(history)


def errors_apply_nothing(subject: Subject, history: History) -> None:
    """Under policy error a bad epoch raises before any output, names stream and epoch, and leaves the state untouched."""
    epochs, bad = plant_bad_lines(subject.spec, history.epochs(), history.bad_genes)
    run = Run(subject)
    for number, changes in enumerate(epochs):
        culprits = [change for position, change in enumerate(changes) if (number, position) in bad]
        if culprits:
            _check_refusal(run, changes, culprits, history)
        run.step(tuple(change for position, change in enumerate(changes) if (number, position) not in bad))
        run.check(history)


def _check_refusal(run: Run, changes: Epoch, culprits: Sequence[Change], history: History) -> None:
    subject, before = run.subject, _exact_snapshot(run.operator)
    for act in (_answer_once, _absorb_once):
        try:
            act(run, changes)
        except BadInputError as error:
            reported = _names_all(error, run.epoch, [(subject.spec.inputs[change.side], change) for change in culprits])
            _require(reported, f"stream, key or epoch {run.epoch} of {culprits} is missing: {error.message}", subject, history)
        else:
            _require(False, f"{act.__name__} took bad lines {culprits} in epoch {run.epoch}", subject, history)
        _require(_exact_snapshot(run.operator) == before, f"{act.__name__} applied part of a bad epoch", subject, history)


def _names_all(error: BadInputError, epoch: int, culprits: Sequence[tuple[Relation, Change]]) -> bool:
    """Return whether an error names the stream and the key of one of the culprits, and the epoch.

    A key is the primary key, or the whole row where there is none.
    """
    key = error.facts.get("key", ())
    names = [
        relation.name
        for relation, change in culprits
        if row_identity(key) == row_identity(_named_by(relation, change)) and repr(key) in error.message
    ]
    return any(name in error.message for name in names) and f"epoch {epoch}" in error.message


def _named_by(relation: Relation, change: Change) -> list[Any]:
    places = relation.field_indices(relation.primary_key) or range(len(change.row))
    return [change.row[place] for place in places]


def _answer_once(run: Run, changes: Epoch) -> None:
    for chunk in run.operator.answer(run.tick(), run.deltas(changes)):
        raise LawBrokenError(f"a chunk of {len(chunk)} rows left before the bad lines were found")


def _absorb_once(run: Run, changes: Epoch) -> None:
    run.operator.absorb(run.tick(), run.deltas(changes))


def _places(subject: Subject, changes: Epoch, bad: set[int]) -> list[tuple[str, int, int]]:
    """Return the bad lines as `(input, row within that input's delta, weight)`, sorted."""
    places: list[tuple[str, int, int]] = []
    counters = [0] * len(subject.spec.inputs)
    for position, change in enumerate(changes):
        if position in bad:
            places.append((subject.spec.inputs[change.side].name, counters[change.side], change.weight))
        counters[change.side] += 1
    return sorted(places)


def _upserts(subject: Subject, changes: Sequence[Change]) -> Epoch:
    """Return the changes of the sides in upsert mode."""
    return tuple(change for change in changes if subject.spec.inputs[change.side].mode == "upsert")


def _late(subject: Subject, changes: Sequence[Change]) -> Epoch:
    """Return the changes that a later sequence of their primary key has made void; delivered again they change nothing."""
    newest: dict[tuple[int, Any], Any] = {}
    placed: list[tuple[Change, tuple[int, Any], tuple[Any, ...]]] = []
    for change in changes:
        relation = subject.spec.inputs[change.side]
        if relation.sequence_by:
            key = change.side, row_identity(change.row[place] for place in relation.field_indices(relation.primary_key))
            sequence = tuple(change.row[place] for place in relation.field_indices(relation.sequence_by))
            newest[key] = max(newest.get(key, sequence), sequence)
            placed.append((change, key, sequence))
    return tuple(change for change, key, sequence in placed if sequence < newest[key])


def _lines(answer: Sequence[ZSet]) -> list[tuple[tuple[Any, ...], int]]:
    return [line for chunk in answer for line in chunk.to_pylist()]


def _is_route(subject: Subject) -> bool:
    """Return whether the output is in upsert mode, where a delete and an upsert of one key may be side by side."""
    return isinstance(subject.spec, RouteSpec) and subject.spec.shows_upserts


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("incremental_is_batch", incremental_is_batch),
        Law("epochs_are_invisible", epochs_are_invisible),
        Law("undo_is_complete", undo_is_complete),
        Law("quiet_on_quiet", quiet_on_quiet),
        Law("answer_is_pure", answer_is_pure),
        Law("snapshot_and_restore_are_invisible", snapshot_and_restore_are_invisible),
        Law("reopening_is_invisible", reopening_is_invisible),
        Law("replay_after_crash_is_invisible", replay_after_crash_is_invisible),
        Law("budget_is_invisible", budget_is_invisible),
        Law("duplicate_delivery_is_invisible", duplicate_delivery_is_invisible),
        Law("legal_in_legal_out", legal_in_legal_out),
        Law("answers_are_tidy", answers_are_tidy),
        Law("late_reading_is_refused", late_reading_is_refused),
        Law("quarantine_keeps_the_books", quarantine_keeps_the_books, with_bad_lines=True),
        Law("errors_apply_nothing", errors_apply_nothing, with_bad_lines=True),
    )
}
