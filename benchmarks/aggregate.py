"""Cost of an aggregate under retractions.

`python -m benchmarks.aggregate [--quick] [--only PATTERN]`. Three workloads of rows `(k, x)`, half of every epoch
retractions of live rows, half insertions; seeded, made before the clock:

- **sums**: count, sum and avg of x by k. 100 k and 10 M groups (4 rows and 1 row each), epochs of 1 k, 10 k and 100 k
  changes.
- **extremes**: min and max of x by k, over the same rows.
- **window**: min and max over one group of 1 M rows whose smallest values go and larger ones come, as in a sliding window.

Every contestant of a cell runs in a process of its own, on one thread; the rate is all changes by all CPU seconds of the
measured epochs, slowest and fastest of five windows beside it. A contestant that exceeds its time budget stops after at least
five epochs. Before anything is measured, all contestants run a small history and must end with the same groups.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from benchmarks.aggregate_contestants import CONTESTANTS, SCHEMA, build_contestant
from benchmarks.measure import CellError, peak_resident_bytes, reset_peak, resident_bytes, run_apart
from benchmarks.report import Goal, machine_lines
from zset_join.zset import ZSet

__all__ = ["Cell", "Measurement", "cells_of", "deltas_of", "main", "measure"]

RESULTS = Path(__file__).resolve().parent / "results"
SEED = 20240229
VALUES = 1 << 40
WINDOWS, LEAST_EPOCHS, BUDGET_SECONDS = 5, 5, 12.0
LOAD_ROWS = 1 << 20
_RATIO_GOALS = {"sums": 10.0, "extremes": 3.0}
_GROWTH_GOAL = 2.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What to measure.

    Args:
        workload: sums, extremes or window.
        contestant: its name.
        groups: how many groups there are.
        rows: rows of state.
        epoch_changes: changes of an epoch.
        epochs: measured epochs; a fifth more warm up.
    """

    workload: str
    contestant: str
    groups: int
    rows: int
    epoch_changes: int
    epochs: int

    @property
    def label(self) -> str:
        """Return the name that `--only` is matched with."""
        return f"{self.workload}/{self.groups}/{self.epoch_changes}/{self.contestant}"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The results; rates are per CPU second."""

    workload: str
    engine: str
    groups: int
    state_rows: int
    epoch_changes: int
    changes_per_cpu_second: float
    slowest_window: float
    fastest_window: float
    p50_ms: float
    p99_ms: float
    peak_bytes: int
    epochs: int


class _Rows:
    """The live rows, and the deltas that change them."""

    def __init__(self, cell: Cell) -> None:
        self._random = np.random.default_rng(SEED)
        self._cell = cell
        if cell.workload == "window":
            self._keys = np.zeros(cell.rows, np.int64)
            self._values = np.arange(cell.rows, dtype=np.int64)
            self._next = cell.rows
        else:
            self._keys = self._random.permutation(np.arange(cell.rows, dtype=np.int64) % cell.groups)
            self._values = self._random.integers(0, VALUES, cell.rows)
        self._oldest = 0

    def load(self) -> Iterator[ZSet]:
        """Yield the first rows."""
        for begin in range(0, self._cell.rows, LOAD_ROWS):
            part = slice(begin, begin + LOAD_ROWS)
            yield _zset(self._keys[part], self._values[part], None)

    def delta(self) -> ZSet:
        """Return the next epoch: half of it goes, as much comes."""
        half = self._cell.epoch_changes // 2
        if self._cell.workload == "window":
            places = (self._oldest + np.arange(half)) % self._cell.rows
            self._oldest = (self._oldest + half) % self._cell.rows
            keys, values = np.zeros(half, np.int64), self._next + np.arange(half)
            self._next += half
        else:
            places = np.unique(self._random.integers(0, self._cell.rows, 2 * half))
            places = self._random.permutation(places)[:half]
            keys = self._random.integers(0, self._cell.groups, len(places))
            values = self._random.integers(0, VALUES, len(places))
        old_keys, old_values = self._keys[places].copy(), self._values[places].copy()
        self._keys[places], self._values[places] = keys, values
        weights = np.repeat(np.array([-1, 1]), [len(places), len(places)])
        return _zset(np.concatenate([old_keys, keys]), np.concatenate([old_values, values]), weights)


def _zset(keys: np.ndarray, values: np.ndarray, weights: np.ndarray | None) -> ZSet:  # type: ignore[type-arg]
    return ZSet.of(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=SCHEMA), weights)


def deltas_of(cell: Cell) -> tuple[_Rows, int]:
    """Return the rows of a cell, and how many epochs are run in all."""
    return _Rows(cell), cell.epochs + max(1, cell.epochs // 5)


def measure(cell: Cell) -> Measurement:
    """Measure one cell in this process, which should have done nothing else."""
    pa.set_cpu_count(1)
    rows, epochs = deltas_of(cell)
    contestant = build_contestant(cell.workload, cell.contestant)
    before = resident_bytes()
    reset_peak()
    for part in rows.load():
        contestant.load(part)
    contestant.loaded()
    cpu, wall, changes = [], [], []
    deadline = time.perf_counter() + BUDGET_SECONDS
    for _ in range(epochs):
        delta = rows.delta()
        prepared = contestant.prepare(delta)
        wall_from, cpu_from = time.perf_counter(), time.process_time()
        answer = contestant.step(prepared)
        wall.append(time.perf_counter() - wall_from)
        del answer
        cpu.append(time.process_time() - cpu_from)
        changes.append(len(delta))
        if time.perf_counter() > deadline and len(cpu) > LEAST_EPOCHS + epochs - cell.epochs:
            break
    measured = slice(min(epochs - cell.epochs, len(cpu) - LEAST_EPOCHS), None)
    cpu_seconds, all_changes = np.array(cpu[measured]), np.array(changes[measured])
    windows = [
        float(part.sum() / seconds.sum())
        for part, seconds in zip(np.array_split(all_changes, WINDOWS), np.array_split(cpu_seconds, WINDOWS), strict=True)
    ]
    wall_ms = np.array(wall[measured]) * 1000
    return Measurement(
        workload=cell.workload,
        engine=cell.contestant,
        groups=cell.groups,
        state_rows=cell.rows,
        epoch_changes=cell.epoch_changes,
        changes_per_cpu_second=round(float(all_changes.sum() / cpu_seconds.sum()), 1),
        slowest_window=round(min(windows), 1),
        fastest_window=round(max(windows), 1),
        p50_ms=round(float(np.percentile(wall_ms, 50)), 3),
        p99_ms=round(float(np.percentile(wall_ms, 99)), 3),
        peak_bytes=peak_resident_bytes() - before,
        epochs=len(cpu_seconds),
    )


def cells_of(*, quick: bool) -> list[Cell]:
    """List the cells, contestants of one cell one after the other."""
    cells = []
    for workload, contestants in CONTESTANTS.items():
        for groups, rows, sizes in ((100_000, 400_000, (1_000, 10_000, 100_000)), (10_000_000, 10_000_000, (100_000,))):
            if quick and groups > 100_000:
                continue
            for epoch_changes in sizes:
                epochs = {1_000: 200, 10_000: 60, 100_000: 15}[epoch_changes]
                cells += [
                    Cell(
                        workload=workload,
                        contestant=name,
                        groups=groups,
                        rows=rows,
                        epoch_changes=epoch_changes,
                        epochs=max(5, epochs // 5) if quick else epochs,
                    )
                    for name in contestants
                    if groups == 100_000 or name == "zset_join"
                ]
    for epoch_changes in (1_000, 10_000):
        cells += [
            Cell(
                workload="window",
                contestant=name,
                groups=1,
                rows=1_000_000,
                epoch_changes=epoch_changes,
                epochs=10 if quick else 40,
            )
            for name in CONTESTANTS["extremes"]
        ]
    # The cost at 10 M groups is compared with that at 100 k groups of as many rows each.
    cells += [
        Cell(workload=workload, contestant="zset_join", groups=100_000, rows=100_000, epoch_changes=100_000, epochs=15)
        for workload in ("sums", "extremes")
        if not quick
    ]
    return cells


def check_equality() -> str:
    """Run a small history through every contestant and compare the groups it ends in.

    Raises:
        AssertionError: two contestants differ.
    """
    for workload, names in CONTESTANTS.items():
        ends = []
        for name in names:
            cell = Cell(workload=workload, contestant=name, groups=50, rows=200, epoch_changes=60, epochs=8)
            rows, epochs = deltas_of(cell)
            contestant = build_contestant(workload, name)
            for part in rows.load():
                contestant.load(part)
            for _ in range(epochs):
                contestant.step(contestant.prepare(rows.delta()))
            ends.append(contestant.groups())
        for name, end in zip(names[1:], ends[1:], strict=True):
            assert end == ends[0], f"{name} ends {workload} with other groups than {names[0]}"
    return "all contestants end a small history with the same groups"


def table_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Return one line per measurement, grouped by workload and size."""
    header = (
        f"{'contestant':<14}{'changes/cpu s':>14}{'min - max window':>26}{'x dict':>8}{'p50 ms':>10}{'p99 ms':>10}"
        f"{'peak MB':>9}{'epochs':>8}"
    )
    lines: list[str] = []
    for group in _groups(measurements):
        first, base = group[0], _baseline(group)
        lines += [
            "",
            f"{first.workload}, {first.groups:,} groups, {first.state_rows:,} rows, {first.epoch_changes:,} changes per epoch",
            header,
        ]
        for one in group:
            ratio = f"{one.changes_per_cpu_second / base:.2f}" if base else "-"
            window = f"{one.slowest_window:,.0f} - {one.fastest_window:,.0f}"
            lines.append(
                f"{one.engine:<14}{one.changes_per_cpu_second:>14,.0f}{window:>26}{ratio:>8}{one.p50_ms:>10.2f}"
                f"{one.p99_ms:>10.2f}{one.peak_bytes / 1e6:>9,.0f}{one.epochs:>8}"
            )
    return lines


def goals_of(measurements: Sequence[Measurement]) -> list[Goal]:
    """Return the goals that these measurements decide."""
    goals = []
    for group in _groups(measurements):
        first, base, ours = group[0], _baseline(group), _rate(group, "zset_join")
        bound = _RATIO_GOALS.get(first.workload)
        if base and ours and bound and first.epoch_changes == 100_000:
            where = f"{first.workload}, {first.groups:,} groups, {first.epoch_changes:,} per epoch"
            goals.append(Goal(sentence=f"times the fastest plain-Python aggregate: {where}", measured=ours / base, bound=bound))
        recomputed = _rate(group, "duckdb")
        if recomputed and ours:
            where = f"{first.workload}, {first.groups:,} groups, {first.epoch_changes:,} per epoch"
            goals.append(Goal(sentence=f"times DuckDB recomputing: {where}", measured=ours / recomputed, bound=1.0))
    for workload in ("sums", "extremes"):
        sizes = {
            one.groups: one.changes_per_cpu_second
            for one in measurements
            if one.workload == workload and one.engine == "zset_join" and one.groups == one.state_rows
        }
        if {100_000, 10_000_000} <= sizes.keys():
            goals.append(
                Goal(
                    sentence=f"cost per change at 10 M groups, times that at 100 k, {workload}, 100,000 per epoch",
                    measured=sizes[100_000] / sizes[10_000_000],
                    bound=_GROWTH_GOAL,
                    at_least=False,
                )
            )
    return goals


def loss_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Return one line per cell in which another contestant beats the operator."""
    return [
        f"{one.engine} is {one.changes_per_cpu_second / ours:.2f} times faster: {one.workload}, {one.groups:,} groups, "
        f"{one.epoch_changes:,} per epoch"
        for group in _groups(measurements)
        for ours in (_rate(group, "zset_join"),)
        for one in group
        if 0.0 < ours < one.changes_per_cpu_second
    ]


def _groups(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    groups: dict[tuple[str, int, int, int], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.workload, one.groups, one.state_rows, one.epoch_changes), []).append(one)
    return list(groups.values())


def _rate(group: Sequence[Measurement], engine: str) -> float:
    return next((one.changes_per_cpu_second for one in group if one.engine == engine), 0.0)


def _baseline(group: Sequence[Measurement]) -> float:
    return max(_rate(group, "dict"), _rate(group, "sorted_dict"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 k groups only, a fifth of the epochs")
    parser.add_argument("--only", default="", help="measure only cells whose label matches this pattern")
    parser.add_argument("--cell", help="measure one cell, given as JSON, in this process")
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(asdict(measure(Cell(**json.loads(options.cell))))))
        return 0
    cells = [cell for cell in cells_of(quick=options.quick) if re.search(options.only, cell.label)]
    lines = ["benchmarks of aggregates: one thread, CPU time, one process per cell", *machine_lines(), "", check_equality()]
    print("\n".join(lines), flush=True)
    measurements, failures = [], []
    for cell in tqdm(cells, unit="cell", file=sys.stderr):
        try:
            measurements.append(
                Measurement(**json.loads(run_apart("benchmarks.aggregate", f"--cell={json.dumps(asdict(cell))}")))
            )
        except CellError as error:
            failures.append(f"FAILED {cell.label}: {error}")
    report = table_lines(measurements)
    goals, losses = goals_of(measurements), loss_lines(measurements)
    report += ["", "goals", *(goal.line() for goal in goals)] if goals else []
    report += ["", "losses", *losses] if losses else []
    report += failures
    print("\n".join(report))
    name = "aggregate" if not (options.quick or options.only) else "aggregate.partial"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text("\n".join([*lines, *report]) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps([asdict(one) for one in measurements], indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
