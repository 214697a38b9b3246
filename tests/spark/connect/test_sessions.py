"""A SQL session in a client of Spark Connect: the pipeline is in the client, and the server reads tables for it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect.conftest import Client
from tests.sweeps import some_of
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.spark import changes
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
    return connect(engine="spark", spark=spark, directory=place / "session", spark_directory=place / "of server")


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
    assert [one.parent for one in tmp_path.rglob("offsets")] == [tmp_path / "of server" / "orders"]  # read once for both


def _not_taken(spark: SparkSession, place: Path) -> list[Any]:
    put(place, 1, (1, "ada", 5))
    found: list[Any] = []
    with opened(spark, place) as session:
        session.sql(ORDERS.format(place=place) + "CREATE MATERIALIZED VIEW parts AS SELECT 10 / total AS part FROM orders")
        put(place, 2, (2, "bob", 2), (3, "bob", 0))
        try:
            session.read()  # Spark has completed the batch; the pipeline has not
        except ZsetJoinError as error:
            found += [error.facts.get("views"), rows(session.running[0])]
    with opened(spark, place) as again:
        again.sql("DROP MATERIALIZED VIEW parts; CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
        found += [rows(again.running[0])]
        source = again.runtime.sources.current["orders"]
        source.open(dict(source._done))  # as where a process dies behind the commit: the batch is present still
        found += [again.read(), rows(again.running[0]), again.sql("SELECT count(*) AS n FROM orders").table().to_pylist()]
    return found


def test_a_batch_that_a_view_cannot_take_waits_on_the_server_and_is_taken_once(client: Client, tmp_path: Path) -> None:
    views, before, after, more, once, count = client(_not_taken, tmp_path)

    assert views == ("parts",)
    assert before == [(2.0,)]
    assert after == once == [(1,), (2,), (3,)]
    assert (more, count) == (0, [{"n": 3}])


def _widened(spark: SparkSession, place: Path) -> list[Any]:
    put(place, 1, (1, "ada", 5))
    made = ORDERS.replace("(id INT, who STRING, total INT)", "(id BIGINT, who STRING, total BIGINT, PRIMARY KEY (id))")
    with opened(spark, place) as session:
        session.sql(made.format(place=place) + "CREATE MATERIALIZED VIEW parts AS SELECT id, 10 / total AS part FROM orders")
        session.sql("CREATE MATERIALIZED VIEW totals AS SELECT id, total FROM orders")
        put(place, 2, (2, "bob", 0), (1, "ada", 6))
        try:
            session.read()
        except ZsetJoinError as error:
            failed = error.facts.get("views")
        session.sql("ALTER TABLE orders ADD COLUMN note BIGINT")
        session.sql("DROP MATERIALIZED VIEW parts")
        session.read()
        put(place, 3, (1, "ada", 7))
        session.read()
        found = session.sql("SELECT * FROM orders").table().to_pylist()
        return [failed, rows(session.running[0]), sorted(tuple(one.values()) for one in found)]


@pytest.mark.long
def test_a_batch_that_waits_while_its_table_gets_a_column_keeps_its_values_in_their_columns(
    client: Client, tmp_path: Path
) -> None:
    failed, totals, orders = client(_widened, tmp_path)

    assert failed == ("parts",)
    assert totals == [(1, 7), (2, 0)]
    assert orders == [(1, "ada", 7, None), (2, "bob", 0, None)]


def _rolled_back(spark: SparkSession, place: Path, removed: str) -> str:
    put(place, 1, (1, "ada", 5))
    with opened(spark, place) as session:
        session.sql(ORDERS.format(place=place) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
    for part in removed.split():
        shutil.rmtree(place / "of server" / "orders" / part, ignore_errors=True)
        (place / "of server" / "orders" / part).unlink(missing_ok=True)
    put(place, 2, (2, "bob", 9))
    with opened(spark, place) as again:
        try:
            again.read()
        except StateError as error:
            return error.code
    return ""


@pytest.mark.parametrize(
    ("removed", "code"),
    some_of(
        {"its identity": ("metadata", "FOREIGN_STATE"), "its progress": ("offsets commits sources", "EPOCH_REPLANNED")},
        short=["its progress"],
    ),
)
def test_a_reading_that_was_rolled_back_on_the_server_is_refused(
    client: Client, tmp_path: Path, removed: str, code: str
) -> None:
    assert client(_rolled_back, tmp_path, removed) == code


def _fed_by_streams(spark: SparkSession, place: Path) -> list[Any]:
    put(place, 1, (1, "ada", 5), (2, "bob", 2))
    (place / "names").mkdir(exist_ok=True)
    (place / "names" / "1.json").write_text('{"who": "ada", "city": "oslo"}\n')
    streamed = spark.readStream.schema("who string, city string").json(str(place / "names"))
    start = spark.createDataFrame([("bob", "rome"), ("ada", "bergen")], "who string, city string")
    spark.createDataFrame([(1, 100)], "id int, bonus int").createOrReplaceTempView("bonuses")
    with opened(spark, place) as session:
        session.register("people", changes(streamed, name="people", keys="who", baseline=start))
        session.sql(ORDERS.format(place=place))
        session.sql("SELECT count(*) FROM orders").table()  # reads the table whole, for itself
        left = [one.name for one in (place / "of server").iterdir()]
        session.runtime.run_as(once=False, trigger="0 seconds")
        session.sql(
            "CREATE MATERIALIZED VIEW all_of AS SELECT o.id, p.city, b.bonus FROM orders o JOIN people p ON o.who = p.who "
            "LEFT JOIN bonuses b ON o.id = b.id"
        )
        ends = time.monotonic() + 60
        while time.monotonic() < ends and len(rows(session.running[0])) < 2:
            session.read(wait_seconds=1.0)
        return [left, rows(session.running[0])]


def test_streams_with_a_start_and_views_of_the_server_are_tables_of_a_client_that_runs_on(
    client: Client, tmp_path: Path
) -> None:
    left, joined = client(_fed_by_streams, tmp_path)

    assert left == []
    assert joined == [(1, "oslo", 100), (2, "rome", None)]


def _lagging(spark: SparkSession, place: Path) -> list[Any]:
    (place / "in").mkdir(exist_ok=True)
    found: list[Any] = []
    waiting = place / "of server" / "orders" / "zset" / "batches"

    def staged(count: int, seconds: float) -> int:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and len(list(waiting.glob("*.json"))) < count:
            time.sleep(0.1)
        return len(list(waiting.glob("*.json")))

    def running(session: Any) -> None:
        session.sql("SET max_waiting_batches = 2")
        session.runtime.run_as(once=False, trigger="0 seconds")
        session.sql(ORDERS.format(place=place) + "CREATE MATERIALIZED VIEW ids AS SELECT id FROM orders")
        session.read(wait_seconds=0.5)

    with opened(spark, place) as session:
        running(session)
        for number in (1, 2):
            put(place, number, (number, "ada", 5))
            staged(number, 60)
        put(place, 3, (3, "ada", 5))
        found.append(staged(3, 4))
    with opened(spark, place) as session:  # closing has ended the query that waited
        running(session)
        ends = time.monotonic() + 60
        while time.monotonic() < ends and len(rows(session.running[0])) < 3:
            session.read(wait_seconds=1.0)
        found.append(rows(session.running[0]))
    return found


@pytest.mark.long  # tests/spark/driver/test_staging.py shows without a server when a batch waits
def test_a_server_that_runs_on_waits_for_a_client_that_takes_nothing(client: Client, tmp_path: Path) -> None:
    waiting, taken = client(_lagging, tmp_path)

    assert waiting == 2
    assert taken == [(1,), (2,), (3,)]
