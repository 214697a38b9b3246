"""How much of an epoch in Spark is Spark, and how much is ours?

    python -m benchmarks.spark_throughput [--rounds N] [--output FILE]

Orders/customers (see `workloads`) with 400 k rows of state stream from Parquet files, one file per side and epoch, on
`local[2]`. Measured are epochs of 100 k changes and epochs of 20. Contestants, in turn, in one session:

- `spark identity`: what Spark takes for the same plan when nothing is done with the rows. The same normalising, union
  and hash of the keys, the shuffle for the route with a Python function that passes rows on, the shuffle to the join with
  one that counts them, one row collected per task.
- `zset_join spark`: the maintained join; the output is a user's function that does nothing with its DataFrame.
- `zset_join spark changelog`: the maintained join; the output is a Parquet changelog.
- `zset_join spark groups`: the join grouped by segment (50 groups: count, sum, average), its changes in a Parquet changelog.

The law of the comparison: contestants read the same files under the same settings and take turns, in the opposite order in
every other round. A round before the first and the first epochs of every run are thrown away: Spark gets faster over its
first dozens of epochs. Seconds are Spark's own `triggerExecution`; CPU seconds those of the driver, the JVM and all
workers, sampled four times a second and interpolated at the first and last measured trigger. Every epoch's delta must have
exactly the rows that `workloads` counted, every identity epoch exactly the rows that were sent; the groups are compared with
Spark's batch query after the last epoch.

`peak_bytes` of the JSON rows is the resident memory of the Python workers, without the JVM, at its peak while epochs were
measured; mapped state counts in each worker that has it mapped.

Known limits: ours writes a log and a commit record per epoch and syncs them, so the disk is in its numbers. The moved
orders, whose retraction the route adds to the second shuffle, are counted as ours. Two cores run the driver, the JVM and
two workers: neighbours on the machine show in the seconds at once, in the CPU seconds hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Measurement
from benchmarks.report import Goal, json_rows, machine_lines
from benchmarks.workloads import LEFT, RIGHT, Epoch, OrdersCustomers
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from zset_join.runners.spark.planning.normalise import TaggedStreams
    from zset_join.spark import JoinedStream

__all__ = ["SETTINGS", "SPARK_LABEL", "Feed", "Plan", "Sampler", "joined_stream", "main", "measure_spark_apart", "write_feed"]

SPARK_LABEL = "spark"
SCALE = 100_000
CORES = 2
ROUNDS = 2
IDENTITY, FUNCTION, CHANGELOG = "spark identity", "zset_join spark", "zset_join spark changelog"
GROUPS = "zset_join spark groups"
CONTESTANTS = (IDENTITY, FUNCTION, CHANGELOG, GROUPS)
MOST_TIMES_IDENTITY = 1.5
MOST_TIMES_JOIN = 1.6
SAMPLE_SECONDS = 0.25
SIDES = ("orders", "customers")

SETTINGS = {
    # what the runner sets for the job of an epoch; here for everybody
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.session.timeZone": "UTC",
    # triggers follow each other at once, and their numbers are kept
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Measurements of one workload.

    Args:
        workload: its name in the JSON rows.
        epoch_changes: changes of an epoch, both sides together.
        warm_up_epochs: epochs thrown away, beside the first one with the state.
        epochs: measured epochs.
    """

    workload: str
    epoch_changes: int
    warm_up_epochs: int
    epochs: int


WARM_UP = Plan(workload="spark_warm_up", epoch_changes=100_000, warm_up_epochs=0, epochs=5)
PLANS = (
    Plan(workload="spark_orders_customers", epoch_changes=100_000, warm_up_epochs=2, epochs=10),
    Plan(workload="spark_tiny_epochs", epoch_changes=20, warm_up_epochs=3, epochs=15),
)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The files of one plan; the first file of a side holds its first rows."""

    plan: Plan
    directory: Path
    changes: tuple[int, ...]
    answer_rows: tuple[int, ...]

    @property
    def measured(self) -> range:
        """Return the numbers of the measured epochs."""
        return range(len(self.changes) - self.plan.epochs, len(self.changes))


@dataclass(kw_only=True)
class Run:
    """One pass of a contestant over a feed: what its measured epochs took."""

    wall_seconds: list[float]
    cpu_seconds: float
    load_cpu_seconds: float
    peak_bytes: int
    delta_rows: int
    parts: dict[str, float] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code: 0 also when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_throughput", description="Spark with and without us.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured rounds ({ROUNDS})")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "results" / "spark.json")
    parser.add_argument("--as-json", action="store_true", help="print one line of JSON at the end, and write no file")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: one at least")
    with tempfile.TemporaryDirectory(prefix="zset_join_bench_") as temporary:
        runs = _measure_all(Path(temporary), options.rounds)
    measurements = [one for feed, of_feed in runs for one in _measurements(feed, of_feed)]
    lines = [line for feed, of_feed in runs for line in _table_lines(feed, of_feed)]
    lines += ["", "goals", *(goal.line() for feed, of_feed in runs for goal in _goals(feed, of_feed))]
    if options.as_json:
        print(json.dumps({"measurements": [asdict(one) for one in measurements], "lines": lines}))
        return 0
    lines = [*machine_lines(), *lines]
    print("\n".join(lines))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(json_rows(measurements), indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def measure_spark_apart(lines: list[str], failures: list[str]) -> list[Measurement]:
    """Measure in a process of its own; add the table to `lines` and what went wrong to `failures`."""
    root = Path(__file__).resolve().parent.parent
    reported = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_throughput", "--as-json"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = reported.stdout.strip().splitlines()
    if reported.returncode or not printed:
        failures.append(f"FAILED {SPARK_LABEL}: ended with {reported.returncode}: {reported.stderr.strip()[-2000:]}")
        return []
    found = json.loads(printed[-1])
    lines += found["lines"]
    print("\n".join(found["lines"]), flush=True)
    return [Measurement(**one) for one in found["measurements"]]


def _measure_all(directory: Path, rounds: int) -> list[tuple[Feed, dict[str, list[Run]]]]:
    """Return the runs of every plan and contestant."""
    from zset_join.spark import local_session

    warm_up, *feeds = [write_feed(directory / plan.workload, plan) for plan in (WARM_UP, *PLANS)]
    runs: list[tuple[Feed, dict[str, list[Run]]]] = [(feed, {name: [] for name in CONTESTANTS}) for feed in feeds]
    session = local_session("spark_throughput", cores=CORES, options=SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    try:
        for name in CONTESTANTS:
            _run(session, name, warm_up, directory / f"warm_up-{name.replace(' ', '_')}")
        for number in range(rounds):
            for feed, of_feed in runs:
                for name in CONTESTANTS if number % 2 else CONTESTANTS[::-1]:
                    place = directory / f"{feed.plan.workload}-{number}-{name.replace(' ', '_')}"
                    of_feed[name].append(_run(session, name, feed, place))
                    print(_run_line(number, name, feed, of_feed[name][-1]), file=sys.stderr, flush=True)
    finally:
        session.stop()
    return runs


def write_feed(directory: Path, plan: Plan, scale: int = SCALE) -> Feed:
    """Write the files of a plan: the first rows, and an epoch a file behind them."""
    workload = OrdersCustomers(scale)
    epochs = workload.epochs(plan.warm_up_epochs + plan.epochs, plan.epoch_changes)
    first = tuple(
        ZSet.of(pa.Table.from_batches(workload.initial(side)).combine_chunks().to_batches()[0]) for side in (LEFT, RIGHT)
    )
    whole = [Epoch((first[LEFT], first[RIGHT]), workload.state_rows, len(first[LEFT])), *epochs]
    oldest = time.time() - len(whole)
    for side, name in enumerate(SIDES):
        (directory / name).mkdir(parents=True)
        for number, epoch in enumerate(whole):
            delta = epoch.deltas[side]
            path = directory / name / f"part-{number:05d}.parquet"
            operation = pa.array(np.where(delta.weights < 0, "d", "u"))
            pq.write_table(pa.Table.from_batches([delta.rows.append_column("op", operation)]), path)
            os.utime(path, (oldest + number, oldest + number))
    return Feed(
        plan=plan,
        directory=directory,
        changes=tuple(epoch.changes for epoch in whole),
        answer_rows=tuple(epoch.answer_rows for epoch in whole),
    )


def _run(session: SparkSession, name: str, feed: Feed, place: Path) -> Run:
    """Run one contestant over a feed, check what it did, and return what it took."""
    joined = joined_stream(session, feed)
    with Sampler() as sampler:
        progress = _run_identity(joined, feed, place) if name == IDENTITY else _run_ours(joined, name, feed, place)
    delta_rows = _check(name, feed, progress)
    began = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in progress]
    took = [one["durationMs"]["triggerExecution"] / 1000 for one in progress]
    measured = feed.measured
    begin, end = began[measured.start], began[-1] + took[-1]
    joins = [progress[number]["join"]["seconds"] for number in measured if progress[number].get("join")]
    parts = {part: statistics.median(one[part] for one in joins) for part in joins[0]} if joins else {}
    spark_parts = {
        part: statistics.median(progress[number]["durationMs"].get(part, 0) / 1000 for number in measured)
        for part in progress[-1]["durationMs"]
    }
    return Run(
        wall_seconds=[took[number] for number in measured],
        cpu_seconds=sampler.cpu_between(begin, end),
        load_cpu_seconds=sampler.cpu_between(began[0], began[0] + took[0]),
        peak_bytes=sampler.peak_bytes_between(begin, end),
        delta_rows=delta_rows,
        parts={**parts, **{f"spark_{part}": value for part, value in spark_parts.items()}},
    )


def joined_stream(session: SparkSession, feed: Feed) -> JoinedStream:
    """Return the join of a feed's orders and customers as streams."""
    from zset_join.spark import changes

    sides = []
    for name, key in zip(SIDES, ("order_id", "id"), strict=True):
        path = str(feed.directory / name)
        schema = session.read.parquet(path).schema
        rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
        sides.append(changes(rows, name=name, keys=[key], apply_as_deletes="op = 'd'", except_column_list=["op"]))
    return sides[LEFT].join(sides[RIGHT], on=[("customer_id", "id")])


def _run_ours(joined: JoinedStream, name: str, feed: Feed, place: Path) -> list[dict[str, Any]]:
    view = _grouped(joined) if name == GROUPS else joined
    writer = view.writeStream.options(checkpointLocation=str(place / "checkpoint"), localStateDir=str(place / "state"))
    writer = writer.foreachBatch(_take_nothing) if name == FUNCTION else writer.to("parquet", path=place / "changelog")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if name == GROUPS and not (report := query.verify()).equal:
        raise AssertionError(f"{name}: {report}")
    return [one for one in query.recentProgress if one["numInputRows"]][: len(feed.changes)]


def _grouped(joined: JoinedStream) -> JoinedStream:
    from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

    calls = [ZF.count().alias("orders"), ZF.sum("amount").alias("turnover"), ZF.avg("amount").alias("average")]
    return joined.groupBy("segment").agg(*calls)


def _take_nothing(delta: DataFrame, epoch: int) -> None:
    """Represent a user's function; it leaves the delta alone."""


def _run_identity(joined: JoinedStream, feed: Feed, place: Path) -> list[dict[str, Any]]:
    from zset_join.runners.spark.planning.normalise import tag

    tagged = tag(joined.placed.planned_stages, CORES)
    step = _IdentityStep(joined, tagged)
    query = (
        tagged.dataframe.writeStream.option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(step)
        .start()
    )
    query.awaitTermination()
    progress: list[dict[str, Any]] = [dict(one) for one in query.recentProgress if one["numInputRows"]]
    return [{**one, "counted": step.counted[one["batchId"]]} for one in progress[: len(feed.changes)]]


class _IdentityStep:
    """One epoch of the same plan, with nothing done to the rows."""

    def __init__(self, joined: JoinedStream, tagged: TaggedStreams) -> None:
        from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

        from zset_join.runners.spark.planning.normalise import stage_bucket
        from zset_join.runners.spark.rows.layout import make_layout

        inputs = joined.placed.planned_stages[-1].stage.inputs
        self._layout = make_layout(*(one.fed.schema for one in inputs), has_raw=tagged.has_raw, types=tagged.types)
        self._is_routed = len(joined.placed.planned_stages) > 1
        self._by_join_key = stage_bucket(self._layout, inputs, CORES)
        self.counted: dict[int, int] = {}
        self._tagged = tagged
        self._order = F.monotonically_increasing_id().alias("order")
        self._bucket = F.col("bucket")

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        from zset_join.runners.spark.rows.layout import travelling_schema
        from zset_join.runners.spark.rows.schemas import spark_schema

        rows = batch.select("*", self._order).repartitionById(CORES, self._bucket)
        if self._is_routed:
            schema = travelling_schema(self._layout)
            rows = rows.mapInArrow(_pass_on(schema), spark_schema(schema)).select("*", self._by_join_key)
            rows = rows.repartitionById(CORES, self._bucket)
        counts = [int(line[0]) for line in rows.mapInArrow(_count, "note string").collect()]
        if len(counts) != CORES:
            raise AssertionError(f"the identity plan has {len(counts)} tasks, expected {CORES}")
        self.counted[epoch] = sum(counts)


def _pass_on(schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what represents the route: every row continues as it came."""

    def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                batch.column(one.name) if one.name in batch.schema.names else pa.nulls(batch.num_rows, one.type)
                for one in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return passed


def _count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Represent the join: count the rows."""
    yield pa.RecordBatch.from_pydict({"note": [str(sum(batch.num_rows for batch in batches))]})


def _check(name: str, feed: Feed, progress: Sequence[Mapping[str, Any]]) -> int:
    """Compare every epoch with the workload's numbers; return the delta rows of the measured ones."""
    if [one["batchId"] for one in progress] != list(range(len(feed.changes))):
        raise AssertionError(f"{name}: epochs {[one['batchId'] for one in progress]}, expected {len(feed.changes)}")
    sent = [one["numInputRows"] for one in progress]
    if name == IDENTITY:
        found, expected = [one["counted"] for one in progress], list(feed.changes)
        delta_rows = 0
    else:
        found = [one["join"]["delta_rows"] for one in progress]
        expected = found if name == GROUPS else list(feed.answer_rows)  # the groups were compared as a whole
        delta_rows = sum(found[number] for number in feed.measured)
    if sent != list(feed.changes) or found != expected:
        raise AssertionError(f"{name}: read {sent} of {feed.changes} rows, made {found} of {expected} rows")
    return delta_rows


class Sampler:
    """Sample CPU seconds and workers' memory of this process and everything it started."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, int]] = []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._samples.append(_process_tree())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()
        self._samples.append(_process_tree())

    def cpu_between(self, begin: float, end: float) -> float:
        """Return the CPU seconds between two moments, in seconds since 1970."""
        moments, cpu = [one[0] for one in self._samples], [one[1] for one in self._samples]
        return float(np.interp(end, moments, cpu) - np.interp(begin, moments, cpu))

    def peak_bytes_between(self, begin: float, end: float) -> int:
        """Return the largest memory of the workers together."""
        return max(held for moment, _, held in self._samples if begin - SAMPLE_SECONDS <= moment <= end + SAMPLE_SECONDS)

    def _sample(self) -> None:
        while not self._is_done.wait(SAMPLE_SECONDS):
            self._samples.append(_process_tree())


def _process_tree() -> tuple[float, float, int]:
    """Return the moment, the CPU seconds of this process and its descendants, and the bytes of those in Python."""
    parents: dict[int, int] = {}
    facts: dict[int, tuple[str, float, int]] = {}
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended while we looked
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        words = rest.split()
        number = int(folder.name)
        parents[number] = int(words[1])
        # words[11:15]: user and system time, its own and that of children it has waited for
        facts[number] = name, sum(map(int, words[11:15])) / ticks, int(words[21]) * page
    mine = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in mine} - mine:
        mine |= found
    workers = [number for number in mine if number != os.getpid() and facts[number][0].startswith("python")]
    return time.time(), sum(facts[number][1] for number in mine), sum(facts[number][2] for number in workers)


def _run_line(number: int, name: str, feed: Feed, run: Run) -> str:
    return f"round {number} {feed.plan.workload} {name}: {statistics.median(run.wall_seconds):.3f} s per epoch"


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(seconds for run in runs for seconds in run.wall_seconds)


def _ratios(runs: Sequence[Run], base: Sequence[Run]) -> list[float]:
    """Return ours by identity, round by round."""
    return [_median([ours]) / _median([theirs]) for ours, theirs in zip(runs, base, strict=True)]


def _measurements(feed: Feed, runs: Mapping[str, Sequence[Run]]) -> list[Measurement]:
    plan = feed.plan
    changes = plan.epochs * plan.epoch_changes
    answer_rows = sum(feed.answer_rows[number] for number in feed.measured)
    made = []
    for name, of_name in runs.items():
        cpu = sum(run.cpu_seconds for run in of_name)
        delta_rows = sum(run.delta_rows for run in of_name)
        wall_ms = np.array([seconds for run in of_name for seconds in run.wall_seconds]) * 1000
        rates = [changes / run.cpu_seconds for run in of_name]
        made.append(
            Measurement(
                workload=plan.workload,
                engine=name,
                state_rows=feed.changes[0],
                epoch_changes=plan.epoch_changes,
                changes_per_cpu_second=round(changes * len(of_name) / cpu, 1),
                delta_rows_per_cpu_second=round(delta_rows / cpu, 1),
                p50_ms=round(float(np.percentile(wall_ms, 50)), 3),
                p99_ms=round(float(np.percentile(wall_ms, 99)), 3),
                peak_bytes=max(run.peak_bytes for run in of_name),
                slowest_window=round(min(rates), 1),
                fastest_window=round(max(rates), 1),
                epochs=len(wall_ms),
                emitted_rows_per_change=round(delta_rows / (changes * len(of_name)), 4),
                answer_rows_per_change=round(answer_rows / changes, 4),
                load_cpu_seconds=round(statistics.median(run.load_cpu_seconds for run in of_name), 2),
            )
        )
    return made


def _table_lines(feed: Feed, runs: Mapping[str, Sequence[Run]]) -> list[str]:
    plan = feed.plan
    base = runs[IDENTITY]
    base_cpu = sum(run.cpu_seconds for run in base)
    title = (
        f"{plan.workload}: local[{CORES}], {feed.changes[0]:,} rows of state, {len(base)} rounds of {plan.epochs} epochs of "
        f"{plan.epoch_changes:,} changes"
    )
    header = (
        f"{'contestant':<27}{'s/epoch':>9}{'min - max':>17}{'changes/s':>11}{'x identity':>12}{'by round':>15}"
        f"{'Spark share':>13}{'cpu s/epoch':>13}{'x identity':>12}{'workers MB':>12}"
    )
    lines = ["", title, header]
    for name, of_name in runs.items():
        seconds = [one for run in of_name for one in run.wall_seconds]
        ratio = _median(of_name) / _median(base)
        ratios = _ratios(of_name, base)
        cpu = sum(run.cpu_seconds for run in of_name)
        lines.append(
            f"{name:<27}{_median(of_name):>9.3f}{f'{min(seconds):.3f} - {max(seconds):.3f}':>17}"
            f"{plan.epoch_changes / _median(of_name):>11,.0f}{ratio:>12.2f}{f'{min(ratios):.2f} - {max(ratios):.2f}':>15}"
            f"{1 / ratio:>13.0%}{cpu / len(seconds):>13.3f}{cpu / base_cpu:>12.2f}"
            f"{max(run.peak_bytes for run in of_name) / 1e6:>12,.0f}"
        )
    for name in CONTESTANTS:
        parts = {part: statistics.median(run.parts[part] for run in runs[name]) for part in runs[name][0].parts}
        lines.append(f"  {name}, seconds: " + ", ".join(f"{part} {value:.3f}" for part, value in parts.items()))
    return lines


def _goals(feed: Feed, runs: Mapping[str, Sequence[Run]]) -> list[Goal]:
    base = _median(runs[IDENTITY])
    return [
        Goal(
            sentence=f"times the identity plan: {name}, {feed.plan.epoch_changes:,} changes per epoch",
            measured=_median(runs[name]) / base,
            bound=MOST_TIMES_IDENTITY,
            at_least=False,
        )
        for name in (FUNCTION, CHANGELOG)
    ] + [
        Goal(
            sentence=f"times the join alone: {GROUPS}, {feed.plan.epoch_changes:,} changes per epoch",
            measured=_median(runs[GROUPS]) / _median(runs[CHANGELOG]),
            bound=MOST_TIMES_JOIN,
            at_least=False,
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
