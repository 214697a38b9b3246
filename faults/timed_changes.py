"""A timed query in the form of executors is killed at every file operation of a change of its query.

The law: after a kill the checkpoint is one of the query before or of the new one; a run that continues from there, changed if
it was not, answers every later epoch as one does that was never killed: rows that wait, versions and rows that expire are
there.

A life opens a checkpoint in which rows wait for the watermark, changes the aggregate and the lifetime of rows of a join, so
that stages keep their files, one is written again with other times and one is built, and takes an epoch. All in children.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults.kills import KillAt
from faults.processes import Send, forked
from faults.tally import Tally
from faults.watching import OperationList
from property_tests.bags import bag_of
from property_tests.evolving_timed import RATES, SECOND, SEEN
from property_tests.pipeline_plans import Rows
from property_tests.timed_executors import ExecutorsRun
from zset_join.core.errors import StateError
from zset_join.pipeline import StateTtl, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.storage.operations import observe
from zset_join.zset import ZSet

__all__ = ["TimedBank", "kill_at_operations"]

_TOWNS = changes("towns", {"k": pa.int64(), "town": pa.int64()}, keys="k")
_ZONES = changes("zones", {"town": pa.int64(), "zone": pa.int64()}, keys="town")
_OLD = 3
"""Epochs before the change, which is the next one."""


def _view(*, after: int, is_new: bool) -> View:
    priced = SEEN.temporal_join(RATES, "k", "left", as_of="t", is_change_time=True)
    joined = priced.join(_TOWNS, on="k", how="left", state_ttl=(StateTtl(after, by="event"), None))
    number = F.max("r") if is_new else F.sum("r")
    return joined.join(_ZONES, on="town", how="left").groupBy("zone").agg(number.alias("v"), F.count().alias("c"))


_BEFORE, _AFTER = _view(after=40, is_new=False), _view(after=12, is_new=True)


def _epoch(number: int) -> Rows:
    """Return rows that wait, rates, towns and zones; after the change late rows, then rows that end the waiting of others.

    Those after the change have one key, so that rows wait in a bucket to which none comes: it answers because it is due.
    """
    if number == _OLD:
        return {"seen": ZSet.of({"k": [0, 0], "n": [0, 1], "t": [12, 12]})}
    if number == _OLD + 1:
        return {
            "seen": ZSet.of({"k": [0], "n": [1], "t": [24]}),
            "rates": ZSet.of({"k": [0], "r": [1], "at": [24]}),
        }
    times = [6 * number + at for at in range(6)]
    return {
        "seen": ZSet.of({"k": [at % 4 for at in times], "n": times, "t": times}),
        "rates": ZSet.of({"k": [0, 1, 2, 3], "r": [number, 2, 3, number], "at": [6 * number + at for at in range(4)]}),
        "towns": ZSet.of({"k": [0, 1, number % 4], "town": [0, 1, number % 2]}),
        "zones": ZSet.of({"town": [number % 2], "zone": [number]}),
    }


class TimedBank:
    """Checkpoints of a timed query on executors.

    Args:
        root: of the files.
    """

    def __init__(self, root: Path) -> None:
        self.work, self._copy = root / "work", root / "before"
        if (outcome := forked(self._make)).error or outcome.signal:
            raise RuntimeError(f"the checkpoint could not be made: {outcome}")
        outcome = forked(partial(_recovered, self))
        if outcome.error or not outcome.messages:
            raise RuntimeError(f"a life failed without a fault: {outcome}")
        self.expected = outcome.messages[-1]

    def _make(self, _: Send) -> None:
        self.work.mkdir(parents=True)
        run = ExecutorsRun(self.work, _BEFORE)
        for number in range(_OLD):
            run.step(_epoch(number), number * SECOND)
        run.close()
        shutil.copytree(self.work, self._copy)

    def restore(self) -> None:
        """Bring back the files as they were before the change."""
        shutil.rmtree(self.work)
        shutil.copytree(self._copy, self.work)

    def operations(self) -> list[str]:
        """Return the file operations of a life."""

        def life(send: Send) -> None:
            listed = OperationList(self.work)
            with observe(listed):
                _live(self)
            send(listed.described)

        self.restore()
        outcome = forked(life)
        if outcome.error or not outcome.messages:
            raise RuntimeError(f"a life failed without a fault: {outcome}")
        return list(outcome.messages[-1])


def _live(bank: TimedBank) -> None:
    run = ExecutorsRun(bank.work, _BEFORE)
    run.evolve(_AFTER)
    run.close()
    run = ExecutorsRun(bank.work, _AFTER)
    run.step(_epoch(_OLD), _OLD * SECOND)
    run.close()


def kill_at_operations(bank: TimedBank, operations: Sequence[int], tally: Tally) -> None:
    """Kill lives before file operations, continue, and count; `old` and `new` count what the checkpoint was one of."""
    for number in operations:
        bank.restore()
        tally.count("kills injected")
        life = forked(partial(_killed, bank, lambda at=number: observe(KillAt(bank.work, at, "before"))))  # type: ignore[misc]
        if life.messages == ["ended"] or life.error:
            tally.problem(f"operation {number}: the life was not killed: {life}")
            continue
        tally.count("kills observed")
        outcome = forked(partial(_recovered, bank))
        found = outcome.messages[-1] if outcome.messages else None
        if outcome.error or outcome.signal or not isinstance(found, dict):
            tally.problem(f"operation {number}: recovery ended by {outcome.signal}\n{outcome.error}")
            continue
        tally.count(found["found"])
        for epoch, answer in found["answers"].items():
            if answer != bank.expected["answers"][epoch]:
                expected = bank.expected["answers"][epoch]
                tally.problem(f"operation {number}, found {found['found']}: {epoch} answers {answer}, not {expected}")


def _killed(bank: TimedBank, disturbing: Callable[[], AbstractContextManager[Any]], send: Send) -> None:
    with disturbing():
        _live(bank)
    send("ended")


def _recovered(bank: TimedBank, send: Send) -> None:
    answers: dict[str, Any] = {}
    try:
        run, found = ExecutorsRun(bank.work, _BEFORE), "old"
    except StateError as error:
        if error.code != "QUERY_CHANGED":
            raise
        run, found = ExecutorsRun(bank.work, _AFTER), "new"
    if found == "old":
        (view,) = run.evolve(_AFTER).views.values()
        difference = bag_of(view.added)
        difference.subtract(bag_of(view.removed))
        answers["the change"] = _listed(difference)
        run.close()
        run = ExecutorsRun(bank.work, _AFTER)
    for number in range(run.epoch - 1, _OLD + 3):  # the change is an epoch
        answers[f"epoch {number}"] = _listed(bag_of(run.step(_epoch(number), number * SECOND)))
    run.close()
    send({"found": found, "answers": answers})


def _listed(rows: Counter[Any]) -> list[Any]:
    return sorted([[*map(str, row), weight] for row, weight in rows.items() if weight])
