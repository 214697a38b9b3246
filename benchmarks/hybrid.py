"""What does a join cost whose state is ten times its memory? `python -m benchmarks.hybrid [--scale S] [--epochs N]`.

Orders join customers (3*S orders, S customers, both mutable; the rows of `benchmarks.workloads`), with the mix of the join
benchmark: 45 % order updates of which half move to another customer, 45 % new orders, 5 % deleted orders, 5 % customer updates.
Orders and customers are drawn uniformly, or by Zipf's law with exponent 1.1, in an order that has nothing to do with their ids.

Three joins, each in a process of its own, with the same changes: everything in memory; hybrid with a tenth of the bytes that
the first one took; hybrid with more than it took, so that nothing is spilled. Told are changes per CPU second of the process (a
busy machine disturbs it less than wall time) over the epochs after as many to warm up, as a share of those in memory; the
resident size of the process beyond what it had before the join was made, and what the join itself says it holds; rows fetched
and spilled per change. The rows of all answers must be as many in all three.

What it costs to be hybrid when nothing is spilled is less than such processes differ by themselves, so it is measured once
more: two joins in one process, epoch by epoch in turns, median of the ratio of their times (a tenth of the scale of the table,
24 epochs).

Results: `results/hybrid.txt`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.machine import describe_machine, versions
from benchmarks.workloads import LEFT, RIGHT, OrdersCustomers
from zset_join.operators.join import HashJoin
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["Measured", "main"]

SEED = 20260403
EXPONENT = 1.1
KEYS = ("zipf", "uniform")
CHANGES = (10_000, 100_000)
RESULTS = Path(__file__).resolve().parent / "results" / "hybrid.txt"
MB = 1 << 20
_LOADED = 1_000_000  # first epoch behind those of the load

Ints = npt.NDArray[np.int64]
Draw = Callable[[int], Ints]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one join did.

    Args:
        changes_per_cpu_second: over the timed epochs.
        resident_mb: resident size of the process, beyond what it had before.
        state_bytes: what the join says it holds, working arrays left out.
        answer_rows: rows of all answers.
        counts: statistics of the join over the timed epochs.
    """

    changes_per_cpu_second: float
    resident_mb: float
    state_bytes: int
    answer_rows: int
    counts: dict[str, int]


class Changes:
    """Draw epochs, the same ones for the same arguments.

    Args:
        workload: whose tables change.
        keys: `zipf` or `uniform`.
        changes: rows per epoch.
    """

    def __init__(self, workload: OrdersCustomers, keys: str, changes: int) -> None:
        self._workload = workload
        self._rng = np.random.default_rng([SEED, changes])
        self._customers, self._orders = self._drawn(keys, workload.scale), self._drawn(keys, 3 * workload.scale)
        parts = [batch.column(1).to_numpy() for batch in workload.initial(LEFT)]
        self._customer_of: Ints = np.concatenate(parts).astype(np.int64)
        self._changes = changes

    def _drawn(self, keys: str, count: int) -> Draw:
        if keys == "uniform":
            return lambda size: self._rng.integers(0, count, size)
        shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -EXPONENT)
        names = np.random.default_rng(SEED).permutation(count)
        return lambda size: names[np.searchsorted(shares, self._rng.random(size) * shares[-1])]

    def epochs(self, count: int) -> Iterator[list[ZSet]]:
        """Yield epochs."""
        updates, few = self._changes * 45 // 100, self._changes * 5 // 100
        for _ in range(count):
            updated, deleted = self._orders(updates), self._orders(few)
            first_new = len(self._customer_of)
            new = np.arange(first_new, first_new + self._changes - updates - 2 * few)
            moved = np.where(np.arange(updates) % 2 == 0, self._customers(updates), self._customer_of[updated])
            self._customer_of = np.concatenate([self._customer_of, self._customers(len(new))])
            self._customer_of[updated] = moved
            ids = np.concatenate([updated, new, deleted])
            weights = np.ones(len(ids), np.int64)
            weights[-few:] = -1
            buyers = self._customers(few)
            yield [
                ZSet.of(self._rows(LEFT, ids, self._customer_of[ids]), weights),
                ZSet.of(self._rows(RIGHT, buyers, self._rng.integers(0, 50, few))),
            ]

    def _rows(self, side: int, ids: Ints, second: Ints) -> pa.RecordBatch:
        words = pa.array([f"word-{number:03d}" for number in range(1000)])
        third = pa.array(self._rng.random(len(ids)))
        columns = [pa.array(ids), pa.array(second), third, words.take(pa.array(self._rng.integers(0, 1000, len(ids))))]
        return pa.RecordBatch.from_arrays(columns, schema=self._workload.relations[side].schema)


def measure(scale: int, keys: str, changes: int, epochs: int, max_hot_bytes: int | None) -> Measured:
    """Run one join in this process."""
    workload = OrdersCustomers(scale)
    drawn = list(Changes(workload, keys, changes).epochs(2 * epochs))
    before = resident_bytes()
    options: dict[str, Any] = {} if max_hot_bytes is None else {"default_hash_join": "hybrid", "max_hot_bytes": max_hot_bytes}
    join = HashJoin(*workload.relations, **options)
    load(join, workload)
    epoch = _LOADED
    answer_rows, spent, counts = 0, 0.0, join.statistics()
    for number, deltas in enumerate(drawn):
        if number == epochs:
            answer_rows, spent, counts = 0, 0.0, join.statistics()
        started = time.process_time()
        chunks = list(join.answer(Tick(epoch), deltas))
        join.absorb(Tick(epoch), deltas)
        spent += time.process_time() - started
        answer_rows += sum(len(chunk) for chunk in chunks)
        epoch += 1
    del chunks
    after = join.statistics()
    return Measured(
        changes_per_cpu_second=changes * epochs / spent,
        resident_mb=(resident_bytes() - before) / MB,
        state_bytes=join.resident_bytes() - join.working_bytes(),
        answer_rows=answer_rows,
        counts={name: value - counts.get(name, 0) if name.endswith(_FLOWS) else value for name, value in after.items()},
    )


_FLOWS = ("_fetched_rows", "_spilled_rows", "_restored_rows", "_merged_rows", "_pages_read", "_bytes_read")


def resident_bytes() -> int:
    """Return the resident size of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def _apart(**arguments: Any) -> Measured:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.hybrid", "--one", json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def report(scale: int, epochs: int) -> Iterator[str]:
    """Yield the lines of the report, measuring on the way."""
    yield json.dumps({**describe_machine(), **versions(), "scale": scale, "epochs": epochs, "state_rows": 4 * scale})
    told = ("keys", "changes per epoch", "join", "changes per CPU second", "of in memory", "state MB", "resident MB")
    told += ("fetched per change", "spilled", "restored")
    yield f"| {' | '.join(told)} |"
    yield "|---" * len(told) + "|"
    for keys in KEYS:
        for changes in CHANGES:
            whole = _apart(scale=scale, keys=keys, changes=changes, epochs=epochs, max_hot_bytes=None)
            budgets = {"in memory": None, "a tenth": whole.state_bytes // 10, "all fits": 4 * whole.state_bytes}
            for name, budget in budgets.items():
                found = whole
                if budget is not None:
                    found = _apart(scale=scale, keys=keys, changes=changes, epochs=epochs, max_hot_bytes=budget)
                if found.answer_rows != whole.answer_rows:
                    raise ValueError(f"{name}: {found.answer_rows} rows were answered instead of {whole.answer_rows}")
                yield _line(keys, changes, epochs, name if budget is None else f"{name}: {budget / MB:.0f} MB", found, whole)
    for keys in KEYS:
        yield f"all fits, in turns with a join in memory, {keys}: {overhead(max(1, scale // 10), keys):.0%} of its speed"


def overhead(scale: int, keys: str, changes: int = 10_000, epochs: int = 24) -> float:
    """Return the CPU time of a join in memory as a share of that of a hybrid one whose rows all fit; the median epoch."""
    workload = OrdersCustomers(scale)
    joins = [HashJoin(*workload.relations), HashJoin(*workload.relations, default_hash_join="hybrid", max_hot_bytes=1 << 40)]
    for join in joins:
        load(join, workload)
    ratios = []
    for number, deltas in enumerate(Changes(workload, keys, changes).epochs(epochs)):
        spent = []
        for join in joins:
            started = time.process_time()
            chunks = list(join.answer(Tick(_LOADED + number), deltas))
            join.absorb(Tick(_LOADED + number), deltas)
            spent.append(time.process_time() - started)
            del chunks
        ratios.append(spent[0] / spent[1])
    return statistics.median(ratios)


def load(join: HashJoin, workload: OrdersCustomers) -> None:
    """Fill a join with the first rows of both tables, in epochs before `_LOADED`."""
    epoch = 0
    for side in (RIGHT, LEFT):
        for rows in workload.initial(side):
            nothing = ZSet.empty(workload.relations[1 - side].schema)
            join.absorb(Tick(epoch), [ZSet.of(rows), nothing] if side == LEFT else [nothing, ZSet.of(rows)])
            epoch += 1


def _line(keys: str, changes: int, epochs: int, name: str, found: Measured, whole: Measured) -> str:
    moved = [
        sum(count for key, count in found.counts.items() if key.endswith(flow)) / (changes * epochs)
        for flow in ("_fetched_rows", "_spilled_rows", "_restored_rows")
    ]
    return (
        f"| {keys} | {changes} | {name} | {found.changes_per_cpu_second / 1000:.0f} k | "
        f"{found.changes_per_cpu_second / whole.changes_per_cpu_second:.0%} | {found.state_bytes / MB:.0f} | "
        f"{found.resident_mb:.0f} | {moved[0]:.2f} | {moved[1]:.2f} | {moved[2]:.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=int, default=250_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(asdict(measure(**json.loads(given.one)))))
        return 0
    lines = []
    for line in report(given.scale, given.epochs):
        print(line, flush=True)
        lines.append(line)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
