"""Temporal joins that die while rows wait: killed at every kind of operation, or by a power cut, with empty epochs.

A pipeline with a directory joins orders with the rates of their times: `on_watermark`, where most orders wait because the
rates are behind, or `eager`, where answers are corrected; or, with `state_ttl`, it counts orders that end by event time.
Some orders come late, some rates too, some epochs bring rates alone, and some nothing. Thresholds are tiny, so snapshots are
written while rows wait.

`kills`: one epoch per process, forked; it ends by SIGKILL before or after a drawn operation on its files, or in its output. An
epoch whose process died is requested again. `power_cuts`: the disk model of `crash_states` follows one process; then disks that
POSIX allows are made real, on a host that was started over, and the pipeline continues from each to its end.

What is demanded: every epoch's answer, emitted first, written again or requested again, is that of `TemporalHistory`, dicts and
bisect; and what had been committed when the disk lost its power is present afterwards.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from faults.crash_states import leave_mapped_state
from faults.disk import CrashState, Disk, Recorder, read_tree, write_tree
from faults.processes import Send, forked, write_the_same
from faults.tally import Tally
from property_tests.temporal_history import TemporalHistory
from zset_join.checkpoint import local_state as local_state_module
from zset_join.checkpoint import owner as owner_module
from zset_join.expressions import col
from zset_join.pipeline import FunctionSink, Pipeline, View, appends, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StateTtl
from zset_join.storage.operations import Operation, observe
from zset_join.testing.comparison import counts_of
from zset_join.testing.reference import Counts
from zset_join.testing.reference_temporal import TimedRow

__all__ = ["KINDS", "TimedLife", "kills", "power_cuts", "warm_up"]

KINDS = ("on_watermark", "eager", "state_ttl")
EPOCHS, KEEP, LIVES_FOR = 9, 40, 25
_AREA = ("zset",)
_STALE_HOST = 0.25


@dataclass
class TimedLife:
    """The input of each epoch, and the oracle's answer.

    Args:
        kind: one of `KINDS`.
        seed: what is drawn from.
    """

    kind: str
    seed: int
    inputs: list[dict[str, list[dict[str, Any]]]] = field(default_factory=list)
    printed: list[Counts] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        draw = random.Random(f"{self.kind} {self.seed}")
        if self.kind == "state_ttl":
            self._count_alive(draw)
            return
        history = TemporalHistory(right_width=2, how="left", keep=KEEP if self.kind == "eager" else 0)
        before: int | None = None
        largest: dict[str, int] = {}
        for epoch in range(EPOCHS):
            came = self._drawn(draw, epoch, before)
            self.inputs.append(came)
            for name, column in (("orders", "t"), ("rates", "at")):
                largest[name] = max([row[column] for row in came[name]] + [largest.get(name, -1)])
            after = min(largest.values()) if min(largest.values()) >= 0 else None
            left = [
                (TimedRow((row["currency"],), row["t"], (row["currency"], row["id"], row["t"])), 1) for row in came["orders"]
            ]
            right = [
                (TimedRow((row["currency"],), row["at"], (row["rate"], row["at"]), deleted=row["rate"] < 0), 1)
                for row in came["rates"]
            ]
            held = history.everything()
            printed = history.epoch(left, right, before=before, after=after)
            self.printed.append(printed[0] if self.kind == "on_watermark" else _difference(history.everything(), held))
            self.waiting += len(history._waiting)
            before = after

    def _count_alive(self, draw: random.Random) -> None:
        """Set how many orders of each currency are alive after each epoch: those that the watermark is not far ahead of."""
        orders: list[dict[str, Any]] = []
        mark: int | None = None
        held: Counts = {}
        for epoch in range(EPOCHS):
            came = {"orders": self._drawn(draw, epoch, mark)["orders"]}
            self.inputs.append(came)
            orders += came["orders"]
            mark = max([mark or 0, *(row["t"] for row in came["orders"])]) if orders else None
            orders = [row for row in orders if mark is None or row["t"] + LIVES_FOR > mark]
            counted = Counter(row["currency"] for row in orders)
            now: Counts = dict.fromkeys(counted.items(), 1)
            self.printed.append(_difference(now, held))
            self.waiting += len(orders)
            held = now

    def _drawn(self, draw: random.Random, epoch: int, watermark: int | None) -> dict[str, list[dict[str, Any]]]:
        quiet = draw.random()
        orders = [] if quiet < 0.35 else range(draw.randint(1, 4))
        rates = [] if quiet < 0.2 else draw.sample(range(20 * epoch - 25, 20 * epoch + 9), draw.randint(1, 3))
        late = 0 if self.kind == "eager" else -30  # late rows are set aside; eager would join some of them
        return {
            "orders": [
                {
                    "id": 10 * epoch + at,
                    "currency": draw.randint(0, 2),
                    "t": max(0, 20 * epoch + draw.randint(late if draw.random() < 0.2 else 0, 19), _next(watermark, late)),
                }
                for at in orders
            ],
            "rates": [
                {"currency": draw.randint(0, 2), "rate": -1 if draw.random() < 0.2 else time * 10 + epoch, "at": time}
                for time in rates
                if time >= 0
            ],
        }

    def view(self) -> View:
        """Return the query."""
        orders = appends("orders", {"id": pa.int64(), "currency": pa.int64(), "t": pa.int64()}, watermark=("t", 0))
        if self.kind == "state_ttl":
            ttl = StateTtl(LIVES_FOR, by="event", of="row")
            return orders.groupBy("currency").agg(F.count().alias("n"), state_ttl=ttl)
        rates = versioned(
            "rates",
            {"currency": pa.int64(), "rate": pa.int64(), "at": pa.int64()},
            keys="currency",
            version_by="at",
            delay=0,
            apply_as_deletes=col("rate") < 0,
        )
        keep = {"keep_probe_for": KEEP} if self.kind == "eager" else {}
        return orders.temporal_join(rates, on="currency", as_of="t", how="left", emit=self.kind, is_change_time=True, **keep)

    def opened(self, directory: Path, write: Callable[[int, Any], None]) -> Pipeline:
        """Open the pipeline in a directory."""
        return Pipeline(self.view(), directory / "state", outputs=[FunctionSink(write)], snapshot_after_bytes=1_500)


def _next(watermark: int | None, late: int) -> int:
    return 0 if watermark is None or late else watermark + 1


def _difference(now: Counts, before: Counts) -> Counts:
    found = {row: now.get(row, 0) - before.get(row, 0) for row in now.keys() | before.keys()}
    return {row: weight for row, weight in found.items() if weight}


# ---------------------------------------------------------------- killed


def warm_up(life: TimedLife, directory: Path) -> None:
    """Live an uninterrupted life in this process, so that those forked from it have all they need loaded."""
    for first in (0, EPOCHS // 2):
        with life.opened(directory / "warm", lambda *_: None) as pipeline:
            for epoch in range(first, EPOCHS if first else EPOCHS // 2):
                pipeline.step(life.inputs[epoch], epoch=epoch)


def kills(life: TimedLife, directory: Path, tally: Tally) -> None:
    """Live a life in which processes die, epoch by epoch, and hold every answer against the oracle."""
    draw = random.Random(f"kills {life.kind} {life.seed}")
    for epoch in range(EPOCHS):
        while True:
            how = draw.choice(["file", "file", "output", "none"])
            outcome = forked(partial(_live, life, directory, epoch, how, draw.random()))
            tally.count("lives")
            if outcome.error:
                tally.problem(f"{life.kind} {life.seed}, epoch {epoch}: {outcome.error}")
                return
            if outcome.signal != signal.SIGKILL:
                break
            tally.count("kills observed")
            if (directory / f"state/zset/commits/{epoch:020d}.json").exists():
                tally.count("kills between commit and output", not (directory / f"out/{epoch}").exists())
    for epoch, printed in enumerate(life.printed):
        reported = json.loads((directory / f"out/{epoch}").read_text(encoding="utf-8"))
        tally.compare(
            counts_of((tuple(row), weight) for row, weight in reported), printed, f"{life.kind} {life.seed}, epoch {epoch}"
        )


def _live(life: TimedLife, directory: Path, epoch: int, how: str, drawn: float, send: Send) -> None:
    draw = random.Random(drawn)
    is_done = draw.random() < 0.5
    left = draw.randint(1, 90)

    def write(number: int, delta: Any) -> None:
        if how == "output" and not is_done:
            os.kill(os.getpid(), signal.SIGKILL)
        write_the_same(directory / "out" / str(number), delta)
        if how == "output":
            os.kill(os.getpid(), signal.SIGKILL)

    def kill(operation: Operation, act: Callable[[], Any]) -> Any:
        nonlocal left
        left -= 1
        if left:
            return act()
        if is_done:
            act()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    def work() -> None:
        with life.opened(directory, write) as pipeline:
            if pipeline.epoch <= epoch:
                pipeline.step(life.inputs[epoch], epoch=epoch)

    if how == "file":
        with observe(kill):
            work()
    else:
        work()


# ---------------------------------------------------------------- without power


def power_cuts(life: TimedLife, directory: Path, tally: Tally, *, wanted: int) -> None:
    """Run a life, cut the power at drawn moments, and continue from disks that may be left."""
    rng = random.Random(f"cuts {life.kind} {life.seed}")
    place = directory / "run"
    (place / "state").mkdir(parents=True)
    disk = Disk(place / "state", _AREA)
    committed: list[int] = []
    answers: dict[int, Counts] = {}
    with observe(Recorder(disk)), life.opened(place, partial(_hear, answers)) as pipeline:
        for epoch in range(EPOCHS):
            pipeline.step(life.inputs[epoch], epoch=epoch)
            committed.append(disk.operations)
    if disk.whole() != read_tree(place / "state", _AREA):
        tally.problem(f"{life.kind} {life.seed}: the disk model differs from the disk")
        return
    _hold(life, answers, tally, "uninterrupted")
    seen: set[bytes] = set()
    moments = list(range(disk.operations + 1))
    rng.shuffle(moments)
    for at in moments:
        found = list(disk.states(at, rng, randomly=3))
        rng.shuffle(found)
        for state in found[:4]:
            if state.fingerprint in seen or len(seen) == wanted:
                continue
            seen.add(state.fingerprint)
            tally.count("states built")
            _go_on(life, state, place, directory / "cut", tally, sum(when <= at for when in committed), rng)
    shutil.rmtree(place)


def _go_on(
    life: TimedLife, state: CrashState, run: Path, directory: Path, tally: Tally, promised: int, rng: random.Random
) -> None:
    """Open the pipeline on a disk, after `promised` epochs that must be there, and let it come to its end."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "state").mkdir(parents=True)
    write_tree(directory / "state", state.tree)
    if rng.random() < _STALE_HOST:
        leave_mapped_state(run / "state/local", directory / "state/local", rng)
        tally.count("states with mapped files of the old boot")
    where = f"{life.kind} {life.seed}, power cut after operation {state.at} ({state.reported})"
    boot = uuid.UUID(int=rng.getrandbits(128)).hex
    answers: dict[int, Counts] = {}
    with (
        mock.patch.object(owner_module, "boot_of_host", return_value=boot),
        mock.patch.object(local_state_module, "boot_of_host", return_value=boot),
        mock.patch.object(owner_module, "SILENT_SECONDS", 0.0),
        life.opened(directory, partial(_hear, answers)) as pipeline,
    ):
        begun = pipeline.epoch
        if not promised <= begun <= promised + 1:
            tally.problem(f"{where}: epoch {begun} is next, and {promised} epochs were committed")
            return
        for epoch in range(begun, EPOCHS):
            pipeline.step(life.inputs[epoch], epoch=epoch)
    tally.count("epochs answered after a power cut", EPOCHS - begun)
    _hold(life, answers, tally, where)


def _hear(answers: dict[int, Counts], epoch: int, delta: Any) -> None:
    answers[epoch] = counts_of(delta.to_pylist())


def _hold(life: TimedLife, answers: dict[int, Counts], tally: Tally, where: str) -> None:
    for epoch, printed in answers.items():
        tally.compare(printed, life.printed[epoch], f"{where}, epoch {epoch}")
