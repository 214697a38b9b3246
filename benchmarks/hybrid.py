"""What does a join cost whose state is ten times its memory? `python -m benchmarks.hybrid [--scale S] [--epochs N]`.

Orders join customers (3*S orders, S customers, both mutable), and change as in `benchmarks.hybrid_epochs`, uniformly or by
Zipf's law. Two joins, each in a process of its own, with the same changes: everything in memory, and hybrid with a tenth of
the bytes that the first one took. Reported are changes per CPU second of the process (a busy machine disturbs it less than wall
time) over the epochs after as many to warm up, as a share of those in memory; rows fetched and spilled per change. The rows of
all answers must be as many in both. The tables are loaded in epochs as large as those that follow.

Memory is that of the process beyond what it had when a small join of the same kind had run and gone, and what allocators kept
was given back, so that code is not in it; another process draws the epochs, and one delta at a time is here. Reported are the
most after an epoch and the peak within one; beside it the join's own count, working arrays included, and the bytes of an
epoch's delta.

Against DuckDB: the same tables in a file, kept up to date by SQL (`benchmarks.baseline_duckdb`) with 1 GB of memory, whatever
the budget of the hybrid join is, for epochs of 100 to 100,000 changes. The weights of all answers must have the same sum.

Processes that run one after the other do not meet the same machine, if others work on it. So the shares are measured again,
with two joins in one process, epoch by epoch in turns: of all epochs together, and the median epoch. With uniform keys there
are more epochs, 10 times as many small ones and 3 times as many large ones, so that large merges fall into them as often as
they should; by Zipf's law answers grow from epoch to epoch, which would flatter. Likewise what it costs to be hybrid when
nothing is spilled (a tenth of the scale of the table, 24 epochs).

At the end the media of cold rows, files and DuckDB, side by side, in process and inside Spark: `benchmarks.hybrid_media`.

`--rows N --budget MB [--keys zipf]` measures one large state instead: `benchmarks.hybrid_large`.

Results: `results/hybrid.txt`, `results/hybrid_large.txt`, `results/hybrid_large_zipf.txt`; with another scale
`results/hybrid_<rows>.txt`, and then DuckDB is omitted, which `--rows` has in turns.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.baseline_duckdb import DuckdbJoin
from benchmarks.hybrid_epochs import Changes, drawn_apart, first_epochs
from benchmarks.hybrid_media import media_lines
from benchmarks.machine import describe_machine, versions
from benchmarks.workloads import LEFT, RIGHT, Epoch, OrdersCustomers
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.expressions import left, right
from zset_join.kernels.machine.compiled import compiled_kernels_directory
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.host_memory import UnusedMemory

__all__ = ["LOADED", "MB", "Measured", "Memory", "main", "measured_apart", "warm_up"]

SCALE = 250_000
KEYS = ("zipf", "uniform")
CHANGES = (10_000, 100_000)
DUCKDB_CHANGES = (100, 1_000, 10_000, 100_000)
RESULTS = Path(__file__).resolve().parent / "results" / "hybrid.txt"
LARGE_RESULTS = {"uniform": RESULTS.with_name("hybrid_large.txt"), "zipf": RESULTS.with_name("hybrid_large_zipf.txt")}
MB = 1 << 20
LOADED = 1_000_000  # first epoch behind those of the load
_DUCKDB_BYTES = 1 << 30
_MEMORY = ("delta MB", "state MB", "counted MB", "resident MB", "peak MB")
_MOVED = ("fetched per change", "spilled", "restored")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one join.

    Args:
        changes_per_cpu_second: over the timed epochs.
        resident_mb: resident size of the process after an epoch, beyond what it had before, at most.
        peak_mb: the same within an epoch.
        counted_mb: the join's own count when `resident_mb` was measured.
        delta_mb: bytes of the largest delta.
        state_bytes: the join's own count, working arrays omitted.
        answer_rows: rows of all answers.
        answer_weight: sum of their weights.
        counts: statistics of the join over the timed epochs.
    """

    changes_per_cpu_second: float
    resident_mb: float
    peak_mb: float
    counted_mb: float
    delta_mb: float
    state_bytes: int
    answer_rows: int
    answer_weight: int
    counts: dict[str, int]


def measure(
    scale: int, keys: str, changes: int, epochs: int, max_hot_bytes: int | None, how: str = "inner", residual: bool = False
) -> Measured:
    """Run one join in this process."""
    options = OperatorOptions(budget=None if max_hot_bytes is None else HotBudget(max_hot_bytes=max_hot_bytes))
    kind: dict[str, Any] = {"how": how, "residual": left("amount") < right("credit") if residual else None}
    warm_up(changes, hybrid=max_hot_bytes is not None, **kind)
    relations = OrdersCustomers(1).relations
    memory = Memory()
    join = HashJoin(*relations, **kind, options=options)
    for deltas in drawn_apart(scale, keys, first=changes):
        join.absorb(Tick(join.absorbed_epoch + 1), deltas)
        del deltas
    answer_rows, answer_weight, spent, delta_bytes, counts = 0, 0, 0.0, 0, join.statistics()
    memory.forget_peak()
    epoch = LOADED
    for deltas in drawn_apart(scale, keys, changes=changes, epochs=2 * epochs):
        if epoch == LOADED + epochs:
            answer_rows, answer_weight, spent, counts = 0, 0, 0.0, join.statistics()
        delta_bytes = max(delta_bytes, sum(delta.rows.nbytes + 8 * len(delta) for delta in deltas))
        started = time.process_time()
        for chunk in join.answer(Tick(epoch), deltas):
            answer_rows += len(chunk)
            answer_weight += int(chunk.weights.sum())
            del chunk
        join.absorb(Tick(epoch), deltas)
        spent += time.process_time() - started
        memory.note(join.resident_bytes())
        epoch += 1
        del deltas  # or two would be there while the next one comes
    after = join.statistics()
    return Measured(
        changes_per_cpu_second=changes * epochs / spent,
        resident_mb=memory.most / MB,
        peak_mb=memory.peak() / MB,
        counted_mb=memory.counted / MB,
        delta_mb=delta_bytes / MB,
        state_bytes=join.resident_bytes() - join.working_bytes(),
        answer_rows=answer_rows,
        answer_weight=answer_weight,
        counts={name: value - counts.get(name, 0) if name.endswith(_FLOWS) else value for name, value in after.items()},
    )


def measure_duckdb(scale: int, keys: str, changes: int, epochs: int) -> Measured:
    """Run the same join as SQL over tables in a DuckDB file."""
    workload = OrdersCustomers(scale)
    drawn = Changes(workload, keys, changes)
    spent, answer_rows, answer_weight = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        join = DuckdbJoin(workload.relations, path=f"{directory}/join.duckdb", memory_bytes=_DUCKDB_BYTES)
        for side in (RIGHT, LEFT):
            for rows in workload.initial(side):
                join.load(side, rows)
        for number, (left, right) in enumerate(drawn.epochs(2 * epochs)):
            prepared = join.prepare(Epoch((left, right), changes, 0))
            started = time.process_time()
            answer = join.step(prepared)
            spent = (spent if number != epochs else 0.0) + time.process_time() - started
            if number == epochs:
                answer_rows = answer_weight = 0
            answer_rows += join.count_rows(answer)
            answer_weight += join.weight(answer)
    return Measured(
        changes_per_cpu_second=changes * epochs / spent,
        resident_mb=0.0,
        peak_mb=0.0,
        counted_mb=0.0,
        delta_mb=0.0,
        state_bytes=0,
        answer_rows=answer_rows,
        answer_weight=answer_weight,
        counts={},
    )


class Memory:
    """Follow the resident size of this process, beyond what it is now."""

    def __init__(self) -> None:
        gc.collect()
        UnusedMemory().give_back(0)
        self._before = _status("VmRSS")
        self.most = 0
        self.counted = 0

    def note(self, counted: int) -> None:
        """Note the size now, and the join's own count."""
        held = _status("VmRSS") - self._before
        if held > self.most:
            self.most, self.counted = held, counted

    def forget_peak(self) -> None:
        """Count the peak from now on."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """Return the largest size since `forget_peak`."""
        return _status("VmHWM") - self._before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def warm_up(changes: int, *, hybrid: bool, **kind: Any) -> None:
    """Run a small join of the kind that is measured, so that its code is loaded."""
    workload = OrdersCustomers(10_000)
    options = OperatorOptions(budget=HotBudget(max_hot_keys=1000) if hybrid else None)
    join = HashJoin(*workload.relations, **kind, options=options)
    load(join, workload, 10_000)
    for number, deltas in enumerate(Changes(workload, "uniform", min(changes, 10_000)).epochs(4)):
        list(join.answer(Tick(LOADED + number), deltas))
        join.absorb(Tick(LOADED + number), deltas)
    join.close()


_FLOWS = ("_fetched_rows", "_spilled_rows", "_restored_rows", "_merged_rows", "_pages_read", "_bytes_read")


def measured_apart(**arguments: Any) -> Measured:
    """Measure in a process of its own; again where kernels were compiled meanwhile, which takes time and memory."""
    command = [sys.executable, "-m", "benchmarks.hybrid", "--one", json.dumps(arguments)]
    while True:
        compiled = _compiled_kernels()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        if _compiled_kernels() == compiled:
            return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _compiled_kernels() -> set[str]:
    return {path.name for path in Path(compiled_kernels_directory).rglob("*.nbc")}


def report(scale: int, epochs: int) -> Iterator[str]:
    """Yield the lines of the report, measuring on the way."""
    yield json.dumps({**describe_machine(), **versions(), "scale": scale, "epochs": epochs, "state_rows": 4 * scale})
    yield from _header("keys", "changes per epoch", "join", "changes per CPU second", "of in memory", *_MEMORY, *_MOVED)
    budgets: dict[int, int] = {}
    for keys in KEYS:
        for changes in CHANGES:
            whole = measured_apart(scale=scale, keys=keys, changes=changes, epochs=epochs, max_hot_bytes=None)
            budgets.setdefault(changes, whole.state_bytes // 10)
            for name, limit in {"in memory": None, "a tenth": whole.state_bytes // 10}.items():
                found = whole
                if limit is not None:
                    found = measured_apart(scale=scale, keys=keys, changes=changes, epochs=epochs, max_hot_bytes=limit)
                if (found.answer_rows, found.answer_weight) != (whole.answer_rows, whole.answer_weight):
                    raise ValueError(f"{name}: {found.answer_rows} rows were answered instead of {whole.answer_rows}")
                yield _line(keys, changes, epochs, name if limit is None else f"{name}: {limit / MB:.0f} MB", found, whole)
    for keys in KEYS:
        for changes in CHANGES:
            many = epochs * max(3, CHANGES[-1] // changes) if keys == "uniform" else epochs
            share, median = in_turns(scale, keys, changes, many, budgets[changes])
            yield f"a tenth, in turns with one in memory, {keys}, {changes}: {share:.0%} of its speed, median {median:.0%}"
    for keys in KEYS:
        share, median = in_turns(max(1, scale // 10), keys, CHANGES[0], 3 * epochs, 1 << 40)
        yield f"all fits, in turns with one in memory, {keys}: {share:.0%} of its speed, median {median:.0%}"
    if scale == SCALE:
        yield ""
        yield from _against_duckdb(scale, epochs, budgets[CHANGES[0]])
        yield ""
        yield from media_lines(scale, epochs, with_spark=True)


def _against_duckdb(scale: int, epochs: int, budget: int) -> Iterator[str]:
    yield from _header("keys", "changes per epoch", f"hybrid, {budget / MB:.0f} MB", "DuckDB, file, 1 GB", "times DuckDB")
    for keys in KEYS:
        for changes in DUCKDB_CHANGES:
            ours = measured_apart(scale=scale, keys=keys, changes=changes, epochs=epochs, max_hot_bytes=budget)
            theirs = measured_apart(scale=scale, keys=keys, changes=changes, epochs=epochs)
            if ours.answer_weight != theirs.answer_weight:
                raise ValueError(f"the answers weigh {ours.answer_weight}, those of DuckDB {theirs.answer_weight}")
            speeds = ours.changes_per_cpu_second, theirs.changes_per_cpu_second
            yield f"| {keys} | {changes} | {speeds[0] / 1000:.1f} k | {speeds[1] / 1000:.1f} k | {speeds[0] / speeds[1]:.1f} |"


def _header(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def in_turns(scale: int, keys: str, changes: int, epochs: int, max_hot_bytes: int) -> tuple[float, float]:
    """Return the CPU time of a join in memory as a share of that of a hybrid one, epoch by epoch in turns in this process.

    Returns:
        The share of all epochs together, after as many to warm up, and that of the median epoch.
    """
    workload = OrdersCustomers(scale)
    options = OperatorOptions(budget=HotBudget(max_hot_bytes=max_hot_bytes))
    joins = [HashJoin(*workload.relations), HashJoin(*workload.relations, options=options)]
    for join in joins:
        load(join, workload, changes)
    times = []
    for number, deltas in enumerate(Changes(workload, keys, changes).epochs(2 * epochs)):
        spent = []
        for join in joins:
            started = time.process_time()
            chunks = list(join.answer(Tick(LOADED + number), deltas))
            join.absorb(Tick(LOADED + number), deltas)
            spent.append(time.process_time() - started)
            del chunks
        times.append(spent)
    for join in joins:
        join.close()
    whole, hybrid = zip(*times[epochs:], strict=True)
    return sum(whole) / sum(hybrid), statistics.median(one / other for one, other in zip(whole, hybrid, strict=True))


def load(join: HashJoin, workload: OrdersCustomers, changes: int) -> None:
    """Fill a join with the first rows of both tables, in epochs of so many rows before `LOADED`."""
    for epoch, deltas in enumerate(first_epochs(workload, changes)):
        join.absorb(Tick(epoch), deltas)


def _line(keys: str, changes: int, epochs: int, name: str, found: Measured, whole: Measured) -> str:
    moved = [
        sum(count for key, count in found.counts.items() if key.endswith(flow)) / (changes * epochs)
        for flow in ("_fetched_rows", "_spilled_rows", "_restored_rows")
    ]
    memory = [found.delta_mb, found.state_bytes / MB, found.counted_mb, found.resident_mb, found.peak_mb]
    return (
        f"| {keys} | {changes} | {name} | {found.changes_per_cpu_second / 1000:.0f} k | "
        f"{found.changes_per_cpu_second / whole.changes_per_cpu_second:.0%} | {' | '.join(f'{size:.1f}' for size in memory)} | "
        f"{' | '.join(f'{rows:.2f}' for rows in moved)} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=int, default=SCALE)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, help="measure one state of so many rows instead")
    parser.add_argument("--budget", type=int, default=1024, help="MB of its rows in memory")
    parser.add_argument("--keys", choices=KEYS, default="uniform", help="which change, with --rows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        options = json.loads(given.one)
        print(json.dumps(asdict((measure if "max_hot_bytes" in options else measure_duckdb)(**options))))
        return 0
    if given.rows:
        from benchmarks.hybrid_large import report_large

        return _write(report_large(given.rows, given.budget * MB, given.epochs, given.keys), LARGE_RESULTS[given.keys])
    results = RESULTS if given.scale == SCALE else RESULTS.with_name(f"hybrid_{4 * given.scale}.txt")
    return _write(report(given.scale, given.epochs), results)


def _write(lines: Iterable[str], path: Path) -> int:
    """Print lines as they come, and keep them."""
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
