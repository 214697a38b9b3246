"""Measure one cell (workload, size, epoch size, contestant) in processes of its own.

A process per cell keeps memory, caches and thread settings of the contestants apart. Everything runs on one thread.
The epochs are made and turned into the contestant's own input first, then the state is loaded, then warm-up epochs
run, then the measured ones: consecutive epochs that fall into five equal windows, the five runs whose minimum and
maximum are reported. The rate itself is all changes by all CPU seconds, so a table that doubles in one window is paid
for.

What is counted: `time.process_time` (all threads of the process) from the first input array to the released answer,
wall time per epoch for the latencies, and the peak of resident memory above what was resident before the state was
loaded. The dict join keeps the tuples made for its input as its rows, so what epochs add to its state is not in its
peak. Known limits: a contestant that is far slower stops at its time budget, with at least ten epochs (and five
windows) measured.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.contestant import build_contestant
from benchmarks.workloads import LEFT, RIGHT, named_workload

__all__ = [
    "ONE_THREAD",
    "Cell",
    "CellError",
    "Measurement",
    "measure",
    "measure_apart",
    "middle_of",
    "peak_resident_bytes",
    "reset_peak",
    "resident_bytes",
    "run_apart",
]

_THREAD_VARIABLES = (
    "ARROW_IO_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
ONE_THREAD = dict.fromkeys(_THREAD_VARIABLES, "1")
WINDOWS = 5
LEAST_EPOCHS = 10


class CellError(Exception):
    """A cell whose process failed; the message ends with what that process wrote."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What to measure.

    Args:
        workload: its name, see `named_workload`.
        scale: its size, see `named_workload`.
        contestant: its name, see `CONTESTANTS`.
        epoch_changes: input rows of an epoch, both sides together.
        epochs: measured epochs.
        warm_up_epochs: epochs before these.
        budget_seconds: wall time after which a slow contestant stops.
    """

    workload: str
    scale: int
    contestant: str
    epoch_changes: int
    epochs: int
    warm_up_epochs: int
    budget_seconds: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The results of a cell; rates are per CPU second, bytes above those resident before the load."""

    workload: str
    engine: str
    state_rows: int
    epoch_changes: int
    changes_per_cpu_second: float
    delta_rows_per_cpu_second: float
    p50_ms: float
    p99_ms: float
    peak_bytes: int
    slowest_window: float
    fastest_window: float
    epochs: int
    emitted_rows_per_change: float
    answer_rows_per_change: float
    load_cpu_seconds: float


def measure(cell: Cell) -> Measurement:
    """Measure one cell in this process, which should have done nothing else.

    Raises:
        AssertionError: the contestant emitted fewer rows than the exact answer has.
    """
    pa.set_cpu_count(1)
    workload = named_workload(cell.workload, cell.scale)
    contestant = build_contestant(cell.contestant, workload.relations)
    epochs = workload.epochs(cell.warm_up_epochs + cell.epochs, cell.epoch_changes)
    inputs = [contestant.prepare(epoch) for epoch in epochs]
    _return_free_memory()
    bytes_before = resident_bytes()
    reset_peak()

    loading_from = time.process_time()
    for side in (RIGHT, LEFT):
        for rows in workload.initial(side):
            contestant.load(side, rows)
    contestant.loaded()
    load_cpu_seconds = time.process_time() - loading_from

    emitted, cpu_seconds, wall_seconds = [], [], []
    deadline = np.inf
    for number, prepared in enumerate(inputs):
        if number == cell.warm_up_epochs:
            deadline = time.perf_counter() + cell.budget_seconds
        if time.perf_counter() > deadline and number >= cell.warm_up_epochs + min(LEAST_EPOCHS, cell.epochs):
            break
        wall_from, cpu_from = time.perf_counter(), time.process_time()
        answer = contestant.step(prepared)
        wall_seconds.append(time.perf_counter() - wall_from)
        cpu_in_step = time.process_time() - cpu_from
        emitted.append(contestant.count_rows(answer))
        release_from = time.process_time()
        del answer
        cpu_seconds.append(cpu_in_step + time.process_time() - release_from)

    for number, (rows, epoch) in enumerate(zip(emitted, epochs, strict=False)):
        if rows < epoch.answer_rows:
            raise AssertionError(f"{cell.contestant} emitted {rows} rows in epoch {number}, fewer than {epoch.answer_rows}.")
    measured = slice(cell.warm_up_epochs, len(emitted))
    cpu = np.array(cpu_seconds[measured])
    changes = np.array([epoch.changes for epoch in epochs[measured]])
    answer_rows = sum(epoch.answer_rows for epoch in epochs[measured])
    windows = _window_rates(changes, cpu)
    wall_ms = np.array(wall_seconds[measured]) * 1000
    return Measurement(
        workload=cell.workload,
        engine=cell.contestant,
        state_rows=workload.state_rows,
        epoch_changes=cell.epoch_changes,
        changes_per_cpu_second=round(float(changes.sum() / cpu.sum()), 1),
        delta_rows_per_cpu_second=round(float(answer_rows / cpu.sum()), 1),
        p50_ms=round(float(np.percentile(wall_ms, 50)), 3),
        p99_ms=round(float(np.percentile(wall_ms, 99)), 3),
        peak_bytes=peak_resident_bytes() - bytes_before,
        slowest_window=round(min(windows), 1),
        fastest_window=round(max(windows), 1),
        epochs=len(cpu),
        emitted_rows_per_change=round(sum(emitted[measured]) / float(changes.sum()), 4),
        answer_rows_per_change=round(answer_rows / float(changes.sum()), 4),
        load_cpu_seconds=round(load_cpu_seconds, 2),
    )


def measure_apart(cell: Cell) -> Measurement:
    """Measure one cell in a fresh process with every library on one thread.

    Raises:
        CellError: that process failed.
    """
    return Measurement(**json.loads(run_apart("benchmarks.measure", json.dumps(asdict(cell)))))


def middle_of(rounds: Sequence[Measurement]) -> Measurement:
    """Return the round with the median rate, with the slowest and fastest window and the largest peak of all rounds.

    One process may be lucky or unlucky for its whole life: with the pages it gets, with who else uses the machine.
    """
    middle = sorted(rounds, key=lambda one: one.changes_per_cpu_second)[len(rounds) // 2]
    return replace(
        middle,
        peak_bytes=max(one.peak_bytes for one in rounds),
        slowest_window=min(one.slowest_window for one in rounds),
        fastest_window=max(one.fastest_window for one in rounds),
    )


def run_apart(module: str, argument: str) -> str:
    """Run `python -m module argument` on one thread and return the last line it printed.

    Raises:
        CellError: that process failed.
    """
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    finished = subprocess.run(
        [sys.executable, "-m", module, argument], env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    lines = finished.stdout.strip().splitlines()
    if finished.returncode != 0 or not lines:
        raise CellError(f"{module} {argument} ended with {finished.returncode}: {finished.stderr.strip()[-2000:]}")
    return lines[-1]


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not report it."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Return the peak of the resident memory since `reset_peak`, or since the start where it cannot be reset."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak() -> None:
    """Make the present resident memory the peak; without effect where the system has no such switch."""
    switch = Path("/proc/self/clear_refs")
    if os.access(switch, os.W_OK):
        switch.write_text("5", encoding="ascii")


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == f"{name}:"), 0)


def _return_free_memory() -> None:
    """Give freed pages back, so that the load cannot hide in pages that making the epochs left resident."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _window_rates(changes: npt.NDArray[np.int64], cpu_seconds: npt.NDArray[np.float64]) -> list[float]:
    windows = zip(np.array_split(changes, WINDOWS), np.array_split(cpu_seconds, WINDOWS), strict=True)
    return [float(part.sum() / seconds.sum()) for part, seconds in windows if len(part)]


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Cell(**json.loads(sys.argv[1]))))))
