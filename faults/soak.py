"""The durable loop of a driver and its buckets for as long as you like: `python -m faults.soak --minutes 30`.

One process lives the life of a query: upserts that move between join keys, deletes, late changes, routes, logs, merges,
snapshots, removal of old files and of unused local state. Every now and then the driver restarts, with or without its local
state, comes back to an epoch that was committed and not published, or is given another number of buckets in between.

What is compared: the sum of everything the output was given with the plain join of two dicts, every `_COMPARE_EVERY` epochs and
at the end. What is measured: memory, open files, bytes on the disk, seconds per epoch. The keys are bounded and all of them
are present from the first epoch on, so after the warm-up none of these has a reason to grow. Straight lines are laid through
the measured part; what they gain from its beginning to its end must stay below

| of | limit |
|---|---|
| anonymous memory, while the driver is closed | 24 MiB and 16 MiB per hour |
| resident memory, while the driver is closed | 32 MiB and 16 MiB per hour |
| open file descriptors, while the driver is closed | 3 |
| bytes of the checkpoint, bytes of local state | half of their mean, each |

and no tenth of the run may have a p99 above twenty times the median p99: a bound for things that pile up, not for speed. The
first three tenths are the warm-up and count for neither.

Arrow is given the allocator of the system: its own keeps what is free for later, 15 to 30 MiB here, and would hide what is
lost.

Memory of the soak itself: two dicts of rows, their join, and 16 bytes per epoch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from faults.driver import Driver, Place
from faults.histories import Changes, History, recorded_history
from faults.outputs import Output, SinkOutput, read_parts
from faults.rescaling import rescale
from faults.tally import difference
from zset_join.checkpoint import bucket as bucket_module
from zset_join.checkpoint import record as record_module
from zset_join.checkpoint.bucket import close_kept_operators
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.relation import Relation
from zset_join.testing.reference import Bag, Counts, Side, batch_join, lay_out, total
from zset_join.zset import ZSet

__all__ = ["Counted", "Sample", "described", "gain", "held_against_limits", "main", "p99_of_tenths", "run"]

_HOWS = ("full", "left", "inner", "left_anti")
_ORDERS, _CUSTOMERS, _KEYS = 6_000, 400, 1_500
_CHANGES = 300
_COMPARE_EVERY = 40
_COMES_BACK, _RESTARTS = 0.01, 0.02
_SAMPLE_SECONDS = 1.0
_WARM_UP_TENTHS = 3
_UNUSED_AFTER_SECONDS = 20
_MERGE_AFTER_FILES = 6
_MEBIBYTE = 1 << 20
_EPOCHS_PER_MINUTE = 20
_COMPARISONS_PER_MINUTE = 0.5
_MOST_P99_RATIO = 20.0
_SMALL_SECONDS = 0.05


@dataclass
class Counted:
    """Counts so far."""

    epochs: int = 0
    changes: int = 0
    comparisons: int = 0
    rows_compared: int = 0
    differences: int = 0
    restarts: int = 0
    lost_local_states: int = 0
    replays: int = 0
    rescalings: int = 0
    snapshots: int = 0
    merges: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name):,} {one.name.replace('_', ' ')}" for one in fields(self))


@dataclass(frozen=True)
class _Held:
    """Memory of the process while no driver is open, after free memory was returned to the system."""

    anonymous: int
    resident: int
    descriptors: int

    @classmethod
    def now(cls) -> _Held:
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        reported = (line.partition(":") for line in lines)
        kibibytes = {name: int(rest.split()[0]) for name, _, rest in reported if rest.endswith("kB")}
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path for each would be made for nothing
        return cls(kibibytes["RssAnon"] << 10, kibibytes["VmRSS"] << 10, descriptors)


@dataclass(frozen=True)
class Sample:
    """One measurement, in bytes; memory and descriptors are those when the driver was closed last."""

    seconds: float
    anonymous: int
    resident: int
    descriptors: int
    checkpoint: int
    local: int


@dataclass
class _Table:
    """One side as dicts: what is live, and the newest sequence of each key."""

    relation: Relation
    live: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    newest: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def apply(self, changes: Changes) -> None:
        for row, weight in changes:
            key = tuple(row[name] for name in self.relation.primary_key)
            if row["s"] < self.newest.get(key, row["s"]):
                continue
            self.newest[key] = row["s"]
            if weight > 0:
                self.live[key] = row
            else:
                self.live.pop(key, None)

    def bag(self) -> Bag:
        return [(row, 1) for row in self.live.values()]


@dataclass(frozen=True)
class _Endless(History):
    """A history that is drawn epoch by epoch; it holds the newest one only."""

    newest: dict[int, tuple[Changes, Changes]] = field(default_factory=dict)

    def deltas(self, epoch: int) -> tuple[ZSet, ZSet]:
        """Return the input of the newest epoch."""
        return self.deltas_of(self.newest[epoch])


class _SummingOutput(SinkOutput):
    """Take the parts as the view does, and keep their sum as a dict."""

    def __init__(self) -> None:
        self._sums: Counts = {}
        self._last: int | None = None

    def open(self, relation: Relation, query_id: str) -> None:
        """Do nothing: it is always open."""

    def last_epoch(self) -> int | None:
        """Return the last epoch in it."""
        return self._last

    def has(self, record: CommitRecord) -> bool:
        """Compare numbers."""
        return self._last is not None and self._last >= record.epoch

    def publish(self, files: CheckpointFiles, record: CommitRecord) -> None:
        """Add the answer of an epoch."""
        lines = [line for delta in read_parts(files, record) for line in delta.to_pylist()]
        for row, weight in total(lines).items():
            summed = self._sums.get(row, 0) + weight
            if summed:
                self._sums[row] = summed
            else:
                del self._sums[row]
        self._last = record.epoch

    def contents(self) -> Counts:
        """Return the sum."""
        return self._sums

    def close(self) -> None:
        """Do nothing."""


@dataclass
class _Life(Driver):
    """A driver whose output survives it."""

    sums: _SummingOutput = field(default_factory=_SummingOutput)

    def _make_output(self) -> Output:
        return self.sums


class _Soak:
    """One query and its dict oracle.

    Args:
        root: scratch space.
        seed: seed of everything random.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.counted = Counted()
        self.seconds = array("d")
        self.place = Place(root)
        how = self.rng.choice(_HOWS)
        self.history = _Endless(how, recorded_history(how, "upserts", seed=0, epochs=1).relations, ())
        self._tables = [_Table(relation) for relation in self.history.relations]
        self._sums = _SummingOutput()
        self._epoch = 0
        self.held = _Held.now()
        self._driver = self._opened()

    def step(self) -> None:
        """Run one epoch, and perhaps something that befalls a query."""
        changes = self._first() if self._epoch == 0 else self._drawn()
        self.history.newest.clear()
        self.history.newest[self._epoch] = changes
        for table, side in zip(self._tables, changes, strict=True):
            table.apply(side)
        chance = self.rng.random()
        before = self._driver.checkpoint.last
        began = time.perf_counter()
        if chance < _COMES_BACK:
            self._commit_and_come_back()
        self._driver.run_epoch(self._epoch)
        self.seconds.append(time.perf_counter() - began)
        self._count(before, self._driver.checkpoint.last, changes)
        self._epoch += 1
        if _COMES_BACK <= chance < _COMES_BACK + _RESTARTS:
            self.restart()
        if self.counted.epochs % _COMPARE_EVERY == 0:
            self.compare()

    def restart(self) -> None:
        """Stop and start again: with other local state, another number of buckets, or as it was."""
        self.close()
        self.counted.restarts += 1
        turn = self.rng.random()
        if turn < 0.25:
            shutil.rmtree(self.place.local("host-a"), ignore_errors=True)
            self.counted.lost_local_states += 1
        elif turn < 0.5:
            rescale(self.history, self.place, self.rng.choice((1, 2, 3, 4)))
            self.counted.rescalings += 1
        self._driver = self._opened()

    def compare(self) -> None:
        """The sum of the answers against the plain join of the dicts."""
        relations = self.history.relations
        sides = [Side(tuple(one.schema.names), one.mode, one.join_key, one.primary_key, one.sequence_by) for one in relations]
        keys = {"left_key": relations[0].join_key, "right_key": relations[1].join_key}
        bags = [table.bag() for table in self._tables]
        joined = batch_join(bags[0], bags[1], how=self.history.how, null_safe=[False], **keys)
        expected = lay_out(joined, how=self.history.how, left=sides[0], right=sides[1])
        self.counted.comparisons += 1
        self.counted.rows_compared += len(expected)
        self.counted.differences += sum(difference(self._sums.contents(), expected))

    def close(self) -> None:
        """Stop the driver, as its process would end, and look at what is still held."""
        self._driver.close()
        close_kept_operators()
        self.held = _Held.now()

    def _opened(self) -> Driver:
        driver = _Life(self.history, self.place, "view", sums=self._sums, local_state_retention_seconds=_UNUSED_AFTER_SECONDS)
        return driver.open()

    def _commit_and_come_back(self) -> None:
        """Commit the epoch and die before it is published; every other time its answer is lost as well."""
        self._driver.checkpoint.commit(self._driver.recorded(self._epoch, self._driver.answer(self._epoch)))
        self.close()
        if self.rng.random() < 0.5:
            shutil.rmtree(self.place.checkpoint / "zset" / "delta", ignore_errors=True)
        self.counted.replays += 1
        self._driver = self._opened()

    def _count(self, before: CommitRecord | None, after: CommitRecord | None, changes: tuple[Changes, Changes]) -> None:
        self.counted.epochs += 1
        self.counted.changes += sum(map(len, changes))
        known = set() if before is None else before.state_files()
        for history in () if after is None else after.histories.values():
            self.counted.merges += sum(log.is_merged and log.file.name not in known for log in history.logs)
            if history.snapshot is not None:
                self.counted.snapshots += not known & {entry.name for entry in history.snapshot.tables.values()}

    def _first(self) -> tuple[Changes, Changes]:
        left = tuple((self._order(number), 1) for number in range(_ORDERS))
        return left, tuple((self._customer(number), 1) for number in range(_CUSTOMERS))

    def _drawn(self) -> tuple[Changes, Changes]:
        rng = self.rng
        left = tuple(self._change(self._order(rng.randrange(_ORDERS)), 0) for _ in range(rng.randrange(_CHANGES)))
        return left, tuple(
            self._change(self._customer(rng.randrange(_CUSTOMERS)), 1) for _ in range(rng.randrange(_CHANGES // 10))
        )

    def _change(self, row: dict[str, Any], side: int) -> tuple[dict[str, Any], int]:
        if self.rng.random() < 0.2:
            kept = {*self.history.relations[side].primary_key, *self.history.relations[side].sequence_by}
            return {name: value if name in kept else None for name, value in row.items()}, -1
        return row, 1

    def _order(self, number: int) -> dict[str, Any]:
        key = self.rng.choice((None, *[self.rng.randrange(_KEYS)] * 20))
        return {"id": number, "k": key, "s": self._sequence(), "v": self._text()}

    def _customer(self, number: int) -> dict[str, Any]:
        return {"id": number % 2, "k": number // 2 * 3 % _KEYS, "s": self._sequence(), "v": self._text()}

    def _sequence(self) -> int:
        return self._epoch - self.rng.choice((0, 0, 0, 5))

    def _text(self) -> str:
        return f"{self.rng.randrange(1000)} " + "x" * self.rng.choice((0, 5, 30, 200))


def run(*, minutes: float, seed: int, root: Path) -> tuple[Counted, list[Sample], array[float]]:
    """Soak for some minutes.

    Returns:
        What happened, what was measured, and the seconds of every epoch.
    """
    with (
        _memory_of_the_system(),
        mock.patch.object(bucket_module, "_CLEAN_EVERY_SECONDS", _UNUSED_AFTER_SECONDS / 2),
        mock.patch.object(record_module, "MERGE_AFTER_FILES", _MERGE_AFTER_FILES),
    ):
        soak = _Soak(root, seed)
        try:
            samples = list(_samples(soak, 60 * minutes))
        finally:
            soak.close()
    soak.compare()
    return soak.counted, samples, soak.seconds


@contextmanager
def _memory_of_the_system() -> Iterator[None]:
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _samples(soak: _Soak, seconds: float) -> Iterator[Sample]:
    began = time.monotonic()
    while (gone := time.monotonic() - began) < seconds:
        yield _measured(soak, gone)
        following = gone + max(_SAMPLE_SECONDS, seconds / 2_000)
        while time.monotonic() - began < min(following, seconds):
            soak.step()


def _measured(soak: _Soak, seconds: float) -> Sample:
    checkpoint, local = (_bytes_below(directory) for directory in (soak.place.checkpoint, soak.place.root / "hosts"))
    held = soak.held
    return Sample(seconds, held.anonymous, held.resident, held.descriptors, checkpoint, local)


def _bytes_below(directory: Path) -> int:
    found = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            found += (Path(parent) / name).stat().st_blocks << 9
    return found


def gain(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Return how much a straight line through the samples gains from the first to the last, and per hour.

    >>> samples = [Sample(float(at), 7, 0, 0, 0, 5 * at) for at in range(100)]
    >>> [round(value) for value in (*gain(samples, "local"), *gain(samples, "anonymous"))]
    [495, 18000, 0, 0]
    """
    if len(samples) < 3:
        return 0.0, 0.0
    seconds = np.array([sample.seconds for sample in samples])
    slope = float(np.polyfit(seconds - seconds[0], np.array([getattr(sample, name) for sample in samples], float), 1)[0])
    return slope * float(seconds[-1] - seconds[0]), slope * 3600


def held_against_limits(counted: Counted, samples: Sequence[Sample], seconds: Sequence[float], minutes: float) -> list[str]:
    """Return the error as text.

    Args:
        counted: what happened.
        samples: what was measured, the warm-up omitted.
        seconds: seconds of every epoch.
        minutes: how long it was to run.
    """
    wrong = [f"{counted.differences:,} rows differ from the plain join"] if counted.differences else []
    for name, floor in (("epochs", _EPOCHS_PER_MINUTE * minutes), ("comparisons", _COMPARISONS_PER_MINUTE * minutes)):
        if getattr(counted, name) < floor:
            wrong.append(f"only {getattr(counted, name):,} {name}; the floor is {floor:,.0f}")
    hours = (samples[-1].seconds - samples[0].seconds) / 3600 if samples else 0.0
    limits = {"anonymous": (24 + 16 * hours) * _MEBIBYTE, "resident": (32 + 16 * hours) * _MEBIBYTE, "descriptors": 3.0}
    for name in ("checkpoint", "local"):
        limits[name] = 0.5 * statistics.fmean(getattr(sample, name) for sample in samples) if samples else 0.0
    for name, limit in limits.items():
        gained, _ = gain(samples, name)
        if gained > limit:
            wrong.append(f"{name} gained {gained:,.0f} in {60 * hours:.1f} minutes; the limit is {limit:,.0f}")
    tenths = [tenth for tenth in p99_of_tenths(seconds)[_WARM_UP_TENTHS:] if tenth] or [0.0]
    usual = max(statistics.median(tenths), _SMALL_SECONDS)
    if max(tenths) > _MOST_P99_RATIO * usual:
        wrong.append(f"the p99 of a tenth is {max(tenths):.3f} s, more than {_MOST_P99_RATIO:.0f} times {usual:.3f} s")
    return wrong


def p99_of_tenths(seconds: Sequence[float]) -> list[float]:
    """Return the 99th percentile of every tenth of the run.

    >>> p99_of_tenths([0.0] * 90 + [1.0] * 10)[-2:]
    [0.0, 1.0]
    """
    return [float(np.percentile(tenth, 99)) if len(tenth) else 0.0 for tenth in np.array_split(np.array(seconds), 10)]


def described(samples: Sequence[Sample], name: str) -> str:
    """Return how one measure went, as a line."""
    values = [getattr(sample, name) for sample in samples] or [0]
    unit, form = (1, "{:,.1f}") if name == "descriptors" else (_MEBIBYTE, "{:,.1f} MiB")
    chosen = (values[0], statistics.median(values), max(values), values[-1], gain(samples, name)[1])
    first, middle, most, last, slope = (form.format(value / unit) for value in chosen)
    return f"{name:12} first {first}, median {middle}, most {most}, last {last}; slope {slope} per hour"


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and report; return 0 when every comparison held and nothing grew."""
    parser = argparse.ArgumentParser(prog="faults.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    parser.add_argument("--seed", type=int, default=None, help="seed of everything random (default: from the clock)")
    parser.add_argument("--directory", type=Path, default=None, help="where the files go (default: the temporary directory)")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000_000
    with tempfile.TemporaryDirectory(prefix="zset_join-soak-", dir=options.directory) as root:
        counted, samples, seconds = run(minutes=options.minutes, seed=seed, root=Path(root))
    write = partial(print, flush=True)
    measured = [sample for sample in samples if sample.seconds >= _WARM_UP_TENTHS * 6 * options.minutes]
    write(f"seed {seed}, {options.minutes:g} minutes: {counted}")
    for name in ("anonymous", "resident", "descriptors", "checkpoint", "local"):
        write(described(measured, name))
    write("p99 of the epoch seconds, per tenth of the run:", " ".join(f"{value:.3f}" for value in p99_of_tenths(seconds)))
    wrong = held_against_limits(counted, measured, seconds, options.minutes)
    for line in wrong:
        write(f"FAILED: {line}")
    if wrong:
        write(f"repeat: python -m faults.soak --seed {seed} --minutes {options.minutes:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
