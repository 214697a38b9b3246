"""Nexmark's joins as SQL inside Spark, and what SQL costs there beside the same query by the fluent API.

Question: how many events a second does one core take through q3, q4, q9 and q20 inside Spark, everything counted; and does a
query cost more per epoch because it was written as SQL?

The events are those of `benchmarks.nexmark`, in files of Parquet, one file of every table an epoch; the session has two cores
and two buckets. CPU time is that of the whole tree of processes (driver, JVM, Python workers) from the start of a query to its
end, so Spark's own work for an epoch is in it. Every answer is compared with DuckDB's batch query. For the second question q20
by SQL and by the fluent API run by turns, over the same files.

    python -m benchmarks.nexmark_spark [--events 200000] [--rounds 3] [--queries q3 q9]
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, versions
from benchmarks.nexmark import EPOCH_EVENTS, QUERIES, bag, epochs
from zset_join.core.relation import Relation
from zset_join.sinks.sink import SinkProgress
from zset_join.spark import appends, local_session
from zset_join.sql import connect
from zset_join.zset import ZSet

__all__ = ["cpu_seconds", "main"]

_TICKS = os.sysconf("SC_CLK_TCK")
_TABLES = ("person", "auction", "bid")


class Collected:
    """A sink that adds up the deltas."""

    def __init__(self) -> None:
        self.deltas: list[ZSet] = []
        self.epoch: int | None = None

    def open(self, output: Relation, query_id: str) -> None:
        """Do nothing."""

    def last_epoch(self) -> int | None:
        """Return the last epoch that was written."""
        return self.epoch

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Keep a delta as it came; rows are compared when time is not measured."""
        self.deltas += chunks
        self.epoch = epoch
        return SinkProgress(epoch, 0, 0, 0.0)

    def close(self) -> None:
        """Do nothing."""

    def bag(self) -> collections.Counter[Any]:
        """Return the rows that are present."""
        found: collections.Counter[Any] = collections.Counter()
        for delta in self.deltas:
            for row, weight in zip(pa.Table.from_batches([delta.rows]).to_pylist(), delta.weights.tolist(), strict=True):
                found[tuple(f"{one:.9g}" if isinstance(one, float) else one for one in row.values())] += weight
        return collections.Counter({row: weight for row, weight in found.items() if weight})


def cpu_seconds() -> float:
    """Return the CPU time of this process and all below it, those that have ended included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {one for one, parent in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return sum(used.get(one, 0.0) for one in mine)


def run(view: Any, place: Path) -> tuple[float, int, Collected]:
    """Run a view over all files; return seconds of CPU, epochs, and the rows."""
    sink = Collected()
    writer = view.writeStream.option("checkpointLocation", str(place / "checkpoint")).option("buckets", 2)
    begun = cpu_seconds()
    query = writer.option("localStateDir", str(place / "local")).trigger(availableNow=True).to(sink).start()
    query.awaitTermination()
    return cpu_seconds() - begun, (sink.epoch or 0) + 1, sink


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", nargs="*", default=list(QUERIES), choices=list(QUERIES), help="of the first question")
    options = parser.parse_args()
    rows = epochs(options.events)
    spark = local_session("nexmark", cores=2, options={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {describe_machine()} {versions()}")
    with TemporaryDirectory() as directory:
        for table in _TABLES:
            for number, epoch in enumerate(rows):
                path = Path(directory) / table / f"{number:06d}.parquet"
                path.parent.mkdir(exist_ok=True)
                pq.write_table(epoch[table].cast(_micros(epoch[table].schema)), path)
                os.utime(path, (time.time() - len(rows) + number,) * 2)  # Spark takes files by their age
        _compare(spark, Path(directory), rows, options.queries, options.rounds)
    spark.stop()


def _micros(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(one.name, pa.timestamp("us") if pa.types.is_timestamp(one.type) else one.type) for one in schema]
    )


def _compare(spark: Any, place: Path, rows: list[dict[str, pa.Table]], queries: list[str], rounds: int) -> None:
    events = len(rows) * EPOCH_EVENTS
    frames = {}
    for table in _TABLES:
        schema = spark.read.parquet(str(place / table)).schema
        frames[table] = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / table))
    session = connect(engine="spark", spark=spark, directory=place / "session")
    for table, frame in frames.items():
        session.register(table, frame)
    number = 0

    def measured(view: Any) -> tuple[float, int, Collected]:
        nonlocal number
        number += 1
        return run(view, place / f"run {number}")

    def by_sql(name: str) -> Any:
        made: Any = session.sql(QUERIES[name])
        return made.view

    def by_hand() -> Any:
        bids = appends(frames["bid"], name="b")
        wanted = frames["auction"].where("category = 10").select("id", "item", "seller", "category")
        joined = bids.join(appends(wanted, name="a"), on=[("auction", "id")])
        return joined.select("auction", "bidder", "price", "at", "item", "seller", "category")

    measured(by_sql("q20"))  # warms Spark up
    for name in queries:
        cpu, count, sink = measured(by_sql(name))
        with duckdb.connect() as database:
            for table in _TABLES:
                database.register(table, pa.concat_tables(epoch[table] for epoch in rows))
            answer = database.sql(QUERIES[name]).to_arrow_table()
        assert sink.bag() == bag(answer), name
        rate = f"{events / cpu / 1000:6.1f}k events per CPU second, {cpu / count:.2f} s of CPU an epoch, {count} epochs"
        print(f"{name:4} {rate}, equal to DuckDB's batch query", flush=True)
    of_sql, of_query = [], []
    for _ in range(rounds):
        cpu, count, one = measured(by_sql("q20"))
        of_sql.append(cpu / count)
        cpu, count, other = measured(by_hand())
        of_query.append(cpu / count)
        assert one.bag() == other.bag()
    ratios = [one / other for one, other in zip(of_sql, of_query, strict=True)]
    medians = f"by SQL {statistics.median(of_sql):.3f} s, by the fluent API {statistics.median(of_query):.3f} s"
    times = f"{min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}"
    print(f"q20, CPU of an epoch {medians}: {times} times (goal 1.05)")


if __name__ == "__main__":
    main()
