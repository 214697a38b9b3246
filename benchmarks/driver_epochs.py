"""CPU seconds of an epoch inside Spark: on the driver, on executors, over Spark Connect, and of Spark's bare micro-batch.

    python -m benchmarks.driver_epochs                        20, 10,000 and 100,000 changes per epoch, and a table
    python -m benchmarks.driver_epochs --rows 20 --modes driver bare --rounds 2
    python -m benchmarks.driver_epochs --beside ../e303961    the executors of another checkout in the same run

Orders that change, joined with customers, into a DuckDB view; 400,000 orders are in the state, `local[2]`, one file per epoch.
CPU time is that of the whole tree of processes (driver or client, server, JVM, Python workers), read when Spark has written
that an epoch is complete; medians over the epochs behind the first ones. Each runs in a process of its own, one after the
other; the load of the machine is printed beside each.

    bare, bare-connect            Spark alone: `foreachBatch` over the same files that takes one row
    driver, executors             orders are Parquet files
    connect                       as driver; started by a client of Spark Connect, whose server is another process
    json, debezium                on the driver; orders are the same rows as flat JSON, and as Debezium's records
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
}
"""What each sets besides places: executors are the default, and other checkouts have no such option."""
BARE, CONNECT = ("bare", "bare-connect"), ("bare-connect", "connect")
BESIDE = "executors then"
RATIOS = (("connect", "driver"), ("driver", "bare"), (BESIDE, "driver"), ("debezium", "json"))
CUSTOMERS = 10_000
STATE_ROWS = 400_000
_SOURCE = (
    ',"source":{"version":"3.7.0.Final","connector":"postgresql","name":"shop","ts_ms":1,"ts_us":1000,"snapshot":"false",'
    '"db":"shop","schema":"public","table":"orders","txId":1,"lsn":7,"sequence":"[]"},"op":"u","ts_ms":2,"ts_us":2000}'
)
SKIPPED, MEASURED = 6, 12
GOALS = {20: 0.35, 10_000: 0.40, 100_000: 0.85}


def _json(table: pa.Table) -> pa.Array:
    """Return rows as JSON."""
    parts: list[Any] = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        mark = '"' if pa.types.is_string(column.type) else ""
        parts += ["," if parts else "{", f'"{name}":{mark}', column.cast(pa.string()), mark]
    return pc.binary_join_element_wise(*parts, "}", "")


def write_files(place: Path, rows: int) -> None:
    """Write the epochs of orders, one file each, and the customers."""
    rng = np.random.default_rng(7)
    for name in ("orders", "json", "debezium", "customers"):
        (place / name).mkdir(parents=True)
    sizes = [STATE_ROWS, *([rows] * (SKIPPED + MEASURED))]
    for epoch, count in enumerate(sizes):
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

    def stop(self) -> list[float]:
        """Return what was read."""
        self._ends.set()
        self._thread.join()
        return self.seconds


def measure(mode: str, place: Path) -> list[float]:
    """Return the CPU seconds of the measured epochs."""
    with _session(mode) as session, tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "cp"
        commits = _Commits(checkpoint)
        if mode in BARE:
            writer = _orders(session, place, "driver")["df"].writeStream.option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).foreachBatch(_first_row).start().awaitTermination()
        else:
            _joined(session, mode, place).options(
                checkpointLocation=str(checkpoint), localStateDir=f"{directory}/local", **MODES[mode]
            ).trigger(availableNow=True).toDuckDB(f"{directory}/view.duckdb", "v").start().awaitTermination()
        ends = commits.stop()
    return [after - before for before, after in pairwise(ends)][-MEASURED:]


def _joined(session: Any, mode: str, place: Path) -> Any:
    from zset_join.spark import changes

    customers = session.readStream.schema(session.read.parquet(str(place / "customers")).schema)
    others = changes(customers.parquet(str(place / "customers")), name="customers", keys=["customer"])
    return changes(**_orders(session, place, mode)).join(others, on="customer").writeStream


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

    def run(self, place: Path) -> list[float]:
        """Return the CPU seconds of its epochs, measured in a process of its own."""
        here = Path(__file__).resolve()
        root = here.parents[1] if self.checkout is None else self.checkout
        command = [sys.executable, "-P", str(here), "--modes", self.mode, "--place", str(place)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
        return [float(one) for one in json.loads(answer.stdout.strip().splitlines()[-1])]


def table(found: Mapping[tuple[int, str], Sequence[float]]) -> str:
    """Return the table: a row per mode, a column per size, medians; and the ratios that the goals are of."""
    sizes = sorted({rows for rows, _ in found})
    medians = {at: statistics.median(seconds) for at, seconds in found.items()}
    shown = {
        mode: {rows: f"{medians[rows, mode]:.2f}" for rows in sizes if (rows, mode) in medians}
        for mode in dict.fromkeys(mode for _, mode in found)
    }
    shown["goal of driver"] = {rows: f"{GOALS[rows]:.2f}" for rows in sizes if rows in GOALS}
    for over, under in RATIOS:
        ratios = {
            rows: f"{medians[rows, over] / medians[rows, under]:.2f} x"
            for rows in sizes
            if (rows, over) in medians and (rows, under) in medians
        }
        shown |= {f"{over} / {under}": ratios} if ratios else {}
    heads = ["changes per epoch", *(f"{rows:,}" for rows in sizes)]
    lines = [heads, ["---"] * len(heads), *([name, *(by.get(rows, "") for rows in sizes)] for name, by in shown.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run what the arguments request, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=list(GOALS))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in the same run: its executors")
    parser.add_argument("--rounds", type=int, default=1, help="how often each case runs, in turns")
    parser.add_argument("--place", help="measure one mode over the files there; for the processes this one starts")
    given = parser.parse_args()
    if given.place is not None:
        print(json.dumps(measure(given.modes[0], Path(given.place))))
        return
    cases = {mode: Case(mode) for mode in given.modes}
    if given.beside is not None:
        cases |= {BESIDE: Case("executors", given.beside.resolve())}
    found: dict[tuple[int, str], list[float]] = {}
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as directory:
            write_files(Path(directory) / "data", rows)
            for name, case in [*cases.items()] * given.rounds:
                load = os.getloadavg()[0]
                seconds = case.run(Path(directory) / "data")
                found.setdefault((rows, name), []).extend(seconds)
                median, least = statistics.median(seconds), min(seconds)
                shown = f"{median:.2f} CPU s per epoch (least {least:.2f}; load {load:.1f})"
                print(f"{rows:>7,} rows  {name:<13} {shown}", flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
