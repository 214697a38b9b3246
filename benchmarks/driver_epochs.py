"""CPU seconds of an epoch inside Spark: on the driver, on executors, and of Spark's bare micro-batch, into a DuckDB view.

    python -m benchmarks.driver_epochs                        20, 10,000 and 100,000 changes per epoch
    python -m benchmarks.driver_epochs --rows 20 --modes driver bare

Orders that change, joined with customers, `local[2]`, one Parquet file per epoch. CPU time is that of the whole tree of
processes (driver, JVM, Python workers), read at the end of every epoch; medians over the epochs behind the first ones. Each
runs in a process of its own, one after the other; the load of the machine is printed beside each.

    bare, driver, executors       orders are Parquet files
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.nexmark_spark import cpu_seconds

MODES = ("bare", "driver", "executors", "json", "debezium")
DRIVER = ("driver", "json", "debezium")
CUSTOMERS = 10_000
STATE_ROWS = 400_000
_SOURCE = (
    ',"source":{"version":"3.7.0.Final","connector":"postgresql","name":"shop","ts_ms":1,"ts_us":1000,"snapshot":"false",'
    '"db":"shop","schema":"public","table":"orders","txId":1,"lsn":7,"sequence":"[]"},"op":"u","ts_ms":2,"ts_us":2000}'
)
SKIPPED, MEASURED = 6, 12
GOALS = {20: 0.35, 10_000: 0.40, 100_000: 0.85}


class Recorder:
    """A sink that reads the clocks at the end of every epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def open(self, output: Any, query_id: str) -> None:
        """Do nothing."""

    def last_epoch(self) -> int | None:
        """Return the last epoch."""
        return len(self.seconds) - 1 if self.seconds else None

    def write(self, epoch: int, chunks: Any) -> None:  # noqa: ARG002 - as the protocol has it
        """Read the clocks."""
        for _ in chunks:
            pass
        self.seconds.append(cpu_seconds())

    def close(self) -> None:
        """Do nothing."""


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


def measure(mode: str, place: Path) -> list[float]:
    """Return the CPU seconds of the measured epochs."""
    from zset_join.spark import changes, local_session

    session = local_session("driver_epochs", cores=2)

    def stream(name: str) -> Any:
        schema = session.read.parquet(str(place / name)).schema
        return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / name))

    def orders_of(mode: str) -> dict[str, Any]:
        table = session.read.parquet(str(place / "orders")).schema
        reader = session.readStream.option("maxFilesPerTrigger", 1)
        if mode == "debezium":
            given = {"df": reader.text(str(place / mode)), "format": "debezium-json", "schema": table}
        else:
            given = {"df": reader.schema(table).json(str(place / mode)) if mode == "json" else stream("orders")}
        return {**given, "name": "orders", "keys": ["id"], "sequence_by": "seq"}

    recorder = Recorder()
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = f"{directory}/cp"
        if mode == "bare":
            writer = stream("orders").writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.foreachBatch(lambda batch, epoch: recorder.write(epoch, batch.take(1))).start().awaitTermination()
        else:
            orders = changes(**orders_of(mode))
            customers = changes(stream("customers"), name="customers", keys=["customer"])
            ours = orders.join(customers, on="customer").writeStream.options(
                checkpointLocation=checkpoint, execution="driver" if mode in DRIVER else mode
            )
            ours = ours.option("localStateDir", f"{directory}/local").trigger(availableNow=True)
            ours.toDuckDB(f"{directory}/view.duckdb", "v").toSink(recorder).start().awaitTermination()
    session.stop()
    ends = recorder.seconds
    return [after - before for before, after in pairwise(ends)][-MEASURED:]


def main() -> None:
    """Run what the arguments request, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=list(GOALS))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--place", help="measure one mode over the files there; for the processes this one starts")
    given = parser.parse_args()
    if given.place is not None:
        print(json.dumps(measure(given.modes[0], Path(given.place))))
        return
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as directory:
            write_files(Path(directory) / "data", rows)
            for mode in given.modes:
                command = [sys.executable, "-m", "benchmarks.driver_epochs", "--modes", mode, "--place", f"{directory}/data"]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds = json.loads(answer.stdout.strip().splitlines()[-1])
                median, goal = statistics.median(seconds), GOALS.get(rows, float("nan"))
                load = os.getloadavg()[0]
                print(f"{rows:>7,} rows  {mode:<9} {median:.2f} CPU s per epoch (goal of driver {goal:.2f}; load {load:.1f})")


if __name__ == "__main__":
    main()
