"""SIGKILL before and after every file operation of an epoch, then recovery in a new process.

A *stage* is the life of a driver from its start to the end of one epoch, on the files that the epochs before have left. Its
operations are counted once without a fault; then, for each of them, a child lives the same life again and kills itself just
before, or just after, that operation. A second child finds the present content, replays and compares. Every few kills the
recovering child is killed as well, and a third one recovers.

An operation that the life did not reach kills nobody; such an attempt is injected and not observed.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from faults.copies import copy_life
from faults.driver import Driver, Kind, Place
from faults.histories import History
from faults.processes import Outcome, Send, forked
from faults.recovery import Known, check_recovery
from faults.tally import Tally
from faults.watching import Act, OperationList, is_below
from zset_join.storage.operations import Operation, observe

__all__ = ["KillAt", "KillPoint", "Moment", "Stage", "heard", "kill_and_recover", "search", "search_moments", "stages_of"]

Moment = Literal["before", "after"]

_MOST_TRIES = 4


@dataclass
class KillAt:
    """Kill this process at one operation.

    Args:
        root: only operations below it count.
        number: which operation, counted from 0.
        moment: before it is done, or after.
    """

    root: Path
    number: int
    moment: Moment
    _seen: int = 0

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Do the operation, or die."""
        if not is_below(self.root, operation):
            return act()
        number, self._seen = self._seen, self._seen + 1
        if number == self.number and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = act()
        if number == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


@dataclass(frozen=True)
class KillPoint:
    """The moment of a kill.

    Args:
        number: which operation of the stage.
        moment: before or after it.
        described: what the operation does.
    """

    number: int
    moment: Moment
    described: str


@dataclass(frozen=True)
class Stage:
    """One driver life that runs one epoch, or some.

    Args:
        history: the query and its input.
        kind: which output.
        first: the first epoch that the life runs.
        epoch: the last one.
        before: a copy of the files as the epochs before left them.
        operations: what the life does without a fault.
    """

    history: History
    kind: Kind
    first: int
    epoch: int
    before: Path
    operations: tuple[str, ...] = field(repr=False)

    @property
    def points(self) -> list[KillPoint]:
        """Return every place to kill, in order."""
        moments: tuple[Moment, ...] = ("before", "after")
        return [KillPoint(number, moment, described) for number, described in enumerate(self.operations) for moment in moments]


def stages_of(
    history: History, kind: Kind, directory: Path, epochs: Sequence[int], *, epochs_of_a_life: int = 1
) -> Iterator[Stage]:
    """Yield the stages of a history, running it epoch by epoch; each stage in a process of its own.

    Args:
        history: the query and its input.
        kind: which output.
        directory: where to keep the copies; each stage's files are at `directory/work` when it runs.
        epochs: the epochs wanted, those that a life ends with.
        epochs_of_a_life: how many epochs the life of a stage has; what a process keeps from one to the next is used then.
    """
    work = directory / "work"
    work.mkdir(parents=True)
    for epoch in range(max(epochs) + 1):
        before = directory / f"before-{epoch}"
        copy_life(work, before)
        operations = _operations_of(history, work, kind, epoch, epoch)
        first = max(0, epoch + 1 - epochs_of_a_life)
        if epoch in epochs and first < epoch:
            before = directory / f"before-{first}"
            copy_life(before, directory / "life")
            operations = _operations_of(history, directory / "life", kind, first, epoch)
            shutil.rmtree(directory / "life")
        if epoch in epochs:
            yield Stage(history, kind, first, epoch, before, operations)


def _operations_of(history: History, work: Path, kind: Kind, first: int, last: int) -> tuple[str, ...]:
    outcome = forked(partial(_list_operations, history, Place(work), kind, range(first, last + 1)))
    if outcome.signal or outcome.error:
        raise RuntimeError(f"epochs {first} to {last} failed without a fault: signal {outcome.signal}\n{outcome.error}")
    return tuple(outcome.messages[-1])


def kill_and_recover(stage: Stage, point: KillPoint, directory: Path, tally: Tally, rng: Random) -> None:
    """Kill one life at one point, recover, and count.

    Args:
        stage: the life.
        point: where it ends.
        directory: scratch space, the same for all points so that paths are.
        tally: where to count.
        rng: decides whether the recovery is killed too, and where.
    """
    shutil.rmtree(directory, ignore_errors=True)
    copy_life(stage.before, directory)
    place = Place(directory)
    known = Known(stage.first - 1, stage.first - 1)
    where = f"{stage.history.how} {stage.kind}, epoch {stage.epoch}, killed {point.moment} {point.number} {point.described}"
    _live(stage, place, KillAt(place.root, point.number, point.moment), known, tally, where)
    if rng.random() < 0.25:
        again = KillAt(place.root, rng.randrange(len(stage.operations)), "after")
        where += f", then after {again.number}"
        _live(stage, place, again, known, tally, where)
    outcome = forked(partial(_recover, stage, place, known, where))
    tally.add(heard(outcome, where))


def search_moments(
    history: History, kind: Kind, directory: Path, tally: Tally, *, epochs: Sequence[int], times: int, seed: int = 0
) -> None:
    """Kill from outside at any time: in the middle of a store to mapped memory, or of what DuckDB writes on its own.

    Args:
        history: the query and its input.
        kind: which output.
        directory: scratch space.
        tally: where to count.
        epochs: the epochs.
        times: how often per epoch; a life that ends before it is killed is no such time, but there is an end to trying.
        seed: when.
    """
    rng = Random(seed)
    for stage in stages_of(history, kind, directory, epochs):
        undisturbed = Tally()
        whole = min(_outlive(stage, directory / "killed", undisturbed, None) for _ in range(3))
        tally.problems.extend(undisturbed.problems)
        killed_before, tries = tally.of("kills observed"), 0
        while tally.of("kills observed") < killed_before + times and tries < _MOST_TRIES * times:
            whole = min(whole, _outlive(stage, directory / "killed", tally, rng.random() * whole))
            tries += 1


def _outlive(stage: Stage, directory: Path, tally: Tally, seconds: float | None) -> float:
    """Kill one life after some time, or not at all; recover, and count.

    Return how long it was, in seconds, or infinity if it was killed. One that was to be killed and was not was faster than
    those before.
    """
    shutil.rmtree(directory, ignore_errors=True)
    copy_life(stage.before, directory)
    place = Place(directory)
    known = Known(stage.epoch - 1, stage.epoch - 1)
    where = f"{stage.history.how} {stage.kind}, epoch {stage.epoch}, killed after {seconds} s"
    never = KillAt(place.root, -1, "before")
    life = partial(_run, stage.history, place, stage.kind, (stage.epoch,), never)
    tally.count("kills injected")
    outcome = forked(life, kill_after_seconds=seconds)
    for message in outcome.messages:
        known.hear(*message)
    if outcome.signal == signal.SIGALRM:
        tally.count("kills observed")
    elif outcome.lived_seconds is None:
        tally.problem(f"{where}: the life ended by signal {outcome.signal} and not by the kill\n{outcome.error}")
    tally.add(heard(forked(partial(_recover, stage, place, known, where)), where))
    return math.inf if outcome.lived_seconds is None else outcome.lived_seconds


def _live(stage: Stage, place: Place, kill: KillAt, known: Known, tally: Tally, where: str) -> None:
    """Let a child live from where Spark continues until it kills itself."""
    wanted = range(known.complete + 1, stage.epoch + 1)
    tally.count("kills injected")
    outcome = forked(partial(_run, stage.history, place, stage.kind, wanted, kill))
    for message in outcome.messages:
        if isinstance(message, list):
            known.hear(*message)
    if outcome.signal == signal.SIGKILL:
        tally.count("kills observed")
    elif outcome.signal or outcome.error:
        tally.problem(f"{where}: the life ended by signal {outcome.signal} and not by the kill\n{outcome.error}")


def _run(history: History, place: Place, kind: Kind, epochs: Sequence[int], kill: KillAt, send: Send) -> None:
    driver = Driver(history, place, kind, on_event=lambda event, epoch: send([event, epoch]))
    with observe(kill):
        driver.open().run(epochs)
        driver.close()


def _list_operations(history: History, place: Place, kind: Kind, epochs: Sequence[int], send: Send) -> None:
    listed = OperationList(place.root)
    with observe(listed):
        driver = Driver(history, place, kind).open()
        driver.run(epochs)
        driver.close()
    send(listed.described)


def _recover(stage: Stage, place: Place, known: Known, where: str, send: Send) -> None:
    found = Tally()
    check_recovery(stage.history, place, known, found, kind=stage.kind, where=where)
    send({"counts": dict(found.counts), "problems": found.problems, "lost": found.lost, "doubled": found.doubled})


def heard(outcome: Outcome, where: str) -> Tally:
    """Return what the recovering child counted."""
    tally = Tally()
    if outcome.signal or outcome.error or not outcome.messages:
        tally.problem(f"{where}: the recovering process ended by signal {outcome.signal}\n{outcome.error}")
        return tally
    reported = outcome.messages[-1]
    tally.counts.update(reported["counts"])
    tally.problems, tally.lost, tally.doubled = reported["problems"], reported["lost"], reported["doubled"]
    return tally


def search(
    history: History,
    kind: Kind,
    directory: Path,
    tally: Tally,
    *,
    epochs: Sequence[int],
    points: int | None,
    seed: int = 0,
    among: str = "",
    epochs_of_a_life: int = 1,
) -> None:
    """Kill at the operations of some epochs.

    Args:
        history: the query and its input.
        kind: which output.
        directory: scratch space.
        tally: where to count; `operations` counts the different ones seen, `operations killed` those that were killed at.
        epochs: the epochs.
        points: how many points per epoch, spread over all of them; None for all.
        seed: which points, and which recoveries are killed too.
        among: only operations whose description contains this.
        epochs_of_a_life: how many epochs the life that is killed runs.
    """
    rng = Random(seed)
    listed, killed = set(), set()
    for stage in stages_of(history, kind, directory, epochs, epochs_of_a_life=epochs_of_a_life):
        every = [point for point in stage.points if among in point.described]
        chosen = every if points is None else sorted(rng.sample(every, min(points, len(every))), key=every.index)
        listed.update(point.described for point in every)
        for point in chosen:
            before = tally.of("kills observed")
            kill_and_recover(stage, point, directory / "killed", tally, rng)
            if tally.of("kills observed") > before:
                killed.add(point.described)
    tally.count("different operations", len(listed))
    tally.count("different operations killed at", len(killed & listed))
