"""How much memory this process takes while an operator runs, epoch by epoch."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.state.rows.host_memory import UnusedMemory
from zset_join.zset import ZSet

__all__ = ["Measurable", "Measured", "measured_apart", "print_sizes"]


class Measurable(Protocol):
    """What of an operator is needed to measure it."""

    def answer(self, tick: Tick, deltas: list[ZSet]) -> Iterator[ZSet]: ...

    def absorb(self, tick: Tick, deltas: list[ZSet]) -> None: ...

    def resident_bytes(self) -> int: ...

    def statistics(self) -> dict[str, int]: ...


Measured = npt.NDArray[np.float64]
"""A line per epoch: MB of the process after it, at the peak within it, by the operator's count, and of the delta."""


def print_sizes(make: Callable[[], Measurable], epochs: Callable[[], Iterable[list[ZSet]]]) -> None:
    """Run an operator to load the code, which is compiled code too, then print the sizes of another one like it.

    The first two are what the process has beyond what it had before. The last line is how many of its rows or groups were
    spilled, fetched and are on disk.
    """
    for _ in _sizes(make(), epochs()):
        pass
    gc.collect()
    UnusedMemory().give_back(0)
    before = _megabytes("VmRSS")
    operator = make()
    for after, peak, emitted, delta in _sizes(operator, epochs()):
        sys.stdout.write(json.dumps([after - before, peak - before, emitted, delta]) + "\n")
    counts = operator.statistics()
    moved = [sum(count for name, count in counts.items() if what in name) for what in ("spilled_", "fetched_")]
    cold = sum(count for name, count in counts.items() if name.endswith(("cold_rows", "cold_groups")))
    sys.stdout.write(json.dumps([*moved, cold, 0]) + "\n")


def measured_apart(module: str, *arguments: str) -> tuple[Measured, list[float]]:
    """Return what a module prints that calls `print_sizes`: the epochs, and the last line."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return np.array(lines[:-1]), lines[-1]


def _sizes(operator: Measurable, epochs: Iterable[list[ZSet]]) -> Iterator[tuple[float, float, float, float]]:
    for number, deltas in enumerate(epochs):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        for chunk in operator.answer(Tick(number), deltas):
            del chunk
        operator.absorb(Tick(number), deltas)
        delta = sum(delta.rows.nbytes + delta.weights.nbytes for delta in deltas)
        yield _megabytes("VmRSS"), _megabytes("VmHWM"), operator.resident_bytes() / (1 << 20), delta / (1 << 20)


def _megabytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
