"""Errors of the operating system at every operation of an epoch, and what the epoch makes of them.

A fault is one of: EIO or ENOSPC instead of the operation; a write of which half arrives before ENOSPC; a write of which half
arrives and that returns the count (legal: the rest must be written); a sync that fails, after which the kernel has dropped the
bytes and calls them clean, so that a second sync of the same file would succeed and mean nothing.

The law: the life in which it happens ends with an error that a user can read (`OSError` or `ZsetJoinError`), or the operation
was one that may fail (see `MAY_FAIL`); it releases every lock; the output is as before or holds the whole epoch; the next
life answers the epoch rightly.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal
from unittest import mock

from faults.copies import copy_life
from faults.driver import Driver, Kind, Place
from faults.histories import History
from faults.kills import stages_of
from faults.recovery import Known, check_recovery
from faults.tally import Tally
from faults.watching import Act, describe, is_below
from zset_join.checkpoint.bucket import close_kept_operators
from zset_join.core.errors import ZsetJoinError
from zset_join.storage.operations import Operation, observe

__all__ = ["FAULTS_OF_KIND", "MAY_FAIL", "Fault", "FaultAt", "fail_and_retry", "faults_of", "search"]

Fault = Literal["EIO", "ENOSPC", "half a write, then ENOSPC", "half a write", "failed sync"]

_RELEASING = ("#.over", "#.over.#")
_PLAIN: tuple[Fault, ...] = ("EIO", "ENOSPC")
FAULTS_OF_KIND: dict[str, tuple[Fault, ...]] = {
    "write": ("EIO", "ENOSPC", "half a write, then ENOSPC", "half a write"),
    "sync": ("failed sync", "ENOSPC"),
    "sync_directory": ("EIO",),
    "read": ("EIO",),
    "list": ("EIO",),
    "size": ("EIO",),
    "remove": ("EIO",),
    "remove_directory": ("EIO",),
    "close": ("EIO",),
    "touch": ("EIO",),
}
"""Kind of operation to the faults it can have; every other kind can have those of `_PLAIN`."""

MAY_FAIL = frozenset({"close", "remove", "remove_directory", "touch"})
"""What only tidies up: an epoch need not fail when this does."""


def faults_of(described: str) -> tuple[Fault, ...]:
    """Return the faults an operation can have, from its description."""
    return FAULTS_OF_KIND.get(described.split(" ", 1)[0], _PLAIN)


@dataclass
class FaultAt:
    """Let one operation fail.

    Args:
        root: paths are shown relative to it.
        number: which operation, counted from 0.
        expected: what that operation did in a life without a fault.
        fault: how.

    Attributes:
        hit: what the operation was; "" until it comes.
        synced_again: a file whose sync had failed was synced again.
    """

    root: Path
    number: int
    expected: str
    fault: Fault
    hit: str = ""
    synced_again: bool = False
    _seen: int = 0
    _lost: str = ""

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Do the operation, or fail."""
        if not is_below(self.root, operation):
            return act()
        number, self._seen = self._seen, self._seen + 1
        if operation.kind == "sync" and operation.path == self._lost:
            self.synced_again = True
        described = describe(self.root, operation)
        if number != self.number or described != self.expected:
            return act()
        self.hit = described
        return self._fail(operation, act)

    def _fail(self, operation: Operation, act: Act) -> Any:
        if self.fault in ("half a write", "half a write, then ENOSPC"):
            with mock.patch.object(os, "write", _half_of(os.write)):
                arrived = act()
            if self.fault == "half a write":
                return arrived
        if self.fault == "failed sync":
            self._lost = operation.path
            os.truncate(operation.path, 0)
        if operation.kind == "close":
            act()  # the descriptor is gone, whatever close returns
        number = errno.EIO if self.fault in ("EIO", "failed sync") else errno.ENOSPC
        raise OSError(number, os.strerror(number), operation.path)


def _half_of(write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    """Return a write that takes half of what it is given, one byte at least."""
    return lambda descriptor, data: write(descriptor, data[: max(len(data) // 2, 1)])


def fail_and_retry(
    history: History, place: Place, epoch: int, fault: FaultAt, tally: Tally, *, kind: Kind = "changelog"
) -> None:
    """Run one epoch with a fault, then retry it in a new life, and compare.

    Args:
        history: the query and its input.
        place: its files, as the epochs before have left them.
        epoch: the epoch.
        fault: the fault.
        tally: where to count.
        kind: which output.
    """
    close_kept_operators()  # what an earlier life of this process kept open would be closed in the middle of this one
    known = Known(epoch - 1, epoch - 1)
    driver = Driver(history, place, kind, on_event=known.hear)
    raised = _run(driver, epoch, fault)
    where = f"{history.how}, epoch {epoch}, {fault.fault} at {fault.number} {fault.hit}"
    tally.count("errors injected")
    if not fault.hit:
        return
    tally.count("errors observed")
    tally.count(f"{fault.fault}")
    _judge(fault, raised, tally, where)
    for lock in _held(place.root):
        tally.problem(f"{where}: {lock} is still locked after the life has ended")
    check_recovery(history, place, known, tally, kind=kind, where=where)


def _judge(fault: FaultAt, raised: Exception | None, tally: Tally, where: str) -> None:
    """Return whether the life ended as it should."""
    if raised is None:
        tally.count("epochs that went on")
        if not _may_go_on(fault):
            tally.problem(f"{where}: the epoch went on as if nothing had happened")
        return
    tally.count("epochs that failed")
    if not isinstance(raised, OSError | ZsetJoinError):
        tally.problem(f"{where}: raised {type(raised).__name__}: {raised}")
    if fault.fault == "half a write":
        tally.problem(f"{where}: a short write is no error, and raised {type(raised).__name__}: {raised}")


def _may_go_on(fault: FaultAt) -> bool:
    """Return whether an epoch may be complete although this happened: nothing was promised about that file, or all was done."""
    kind, path, *_ = fault.hit.split(" ")
    return fault.fault == "half a write" or kind in MAY_FAIL or path.startswith("hosts/") or path.endswith(_RELEASING)


def _held(root: Path) -> list[str]:
    """Return the locks below a directory that somebody holds."""
    held = []
    for path in root.rglob("lock"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.relative_to(root).as_posix())
    return held


def _run(driver: Driver, epoch: int, fault: FaultAt) -> Exception | None:
    """Return what the life raised."""
    with observe(fault):
        try:
            driver.open()
            driver.run_epoch(epoch)
        except Exception as error:  # noqa: BLE001 - judged by the caller
            return error
        finally:
            _close_quietly(driver)
    return None


def _close_quietly(driver: Driver) -> None:
    try:
        driver.close()
    except OSError:
        return  # the fault hit the closing itself


def search(
    history: History, kind: Kind, directory: Path, tally: Tally, *, wanted: int | None, seed: int = 0, among: str = ""
) -> None:
    """Let operations of different epochs fail: each fault as often as the others, at different kinds of files first.

    Args:
        history: the query and its input.
        kind: which output.
        directory: scratch space.
        tally: where to count.
        wanted: how many faults, fewer when there are no more; None for all.
        seed: which ones.
        among: only operations whose description contains this.
    """
    rng = Random(f"{history.how}/{seed}")
    stages = list(stages_of(history, kind, directory, range(len(history.epochs) - 1)))
    every = [
        (stage, number, fault)
        for stage in stages
        for number, described in enumerate(stage.operations)
        if among in described
        for fault in faults_of(described)
    ]
    rng.shuffle(every)
    seen: Counter[tuple[str, Fault]] = Counter()
    turns: dict[Fault, list[tuple[int, int]]] = {}
    for position, (stage, number, fault) in enumerate(every):
        what = (stage.operations[number], fault)
        turns.setdefault(fault, []).append((seen[what], position))
        seen[what] += 1
    tally.count("different faults", len(seen))
    ranked = [(rank, position) for found in turns.values() for rank, (_, position) in enumerate(sorted(found))]
    for _, position in sorted(ranked)[: None if wanted is None else wanted + wanted // 10]:
        stage, number, fault = every[position]
        work = directory / "failing"
        shutil.rmtree(work, ignore_errors=True)
        copy_life(stage.before, work)
        fail_and_retry(
            history, Place(work), stage.epoch, FaultAt(work, number, stage.operations[number], fault), tally, kind=kind
        )
