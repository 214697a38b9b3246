"""Which share of touches finds its entry in memory? `python -m benchmarks.residency`.

200,000 entries, of which 20,000 fit; 400 epochs of 5,000 touches. Traces:

- `zipf`: keys by Zipf's law, exponent 1.1;
- `sweep`: the same, and from epoch 150 to 189 one pass over all entries besides;
- `sweeps`: the same as `zipf`, and every tenth epoch a pass over a tenth of all entries;
- `shift`: at epoch 200 other keys become the frequent ones;
- `uniform`: no key is more frequent than another; nothing can be done about it.

Compared are plain LRU, LRU-2 (by the last but one touch), segmented LRU (a second touch protects; a fifth of memory for the
others), and `spill.residency` with and without keeping the scores of spilled entries. Everybody spills down to nine tenths.
Hits count from epoch 50 on. Results: `results/residency.txt`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.machine import describe_machine
from spill.residency import NEVER, ResidencyPolicy

__all__ = ["main"]

ENTRIES, CAPACITY, EPOCHS, TOUCHES = 200_000, 20_000, 400, 5_000
SEED = 20260402
RESULTS = Path(__file__).resolve().parent / "results" / "residency.txt"
Positions = npt.NDArray[np.int64]


class Contestant(Protocol):
    """Remember touches; choose whom to spill."""

    def touch(self, entries: Positions) -> None: ...

    def spill(self, held: Positions) -> Positions: ...


class Lru:
    """Spill the entry whose last touch is longest ago."""

    def __init__(self) -> None:
        self.last, self.epoch = np.full(ENTRIES, -1), 0

    def touch(self, entries: Positions) -> None:
        self.epoch += 1
        self.last[entries] = self.epoch

    def spill(self, held: Positions) -> Positions:
        return held[np.argsort(self.last[held], kind="stable")[: _excess(held)]]


class LruTwo:
    """Spill the entry whose last but one touch is longest ago."""

    def __init__(self) -> None:
        self.last, self.before, self.epoch = np.full(ENTRIES, -1), np.full(ENTRIES, -1), 0

    def touch(self, entries: Positions) -> None:
        self.epoch += 1
        self.before[entries] = self.last[entries]
        self.last[entries] = self.epoch

    def spill(self, held: Positions) -> Positions:
        return held[np.lexsort((self.last[held], self.before[held]))[: _excess(held)]]


class SegmentedLru:
    """Spill entries that were touched once in memory, as long as they take more than a fifth of it."""

    def __init__(self) -> None:
        self.last, self.epoch = np.full(ENTRIES, -1), 0
        self.resident, self.protected = np.zeros(ENTRIES, np.bool_), np.zeros(ENTRIES, np.bool_)

    def touch(self, entries: Positions) -> None:
        self.epoch += 1
        self.protected[entries] = self.resident[entries]
        self.resident[entries] = True
        self.last[entries] = self.epoch

    def spill(self, held: Positions) -> Positions:
        held = held[np.argsort(self.last[held], kind="stable")]
        once, often = held[~self.protected[held]], held[self.protected[held]]
        first = once[: max(0, len(once) - CAPACITY // 5)]
        victims = np.concatenate([first, often, once[len(first) :]])[: _excess(held)]
        self.resident[victims] = False
        return victims


class Ours:
    """Spill by `ResidencyPolicy`."""

    def __init__(self, *, keeps_scores: bool) -> None:
        self.keeps_scores = keeps_scores
        self.policy = ResidencyPolicy(max_hot_keys=CAPACITY)
        self.scores = np.full(ENTRIES, NEVER)
        self.clock = 0.0

    def touch(self, entries: Positions) -> None:
        self.scores[entries] = self.policy.touched(self.scores[entries], self.clock)

    def spill(self, held: Positions) -> Positions:
        victims = held[self.policy.victims(self.scores[held], np.ones(len(held), np.int64))]
        self.clock = self.policy.advanced(self.clock, spilled_bytes=0, spilled_keys=len(victims))
        if not self.keeps_scores:
            self.scores[victims] = NEVER
        return victims


def _excess(held: Positions) -> int:
    return len(held) - int(CAPACITY * 0.9)


def _zipf(random: np.random.Generator, count: int) -> Positions:
    cumulated = np.cumsum(1.0 / np.arange(1, ENTRIES + 1) ** 1.1)
    shuffled = np.random.default_rng(SEED).permutation(ENTRIES)
    return shuffled[np.searchsorted(cumulated / cumulated[-1], random.random(count))]


def _trace(kind: str) -> list[Positions]:
    random = np.random.default_rng(SEED + 1)
    epochs = []
    for epoch in range(EPOCHS):
        touched = random.integers(0, ENTRIES, TOUCHES) if kind == "uniform" else _zipf(random, TOUCHES)
        if kind == "shift" and epoch >= EPOCHS // 2:
            touched = (touched + ENTRIES // 2) % ENTRIES
        if kind == "sweep" and 150 <= epoch < 190:
            begin = (epoch - 150) * ENTRIES // 40
            touched = np.concatenate([touched, np.arange(begin, begin + ENTRIES // 40)])
        if kind == "sweeps" and epoch % 10 == 0:
            begin = random.integers(0, ENTRIES - ENTRIES // 10)
            touched = np.concatenate([touched, np.arange(begin, begin + ENTRIES // 10)])
        epochs.append(np.unique(touched))
    return epochs


def _hits(contestant: Contestant, trace: list[Positions]) -> npt.NDArray[np.float64]:
    resident = np.zeros(ENTRIES, np.bool_)
    shares = []
    for entries in trace:
        shares.append(float(resident[entries].mean()))
        contestant.touch(entries)
        resident[entries] = True
        held = np.flatnonzero(resident)
        if len(held) > CAPACITY:
            resident[contestant.spill(held)] = False
    return np.array(shares)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residency", description="Compare residency policies.")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    makers: dict[str, Any] = {
        "LRU": Lru,
        "LRU-2": LruTwo,
        "segmented LRU": SegmentedLru,
        "ours, scores lost": lambda: Ours(keeps_scores=False),
        "ours": lambda: Ours(keeps_scores=True),
    }
    lines = [f"{name}: {value}" for name, value in describe_machine().items()]
    lines += ["", f"{'share of touches in memory':<22}" + "".join(f"{name:>19}" for name in makers)]
    for kind in ("zipf", "sweep", "sweeps", "shift", "uniform"):
        trace = _trace(kind)
        shares = {name: _hits(make(), trace) for name, make in makers.items()}
        lines.append(f"{kind:<26}" + "".join(f"{100 * found[50:].mean():>18.1f}%" for found in shares.values()))
        if kind == "sweep":
            after = [found[190:200].mean() for found in shares.values()]
            lines.append(f"{'  ten epochs after it':<26}" + "".join(f"{100 * share:>18.1f}%" for share in after))
    lines += ["", *_costs()]
    print("\n".join(lines))
    options.output.write_text("\n".join(lines) + "\n")
    return 0


def _costs() -> list[str]:
    """Return what choosing costs, per entry."""
    random = np.random.default_rng(SEED)
    lines = []
    for entries in (100_000, 1_000_000, 10_000_000):
        scores, sizes = random.random(entries, np.float32) * 50, np.full(entries, 80)
        policy = ResidencyPolicy(max_hot_bytes=80 * entries - 1)
        policy.victims(scores, sizes)
        seconds = []
        for _ in range(5):
            started = time.process_time()
            policy.victims(scores, sizes)
            seconds.append(time.process_time() - started)
        lines.append(f"victims of {entries:>10,} entries: {1e9 * min(seconds) / entries:6.1f} ns per entry")
    return lines


if __name__ == "__main__":
    sys.exit(main())
