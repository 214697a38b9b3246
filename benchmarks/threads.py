"""What does a second thread give an epoch in process?

    python -m benchmarks.threads [--rounds N] [--seconds S] [--output FILE]

Orders join customers (`OrdersCustomers(100_000)`), once alone and once grouped by city. Two pipelines, with one thread and
with two, take the same epochs in turns, in one process. Reported is the wall time of one thread as a multiple of that of two,
and the CPU time of two beside that of one; goals: 1.6 at 10,000 and at 100,000 changes, 0.95 at 1,000.

Known limits: wall time needs two idle cores; on a busy machine the multiple is near 1 or below.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import machine_lines
from benchmarks.workloads import OrdersCustomers
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

SCALE, WARM_UP = 100_000, 4
GOALS = {1_000: 0.95, 10_000: 1.6, 100_000: 1.6}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="One thread beside two.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    lines = [*machine_lines(), "", "wall time of one thread / of two (CPU of two / of one), median (minimum to maximum)"]
    for name in ("join", "groups"):
        for size, goal in GOALS.items():
            found = [compared(name, size, given.seconds) for _ in range(given.rounds)]
            gains, costs = zip(*found, strict=True)
            shown = f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
            reached = "reached" if statistics.median(gains) >= goal else "MISSED"
            lines.append(f"  {name:6} {size:7,} {shown}, CPU {statistics.median(costs):.2f}; goal {goal}: {reached}")
    text = "\n".join(lines)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


def view(name: str) -> View:
    """Return the view of a name over the tables of the workload."""
    left, right = (changes(one.name, one.schema, keys=one.primary_key[0]) for one in OrdersCustomers(1).relations)
    joined = left.join(right, left["customer_id"] == right["id"])
    return joined if name == "join" else joined.groupBy("city").agg(F.count("*").alias("n"), F.sum("amount").alias("s"))


def compared(name: str, size: int, seconds: float) -> tuple[float, float]:
    """Return wall seconds of one thread by those of two, and CPU seconds of two by those of one, over the same epochs."""
    workload = OrdersCustomers(SCALE)
    wall, cpu, rows = [0.0, 0.0], [0.0, 0.0], [0, 0]
    with Pipeline(view(name), keep_view=False) as one, Pipeline(view(name), keep_view=False, threads=2) as two:
        for side, relation in enumerate(workload.relations):
            for batch in workload.initial(side):
                for pipeline in (one, two):
                    pipeline.step({relation.name: batch})
        count = max(WARM_UP + 6, int(seconds * 1_000_000) // size)
        for number, epoch in enumerate(workload.epochs(count, size)):
            step = {relation.name: delta for relation, delta in zip(workload.relations, epoch.deltas, strict=True)}
            for at, pipeline in enumerate((one, two)):
                began = time.perf_counter(), time.process_time()
                rows[at] += len(pipeline.step(step))
                if number >= WARM_UP:
                    wall[at] += time.perf_counter() - began[0]
                    cpu[at] += time.process_time() - began[1]
        if rows[0] != rows[1]:
            raise AssertionError(f"{name}, {size}: one thread emitted {rows[0]} rows, two {rows[1]}")
    return wall[0] / wall[1], cpu[1] / cpu[0]


if __name__ == "__main__":
    raise SystemExit(main())
