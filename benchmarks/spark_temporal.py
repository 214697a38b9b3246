"""What does a temporal join cost inside Spark, beside the join of changing tables on the same rows?

    python -m benchmarks.spark_temporal [--epochs 8] [--rounds 3]

Epochs of 100 k changes, 95 % orders, which are only added, and 5 % new rates of 100 k currencies, from one Parquet file of each
per epoch; two cores, two buckets; the output is a user's function that does nothing. Contestants, by turns in one session:

- `join`: orders with the newest rate of each currency (upserts by key and time), retractions included;
- `on_watermark`: orders with the rate of their time, once the watermark has passed it;
- `eager`: the same at once, and corrected.

Figures: the median of Spark's own `triggerExecution` over the epochs but the first two, per contestant the least of the rounds;
and the CPU seconds of driver, JVM and workers from a query's start to its end. Answers are counted: every order has a rate.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, versions
from benchmarks.nexmark_spark import cpu_seconds

__all__ = ["main"]

CHANGES, SHARE_OF_RATES, CURRENCIES, SEED = 100_000, 0.05, 100_000, 7


def write_files(place: Path, epochs: int) -> None:
    """Write a file of orders and one of rates per epoch; the first has a rate of every currency, and none is late."""
    draw = np.random.default_rng(SEED)
    fresh = int(CHANGES * SHARE_OF_RATES)
    for epoch in range(epochs):
        now, count = 1000 * epoch, CURRENCIES if epoch == 0 else fresh
        currencies = np.arange(CURRENCIES) if epoch == 0 else draw.integers(0, CURRENCIES, count)
        rates = {"currency": currencies, "at": now + draw.integers(0, 500, count), "rate": draw.random(count)}
        orders = {
            "id": np.arange(CHANGES - fresh) + epoch * CHANGES,
            "currency": draw.integers(0, CURRENCIES, CHANGES - fresh),
            "t": now + draw.integers(500, 1000, CHANGES - fresh),
        }
        for name, columns in (("orders", orders), ("rates", rates)):
            (place / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), place / name / f"{epoch:04d}.parquet")


def run(session: Any, place: Path, kept: Path, name: str) -> tuple[list[float], float, int]:
    """Run a query to its end; return the seconds of its epochs, its CPU seconds, and the rows of its answer."""
    from zset_join.spark import appends, changes

    def rows(table: str) -> Any:
        schema = session.read.parquet(str(place / table)).schema
        return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / table))

    if name == "join":
        orders = appends(rows("orders"), name="orders")
        view: Any = orders.join(changes(rows("rates"), name="rates", keys=["currency"], sequence_by="at"), on="currency")
    else:
        orders = appends(rows("orders"), name="orders", watermark=("t", 0))
        rates = changes(rows("rates"), name="rates", keys=["currency"], watermark=("at", 0))
        view = orders.temporal_join(rates, on="currency", is_change_time=True, emit=name)
    before = cpu_seconds()
    writer = view.writeStream.options(checkpointLocation=str(kept / "checkpoint"), localStateDir=str(kept / "state"))
    query = writer.option("buckets", 2).foreachBatch(_take_nothing).trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    seconds = [one["durationMs"]["triggerExecution"] / 1000 for one in progress]
    answered = sum(one["join"]["delta_rows"] for one in query.recentProgress if one.get("join"))
    return seconds, cpu_seconds() - before, answered


def _take_nothing(delta: Any, epoch: int) -> None:
    """Represent a user's function; it leaves the delta alone."""


def main() -> None:
    """Measure, and print the ratios."""
    from zset_join.spark import local_session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine(), versions())
    session = local_session("spark_temporal", cores=2, options={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    names = ["join", "on_watermark", "eager"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    with TemporaryDirectory() as directory:
        place = Path(directory)
        write_files(place, options.epochs)
        for number in range(options.rounds + 1):
            for name in names if number % 2 else reversed(names):
                took, used, answered = run(session, place, place / f"{name}-{number}", name)
                print(
                    f"round {number}, {name}: {[round(one, 2) for one in took]} s, {used:.1f} CPU s, {answered} rows",
                    flush=True,
                )
                if answered < (options.epochs - 1) * CHANGES * (1 - SHARE_OF_RATES):
                    raise AssertionError(f"{name}: only {answered} rows")
                if number:  # the first round warms Spark up
                    seconds[name].append(statistics.median(took[2 : options.epochs]))
                    cpu[name].append(used)
    for name in names:
        ratio, of_cpu = min(seconds[name]) / min(seconds["join"]), min(cpu[name]) / min(cpu["join"])
        print(f"{name:14} {min(seconds[name]):6.2f} s an epoch, {ratio:.2f} times the join; CPU {of_cpu:.2f} times")


if __name__ == "__main__":
    main()
