"""Lookup joins on two executors, each a process of its own, against a real PostgreSQL and a real Redis, with rows parked in both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults.spark_faults import emitted, run
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisServer

ORDERS = range(12)
CLUSTER = ("--view", "lookups", "--master", "local-cluster[2,1,1024]", "--local-state", "state", "--buckets", "4")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def add_orders(place: Path, number: int, orders: list[int]) -> None:
    path = place / "orders" / f"{number}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"o": orders, "who": orders}, schema=pa.schema({"o": pa.int64(), "who": pa.int64()})), path)
    os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def add_names(server: RedisServer, orders: Iterable[int]) -> None:
    with server.client() as client:
        for order in orders:
            client.hset(f"name:{order}", mapping={"name": f"n{order}"})


def test_rows_parked_in_two_joins_outlive_an_executor_and_a_restart(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    servers = ("--port", str(postgres.port), "--redis-port", str(redis_server.port))
    postgres.execute(
        "DROP TABLE IF EXISTS known",
        "CREATE TABLE known (id bigint PRIMARY KEY, attempts bigint)",
        "INSERT INTO known SELECT i, i FROM generate_series(0, 11, 2) AS i",
    )
    add_names(redis_server, [order for order in ORDERS if order % 3])
    add_orders(tmp_path, 0, list(ORDERS[:6]))
    add_orders(tmp_path, 1, list(ORDERS[6:]))

    first = run(tmp_path, *CLUSTER, *servers, "--kill-executor", "1")

    assert first.status == 0, first.error
    assert (tmp_path / "faults" / "executor-1").exists()
    # Even ones are known, and of these the names of those that 3 does not divide; everything else waits.
    assert emitted(tmp_path)[1] == {(o, o, o, o, f"n{o}"): 1 for o in (2, 4, 8, 10)}

    postgres.execute("INSERT INTO known SELECT i, i FROM generate_series(1, 11, 2) AS i")
    add_names(redis_server, ORDERS[::3])
    add_orders(tmp_path, 2, [])
    add_orders(tmp_path, 3, [])
    second = run(tmp_path, *CLUSTER, *servers)

    assert second.status == 0, second.error
    assert emitted(tmp_path)[1] == {(o, o, o, o, f"n{o}"): 1 for o in ORDERS}
