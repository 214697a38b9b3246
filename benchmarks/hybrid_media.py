"""What does it cost to keep cold rows in DuckDB? `python -m benchmarks.hybrid_media [--scale S] [--epochs N] [--no-spark]`.

Orders join customers as in `benchmarks.hybrid`, with uniform keys and a tenth of the state's bytes in memory, once per medium:
plain files and DuckDB. In process, both joins and one that has everything in memory take turns, epoch by epoch: reported is the
CPU time of the median epoch, after as many to warm up. Inside Spark (`local[2]`, two buckets, 400,000 rows), one query after
the other reads the same files, and a second time, which is measured: reported is the CPU time of driver, JVM and workers per
epoch, and Spark's own `triggerExecution` of the median epoch.

The rows of all answers must be as many on every medium. `benchmarks.hybrid` ends with this table; its result is
`results/hybrid_media.txt`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hybrid_epochs import Changes, first_epochs
from benchmarks.machine import describe_machine, versions
from benchmarks.spark_throughput import SETTINGS, Feed, Plan, Sampler, joined_stream, write_feed
from benchmarks.workloads import OrdersCustomers
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main", "media_lines"]

MEDIA = ("files", "duckdb")
SCALE = 250_000
CHANGES = (10_000, 100_000)
MOST_TIMES = 1.5
"""DuckDB is the default where an epoch of 100,000 changes inside Spark costs at most so many times that of files."""

_LOADED = 1_000_000
_SPARK_SCALE = 100_000
_RESULTS = Path(__file__).resolve().parent / "results" / "hybrid_media.txt"


def media_lines(scale: int, epochs: int, *, with_spark: bool) -> Iterator[str]:
    """Yield the lines of the table, measuring on the way."""
    yield "| where | changes per epoch | budget | in memory | files | duckdb | times files |"
    yield "|---" * 7 + "|"
    budget = 0
    for changes in CHANGES:
        budget, spent = _in_process(scale, changes, epochs)
        times = spent["duckdb"] / spent["files"]
        yield f"| in process, CPU ms | {changes} | {_mb(budget)} | {_row(spent, ('memory', *MEDIA))} | {times:.2f} |"
    if not with_spark:
        return
    budget = budget * _SPARK_SCALE // scale
    cpu, wall = _inside_spark(_SPARK_SCALE, budget, epochs)
    for what, spent in (("CPU", cpu), ("wall", wall)):
        times = spent["duckdb"] / spent["files"]
        verdict = "" if what == "wall" else f" ({'at most' if times <= MOST_TIMES else 'more than'} {MOST_TIMES})"
        row = _row(spent, ("memory", *MEDIA))
        yield f"| inside Spark, {what} ms | {CHANGES[-1]} | {_mb(budget)} | {row} | {times:.2f}{verdict} |"


def _mb(size: int) -> str:
    return f"{size >> 20} MB"


def _row(spent: dict[str, float], names: Sequence[str]) -> str:
    return " | ".join(f"{1000 * spent[name]:.0f}" for name in names)


def _in_process(scale: int, changes: int, epochs: int) -> tuple[int, dict[str, float]]:
    """Return the budget, and the CPU seconds of the median epoch of a join in memory and of one per medium."""
    workload = OrdersCustomers(scale)
    joins = {"memory": HashJoin(*workload.relations)}
    _load(joins["memory"], workload, changes)
    budget = (joins["memory"].resident_bytes() - joins["memory"].working_bytes()) // 10
    for medium in MEDIA:
        joins[medium] = HashJoin(
            *workload.relations, options=OperatorOptions(budget=HotBudget(max_hot_bytes=budget, cold_store=medium))
        )
        _load(joins[medium], workload, changes)
    times: dict[str, list[float]] = {name: [] for name in joins}
    for number, deltas in enumerate(Changes(workload, "uniform", changes).epochs(2 * epochs)):
        rows = set()
        for name, join in joins.items():
            started = time.process_time()
            rows.add(sum(len(chunk) for chunk in join.answer(Tick(_LOADED + number), deltas)))
            join.absorb(Tick(_LOADED + number), deltas)
            times[name].append(time.process_time() - started)
        if len(rows) != 1:
            raise ValueError(f"epoch {number} was answered with {sorted(rows)} rows")
    for join in joins.values():
        join.close()
    return budget, {name: statistics.median(spent[epochs:]) for name, spent in times.items()}


def _load(join: HashJoin, workload: OrdersCustomers, changes: int) -> None:
    for epoch, deltas in enumerate(first_epochs(workload, changes)):
        join.absorb(Tick(epoch), deltas)


def _inside_spark(scale: int, budget: int, epochs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return CPU and wall seconds of an epoch of 100,000 changes: in memory, and per medium."""
    from zset_join.spark import local_session

    plan = Plan(workload="media", epoch_changes=CHANGES[-1], warm_up_epochs=3, epochs=epochs)
    options: dict[str, dict[str, Any]] = {"memory": {}}
    for medium in MEDIA:
        options[medium] = {"default_hash_join": "hybrid", "max_hot_bytes": budget, "cold_store": medium}
    cpu: dict[str, list[float]] = {name: [] for name in options}
    wall: dict[str, list[float]] = {name: [] for name in options}
    with tempfile.TemporaryDirectory(prefix="zset_join_bench_") as directory:
        feed = write_feed(Path(directory) / "feed", plan, scale)
        session = local_session("hybrid_media", cores=2, options=SETTINGS)
        session.sparkContext.setLogLevel("ERROR")
        try:
            for turn in range(2):  # the first one warms the JVM up
                for name in list(options) if turn % 2 else list(options)[::-1]:
                    found = _run(session, feed, Path(directory) / f"{turn}-{name}", options[name])
                    if turn:
                        cpu[name].append(found[0])
                        wall[name] += found[1]
        finally:
            session.stop()
    return (
        {name: statistics.mean(spent) for name, spent in cpu.items()},
        {name: statistics.median(spent) for name, spent in wall.items()},
    )


def _run(session: SparkSession, feed: Feed, place: Path, options: dict[str, Any]) -> tuple[float, list[float]]:
    """Run one query over a feed; return the CPU seconds of a measured epoch, and the seconds of each."""
    writer = joined_stream(session, feed).writeStream
    writer = writer.options(checkpointLocation=str(place / "checkpoint"), localStateDir=str(place / "state"), buckets=2)
    writer = writer.options(**options).foreachBatch(_take_nothing)
    with Sampler() as sampler:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]][: len(feed.changes)]
    found = [one["join"]["delta_rows"] for one in progress]
    if found != list(feed.answer_rows):
        raise AssertionError(f"made {found} rows, expected {list(feed.answer_rows)}")
    began = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in progress]
    took = [one["durationMs"]["triggerExecution"] / 1000 for one in progress]
    begin, end = began[feed.measured.start], began[-1] + took[-1]
    return sampler.cpu_between(begin, end) / len(feed.measured), [took[number] for number in feed.measured]


def _take_nothing(delta: DataFrame, epoch: int) -> None:
    """Represent a user's function; it leaves the delta alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid_media", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=int, default=SCALE)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--no-spark", action="store_true", help="in process only")
    given = parser.parse_args(arguments)
    lines = [f"{describe_machine()} {versions()} scale {given.scale}, epochs {given.epochs}"]
    for line in media_lines(given.scale, given.epochs, with_spark=not given.no_spark):
        print(line, flush=True)
        lines.append(line)
    _RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
