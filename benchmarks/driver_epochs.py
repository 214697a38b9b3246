"""CPU seconds of an epoch inside Spark: on the driver, on executors, over Spark Connect, and of Spark's bare micro-batch.

    python -m benchmarks.driver_epochs                        all below, and a table
    python -m benchmarks.driver_epochs --rows 20 --modes driver bare --rounds 2
    python -m benchmarks.driver_epochs --beside ../e303961    the executors of another checkout in the same run

Orders that change, joined with customers, into a DuckDB view; 400,000 orders are in the state, `local[2]`, one file per epoch.
One query takes epochs of all sizes, one size after the other, and small ones again at the end: by then the JVM has compiled
what it runs. CPU time is that of the whole tree of processes (driver or client, server, JVM, Python workers), read when Spark
has written that an epoch is complete; medians over the epochs behind the first ones of a size. Each mode runs in a process of
its own, one after the other; the load of the machine is printed beside each.

    bare, bare-connect            Spark alone: `foreachBatch` over the same files that takes one row
    driver, executors             orders are Parquet files
    connect                       as driver; started by a client of Spark Connect, whose server is another process
    json, debezium                on the driver; orders are the same rows as flat JSON, and as Debezium's records
    nexmark                       on the driver; q3, q4, q9 and q20 as SQL, 10,000 events per epoch, in one session
    nexmark-executors             the same on executors; not by default
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.nexmark_spark import cpu_seconds

MODES: dict[str, dict[str, str]] = {
    "bare": {},
    "driver": {"execution": "driver"},
    "executors": {},
    "bare-connect": {},
    "connect": {},
    "json": {"execution": "driver"},
    "debezium": {"execution": "driver"},
    "nexmark": {"execution": "driver"},
    "nexmark-executors": {},
}
"""What each sets besides places: executors are the default, and other checkouts have no such option."""
ROWS = {"nexmark": "driver", "nexmark-executors": "executors"}
"""The row of the table of a mode; others have a row of their own."""
BARE, CONNECT = ("bare", "bare-connect"), ("bare-connect", "connect")
BESIDE = "executors then"
RATIOS = (("connect", "driver"), ("driver", "bare"), (BESIDE, "driver"), ("debezium", "json"))
CUSTOMERS = 10_000
_TABLES = ("person", "auction", "bid")
STATE_ROWS = 400_000
_SOURCE = (
    ',"source":{"version":"3.7.0.Final","connector":"postgresql","name":"shop","ts_ms":1,"ts_us":1000,"snapshot":"false",'
    '"db":"shop","schema":"public","table":"orders","txId":1,"lsn":7,"sequence":"[]"},"op":"u","ts_ms":2,"ts_us":2000}'
)
SKIPPED, SKIPPED_LATER, MEASURED, MEASURED_LARGE = 6, 3, 12, 8
_LARGE = 100_000
NEXMARK_EPOCHS, NEXMARK_SKIPPED = 12, 3
GOALS = {"20": 0.35, "10,000": 0.40, "100,000": 0.85, "q3": 0.40, "q4": 0.40, "q9": 0.40, "q20": 0.40}
"""CPU seconds of an epoch on the driver, by the column of the table."""
RATIO_GOALS = {("debezium", "json"): 1.5, ("connect", "driver"): 1.3}
_RATIO_ROWS = ("10,000", "100,000")


@dataclass(frozen=True)
class Phase:
    """Epochs of one size.

    Args:
        title: the column of the table.
        rows: changes per epoch.
        skipped: the first epochs, which are not measured.
        measured: the others.
    """

    title: str
    rows: int
    skipped: int
    measured: int


def phases(sizes: Sequence[int]) -> list[Phase]:
    """Return the phases of a query that takes epochs of these sizes, and of the first size again."""
    found = []
    for at, rows in enumerate([*sizes, sizes[0]]):
        title = f"{rows:,} again" if at == len(sizes) else f"{rows:,}"
        found.append(Phase(title, rows, SKIPPED_LATER if at else SKIPPED, MEASURED if rows < _LARGE else MEASURED_LARGE))
    return found


def _json(table: pa.Table) -> pa.Array:
    """Return rows as JSON."""
    parts: list[Any] = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        mark = '"' if pa.types.is_string(column.type) else ""
        parts += ["," if parts else "{", f'"{name}":{mark}', column.cast(pa.string()), mark]
    return pc.binary_join_element_wise(*parts, "}", "")


def write_files(place: Path, sizes: Sequence[int]) -> None:
    """Write the epochs of orders, one file each, and the customers."""
    rng = np.random.default_rng(7)
    for name in ("orders", "json", "debezium", "customers"):
        (place / name).mkdir(parents=True)
    counts = [STATE_ROWS]
    for phase in phases(sizes):
        counts += [phase.rows] * (phase.skipped + phase.measured)
    for epoch, count in enumerate(counts):
        ids = np.arange(count) if epoch == 0 else rng.integers(0, STATE_ROWS, count)
        table = pa.table(
            {
                "id": ids,
                "customer": rng.integers(0, CUSTOMERS, count),
                "total": rng.integers(0, 1000, count),
                "seq": np.full(count, epoch),
                "note": [f"note {one}" for one in ids % 1000],
            }
        )
        paths = [place / "orders" / f"{epoch:05d}.parquet"]
        pq.write_table(table, paths[0])
        flat = _json(table)
        record = pc.binary_join_element_wise('{"before":null,"after":', flat, _SOURCE, "")
        for name, texts in (("json", flat), ("debezium", record)):
            paths.append(place / name / f"{epoch:05d}.txt")
            paths[-1].write_text("\n".join(texts.to_pylist()))
        for path in paths:
            os.utime(path, (1_600_000_000 + epoch, 1_600_000_000 + epoch))
    keys = np.arange(CUSTOMERS)
    pq.write_table(pa.table({"customer": keys, "name": [f"customer {one}" for one in keys]}), place / "customers" / "0.parquet")


def _orders(session: Any, place: Path, mode: str) -> dict[str, Any]:
    """Return what `changes` is given for the orders."""
    table = session.read.parquet(str(place / "orders")).schema
    reader = session.readStream.option("maxFilesPerTrigger", 1)
    given: dict[str, Any] = {"name": "orders", "keys": ["id"], "sequence_by": "seq"}
    if mode == "debezium":
        return {**given, "df": reader.text(str(place / mode)), "format": "debezium-json", "schema": table}
    if mode == "json":
        return {**given, "df": reader.schema(table).json(str(place / mode))}
    return {**given, "df": reader.schema(table).parquet(str(place / "orders"))}


@contextmanager
def _session(mode: str) -> Iterator[Any]:
    """Give a session beside this process, or one of Spark Connect whose server is a process below this one."""
    from zset_join.spark import local_session

    if mode not in CONNECT:
        session = local_session("driver_epochs", cores=2)
        try:
            yield session
        finally:
            session.stop()
        return
    from pyspark.sql import SparkSession

    from tests.spark.connect.conftest import Server

    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory)).start()
        try:
            session = SparkSession.builder.remote(server.url).getOrCreate()
            try:
                yield session
            finally:
                session.stop()  # a client whose server is gone tries to reach it for minutes before it ends
        finally:
            server.kill()


class _Commits:
    """Read the clocks whenever Spark completes an epoch, by the files of its checkpoint.

    Args:
        checkpoint: of the query.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.seconds: list[float] = []
        self._place = checkpoint / "commits"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends.wait(0.025):
            if (self._place / str(len(self.seconds))).exists():
                self.seconds.append(cpu_seconds())

    def epochs(self) -> list[float]:
        """Stop, and return the seconds of every epoch but the first one."""
        self._ends.set()
        self._thread.join()
        return [after - before for before, after in pairwise(self.seconds)]


def measure(mode: str, place: Path, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Return the CPU seconds of the measured epochs, by the column of the table."""
    with _session(mode) as session, tempfile.TemporaryDirectory() as directory:
        if mode.startswith("nexmark"):
            return _nexmark(session, place / "nexmark", Path(directory), MODES[mode])
        checkpoint = Path(directory) / "cp"
        commits = _Commits(checkpoint)
        if mode in BARE:
            writer = _orders(session, place, "driver")["df"].writeStream.option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).foreachBatch(_first_row).start().awaitTermination()
        else:
            _run(_joined(session, mode, place).writeStream, Path(directory), MODES[mode])
        return by_phase(commits.epochs(), sizes)


def by_phase(seconds: Sequence[float], sizes: Sequence[int]) -> dict[str, list[float]]:
    """Return what was measured of each phase.

    Args:
        seconds: of every epoch but the first one.
        sizes: as for `phases`.
    """
    found: dict[str, list[float]] = {}
    for phase in phases(sizes):
        found[phase.title] = list(seconds[phase.skipped : phase.skipped + phase.measured])
        seconds = seconds[phase.skipped + phase.measured :]
    return found


def _run(writer: Any, directory: Path, options: Mapping[str, str]) -> None:
    writer = writer.options(checkpointLocation=str(directory / "cp"), localStateDir=str(directory / "local"), **options)
    writer.trigger(availableNow=True).toDuckDB(str(directory / "view.duckdb"), "v").start().awaitTermination()


def _nexmark(session: Any, place: Path, directory: Path, options: Mapping[str, str]) -> dict[str, list[float]]:
    """Run Nexmark's queries one after the other, the first one twice: its first run is not measured."""
    from benchmarks.nexmark import QUERIES
    from zset_join.sql import connect

    views = connect(engine="spark", spark=session, directory=directory / "session")
    for table in _TABLES:
        schema = session.read.parquet(str(place / table)).schema
        views.register(table, session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / table)))
    found: dict[str, list[float]] = {}
    for number, name in enumerate([next(iter(QUERIES)), *QUERIES]):
        into = directory / f"run {number}"
        into.mkdir()
        commits = _Commits(into / "cp")
        query: Any = views.sql(QUERIES[name])
        _run(query.view.writeStream, into, options)
        found[name] = commits.epochs()[NEXMARK_SKIPPED - 1 :]
    return found


def write_nexmark(place: Path) -> None:
    """Write Nexmark's events, a file of every table an epoch."""
    from benchmarks.nexmark import EPOCH_EVENTS, epochs

    for number, epoch in enumerate(epochs(NEXMARK_EPOCHS * EPOCH_EVENTS)):
        for table in _TABLES:
            rows = epoch[table]
            times = [pa.timestamp("us") if pa.types.is_timestamp(kind) else kind for kind in rows.schema.types]
            path = place / table / f"{number:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows.cast(pa.schema(list(zip(rows.schema.names, times, strict=True)))), path)
            os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def _joined(session: Any, mode: str, place: Path) -> Any:
    from zset_join.spark import changes

    customers = session.readStream.schema(session.read.parquet(str(place / "customers")).schema)
    others = changes(customers.parquet(str(place / "customers")), name="customers", keys=["customer"])
    return changes(**_orders(session, place, mode)).join(others, on="customer")


def _first_row(batch: Any, epoch: int) -> None:  # noqa: ARG001 - as Spark calls it
    batch.take(1)


@dataclass(frozen=True)
class Case:
    """One mode of one checkout.

    Args:
        mode: one of `MODES`.
        checkout: the directory of the checkout; None: this one.
    """

    mode: str
    checkout: Path | None = None

    def run(self, place: Path, sizes: Sequence[int]) -> dict[str, list[float]]:
        """Return the CPU seconds of its epochs by the column of the table, measured in a process of its own."""
        here = Path(__file__).resolve()
        root = here.parents[1] if self.checkout is None else self.checkout
        command = [sys.executable, "-P", str(here), "--modes", self.mode, "--place", str(place), "--rows", *map(str, sizes)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
        found: dict[str, list[float]] = json.loads(answer.stdout.strip().splitlines()[-1])
        return found


Found = dict[tuple[str, str], list[float]]
"""CPU seconds of epochs, by column and row of the table."""


def _ratio(found: Found, column: str, over: str, under: str) -> float | None:
    if (column, over) not in found or (column, under) not in found:
        return None
    return statistics.median(found[column, over]) / statistics.median(found[column, under])


def table(found: Found) -> list[str]:
    """Return the table: a row per mode, a column per size and query, medians; and the ratios that the goals are of."""
    columns = list(dict.fromkeys(column for column, _ in found))
    shown: dict[str, dict[str, str]] = {}
    for (column, row), seconds in found.items():
        shown.setdefault(row, {})[column] = f"{statistics.median(seconds):.2f}"
    shown["goal of driver"] = {column: f"{GOALS[column]:.2f}" for column in columns if column in GOALS}
    for over, under in RATIOS:
        ratios = {column: _ratio(found, column, over, under) for column in columns}
        cells = {column: f"{ratio:.2f} x" for column, ratio in ratios.items() if ratio is not None}
        shown |= {f"{over} / {under}": cells} if cells else {}
    heads = ["changes per epoch", *columns]
    lines = [heads, ["---"] * len(heads), *([name, *(by.get(column, "") for column in columns)] for name, by in shown.items())]
    return [f"| {' | '.join(line)} |" for line in lines]


def goal_lines(found: Found) -> list[str]:
    """Return one line per goal that was measured."""
    from benchmarks.report import Goal

    goals = [
        Goal(
            sentence=f"CPU s of an epoch on the driver: {column}",
            measured=statistics.median(found[column, "driver"]),
            bound=bound,
            at_least=False,
        )
        for column, bound in GOALS.items()
        if (column, "driver") in found
    ]
    for (over, under), bound in RATIO_GOALS.items():
        for column in _RATIO_ROWS:
            ratio = _ratio(found, column, over, under)
            if ratio is not None:
                goals.append(Goal(sentence=f"{over} / {under}: {column}", measured=ratio, bound=bound, at_least=False))
    return [goal.line() for goal in goals]


def main() -> None:
    """Run what the arguments request, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20, 10_000, 100_000])
    parser.add_argument("--modes", nargs="+", default=[mode for mode in MODES if mode != "nexmark-executors"], choices=MODES)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in the same run: its executors")
    parser.add_argument("--rounds", type=int, default=1, help="how often each case runs, in turns")
    parser.add_argument("--output", type=Path, help="a file for the report, beside the printed one")
    parser.add_argument("--place", type=Path, help="measure one mode over the files there; for the processes this one starts")
    given = parser.parse_args()
    if given.place is not None:
        print(json.dumps(measure(given.modes[0], given.place, given.rows)))
        return
    from benchmarks.report import give  # the other checkout has none

    cases = [(ROWS.get(mode, mode), Case(mode)) for mode in given.modes]
    if given.beside is not None:
        beside = ["executors", *(["nexmark-executors"] if "nexmark" in given.modes else [])]
        cases += [(BESIDE, Case(mode, given.beside.resolve())) for mode in beside]
    found: Found = {}
    shown: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        write_files(place, given.rows)
        write_nexmark(place / "nexmark")
        for row, case in cases * given.rounds:
            load = os.getloadavg()[0]
            for column, seconds in case.run(place, given.rows).items():
                found.setdefault((column, row), []).extend(seconds)
                median, least = statistics.median(seconds), min(seconds)
                shown.append(f"{column:>15}  {row:<14} {median:.2f} CPU s per epoch (least {least:.2f}; load {load:.1f})")
                print(shown[-1], file=sys.stderr, flush=True)
    give([*shown, "", *table(found), "", *goal_lines(found)], given.output)


if __name__ == "__main__":
    main()
