"""Attempts that come back: two processes work on the same thing, and the slower one has lost without noticing.

A scheduler lets one thread at a time do one file operation and draws who is next, so an interleaving is named by its seed.
Three stories:

- *twin tasks*: both attempts of a task run at once, on one host or on two; the driver takes the receipt of the second.
- *late task*: attempt 1 stops at some operation; attempt 2 is committed and some epochs more; then attempt 1 continues.
- *late driver*: driver 1 stops at some operation; driver 2 takes over and commits some epochs; then driver 1 continues.

The law: whatever the loser still does, the sums stay right, in the epochs that follow too and on the host where the loser
worked. A loser may fail; a winner may not, unless it is refused before it did anything.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from faults.driver import BUCKETS, Driver, Place, Task, TaskReceipt
from faults.histories import HOWS, SHAPES, History, recorded_history
from faults.recovery import Known, check_recovery, opened
from faults.tally import Tally
from faults.watching import Act
from zset_join.checkpoint import owner as owner_module
from zset_join.core.errors import ZsetJoinError
from zset_join.storage.local import FileLock
from zset_join.storage.operations import Operation, observe

__all__ = ["Actor", "Interleaving", "Story", "late_driver", "late_task", "search", "twin_tasks"]

Story = Callable[[History, Place, int, Tally, Random], None]

_PATIENCE_SECONDS = 60.0
_HOSTS = ("host-a", "host-b")
_TASK_STEPS = 40
_DRIVER_STEPS = 160
_ALL_STEPS = 1 << 30
_TAKEN_FOR_DEAD = 0.7
# EPOCH_GAP: it had not opened the checkpoint yet when the other driver came, committed, and went.
_ERRORS_OF_A_LATE_DRIVER = frozenset({"OWNER_LOST", "COMMITTED_TWICE", "CHECKPOINT_IN_USE", "EPOCH_GAP"})


class Actor:
    """A thread that stops before every file operation and waits to be let on.

    Args:
        work: what it does.

    Attributes:
        result: what the work returned.
        error: what it raised.
        steps: operations done.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.steps = 0
        self._work = work
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_done = False

    def start(self) -> None:
        """Run until the first operation."""
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Let it do one operation, and all until the next."""
        self.steps += 1
        self._go.release()
        self._wait()

    def stop_here(self) -> None:
        """Wait in the actor's own thread until it is let on."""
        self._stopped.release()
        self._go.acquire()

    def is_current(self) -> bool:
        """Return whether the caller runs in this actor's thread."""
        return threading.current_thread() is self._thread

    def _wait(self) -> None:
        if not self._stopped.acquire(timeout=_PATIENCE_SECONDS):
            raise TimeoutError("an actor neither reached an operation nor its end")

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001 - judged by the reader of `error`
            self.error = error
        finally:
            self.is_done = True
            self._stopped.release()


@dataclass
class Interleaving:
    """Observe every operation, and stop the actors before each of theirs.

    Args:
        actors: the threads under the scheduler; operations of others pass.
    """

    actors: list[Actor] = field(default_factory=list)

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Wait for the scheduler, then do the operation."""
        for actor in self.actors:
            if actor.is_current():
                actor.stop_here()
        return act()

    def add(self, work: Callable[[], Any]) -> Actor:
        """Start an actor; it is before its first operation afterwards."""
        actor = Actor(work)
        self.actors.append(actor)
        actor.start()
        return actor

    def run(self, rng: Random, *actors: Actor) -> None:
        """Let actors continue, one operation at a time in drawn order, until all are done."""
        while waiting := [actor for actor in actors if not actor.is_done]:
            rng.choice(waiting).step()

    @staticmethod
    def run_until(actor: Actor, steps: int) -> None:
        """Let one actor do some operations, or end before."""
        while not actor.is_done and actor.steps < steps:
            actor.step()


def twin_tasks(history: History, place: Place, epoch: int, tally: Tally, rng: Random) -> None:
    """Let both attempts of each task of an epoch run at once; the second one wins."""
    hosts = rng.choice((_HOSTS, _HOSTS[:1] * 2))
    where = f"{history.how}, epoch {epoch}, twins on {'two hosts' if hosts[0] != hosts[1] else 'one host'}"
    with observe(interleaving := Interleaving()), opened(Driver(history, place)) as driver:

        def both(task: Task) -> tuple[TaskReceipt, Any]:
            actors = [interleaving.add(task.on_host(place.local(host)).attempt) for host in hosts]
            interleaving.run(rng, *actors)
            tally.count("operations interleaved", sum(actor.steps for actor in actors))
            for actor in actors:
                if actor.error is not None:
                    tally.problem(f"{where}: an attempt raised {type(actor.error).__name__}: {actor.error}")
            winner: tuple[TaskReceipt, Any] = actors[1].result
            return winner

        _finish(driver, epoch, both, tally, where)
    _go_on(history, place, epoch, tally, rng, where)
    tally.count("interleavings")


def late_task(history: History, place: Place, epoch: int, tally: Tally, rng: Random) -> None:
    """Stop one attempt, let its twin win and some epochs pass, then resume it."""
    chosen = rng.randrange(BUCKETS * (1 + sum(history.routed)))
    last = min(epoch + rng.randrange(3), len(history.epochs) - 1)
    where = f"{history.how}, epoch {epoch}, attempt 1 of task {chosen} goes on after epoch {last}"
    with observe(interleaving := Interleaving()), opened(Driver(history, place)) as driver:
        late: list[Actor] = []

        def overtaken(task: Task) -> tuple[TaskReceipt, Any]:
            actor = interleaving.add(task.on_host(place.local(_HOSTS[1])).attempt)
            interleaving.run_until(actor, rng.randrange(_TASK_STEPS) if len(late) == chosen else _ALL_STEPS)
            late.append(actor)
            return task.attempt()

        _finish(driver, epoch, overtaken, tally, where)
        driver.run(range(epoch + 1, last + 1))
        tally.count("attempts that came back late", sum(not actor.is_done for actor in late))
        interleaving.run(rng, *late)
        for actor in late:
            tally.count("operations interleaved", actor.steps)
            if actor.error is not None:
                tally.count("late attempts that failed")
                if not isinstance(actor.error, OSError | ZsetJoinError):
                    tally.problem(f"{where}: the late attempt raised {type(actor.error).__name__}: {actor.error}")
        _compare(driver, last, tally, where)
    _go_on(history, place, last, tally, rng, where)
    tally.count("interleavings")


def late_driver(history: History, place: Place, epoch: int, tally: Tally, rng: Random) -> None:
    """Stop one driver, let another take over and commit some epochs, then resume the first."""
    later = rng.randrange(-1, 3)
    last = min(epoch + later, len(history.epochs) - 1)
    known = Known(epoch - 1, epoch - 1)
    is_alone = rng.random() < _TAKEN_FOR_DEAD
    where = f"{history.how}, epoch {epoch}, driver {'taken for dead ' if is_alone else ''}goes on {later} epochs later"
    with observe(interleaving := Interleaving()), _taken_for_dead() if is_alone else nullcontext():
        first = Driver(history, place, host=_HOSTS[1], on_event=known.hear)
        slow = interleaving.add(lambda: (first.open(), first.run_epoch(epoch), first.close()))
        interleaving.run_until(slow, rng.randrange(_DRIVER_STEPS))
        second = Driver(history, place, on_event=known.hear)
        try:
            second.open()
            second.run(range(known.complete + 1, last + 1))
        except ZsetJoinError as error:
            tally.count(f"second drivers refused with {error.code}")
        finally:
            second.close()
        tally.count("drivers that came back late", not slow.is_done)
        interleaving.run(rng, slow)
        first.close()
        tally.count("operations interleaved", slow.steps)
        if slow.error is not None:
            tally.count(f"late drivers that failed with {getattr(slow.error, 'code', type(slow.error).__name__)}")
            if getattr(slow.error, "code", "") not in _ERRORS_OF_A_LATE_DRIVER:
                tally.problem(f"{where}: the late driver raised {type(slow.error).__name__}: {slow.error}")
    check_recovery(history, place, known, tally, host=rng.choice(_HOSTS), further=2, where=where)
    tally.count("interleavings")


@contextmanager
def _taken_for_dead() -> Iterator[None]:
    """Let a driver follow one that still lives: a mount without locks, and signs of life that did not come through."""

    def no_lock(path: str | Path) -> FileLock:
        return FileLock(str(path), os.open(os.devnull, os.O_RDONLY))

    with (
        mock.patch.object(owner_module, "lock_file", no_lock),
        mock.patch.object(owner_module, "_why_it_may_live", return_value=""),
    ):
        yield


def _finish(driver: Driver, epoch: int, run: Callable[[Task], tuple[TaskReceipt, Any]], tally: Tally, where: str) -> None:
    """Run one epoch, each task the given way; commit, publish, compare."""
    ran = [run(task) for task in driver.route_tasks(epoch)]
    joined = [run(task) for task in driver.join_tasks(epoch, [rows for _, rows in ran])]
    record = driver.checkpoint.commit(driver.recorded(epoch, [receipt for receipt, _ in [*ran, *joined]]))
    driver.output.publish(driver.checkpoint.files, record)
    _compare(driver, epoch, tally, where)


def _compare(driver: Driver, epoch: int, tally: Tally, where: str) -> None:
    tally.compare(driver.output.contents(), driver.history.expected_after(epoch), f"{where}: after epoch {epoch}")


def _go_on(history: History, place: Place, epoch: int, tally: Tally, rng: Random, where: str) -> None:
    """Start again, on either host, and run the epochs that follow."""
    check_recovery(history, place, Known(epoch, epoch), tally, host=rng.choice(_HOSTS), further=1, where=where)


def search(story: Story, directory: Path, tally: Tally, *, wanted: int, seed: int = 0) -> None:
    """Repeat a story, with another interleaving each time.

    Args:
        story: one of those above.
        directory: scratch space.
        tally: where to count.
        wanted: how often.
        seed: seed of everything random.
    """
    for number in range(wanted):
        rng = Random(f"{story.__name__}/{seed}/{number}")
        history = recorded_history(HOWS[number % len(HOWS)], SHAPES[number // len(HOWS) % len(SHAPES)], seed=seed + number % 10)
        place = Place(directory / "story")
        shutil.rmtree(place.root, ignore_errors=True)
        place.root.mkdir()
        epoch = rng.randrange(len(history.epochs) - 1)
        for host in _HOSTS:
            with opened(Driver(history, place, host=host)) as driver:
                driver.run(range(epoch // 2) if host == _HOSTS[0] else range(epoch // 2, epoch))
        story(history, place, epoch, tally, rng)
