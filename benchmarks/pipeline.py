"""What does a pipeline in process cost beside its bare operators?

    python -m benchmarks.pipeline [--rounds N] [--changes N] [--output FILE]

Orders (upserts) join customers (upserts) on the customer and are grouped by city: count and sum. Contestants, in turn, in one
process: *pipeline*, `Pipeline.step` without keeping the view, and *operators*, a `HashJoin` and an `Aggregate` that are
answered and absorbed by hand with the same deltas. Measured are epochs of 20 changes (milliseconds per epoch) and a stream of
1,000,000 changes in epochs of 10,000 (changes per second of CPU). Both must emit as many rows.

Before measuring, 100,000 orders and 10,000 customers are loaded, and some epochs are thrown away. The deltas are made
beforehand, as `ZSet`s.

Known limits: one core; the machine's neighbours show, so minimum and maximum of the rounds are reported beside the median. What
a directory costs is the disk's business: see `benchmarks.durability`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.report import machine_lines
from zset_join import Aggregate, AggregateCall, HashJoin, Relation, Tick, ZSet
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "total": pa.int64()})
CUSTOMERS = pa.schema({"customer": pa.int64(), "city": pa.int64()})
ORDER_COUNT, CUSTOMER_COUNT, CITIES = 100_000, 10_000, 100
SMALL, LARGE = 20, 10_000
SMALL_EPOCHS, THROWN_AWAY = 1_000, 100
SEED = 5

Step = Callable[[dict[str, ZSet]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="A pipeline in process beside its bare operators.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    lines = [*machine_lines(), "", *measured(given.rounds, given.changes)]
    text = "\n".join(lines)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")
    return 0


def measured(rounds: int, count: int) -> list[str]:
    """Return the lines of the report."""
    contestants = {"pipeline": pipeline, "operators": operators}
    small: dict[str, list[float]] = {name: [] for name in contestants}
    large: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        rows: dict[str, list[int]] = {}
        for name, start in contestants.items():
            rng = np.random.default_rng([SEED, number])
            step = start()
            step(first(rng))
            tiny = [orders(rng, SMALL) for _ in range(SMALL_EPOCHS)]
            seconds = []
            emitted = []
            for delta in tiny:
                began = time.perf_counter()
                emitted.append(step({"orders": delta}))
                seconds.append(time.perf_counter() - began)
            small[name].append(1e3 * statistics.median(seconds[THROWN_AWAY:]))
            batches = [orders(rng, LARGE) for _ in range(count // LARGE)]
            began = time.process_time()
            emitted += [step({"orders": delta}) for delta in batches]
            large[name].append(count / (time.process_time() - began))
            rows[name] = emitted
        assert rows["pipeline"] == rows["operators"], "the contestants emitted different numbers of rows"
    share = statistics.median(one / other for one, other in zip(large["pipeline"], large["operators"], strict=True))
    return [
        f"epochs of {SMALL} changes, milliseconds per epoch: median of {rounds} rounds (min, max)",
        *(f"  {name:10} {_line(values, '.3f')}" for name, values in small.items()),
        f"{count:,} changes in epochs of {LARGE:,}, changes per CPU second: median of {rounds} rounds (min, max)",
        *(f"  {name:10} {_line(values, ',.0f')}" for name, values in large.items()),
        f"  a pipeline has {share:.0%} of the operators' throughput",
    ]


def pipeline() -> Step:
    """Return a step of the pipeline; it gives the rows that came out."""
    source = changes("orders", ORDERS, keys="id")
    joined = source.join(changes("customers", CUSTOMERS, keys="customer"), "customer")
    running = Pipeline(joined.groupBy("city").agg(F.count().alias("n"), F.sum("total").alias("t")), keep_view=False)
    return lambda deltas: len(running.step(deltas))


def operators() -> Step:
    """Return a step of the operators alone."""
    keyed = {"mode": "upsert", "join_key": ("customer",)}
    join = HashJoin(
        Relation(name="orders", schema=ORDERS, primary_key=("id",), **keyed),
        Relation(name="customers", schema=CUSTOMERS, primary_key=("customer",), **keyed),
        using=True,
    )
    source = replace(join.output, primary_key=())
    groups = Aggregate(source, ["city"], [AggregateCall("count", name="n"), AggregateCall("sum", "total", name="t")])
    nothing = ZSet.empty(CUSTOMERS)
    epoch = 0

    def step(deltas: dict[str, ZSet]) -> int:
        nonlocal epoch
        tick = Tick(epoch, time.time_ns() // 1000)
        fed = [deltas["orders"], deltas.get("customers", nothing)]
        joined = ZSet.concat(join.answer(tick, fed), schema=source.schema)
        rows = sum(len(chunk) for chunk in groups.answer(tick, [joined]))
        join.absorb(tick, fed)
        groups.absorb(tick, [joined])
        epoch += 1
        return rows

    return step


def first(rng: np.random.Generator) -> dict[str, ZSet]:
    """Return what is loaded before measuring."""
    cities = {"customer": np.arange(CUSTOMER_COUNT), "city": rng.integers(0, CITIES, CUSTOMER_COUNT)}
    return {
        "orders": _orders(np.arange(ORDER_COUNT), rng),
        "customers": ZSet.of(pa.table(cities, schema=CUSTOMERS)),
    }


def orders(rng: np.random.Generator, count: int) -> ZSet:
    """Return changes of orders."""
    return _orders(rng.integers(0, ORDER_COUNT, count), rng)


def _orders(identifiers: np.ndarray, rng: np.random.Generator) -> ZSet:
    count = len(identifiers)
    columns = {
        "id": identifiers,
        "customer": rng.integers(0, CUSTOMER_COUNT, count),
        "total": rng.integers(0, 1000, count),
    }
    return ZSet.of(pa.table(columns, schema=ORDERS))


def _line(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


if __name__ == "__main__":
    raise SystemExit(main())
