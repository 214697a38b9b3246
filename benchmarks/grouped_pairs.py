"""What do groups over a join cost without its pairs, and beside DuckDB computing all again?

    python -m benchmarks.grouped_pairs [--rounds N] [--output FILE]

1. Many to many (`ManyToMany`, 1,000 changes an epoch), grouped by the join key and by a column of one side: count and sum, out
   of pairs and out of sums per key (`keep_state="needed"`), epoch by epoch in turns in one process. Goal: 20 times.
2. Orders and customers (400,000 rows, 100,000 changes an epoch), joined and grouped by city: count, sum, least and greatest,
   beside DuckDB, which applies the same changes to its tables and computes all groups. Goal: 1 at least.

CPU time, also that of the system. All contestants must end with as many groups.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.baseline_duckdb import DuckdbJoin
from benchmarks.report import machine_lines
from benchmarks.workloads import ManyToMany, OrdersCustomers, Workload
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

SCALE, LARGE, SMALL, EPOCHS, WARM_UP = 100_000, 100_000, 1_000, 10, 2
_GROUPS = "SELECT r.city, count(*), sum(l.amount), min(l.amount), max(l.amount) FROM left_rows l JOIN right_rows r"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Groups over a join without its pairs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    lines = [*machine_lines(), "", "CPU of an epoch, milliseconds: median (minimum to maximum) of the rounds"]
    for key in ("left_key", "left_word"):
        found = [out_of_sums(key) for _ in range(given.rounds)]
        lines.append(f"  many to many by {key}: pairs {shown(found, 0)}, sums {shown(found, 1)}; {ratio(found)} times, goal 20")
    found = [beside_duckdb() for _ in range(given.rounds)]
    times = f"DuckDB {shown(found, 0)}, groups {shown(found, 1)}; {ratio(found)} times, goal 1"
    lines.append(f"  join and groups, {LARGE:,} changes: {times}")
    text = "\n".join(lines)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


def shown(found: Sequence[tuple[float, float]], at: int) -> str:
    """Return the median of one contestant, with the smallest and the largest."""
    ones = [1000 * pair[at] for pair in found]
    return f"{statistics.median(ones):.1f} ({min(ones):.1f} to {max(ones):.1f})"


def ratio(found: Sequence[tuple[float, float]]) -> str:
    """Return the median ratio of the rounds, with the smallest and the largest."""
    ones = [one / other for one, other in found]
    return f"{statistics.median(ones):.2f} ({min(ones):.2f} to {max(ones):.2f})"


def loaded(workload: Workload, view: View, **options: str) -> Pipeline:
    """Return a pipeline that has the first rows."""
    pipeline: Pipeline = Pipeline(view, keep_view=False, **options)  # type: ignore[arg-type]
    for side, relation in enumerate(workload.relations):
        for batch in workload.initial(side):
            pipeline.step({relation.name: batch})
    return pipeline


def joined(workload: Workload) -> View:
    """Return the join of both tables."""
    left, right = (changes(one.name, one.schema, keys=one.primary_key[0]) for one in workload.relations)
    keys = [one.join_key[0] for one in workload.relations]
    return left.join(right, left[keys[0]] == right[keys[1]])


def out_of_sums(key: str) -> tuple[float, float]:
    """Return the CPU seconds of an epoch out of pairs, and out of sums."""
    workload = ManyToMany()
    view = joined(workload).groupBy(key).agg(F.count("*").alias("n"), F.sum("left_id").alias("s"))
    pipelines = [loaded(workload, view), loaded(workload, view, keep_state="needed")]
    spent: list[list[float]] = [[], []]
    for epoch in workload.epochs(EPOCHS, SMALL):
        step = {relation.name: delta for relation, delta in zip(workload.relations, epoch.deltas, strict=True)}
        rows = []
        for at, pipeline in enumerate(pipelines):
            began = time.process_time()
            rows.append(len(pipeline.step(step)))
            spent[at].append(time.process_time() - began)
        if rows[0] != rows[1]:
            raise AssertionError(f"{key}: pairs changed {rows[0]} rows, sums {rows[1]}")
    return statistics.median(spent[0][WARM_UP:]), statistics.median(spent[1][WARM_UP:])


def beside_duckdb() -> tuple[float, float]:
    """Return the CPU seconds of an epoch of DuckDB, and of a pipeline."""
    workload = OrdersCustomers(SCALE)
    calls = [F.count("*").alias("n"), F.sum("amount").alias("s"), F.min("amount").alias("a"), F.max("amount").alias("b")]
    pipeline = loaded(workload, joined(workload).groupBy("city").agg(*calls))
    database = DuckdbJoin(workload.relations)
    for side in (0, 1):
        for batch in workload.initial(side):
            database.load(side, batch)
    query = f"{_GROUPS} ON l.customer_id = r.id GROUP BY r.city"
    spent: list[list[float]] = [[], []]
    live: set[object] = set()
    for epoch in workload.epochs(EPOCHS, LARGE):
        changed = database.prepare(epoch)
        began = time.process_time()
        computed = database.apply_and_query(changed, query)
        spent[0].append(time.process_time() - began)
        step = {relation.name: delta for relation, delta in zip(workload.relations, epoch.deltas, strict=True)}
        began = time.process_time()
        answer = pipeline.step(step)
        spent[1].append(time.process_time() - began)
        live |= {row[0] for row, weight in answer.to_pylist() if weight > 0}
    if len(live) != computed.num_rows:
        raise AssertionError(f"DuckDB has {computed.num_rows} groups, the pipeline {len(live)}")
    return statistics.median(spent[0][WARM_UP:]), statistics.median(spent[1][WARM_UP:])


if __name__ == "__main__":
    raise SystemExit(main())
