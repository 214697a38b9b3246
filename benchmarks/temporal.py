"""What does joining orders with the version of their time cost, beside doing it by hand?

Orders (append, 95 %) meet rates (new versions, 5 %) of 100 k keys x 20 versions and 1 M keys x 3, in epochs of 1 k, 10 k and
100 k changes; INNER. Contestants of the same run: dict of sorted lists with bisect; DuckDB's ASOF JOIN over the versions of
the touched keys; polars' join_asof over the same. Of this library: `on_watermark`, `once`, `eager`, the as-of join, and the
join by processing time, whose right side has the newest version of each key alone.

    python -m benchmarks.temporal            # all
    python -m benchmarks.temporal --keys 100000 --versions 20 --changes 1000 10000
    python -m benchmarks.temporal --state    # what a change costs with 1 M and 20 M versions, and how versions are freed; 3 GB

`--state`: epochs of 10 k changes, by turns beside 50 k keys x 20 and 1 M keys x 20 versions. Then a watermark passes 1.9 M
versions at once: wall time of the epochs that free them, beside the same epochs when there was nothing to free.

Figures: changes per CPU second, the median of the epochs (at least five, after one to warm up), rows in and out as Arrow. The
answers of the contestants are compared by number of rows. Everything comes from seed 7.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.machine import describe_machine
from zset_join import Relation, Tick, ZSet
from zset_join.operators.process_time_join import ProcessTimeJoin
from zset_join.operators.timed_join import AsOfJoin, TemporalJoin
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions

SEED = 7
SHARE_OF_VERSIONS = 0.05
ORDER_COLUMNS = pa.schema({"id": pa.int64(), "k": pa.int64(), "t": pa.int64()})
RATE_COLUMNS = pa.schema({"k": pa.int64(), "at": pa.int64(), "rate": pa.float64()})
ORDERS = Relation(name="orders", schema=ORDER_COLUMNS, join_key=("k",), event_time="t", watermark_delay=0)
RATES = Relation(name="rates", schema=RATE_COLUMNS, join_key=("k",), primary_key=("k",), event_time="at", watermark_delay=0)
NEWEST = Relation(name="rates", schema=RATE_COLUMNS, join_key=("k",), primary_key=("k",), mode="upsert")
KEPT_CHANGES, KEPT_EPOCHS, ROUNDS = 10_000, 60, 3

Epoch = tuple[pa.RecordBatch, pa.RecordBatch, int]
Contestant = Callable[[Epoch], int]


def loaded(keys: int, versions: int) -> pa.RecordBatch:
    """Return the versions that are present before the first epoch, in order of time."""
    rng = np.random.default_rng(SEED)
    key = np.tile(np.arange(keys), versions)
    at = np.repeat(np.arange(versions), keys) * 1000 + rng.integers(0, 1000, keys * versions)
    return pa.RecordBatch.from_arrays([pa.array(key), pa.array(at), pa.array(rng.random(keys * versions))], schema=RATE_COLUMNS)


def epochs(keys: int, versions: int, changes: int, count: int) -> Iterator[Epoch]:
    """Yield orders, versions and the watermark of each epoch; times move on, nothing is late."""
    rng = np.random.default_rng(SEED + 1)
    fresh = int(changes * SHARE_OF_VERSIONS)
    now = versions * 1000
    for _ in range(count):
        orders = changes - fresh
        rows = [np.arange(orders), rng.integers(0, keys, orders), now + rng.integers(1, 1000, orders)]
        rates = [rng.integers(0, keys, fresh), now + rng.integers(1, 1000, fresh), rng.random(fresh)]
        now += 1000
        yield (
            pa.RecordBatch.from_arrays([pa.array(one) for one in rows], schema=ORDER_COLUMNS),
            pa.RecordBatch.from_arrays([pa.array(one) for one in rates], schema=RATE_COLUMNS),
            now,
        )


class Engine:
    """This library, in one of its modes."""

    def __init__(self, made: Any, versions: pa.RecordBatch, watermark: int | None) -> None:
        self._join, self._number, self._watermark = made, 0, watermark
        self._take(pa.RecordBatch.from_pylist([], schema=ORDER_COLUMNS), versions, watermark)

    def _take(self, orders: pa.RecordBatch, rates: pa.RecordBatch, watermark: int | None) -> int:
        tick = Tick(self._number, watermark_before_us=self._watermark, watermark_us=watermark)
        deltas = [ZSet.of(orders), ZSet.of(rates)]
        rows = sum(len(chunk) for chunk in self._join.answer(tick, deltas))
        self._join.absorb(tick, deltas)
        self._number, self._watermark = self._number + 1, watermark
        return rows

    def __call__(self, epoch: Epoch) -> int:
        orders, rates, watermark = epoch
        return self._take(orders, rates, None if self._watermark is None else watermark)

    def resident_bytes(self) -> int:
        return int(self._join.resident_bytes())

    def versions(self) -> int:
        """Return how many versions are kept."""
        return int(self._join.statistics()["right_rows"])


def by_dict(versions: pa.RecordBatch) -> Contestant:
    table: dict[int, list[tuple[int, float]]] = {}
    for key, at, rate in zip(*(column.to_pylist() for column in versions.columns), strict=True):
        table.setdefault(key, []).append((at, rate))
    for run in table.values():
        run.sort()

    def step(epoch: Epoch) -> int:
        orders, rates, _ = epoch
        for key, at, rate in zip(*(column.to_pylist() for column in rates.columns), strict=True):
            insort(table.setdefault(key, []), (at, rate))
        out: list[tuple[int, int, int, int, float]] = []
        for number, key, t in zip(*(column.to_pylist() for column in orders.columns), strict=True):
            run = table.get(key)
            if run:
                place = bisect_right(run, (t, float("inf")))
                if place:
                    out.append((number, key, t, *run[place - 1]))
        columns = list(zip(*out, strict=True))
        return len(pa.table({str(at): pa.array(column) for at, column in enumerate(columns)}))

    return step


def by_duckdb(versions: pa.RecordBatch) -> Contestant:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    connection.register("loaded", pa.Table.from_batches([versions]))
    connection.execute("CREATE TABLE rates AS SELECT * FROM loaded ORDER BY ALL")

    def step(epoch: Epoch) -> int:
        orders, rates, _ = epoch
        connection.register("o", pa.Table.from_batches([orders]))
        connection.register("n", pa.Table.from_batches([rates]))
        connection.execute("INSERT INTO rates SELECT * FROM n")
        query = (
            'SELECT o.*, r."at", r.rate FROM o ASOF JOIN (SELECT * FROM rates SEMI JOIN (SELECT DISTINCT k FROM o) USING '
            "(k)) r "
            'ON o.k = r.k AND o.t >= r."at"'
        )
        return int(connection.sql(query).to_arrow_table().num_rows)

    return step


def by_polars(versions: pa.RecordBatch) -> Contestant:
    import polars as pl

    kept = [pl.from_arrow(pa.Table.from_batches([versions]))]

    def step(epoch: Epoch) -> int:
        orders, rates, _ = epoch
        left: Any = pl.from_arrow(pa.Table.from_batches([orders]))
        kept[0] = pl.concat([kept[0], pl.from_arrow(pa.Table.from_batches([rates]))], rechunk=False)
        touched = kept[0].join(left.select("k").unique(), on="k", how="semi").sort("at")
        joined = left.sort("t").join_asof(
            touched, left_on="t", right_on="at", by="k", strategy="backward", check_sortedness=False
        )
        return int(joined.filter(pl.col("rate").is_not_null()).to_arrow().num_rows)

    return step


def contestants(versions: pa.RecordBatch, watermark: int) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    def temporal(emit: Any, mark: int | None) -> Contestant:
        return Engine(TemporalJoin(ORDERS, RATES, TemporalOptions(emit=emit)), versions, mark)

    yield "zset_join on_watermark", lambda: temporal("on_watermark", watermark)
    yield "zset_join once", lambda: temporal("once", watermark)
    yield "zset_join eager", lambda: temporal("eager", watermark)
    as_of = AsOfOptions(left_time="t", right_time="at")
    yield "zset_join as-of", lambda: Engine(AsOfJoin(ORDERS, RATES, as_of), versions, None)
    yield "zset_join process time", lambda: Engine(ProcessTimeJoin(ORDERS, NEWEST), versions, None)
    yield "dict + bisect", lambda: by_dict(versions)
    yield "DuckDB ASOF JOIN", lambda: by_duckdb(versions)
    yield "polars join_asof", lambda: by_polars(versions)


def measure(step: Contestant, work: list[Epoch], changes: int) -> tuple[float, int]:
    """Return changes per CPU second, the median over the epochs but the first, and the rows answered."""
    seconds, rows = [], 0
    for epoch in work:
        begun = time.process_time()
        rows += step(epoch)
        seconds.append(time.process_time() - begun)
    return changes / float(np.median(seconds[1:])), rows


def measure_state() -> None:
    """Print what a change costs with few and many versions, and what freeing costs."""
    figures: dict[int, list[float]] = {50_000: [], 1_000_000: []}
    engines = {}
    for keys in figures:
        rows = loaded(keys, 20)
        engines[keys] = Engine(TemporalJoin(ORDERS, RATES, TemporalOptions(emit="once")), rows, -1)
        print(f"{keys} keys x 20 versions: {engines[keys].versions()} kept", flush=True)
    for _ in range(ROUNDS):
        for keys, step in engines.items():
            work = [(orders, rates, -1) for orders, rates, _ in epochs(keys, 20, KEPT_CHANGES, 10)]
            figures[keys].append(measure(step, work, KEPT_CHANGES)[0])
    few, many = (float(np.median(figures[keys])) for keys in figures)
    speeds = f"{few / 1000:.0f}k with 1 M versions, {many / 1000:.0f}k with 20 M"
    print(f"once, changes per CPU second: {speeds}: {few / many:.2f} times the cost")
    engines.clear()

    versions = loaded(100_000, 20)
    quiet, busy = (_epoch_seconds(versions, watermark) for watermark in (20_000, -1))
    for name, (seconds, kept) in {"nothing to free": quiet, "1.9 M versions to free": busy}.items():
        p50, p99 = np.percentile(seconds, [50, 99]) * 1000
        times = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {p99 / p50:.1f} times; {sum(seconds):.2f} s in all"
        print(f"{name}: {times}; versions kept {kept}")
    print(f"freeing: {sum(busy[0]) - sum(quiet[0]):.2f} s more")


def _epoch_seconds(versions: pa.RecordBatch, watermark: int) -> tuple[list[float], str]:
    step = Engine(TemporalJoin(ORDERS, RATES, TemporalOptions(emit="on_watermark")), versions, watermark)
    kept, seconds = f"{step.versions()} before", []
    for number, epoch in enumerate(epochs(100_000, 20, KEPT_CHANGES, KEPT_EPOCHS)):
        begun = time.perf_counter()
        step(epoch)
        seconds.append(time.perf_counter() - begun)
        kept += f", {step.versions()} after epoch {number}" if number in {0, 9, KEPT_EPOCHS - 1} else ""
    return seconds, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--versions", type=int, default=0)
    parser.add_argument("--changes", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--only", default="")
    parser.add_argument("--state", action="store_true")
    options = parser.parse_args()
    print(describe_machine())
    if options.state:
        measure_state()
        return
    sizes = [(options.keys, options.versions)] if options.keys else [(100_000, 20), (1_000_000, 3)]
    for keys, versions in sizes:
        rows = loaded(keys, versions)
        print(f"\n{keys} keys x {versions} versions: changes per CPU second at {options.changes} per epoch")
        for name, make in contestants(rows, versions * 1000):
            if options.only not in name:
                continue
            figures = []
            for changes in options.changes:
                step = make()
                count = max(6, min(60, 100_000 // changes))
                speed, answered = measure(step, list(epochs(keys, versions, changes, count)), changes)
                figures.append(f"{speed / 1000:9.0f}k")
                if isinstance(step, Engine) and changes == options.changes[-1]:
                    figures.append(f"  {answered} rows, {step.resident_bytes() / (keys * versions):.0f} bytes per version")
                elif changes == options.changes[-1]:
                    figures.append(f"  {answered} rows")
            print(f"  {name:24}", " ".join(figures), flush=True)


if __name__ == "__main__":
    main()
