"""How many rows of an answer does each output take per second, beside what a bare write of the same rows costs?

    python -m benchmarks.sinks [--runs N] [--only PATTERN] [--output FILE]

Two histories of ten epochs of 100 k rows each, 1 M rows in all, of four columns (two integers, a short text, a float):

- `insertions`: every epoch adds 100 k new rows. A view grows from nothing to 1 M rows.
- `updates`: a view of 1 M rows, loaded before the clock starts; every epoch replaces 50 k rows at random, 50 k retractions and
  50 k insertions. A changelog does not care; for a view kept in files that cannot be changed it is the worst there is.

Contestants are the sinks of the package, given the epochs as the runner gives them, each with everything it promises:
checksums, syncs, the epoch's number in the same commit, refusal of a retraction that is not held. The baselines promise none of
that:

- `pyarrow write`: one Parquet file per epoch, same compression, not synced.
- `delta-rs append`: `write_deltalake(mode="append")` of the lines.
- `delta-rs merge`: `DeltaTable.merge` of the insertions by key, which finds no wrong retraction and no key claimed twice.
- `duckdb upsert`: `INSERT OR REPLACE` of the insertions into a table with a primary key.

The law of the comparison: contestants take turns, run by run, so that neighbours on the machine meet all of them. A run before
the first is thrown away. Rows per second are those of the median run; the slowest and the fastest run are beside it, and CPU
seconds, which neighbours disturb less. At the end of every run the output must hold exactly the rows it should.

Known limits: all threads of the machine are used, as in a query on one machine. The disk is that of the temporary directory.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.report import machine_lines
from zset_join.core.relation import Relation
from zset_join.sinks.delta_view import DeltaChangelogSink, DeltaViewSink
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.zset import ZSet

__all__ = ["SinkMeasurement", "main"]

EPOCHS = 10
EPOCH_ROWS = 100_000
LIVE_ROWS = 1_000_000
SEED = 20_251_121
RUNS = 5
SCHEMA = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "item": pa.string(), "amount": pa.float64()})
OUTPUT = Relation(name="answer", schema=SCHEMA, primary_key=("order_id",), mode="changelog")
Chunks = list[ZSet]


@dataclass(frozen=True, kw_only=True)
class History:
    """Input of the outputs.

    Args:
        name: of the history.
        load: the epoch before the clock starts, or none.
        epochs: those that are measured.
        live_rows: rows a view holds in the end.
        lines: lines a changelog holds in the end.
    """

    name: str
    load: Chunks
    epochs: list[Chunks]
    live_rows: int
    lines: int


class Contestant(Protocol):
    """An output, as the benchmark needs it."""

    def write(self, epoch: int, chunks: Chunks) -> None:
        """Take one epoch."""
        ...

    def rows(self) -> int:
        """Count what it holds."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class SinkContestant:
    """A sink of the package."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        sink.open(OUTPUT, "benchmark")

    def write(self, epoch: int, chunks: Chunks) -> None:
        self._sink.write(epoch, chunks)

    def rows(self) -> int:
        return int(self._sink.read().num_rows)

    def close(self) -> None:
        self._sink.close()


class PyarrowWrite:
    """One file per epoch and nothing else."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir()

    def write(self, epoch: int, chunks: Chunks) -> None:
        path = self._place / f"{epoch:08d}.parquet"
        pq.write_table(lines(chunks), path, compression="zstd", compression_level=1, use_dictionary=["item"])

    def rows(self) -> int:
        return int(pq.read_table(self._place).num_rows)

    def close(self) -> None: ...


class DeltaAppend:
    """Lines appended by delta-rs."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def write(self, epoch: int, chunks: Chunks) -> None:  # noqa: ARG002 - it has no epochs
        write_deltalake(self._place, lines(chunks), mode="append")

    def rows(self) -> int:
        return int(DeltaTable(self._place).to_pyarrow_table().num_rows)

    def close(self) -> None: ...


class DeltaMerge:
    """Insertions merged by key by delta-rs."""

    def __init__(self, place: Path) -> None:
        self._place = place
        write_deltalake(place, SCHEMA.empty_table())

    def write(self, epoch: int, chunks: Chunks) -> None:  # noqa: ARG002 - it has no epochs
        merge = DeltaTable(self._place).merge(
            insertions(chunks), "target.order_id = source.order_id", source_alias="source", target_alias="target"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def rows(self) -> int:
        return int(DeltaTable(self._place).to_pyarrow_table().num_rows)

    def close(self) -> None: ...


class DuckDBUpsert:
    """Insertions replaced by key by DuckDB."""

    def __init__(self, place: Path) -> None:
        self._connection = duckdb.connect(str(place))
        self._connection.execute(
            "CREATE TABLE view (order_id BIGINT PRIMARY KEY, customer_id BIGINT, item VARCHAR, amount DOUBLE)"
        )

    def write(self, epoch: int, chunks: Chunks) -> None:  # noqa: ARG002 - it has no epochs
        self._connection.register("chunk", insertions(chunks))
        self._connection.execute("INSERT OR REPLACE INTO view SELECT * FROM chunk")
        self._connection.unregister("chunk")

    def rows(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM view").fetchall()[0][0])

    def close(self) -> None:
        self._connection.close()


CHANGELOGS: dict[str, Callable[[Path], Contestant]] = {
    "pyarrow write": PyarrowWrite,
    "parquet changelog, weight": lambda place: SinkContestant(ParquetChangelogSink(place)),
    "parquet changelog, row_kind": lambda place: SinkContestant(ParquetChangelogSink(place, "row_kind")),
    "delta-rs append": DeltaAppend,
    "delta changelog, weight": lambda place: SinkContestant(DeltaChangelogSink(place)),
    "delta changelog, row_kind": lambda place: SinkContestant(DeltaChangelogSink(place, "row_kind")),
}
VIEWS: dict[str, Callable[[Path], Contestant]] = {
    "duckdb upsert": DuckDBUpsert,
    "duckdb view, key": lambda place: SinkContestant(DuckDBViewSink(place, "view")),
    "duckdb view, bag": lambda place: SinkContestant(DuckDBViewSink(place, "view", key=())),
    "delta-rs merge": DeltaMerge,
    "delta view, key": lambda place: SinkContestant(DeltaViewSink(place)),
    "delta view, bag": lambda place: SinkContestant(DeltaViewSink(place, key=())),
}


@dataclass(frozen=True, kw_only=True)
class SinkMeasurement:
    """The results of one contestant and history; rates are rows per second of wall time, over all epochs of a run."""

    history: str
    sink: str
    rows: int
    rows_per_second: float
    slowest_run: float
    fastest_run: float
    rows_per_cpu_second: float
    p50_ms: float
    p99_ms: float
    runs: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sinks", description="Measure the outputs.")
    parser.add_argument("--runs", type=int, default=RUNS, help="measured runs of each contestant")
    parser.add_argument("--only", metavar="PATTERN", default="", help="only contestants whose history/name matches")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: results/sinks.json for a whole run")
    options = parser.parse_args(arguments)
    print("\n".join(["outputs: 1 M rows in epochs of 100 k", *machine_lines(), ""]), flush=True)
    measurements: list[SinkMeasurement] = []
    for history in histories():
        measurements += measured(history, re.compile(options.only), options.runs)
    report = table(measurements)
    print("\n".join(report))
    path = options.output or Path(__file__).parent / "results" / "sinks.json"
    if options.output or (not options.only and options.runs >= RUNS):
        path.write_text(json.dumps([asdict(one) for one in measurements], indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".txt").write_text("\n".join([*machine_lines(), *report]) + "\n", encoding="utf-8")
        print(f"\nwritten: {path.name} and its .txt, in {path.parent.name}/")
    return 0


def histories() -> Iterator[History]:
    """Make both histories."""
    total = EPOCHS * EPOCH_ROWS
    shuffled = np.random.default_rng(SEED).permutation(total)
    added = [[weighted(ids, 0.0, 1)] for ids in np.split(shuffled, EPOCHS)]
    yield History(name="insertions", load=[], epochs=added, live_rows=total, lines=total)
    drawn = np.random.default_rng(SEED + 1)
    generation = np.zeros(LIVE_ROWS)
    replaced = []
    for _ in range(EPOCHS):
        ids = drawn.choice(LIVE_ROWS, EPOCH_ROWS // 2, replace=False)
        old = weighted(ids, generation[ids], -1)
        generation[ids] += 1
        replaced.append([old, weighted(ids, generation[ids], 1)])
    load = [weighted(np.arange(LIVE_ROWS), 0.0, 1)]
    yield History(name="updates", load=load, epochs=replaced, live_rows=LIVE_ROWS, lines=LIVE_ROWS + total)


def weighted(ids: npt.NDArray[np.int64], amount: Any, weight: int) -> ZSet:
    """Return the rows of some orders, all of one weight."""
    columns = [ids, ids * 7 % 100_003, [f"item {number}" for number in (ids % 977).tolist()], ids * 0.25 + amount]
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)
    return ZSet(rows, np.full(len(ids), weight, np.int64))


def lines(chunks: Chunks) -> pa.Table:
    """Return an epoch as the lines of a changelog."""
    return pa.Table.from_batches([chunk.rows.append_column("_weight", pa.array(chunk.weights)) for chunk in chunks])


def insertions(chunks: Chunks) -> pa.Table:
    """Return the rows an epoch brings, without those it takes away."""
    return pa.Table.from_batches([chunk.rows for chunk in chunks if chunk.weights[0] > 0])


def measured(history: History, pattern: re.Pattern[str], runs: int) -> Iterator[SinkMeasurement]:
    """Run the contestants in turns, and yield the results."""
    chosen = {name: make for name, make in (CHANGELOGS | VIEWS).items() if pattern.search(f"{history.name}/{name}")}
    seconds: dict[str, list[list[float]]] = {name: [] for name in chosen}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for run in range(runs + 1):
        for name, make in chosen.items():
            wall, cpu = one_run(history, name, make)
            if run:  # the first one warms up
                seconds[name].append(wall)
                cpu_seconds[name].append(cpu)
    rows = EPOCHS * EPOCH_ROWS
    for name, walls in seconds.items():
        rates = sorted(rows / sum(wall) for wall in walls)
        epochs = sorted(one for wall in walls for one in wall)
        yield SinkMeasurement(
            history=history.name,
            sink=name,
            rows=rows,
            rows_per_second=statistics.median(rates),
            slowest_run=rates[0],
            fastest_run=rates[-1],
            rows_per_cpu_second=rows / statistics.median(cpu_seconds[name]),
            p50_ms=1000 * statistics.median(epochs),
            p99_ms=1000 * epochs[int(0.99 * (len(epochs) - 1))],
            runs=len(walls),
        )


def one_run(history: History, name: str, make: Callable[[Path], Contestant]) -> tuple[list[float], float]:
    """Return wall seconds per epoch and CPU seconds in all; check what the output holds."""
    place = Path(tempfile.mkdtemp(prefix="zset_join-sinks-"))
    try:
        contestant = make(place / "output")
        first = 0
        if history.load:
            contestant.write(0, history.load)
            first = 1
        wall: list[float] = []
        cpu_from = time.process_time()
        for number, chunks in enumerate(history.epochs, start=first):
            wall_from = time.perf_counter()
            contestant.write(number, chunks)
            wall.append(time.perf_counter() - wall_from)
        cpu = time.process_time() - cpu_from
        expected = history.live_rows if name in VIEWS else history.lines
        held = contestant.rows()
        contestant.close()
        assert held == expected, f"{name} holds {held} rows after {history.name}, expected {expected}"
        return wall, cpu
    finally:
        shutil.rmtree(place)


def table(measurements: Sequence[SinkMeasurement]) -> list[str]:
    """Return one line per contestant, by history."""
    found: list[str] = []
    for history in dict.fromkeys(one.history for one in measurements):
        found += ["", history, f"{'output':<30}{'rows/s':>12}{'min - max run':>24}{'rows/cpu s':>12}{'p50 ms':>9}{'p99 ms':>9}"]
        for one in measurements:
            if one.history == history:
                spread = f"{one.slowest_run:,.0f} - {one.fastest_run:,.0f}"
                found.append(
                    f"{one.sink:<30}{one.rows_per_second:>12,.0f}{spread:>24}{one.rows_per_cpu_second:>12,.0f}"
                    f"{one.p50_ms:>9.0f}{one.p99_ms:>9.0f}"
                )
    return found


if __name__ == "__main__":
    sys.exit(main())
