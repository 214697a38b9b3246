"""A SQL session in a client of Spark Connect: the pipeline is in the client, and the server reads tables for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect.conftest import Client
from zset_join.core.errors import StateError
from zset_join.sql import connect

ORDERS = "CREATE TABLE orders (id INT, who STRING, total INT) WITH ('connector'='filesystem', 'path'='{place}/in');"
MADE = f"""{ORDERS}
    CREATE TABLE people (who STRING, city STRING, PRIMARY KEY (who));
    INSERT INTO people VALUES ('ada', 'oslo'), ('bob', 'rome');
    CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders;
    CREATE MATERIALIZED VIEW cities AS
        SELECT p.city, sum(o.total) AS total FROM orders o JOIN people p ON o.who = p.who GROUP BY p.city
"""


def put(place: Path, number: int, *orders: tuple[int, str, int]) -> None:
    (place / "in").mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "who", "total"), one, strict=True))) + "\n" for one in orders]
    (place / "in" / f"{number}.json").write_text("".join(lines))


def rows(running: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in running.table().to_pylist())


def opened(spark: SparkSession, place: Path) -> Any:
    return connect(engine="spark", spark=spark, directory=place / "session", spark_directory=place / "server")


def _two_views(spark: SparkSession, place: Path) -> list[Any]:
    put(place, 1, (1, "ada", 5))
    found: list[Any] = []
    with opened(spark, place) as session:
        session.sql(MADE.format(place=place))
        epoch = session.running[0].whole.epoch
        put(place, 2, (2, "bob", 9), (3, "ada", 1))
        session.read()
        found += [[rows(one) for one in session.running], session.running[0].whole.epoch - epoch]
    with opened(spark, place) as again:
        put(place, 3, (4, "bob", 1))
        again.read()
        found += [[rows(one) for one in again.running]]
    return found


def test_views_of_a_client_take_each_batch_of_the_server_in_one_commit(client: Client, tmp_path: Path) -> None:
    first, epochs, second = client(_two_views, tmp_path)

    assert first == [[(1,), (2,), (3,)], [("oslo", 6), ("rome", 9)]]
    assert epochs == 1
    assert second == [[(1,), (2,), (3,), (4,)], [("oslo", 6), ("rome", 10)]]
    assert [one.parent for one in tmp_path.rglob("offsets")] == [tmp_path / "server" / "orders"]  # read once for both
