"""State that ends by time obeys its laws, and the laws catch planted bugs.

On a push some hundred histories; `HYPOTHESIS_PROFILE=nightly` walks through many thousands.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from property_tests.laws import LawBrokenError
from property_tests.profiles import profile_name
from property_tests.ttl_histories import AFTER, Row, TtlCase, TtlOracle, TtlStep
from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.kernels.rows import side as s
from zset_join.kernels.values import keys as c
from zset_join.testing.comparison import exact_answer, exact_tables

CASES = {"push": 24, "scout": 1000, "nightly": 20_000}
HUNTED = 1500
Make = Callable[..., Any]


def _require(holds: bool, sentence: str, case: TtlCase) -> None:
    if not holds:
        raise LawBrokenError(f"{sentence}\n{case.__dict__}")


def _sum(answer: Any) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for chunk in answer:
        for row, weight in chunk.to_pylist():
            found[row] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


def answers_are_those_of_the_rows_alive(case: TtlCase, make: Make) -> None:
    """Every answer is the change of the plain query over what is alive, or of what was emitted before rows are forgotten."""
    operator, oracle = make(case), TtlOracle(case)
    for step in case.steps:
        deltas = case.deltas(step.changes)
        try:
            got = _sum(operator.answer(step.tick, deltas))
            operator.absorb(step.tick, deltas)
        except ZsetJoinError as error:
            raise LawBrokenError(f"legal input was refused in epoch {step.tick.epoch}: {error}") from error
        wanted = oracle.step(step)
        _require(got == wanted, f"epoch {step.tick.epoch}: {got}, not {wanted}", case)


def quiet_on_quiet(case: TtlCase, make: Make) -> None:
    """At the same time, an epoch without rows has an empty answer."""
    operator = make(case)
    for epoch, step in enumerate(case.steps):
        tick = replace(step.tick, epoch=2 * epoch)
        deltas, nothing = case.deltas(step.changes), case.deltas([() for _ in step.changes])
        list(operator.answer(tick, deltas))
        operator.absorb(tick, deltas)
        again = replace(tick, epoch=2 * epoch + 1, watermark_before_us=tick.watermark_us)
        _require(not _sum(operator.answer(again, nothing)), f"after epoch {epoch} it answers without rows or time", case)
        operator.absorb(again, nothing)


def epochs_are_invisible(case: TtlCase, make: Make) -> None:
    """Rows of one moment, fed in two epochs or in one, leave the same behind.

    Where what is due in an epoch may be touched in it, and lives on, an epoch in which something is due is not cut.
    """
    touches = case.forgets or case.reads or case.by_key or case.mode != "append"
    whole, parted = make(case), make(case)
    sums: list[Counter[Row]] = [Counter(), Counter()]
    for epoch, step in enumerate(case.steps):
        first = replace(step.tick, epoch=2 * epoch)
        second = replace(first, epoch=2 * epoch + 1, watermark_before_us=first.watermark_us)
        nothing = case.deltas([() for _ in step.changes])
        is_cut = not touches or not (case.by_event or _is_due(parted, first))
        halves = [tuple(tuple(one for one in rows if _part(one[0]) == at) for rows in step.changes) for at in (0, 1)]
        parts = [case.deltas(one) for one in halves] if is_cut else [case.deltas(step.changes), nothing]
        for operator, total, deltas in ((whole, sums[0], [case.deltas(step.changes), nothing]), (parted, sums[1], parts)):
            for tick, given in zip((first, second), deltas, strict=True):
                total.update(_sum(operator.answer(tick, given)))
                operator.absorb(tick, given)
        _require(Counter(+sums[0]) == Counter(+sums[1]), f"epoch {epoch}: {sums[0]} in one, {sums[1]} in two", case)


def _part(row: Row) -> int:
    return sum(map(ord, repr(row))) % 2


def _is_due(operator: Any, tick: Tick) -> bool:
    due = operator.next_due().processing_time_us
    return due is not None and tick.processing_time_us is not None and due <= tick.processing_time_us


def an_answer_is_pure(case: TtlCase, make: Make) -> None:
    """Called twice, the same to the bit; the state stays as it was."""
    operator = make(case)
    for step in case.steps:
        before = exact_tables(operator.snapshot())
        first = exact_answer(list(operator.answer(step.tick, case.deltas(step.changes))))
        again = exact_answer(list(operator.answer(step.tick, case.deltas(step.changes))))
        _require(first == again, f"answered again in epoch {step.tick.epoch}", case)
        _require(exact_tables(operator.snapshot()) == before, "an answer changes the state", case)
        operator.absorb(step.tick, case.deltas(step.changes))


def snapshots_are_invisible(case: TtlCase, make: Make) -> None:
    """Restored before every epoch, an operator continues alike, and is due no later."""
    one, other = make(case), make(case)
    for step in case.steps:
        other.restore(one.snapshot())
        _require(exact_tables(other.snapshot()) == exact_tables(one.snapshot()), "another snapshot after a restore", case)
        deltas = case.deltas(step.changes)
        wanted, got = _sum(one.answer(step.tick, deltas)), _sum(other.answer(step.tick, deltas))
        _require(wanted == got, f"epoch {step.tick.epoch} after a restore: {got}, not {wanted}", case)
        one.absorb(step.tick, deltas)


def reopening_is_invisible(case: TtlCase, make: Make) -> None:
    """Closed and opened again before every epoch, mapped state answers as state that stayed open."""
    with tempfile.TemporaryDirectory() as directory:
        operator, stays = make(case, directory=directory), make(case)
        for step in case.steps:
            operator.close()
            operator = make(case, directory=directory)
            _require(
                operator.is_current() and operator.next_due() == stays.next_due(), "other files, or due at another time", case
            )
            deltas = case.deltas(step.changes)
            wanted, got = _sum(stays.answer(step.tick, deltas)), _sum(operator.answer(step.tick, deltas))
            _require(wanted == got, f"epoch {step.tick.epoch} after opening again: {got}, not {wanted}", case)
            stays.absorb(step.tick, deltas)
            operator.absorb(step.tick, deltas)
        operator.close()


def what_has_ended_is_freed(case: TtlCase, make: Make) -> None:
    """Once time has passed everything that can end, nothing of it is kept, and nothing is due."""
    operator = make(case)
    for step in case.steps:
        operator.absorb(step.tick, case.deltas(step.changes))
    last, far = case.steps[-1].tick, 1 << 40
    nothing = case.deltas([() for _ in operator.inputs])
    for later in (1, 2):  # what is looked at early is put back once
        tick = Tick(last.epoch + later, far + later, last.watermark_us if later == 1 else far, far + later)
        operator.absorb(tick, nothing)
    endless = any(row[2] is None for step in case.steps for one in step.changes for row, _ in one) and case.by_event
    counts = operator.statistics()
    kept = sum(counts[f"ttl_{number}_rows"] for number, ends in enumerate(case.ends) if ends)
    _require(endless or kept == 0, f"{kept} rows are kept", case)
    due = operator.next_due()
    _require(due.watermark_us is None and due.processing_time_us is None, f"something is due at {due}", case)


LAWS = [
    answers_are_those_of_the_rows_alive,
    quiet_on_quiet,
    epochs_are_invisible,
    an_answer_is_pure,
    snapshots_are_invisible,
    reopening_is_invisible,
    what_has_ended_is_freed,
]
FEWER = {reopening_is_invisible: 4, snapshots_are_invisible: 4, an_answer_is_pure: 4}


def made(case: TtlCase, directory: str | None = None) -> Any:
    return case.make(directory)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_holds(law: Callable[[TtlCase, Make], None]) -> None:
    for seed in range(CASES[profile_name()] // FEWER.get(law, 1)):
        law(TtlCase(seed), made)


def _with(**changes: Any) -> Make:
    return lambda case, directory=None: case.make(directory, replace(case.ttl(), **changes))


def _spoiled(spoil: Callable[[Any], None]) -> Make:
    def make(case: TtlCase, directory: str | None = None) -> Any:
        operator = case.make(directory)
        for rows in filter(None, operator._rows):
            spoil(rows)
        return operator

    return make


def _never_settles(rows: Any) -> None:
    rows._expiries.settle = lambda *given: None


def _live_numbers(rows: Any) -> Any:
    """Return the numbers of all rows that are present."""
    flags = rows.side.record_words("u1", c.FLAGS, int(rows.side.header[s.H_ROWS_END]))
    return np.flatnonzero(flags & c.FLAG_LIVE).astype(np.int64) + 1


def _restores_no_times(rows: Any) -> None:
    restore = rows.restore

    def wrong(tables: Any) -> None:
        restore(tables)
        numbers = _live_numbers(rows)
        rows._expiries.raise_to(numbers, rows._expiries.times(numbers) + 5)

    rows.restore = wrong


def _keeps_refreshed_time(rows: Any) -> None:
    begin = rows._expiries.begin
    rows._expiries.begin = lambda numbers: begin(numbers[:0])


def _forgets_what_is_touched(rows: Any) -> None:
    rows._without_refreshed = lambda expired, copies, changes: (expired, copies)


def _one_too_late(rows: Any) -> None:
    now = rows._now
    rows._now = lambda tick: None if now(tick) is None else now(tick) - 1


def _answers_write(rows: Any) -> None:
    resolve = rows.resolve

    def wrong(tick: Tick, delta: Any, read: Any) -> Any:
        numbers = _live_numbers(rows)
        rows._expiries.raise_to(numbers, rows._expiries.times(numbers) + 1)
        return resolve(tick, delta, read)

    rows.resolve = wrong


def _half_the_due(rows: Any) -> None:
    due = rows._expiries.due
    rows._expiries.due = lambda now: due(now)[::2]


def _header_in_memory_only(rows: Any) -> None:
    schedule = rows._expiries._push
    rows._expiries._push = lambda numbers, times: schedule(numbers[:-1], times[:-1])


def _keeps_only_what_shows(case: TtlCase, directory: str | None = None) -> Any:
    """Build a dedup that trims what it does not show, as it may where no row ends; other operators as they are."""
    operator = case.make(directory)
    if case.is_dedup:
        rows = operator._inside._rows
        absorb = rows.absorb
        rows.absorb = lambda *given, **more: absorb(*given, **{**more, "limit": case.first_rows})
    return operator


BATCH = answers_are_those_of_the_rows_alive
PLANTED = {
    "a row lives one too long": (_with(after=AFTER + 1), BATCH),
    "rows live by the other clock": (
        lambda case, directory=None: case.make(directory, replace(case.ttl(), by_event_time=not case.by_event)),
        BATCH,
    ),
    "reads are not seen": (_with(reads=False), BATCH),
    "keys do not keep their rows together": (_with(by_key=False), BATCH),
    "what is forgotten is retracted": (_with(forgets=False), BATCH),
    "a first row ends and no other one shows": (_keeps_only_what_shows, BATCH),
    "time passes one later": (_spoiled(_one_too_late), BATCH),
    "half of what is due is looked at": (_spoiled(_half_the_due), BATCH),
    "a refreshed row goes all the same": (_spoiled(_forgets_what_is_touched), BATCH),
    "a new row takes over an old time": (_spoiled(_keeps_refreshed_time), BATCH),
    "times are lost in a restore": (_spoiled(_restores_no_times), snapshots_are_invisible),
    "an answer writes": (_spoiled(_answers_write), an_answer_is_pure),
    "what was looked at stays due": (_spoiled(_never_settles), what_has_ended_is_freed),
    "the last row is never looked for": (_spoiled(_header_in_memory_only), what_has_ended_is_freed),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bug_is_caught(name: str) -> None:
    make, law = PLANTED[name]

    def hunt() -> None:
        for seed in range(HUNTED):
            law(TtlCase(seed), make)

    with pytest.raises(LawBrokenError):
        hunt()


def test_a_history_is_decided_by_its_number() -> None:
    assert TtlCase(3).steps == TtlCase(3).steps
    assert isinstance(TtlCase(3).steps[0], TtlStep)
