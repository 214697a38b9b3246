"""Every state a disk may be in after a power cut, each recovered from.

A history is run once while a `Disk` follows its operations. Then, for moments in between, the states POSIX allows are made
real, the host is given a new boot, and the query starts again. Per state and per promise made until then, one check.

A run may consist of several lives: each but the last ends at some operation, as by a kill, and the next one continues from
what it finds. Files that a dead process wrote and never synced look like any other to its successor, and a power cut may
still take them; so a successor must not build on what it only sees.

Mapped state files are not in the model: a fraction of the states are given those of the run's end, with pages zeroed, which
must not be trusted after a new boot.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from faults.disk import CrashState, Disk, Recorder, read_tree, write_tree
from faults.driver import Driver, Place
from faults.histories import SHAPES, History, recorded_history
from faults.recovery import Known, check_recovery, opened
from faults.tally import Tally
from faults.watching import Act, OperationList, is_below
from zset_join.checkpoint import local_state as local_state_module
from zset_join.checkpoint import owner as owner_module
from zset_join.storage.operations import Operation, observe

__all__ = ["AREAS", "Run", "check_states", "leave_mapped_state", "recorded_run", "search"]

AREAS = ("checkpoint", "output")
_PAGE = 4096
_STALE_HOST = 0.25
_RANDOMLY = 6
_EPOCHS = 7
_RUNS = 12
_TORN_FIRST = 0.6  # most of what waits at a moment is names: without this few writes would be torn
_STATES_OF_A_MOMENT = 6
_DULL = 4  # moments away from a commit come this much later
_FINAL = ("checkpoint/zset/commits/#", "output/epoch=")
_COMMITTING = ("/commits", "/epoch=")
_NAMING = ("link ", "rename ", "replace ")


class _LifeEndedError(BaseException):
    """The process is dead: nothing catches this, and no operation is done after it."""


@dataclass
class _Life:
    """Observe one life that ends after some operations below a directory."""

    root: Path
    inner: Recorder
    left: int | None
    is_over: bool = False

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Do the operation while the process lives."""
        if not is_below(self.root, operation):
            return act()
        if self.is_over or self.left == 0:
            self.is_over = True
            raise _LifeEndedError
        if self.left is not None:
            self.left -= 1
        return self.inner(operation, act)


@dataclass
class Run:
    """A history that was run, with everything its files went through.

    Args:
        history: the query and its input.
        disk: the model, after the last operation.
        promised: what was promised, and after how many operations.
        hosts: the mapped state at the end.
        last_life: how many operations had been done when the last life began.
        kinds: how often each kind of operation was recorded.
    """

    history: History
    disk: Disk
    reported: list[tuple[int, str, int]] = field(default_factory=list)
    hosts: Path = Path()
    last_life: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def known(self, at: int) -> Known:
        """Return what had been promised when so many operations had been done."""
        known = Known()
        for when, event, epoch in self.reported:
            if when <= at:
                known.hear(event, epoch)
        return known


def recorded_run(history: History, directory: Path, *, epochs: int, lives: Sequence[int] = ()) -> Run:
    """Run a history and follow its files.

    Args:
        history: the query and its input.
        directory: where; a new one.
        epochs: how many to run.
        lives: after how many operations each life but the last ends.

    Raises:
        AssertionError: the model differs from the real disk; an operation went past the hook.
    """
    directory.mkdir(parents=True)
    place = Place(directory)
    run = Run(history, Disk(directory, AREAS), hosts=directory / "hosts")
    recorder = Recorder(run.disk, run.kinds)

    def hear(event: str, epoch: int) -> None:
        run.reported.append((run.disk.operations, event, epoch))

    for left in (*lives, None):
        run.last_life = run.disk.operations
        driver = Driver(history, place, on_event=hear)
        try:
            with observe(_Life(directory, recorder, left)):
                driver.open()
                driver.run(range(run.known(run.disk.operations).complete + 1, epochs))
                driver.close()
        except _LifeEndedError:
            continue
        finally:
            driver.close()
    real = read_tree(directory, AREAS)
    if run.disk.whole() != real:
        differing = [
            name for name in real.keys() | run.disk.whole().keys() if run.disk.whole().get(name, 0) != real.get(name, 0)
        ]
        raise AssertionError(f"the disk model differs from the disk in {sorted(differing)[:5]}")
    return run


def check_states(run: Run, directory: Path, tally: Tally, rng: Random, *, wanted: int, skipped: int = 0) -> None:
    """Recover from different states of a run until enough were checked, or there are no more.

    Args:
        run: what happened.
        directory: scratch space.
        tally: where to count.
        rng: which states.
        wanted: how many.
        skipped: operations at the begin of the run after which no power is cut.
    """
    seen: set[tuple[bytes, int, int]] = set()
    committing = {at + 1 for at, path in enumerate(run.disk.paths) if any(part in path for part in _COMMITTING)}
    order = {at: rng.random() * (1 if at in committing else _DULL) for at in range(skipped, run.disk.operations + 1)}
    for at in sorted(order, key=order.__getitem__):
        known = run.known(at)
        whole = run.disk.state(at, nothing_lost=True).fingerprint
        found = list(run.disk.states(at, rng, randomly=_RANDOMLY))
        found.sort(key=lambda state: rng.random() * (_TORN_FIRST if state.cause == "torn" else 1))
        for state in found[: max(_STATES_OF_A_MOMENT, wanted // 10)]:
            key = (state.fingerprint, known.committed, known.complete)
            if key in seen:
                continue
            if len(seen) == wanted:
                return
            seen.add(key)
            tally.count("states built")
            tally.count("states observed to differ from what was written", state.fingerprint != whole)
            tally.count(f"{state.cause} states")
            _check(run, state, known, directory, tally, rng)


def _check(run: Run, state: CrashState, known: Known, directory: Path, tally: Tally, rng: Random) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    write_tree(directory, state.tree)
    if rng.random() < _STALE_HOST:
        leave_mapped_state(run.hosts, directory / "hosts", rng)
        tally.count("states with mapped files of the old boot")
    boot = uuid.UUID(int=rng.getrandbits(128)).hex
    where = f"{run.history.how}, power cut after operation {state.at} ({state.reported})"
    with (
        mock.patch.object(owner_module, "boot_of_host", return_value=boot),
        mock.patch.object(local_state_module, "boot_of_host", return_value=boot),
        mock.patch.object(owner_module, "SILENT_SECONDS", 0.0),  # the host took longer than that to come back
    ):
        check_recovery(run.history, Place(directory), known, tally, where=where)


def leave_mapped_state(hosts: Path, target: Path, rng: Random) -> None:
    """Copy mapped files of which some pages never reached the disk."""
    shutil.copytree(hosts, target)
    for path in sorted(one for one in target.rglob("state/**/*") if one.is_file()):
        data = bytearray(path.read_bytes())
        for begin in range(0, len(data), _PAGE):
            if rng.random() < 0.3:
                data[begin : begin + _PAGE] = bytes(len(data[begin : begin + _PAGE]))
        path.write_bytes(data)


def search(how: str, directory: Path, tally: Tally, *, wanted: int, lives: bool | None = None, seed: int = 0) -> None:
    """Check the states of run after run until enough were checked.

    Args:
        how: the join type.
        directory: scratch space.
        tally: where to count.
        wanted: how many states.
        lives: runs of two lives, the first of which ends when something final has its name and the name is not synced; None for
            every second run to have several lives that end anywhere. Power cuts come in the last life.
        seed: seed of everything random.
    """
    rng = Random(f"{how}/{seed}")
    number = 0
    while tally.of("states built") < wanted:
        history = recorded_history(how, SHAPES[number // 2 % len(SHAPES)], seed=seed + number)
        place = directory / f"run-{number}"
        stops: list[int] = []
        if number % 2 if lives is None else lives:
            listed = _operations(history, directory / "listed")
            stops = [rng.choice(_committed(listed))] if lives else [_stop(listed, rng) for _ in range(rng.choice((1, 1, 2)))]
            tally.count("runs of several lives")
        run = recorded_run(history, place, epochs=_EPOCHS, lives=stops)
        most = min(wanted - tally.of("states built"), max(wanted // _RUNS, 1))
        check_states(run, directory / "state", tally, rng, wanted=most, skipped=run.last_life)
        shutil.rmtree(place)
        tally.count("runs")
        number += 1


def _operations(history: History, directory: Path) -> list[str]:
    """Return what a run in one life does."""
    directory.mkdir(parents=True)
    with observe(listed := OperationList(directory)), opened(Driver(history, Place(directory))) as driver:
        driver.run(range(_EPOCHS))
    shutil.rmtree(directory)
    return listed.described


def _stop(listed: Sequence[str], rng: Random) -> int:
    """Return where to end a life: mostly right after a name was given, before its directory is synced."""
    named = [number + 1 for number, what in enumerate(listed) if what.startswith(_NAMING) and " hosts/" not in what]
    return rng.choice(rng.choice((_committed(listed) or named, named, range(20, len(listed)))))


def _committed(listed: Sequence[str]) -> list[int]:
    """Return the moments when a commit record, or an epoch of the output, has its name, and that is not on the disk yet."""
    is_named = [what.startswith(_NAMING) and what.partition(" -> ")[2].startswith(_FINAL) for what in listed]
    return [number + 1 for number, named in enumerate(is_named) if named]
