"""Saving by running joins on one key in one task.

    python -m benchmarks.chains [--rounds N] [--output FILE]

Three tables with one key, 100 k rows each, stream from Parquet files on `local[2]` and are joined on it: `a JOIN b JOIN c`,
then counted by the same key. Contestants, in turn, in one session: *fused*, as it runs, and *not fused*, the same stages with a
shuffle before each. Measured are epochs of 60 k updates, 20 k per table, and epochs of 30.

A round of large epochs before the first, and of every run the load of the tables and one epoch, are thrown away. Seconds are
Spark's own `triggerExecution`; the output is a user's function that does nothing. Both must emit as many rows in every epoch.

Known limits: logs and commit records are synced, so the disk is in the numbers. Two cores run the driver, the JVM and two
workers, and neighbours on the machine show in the seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import machine_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from zset_join.spark import View

CORES = 2
ROUNDS = 2
KEYS = 100_000
TABLES = ("a", "b", "c")
FUSED, APART = "fused", "not fused"
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The files of one run: the first epoch loads the tables."""

    directory: Path
    changes: int
    warm_up: int
    epochs: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description="Joins on one key, fused and not.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured rounds ({ROUNDS})")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "results" / "chains.txt")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: one at least")
    with tempfile.TemporaryDirectory(prefix="zset_join_bench_") as temporary:
        lines = _measure(Path(temporary), options.rounds)
    text = "\n".join([*machine_lines(), "", *lines])
    print(text)
    options.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _measure(directory: Path, rounds: int) -> list[str]:
    from zset_join.spark import local_session

    feeds = [
        _write(Feed(directory=directory / "large", changes=60_000, warm_up=1, epochs=5)),
        _write(Feed(directory=directory / "small", changes=30, warm_up=1, epochs=8)),
    ]
    seconds: dict[tuple[int, str], list[float]] = {(feed.changes, name): [] for feed in feeds for name in (FUSED, APART)}
    session = local_session("chains", cores=CORES, options={"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    session.sparkContext.setLogLevel("ERROR")
    try:
        for number in range(-1, rounds):
            for feed in feeds if number >= 0 else feeds[:1]:
                names = (FUSED, APART) if number % 2 else (APART, FUSED)
                emitted = {}
                for name in names:
                    took, emitted[name] = _run(session, name, feed, directory / f"{feed.changes}-{number}-{name}")
                    seconds[feed.changes, name] += took if number >= 0 else []
                if emitted[FUSED] != emitted[APART]:
                    raise AssertionError(f"rows of the epochs: {emitted}")
    finally:
        session.stop()
    return [line for feed in feeds for line in _lines(feed, seconds)]


def _write(feed: Feed) -> Feed:
    chance = np.random.default_rng(SEED)
    oldest = time.time() - 1000
    for name in TABLES:
        (feed.directory / name).mkdir(parents=True)
        for epoch in range(1 + feed.warm_up + feed.epochs):
            count = feed.changes // len(TABLES) if epoch else KEYS
            keys = chance.permutation(KEYS)[:count]
            values = chance.integers(0, 1_000_000, count)
            path = feed.directory / name / f"{epoch:05d}.parquet"
            pq.write_table(pa.table({"k": keys, name: values, f"{name}_text": values.astype(str)}), path)
            os.utime(path, (oldest + epoch, oldest + epoch))
    return feed


def _view(session: SparkSession, feed: Feed) -> View:
    from zset_join.spark import changes
    from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

    streams = []
    for name in TABLES:
        path = str(feed.directory / name)
        rows = session.readStream.schema(session.read.parquet(path).schema).option("maxFilesPerTrigger", 1).parquet(path)
        streams.append(changes(rows, name=name, keys=["k"]))
    a, b, c = streams
    return a.join(b, on="k").join(c, on="k").groupBy("k").agg(ZF.count().alias("rows"), ZF.sum("c").alias("sum"))


def _run(session: SparkSession, name: str, feed: Feed, place: Path) -> tuple[list[float], list[Any]]:
    """Run one contestant; return the seconds of its measured epochs, and what each emitted."""
    from zset_join.runners.spark.planning import placed_query

    fusings = placed_query.fusings_of if name == FUSED else lambda _: ()
    with mock.patch.object(placed_query, "fusings_of", fusings):
        writer = _view(session, feed).writeStream.foreachBatch(_take_nothing).trigger(availableNow=True)
        query = writer.options(
            execution="executors", checkpointLocation=str(place / "checkpoint"), localStateDir=str(place / "state")
        ).start()
        query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    measured = progress[1 + feed.warm_up :]
    if len(measured) != feed.epochs:
        raise AssertionError(f"{name}: {len(measured)} epochs were measured, expected {feed.epochs}")
    took = [one["durationMs"]["triggerExecution"] / 1000 for one in measured]
    return took, [one["join"]["delta_rows"] for one in progress]


def _take_nothing(delta: DataFrame, epoch: int) -> None:
    """Represent a user's function; it leaves the delta alone."""


def _lines(feed: Feed, seconds: dict[tuple[int, str], list[float]]) -> list[str]:
    lines = [f"{feed.changes:,} changes per epoch; seconds of an epoch: median (least to most of {feed.epochs} epochs a round)"]
    for name in (APART, FUSED):
        took = seconds[feed.changes, name]
        middle = statistics.median(took)
        spread = f"{middle:.2f} ({min(took):.2f} to {max(took):.2f})"
        lines.append(f"  {name:<10} {feed.changes / middle:>12,.0f} changes/s   {spread}")
    ratio = statistics.median(seconds[feed.changes, APART]) / statistics.median(seconds[feed.changes, FUSED])
    return [*lines, f"  fused is {ratio:.2f} times as fast", ""]


if __name__ == "__main__":
    raise SystemExit(main())
