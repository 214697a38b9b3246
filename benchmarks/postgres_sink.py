"""Is the PostgreSQL view as fast as a hand-written COPY and MERGE of the same changes?

    python -m benchmarks.postgres_sink [--rows 500000] [--changes 50000] [--epochs 6]

A keyed view of so many rows; every epoch replaces random rows. In turns, on the same server: the sink, and the statements
that a data engineer writes by hand: COPY of upserts and deletes into a temporary table, then one MERGE, which checks nothing
and keeps no epoch. The server starts on loopback; its time is in the figures. Goal: at least 0.8 of the hand-written speed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa

from tools.servers.postgres_server import PostgresServer
from zset_join.core.relation import Relation
from zset_join.sinks.postgres_sql import csv_of
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "customer": pa.int64(), "total": pa.float64(), "note": pa.string()})
MERGE = (
    "MERGE INTO by_hand AS t USING changes AS c ON t.id = c.id WHEN MATCHED THEN UPDATE SET customer = c.customer, "
    "total = c.total, note = c.note WHEN NOT MATCHED THEN INSERT VALUES (c.id, c.customer, c.total, c.note)"
)


def rows_of(ids: np.ndarray, version: int) -> pa.RecordBatch:
    notes = pa.array([f"note {version} of a row" for _ in range(len(ids))])
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(ids % 1000), pa.array(ids * 0.5 + version), notes], schema=SCHEMA
    )


def by_hand(connection: psycopg.Connection[tuple[object, ...]], new: ZSet) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE changes (id bigint, customer bigint, total float8, note text, w bigint) ON COMMIT DROP"
        )
        with cursor.copy("COPY changes FROM STDIN (FORMAT csv)") as copy:
            copy.write(csv_of(new).to_pybytes())
        cursor.execute(MERGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--changes", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    random = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as directory:
        server = PostgresServer(Path(directory) / "postgres").start()
        try:
            seconds = compare(server, random, given.rows, given.changes, given.epochs)
        finally:
            server.stop()
    ratio = statistics.median(passed_on / ours for ours, passed_on in seconds)
    print(f"{given.rows:,} rows, {given.changes:,} replaced per epoch, {given.epochs} epochs in turns")
    for name, at in (("the view", 0), ("by hand", 1)):
        times = sorted(pair[at] for pair in seconds)
        print(f"{name:9} seconds per epoch: min {times[0]:.2f}  median {statistics.median(times):.2f}  max {times[-1]:.2f}")
    print(f"speed of the view over the hand-written statements: {ratio:.2f} (wanted 0.8)")


def compare(
    server: PostgresServer, random: np.random.Generator, rows: int, changes: int, epochs: int
) -> list[tuple[float, float]]:
    sink = PostgresViewSink(server.conninfo, "view", ["id"])
    sink.open(Relation(name="answer", schema=SCHEMA, primary_key=("id",), mode="changelog"), "benchmark")
    first = ZSet.of(rows_of(np.arange(rows), 0))
    sink.write(0, [first])
    seconds = []
    with psycopg.connect(server.conninfo) as connection:
        connection.execute("CREATE TABLE by_hand (id bigint PRIMARY KEY, customer bigint, total float8, note text)")
        connection.commit()
        by_hand(connection, first)
        versions = np.zeros(rows, np.int64)
        for epoch in range(1, epochs + 1):
            ids = np.sort(random.choice(rows, changes, replace=False))
            parts = [rows_of(ids[versions[ids] == version], version) for version in np.unique(versions[ids]).tolist()]
            old = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
            new = rows_of(ids, epoch)
            versions[ids] = epoch
            started = time.perf_counter()
            sink.write(epoch, [ZSet(old, np.full(changes, -1, np.int64)), ZSet.of(new)])
            between = time.perf_counter()
            by_hand(connection, ZSet.of(new))
            seconds.append((between - started, time.perf_counter() - between))
    sink.close()
    return seconds


if __name__ == "__main__":
    main()
