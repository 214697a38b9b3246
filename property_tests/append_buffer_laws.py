"""The laws of an append-only join at its limit (`join_max_buffered_bytes`), one function each.

A law takes a case (a join, a limit, what happens at it, and the way to build the operator) and a history. The verdict is that
of `BufferOracle`. Where rows may be on disk too (`abort` in a hybrid join, and `spill`), the same laws hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from property_tests.append_buffer_oracle import BufferOracle
from property_tests.laws import LawBrokenError, Run, compare, exact
from property_tests.registry import Subject, hash_join_live_rows, make_hash_join
from property_tests.shapes import JoinSpec, oracle_side
from property_tests.strategies import Epoch, History, join_specs
from zset_join.core.errors import ResourceError
from zset_join.core.options import BufferLimit
from zset_join.operators.join import HashJoin
from zset_join.testing.reference import row_identity
from zset_join.zset.protocol import Operator

__all__ = ["BUFFER_LAWS", "BufferCase", "BufferLaw", "Mutate", "buffer_cases"]

Mutate = Callable[[HashJoin], HashJoin]
BufferLaw = Callable[["BufferCase", History], None]

_PLAIN_KEYS = ("int64", "string", "float64", "int64+string")
_PLAIN_PAYLOADS = ("string", "float64")
_BUCKETS = 3


@dataclass(frozen=True)
class BufferCase:
    """One append-only join with a limit.

    Args:
        spec: the join.
        limit: the limit in bytes.
        mode: `abort` or `spill`.
        mutate: plants a bug in an operator, or leaves it alone.
    """

    spec: JoinSpec
    limit: int
    mode: str
    mutate: Mutate = lambda join: join

    def build(self, spec: JoinSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        """Build the operator."""
        options = spec.knobs.options(on_bad_input, directory, may_be_hybrid=self.mode == "abort")
        limit = BufferLimit.of(self.limit, self.mode)
        return self.mutate(make_hash_join(spec, replace(options, buffer_limit=limit)))

    @property
    def subject(self) -> Subject:
        """Return the same for a `Run`."""
        return Subject(self.spec, self.build, hash_join_live_rows)

    def oracle(self, operator: Any) -> BufferOracle:
        """Return the verdict's maker; the size of a record is what it takes from the operator."""
        strides = [side.layout.stride for side in operator._sides]
        return BufferOracle(
            how=self.spec.how,
            sides=(oracle_side(self.spec.left), oracle_side(self.spec.right)),
            null_safe=self.spec.null_safe,
            residual=None if self.spec.residual is None else self.spec.residual.function,
            using=self.spec.using,
            fixed=(strides[0], strides[1]),
        )

    def __repr__(self) -> str:
        return f"limit {self.limit}, {self.mode}: {self.spec!r}"


def buffer_cases(how: str, mode: str, mutate: Mutate | None = None) -> st.SearchStrategy[BufferCase]:
    """Draw joins with limits that some rows reach and others do not."""
    specs = join_specs(how, "append", "append", key_shapes=_PLAIN_KEYS).filter(lambda spec: spec.payload in _PLAIN_PAYLOADS)
    limits = st.one_of(st.integers(100, 1500), st.sampled_from((1, 208, 240, 416, 480, 10_000)))
    kept = mutate or (lambda join: join)
    return st.builds(lambda spec, limit: BufferCase(spec, limit, mode, kept), specs, limits)


def _plain(case: BufferCase, changes: Epoch) -> list[tuple[int, dict[str, Any], int]]:
    names = [relation.schema.names for relation in case.spec.inputs]
    return [(change.side, dict(zip(names[change.side], change.row, strict=True)), change.weight) for change in changes]


def _require(holds: bool, sentence: str, case: BufferCase, history: History) -> None:
    if not holds:
        raise LawBrokenError(f"{sentence}\n{case!r}\n{history!r}")


def _state_of(operator: Any) -> Any:
    tables = operator.snapshot()
    return {name: sorted((exact(list(row.values())) for row in table.to_pylist()), key=repr) for name, table in tables.items()}


def abort_leaves_everything_as_it_was(case: BufferCase, history: History) -> None:
    """An epoch that reaches the limit raises, names both sides' bytes and the largest key, and changes nothing."""
    run = Run(case.subject)
    oracle = case.oracle(run.operator)
    for changes in history.epochs():
        plain = _plain(case, changes)
        held = oracle.would_hold(plain)
        if changes and sum(held) >= case.limit:
            _check_refusal(run, case, changes, history, held, oracle.largest_key(plain))
            continue
        oracle.step(plain)
        run.step(changes)
        compare(run.view.counts(), oracle.expected(), f"after epoch {run.epoch - 1}", run.subject, history)


def _check_refusal(
    run: Run, case: BufferCase, changes: Epoch, history: History, held: tuple[int, int], largest: tuple[int, int]
) -> None:
    before = _state_of(run.operator)
    for act in (_answer_twice, _absorb):
        try:
            act(run, changes)
        except ResourceError as error:
            facts = error.facts
            reported = (facts["left_bytes"], facts["right_bytes"]), (facts["key_bytes"], facts["key_rows"])
            _require(reported[0] == held, f"the error names {reported[0]} bytes, not {held}", case, history)
            _require(
                reported[1][0] == largest[0], f"the error names a largest key of {reported[1]}, not {largest}", case, history
            )
            named = "join_max_buffered_bytes" in error.message and f"epoch {run.epoch}" in error.message
            _require(named, f"the error names neither option nor epoch: {error}", case, history)
        else:
            _require(False, f"{act.__name__} took {held} bytes in epoch {run.epoch}", case, history)
        _require(_state_of(run.operator) == before, f"{act.__name__} applied part of a refused epoch", case, history)


def _answer_twice(run: Run, changes: Epoch) -> None:
    for chunk in run.operator.answer(run.tick(), run.deltas(changes)):
        raise LawBrokenError(f"a chunk of {len(chunk)} rows left before the limit was noticed")


def _absorb(run: Run, changes: Epoch) -> None:
    run.operator.absorb(run.tick(), run.deltas(changes))


def the_answers_are_those_of_what_is_kept(case: BufferCase, history: History) -> None:
    """After every epoch the sum of the answers is the join of all rows, bytes are exact, and memory keeps to the limit."""
    run = Run(case.subject)
    oracle = case.oracle(run.operator)
    for changes in history.epochs():
        oracle.step(_plain(case, changes))
        reported: Any = run.operator
        buffered = reported.buffered(run.tick(), run.deltas(changes))
        _require(
            buffered.after == oracle.held_bytes(),
            f"epoch {run.epoch} reports {buffered.after} bytes, expected {oracle.held_bytes()}",
            case,
            history,
        )
        run.step(changes)
        compare(run.view.counts(), oracle.expected(), f"after epoch {run.epoch - 1}", run.subject, history)
        counts = reported.statistics()
        _require(counts["left_rows"] + counts["right_rows"] == len(oracle.held), "other rows are kept", case, history)
        in_memory = counts.get("hot_bytes", 0)
        _require(in_memory <= case.limit, f"{in_memory} bytes are in memory, more than the limit", case, history)


def _lines(run: Run, changes: Epoch) -> list[tuple[tuple[Any, ...], int]]:
    return [line for chunk in run.request(changes) for line in chunk.to_pylist()]


def what_is_kept_survives(case: BufferCase, history: History) -> None:
    """Restored from a snapshot, opened again or only fed, a join holds the same bytes."""
    if case.mode == "abort":
        case = replace(case, limit=0)
    with tempfile.TemporaryDirectory() as directory:
        run, fed, reopened = Run(case.subject), Run(case.subject), Run(case.subject, directory=directory)
        for changes in history.epochs():
            snapshot = dict(run.operator.snapshot())
            restored = Run(case.subject)
            restored.operator.restore(snapshot)
            restored.epoch = run.epoch
            reopened.close()
            reopened.operator = case.subject.operator(directory=directory)
            wanted = _answer_of(run, changes)
            for name, other in (("restored", restored), ("fed", fed), ("reopened", reopened)):
                _require(_answer_of(other, changes) == wanted, f"epoch {run.epoch}, {name}: other answer", case, history)
            for each in (run, fed, reopened, restored):
                each.absorb(changes)
            for name, other in (("restored", restored), ("fed", fed), ("reopened", reopened)):
                same = _state_of(other.operator) == _state_of(run.operator) and _counts(other) == _counts(run)
                _require(same, f"after epoch {run.epoch - 1}, {name}: other rows or counts", case, history)
        reopened.close()


def _answer_of(run: Run, changes: Epoch) -> Any:
    reported: Any = run.operator
    buffered = reported.buffered(run.tick(), run.deltas(changes))
    lines = sorted(((exact(row), weight) for row, weight in _lines(run, changes)), key=repr)
    return buffered.before, buffered.after, lines


def _counts(run: Run) -> tuple[int, ...]:
    reported: Any = run.operator
    counts = reported.statistics()
    return tuple(counts[name] for name in ("left_rows", "right_rows"))


def bytes_do_not_depend_on_buckets(case: BufferCase, history: History) -> None:
    """What some buckets hold together, on disk or not, is what one operator with all their rows in memory holds."""
    unlimited = BufferCase(case.spec, 0, "abort", case.mutate)
    whole = Run(unlimited.subject.with_budget(None))
    parts = [Run(unlimited.subject) for _ in range(_BUCKETS)]
    for changes in history.epochs():
        for number, part in enumerate(parts):
            part.absorb(tuple(change for change in changes if _bucket(case, change) == number))
        whole.absorb(changes)
        held = [_held(run) for run in parts]
        sums = tuple(sum(each[side] for each in held) for side in (0, 1))
        _require(sums == _held(whole), f"buckets hold {sums} bytes, one operator {_held(whole)}", case, history)


def _bucket(case: BufferCase, change: Any) -> int:
    relation = case.spec.inputs[change.side]
    key = row_identity(change.row[place] for place in relation.field_indices(relation.join_key))
    return sum(repr(key).encode()) % _BUCKETS


def _held(run: Run) -> tuple[int, int]:
    reported: Any = run.operator
    before: tuple[int, int] = reported.buffered(run.tick(), run.deltas(())).before
    return before


BUFFER_LAWS: dict[str, tuple[tuple[str, ...], BufferLaw]] = {
    law.__name__: (modes, law)
    for modes, law in (
        (("abort",), abort_leaves_everything_as_it_was),
        (("spill",), the_answers_are_those_of_what_is_kept),
        (("abort", "spill"), what_is_kept_survives),
        (("abort",), bytes_do_not_depend_on_buckets),
    )
}
