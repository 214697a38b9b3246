"""Tables of a real PostgreSQL and the streams that a real Debezium writes of them, followed inside Spark.

The streams begin before the tables are read, and the tables continue changing while the driver is killed and started again.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.services.spark_driver import DriverRun
from tests.services.test_kafka_topic import committed
from tools.servers.debezium_connect import DebeziumConnect
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.sources.kafka import KafkaSource

TABLES = ("orders", "cities")
SCHEMA = (
    "CREATE TABLE cities (city bigint PRIMARY KEY, name text)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, city bigint, note text)",
    "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",  # long notes are stored apart, and not sent when untouched
    "INSERT INTO cities SELECT n, 'city ' || n FROM generate_series(1, 8) AS n",
    "INSERT INTO orders SELECT n, n % 10, repeat('x', CASE WHEN n % 3 = 0 THEN 3000 ELSE 3 END) FROM generate_series(1, 50) AS n",
)
JOINED = "SELECT id, city, note, name FROM orders LEFT JOIN cities USING (city) ORDER BY id"


def transact(postgres: PostgresServer, seed: int, transactions: int = 150) -> None:
    """Change both tables: rows that move to another key, deletes, long texts left alone, a truncate."""
    draw = random.Random(seed)
    with psycopg.connect(postgres.conninfo) as connection:
        for number in range(transactions):
            order, city = draw.randrange(1, 70), draw.randrange(1, 10)
            statement: tuple[str, list[Any]] = draw.choice(
                [
                    ("UPDATE orders SET city = %s WHERE id = %s", [city, order]),
                    ("UPDATE orders SET id = id + 1000 WHERE id = %s AND length(note) = 3", [order]),
                    ("DELETE FROM orders WHERE id = %s", [order]),
                    ("INSERT INTO orders VALUES (%s, %s, repeat('y', 2500)) ON CONFLICT DO NOTHING", [order, city]),
                    ("UPDATE cities SET name = 'moved ' || %s WHERE city = %s", [number, city]),
                    ("DELETE FROM cities WHERE city = %s", [city]),
                    ("INSERT INTO cities VALUES (%s, 'new') ON CONFLICT DO NOTHING", [city]),
                ]
            )
            if number == transactions // 3 and seed == 1:
                statement = ("TRUNCATE orders", [])
            connection.execute(statement[0].encode(), statement[1])
            connection.commit()


@pytest.fixture
def driver(tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker) -> Iterator[DriverRun]:
    postgres.clear(*SCHEMA)
    topics = [f"shop.public.{table}" for table in TABLES]
    for topic in (*topics, "read_while_changed"):
        kafka.create_topic(topic)
    connect = DebeziumConnect(
        tmp_path / "connect", postgres, kafka, [f"public.{table}" for table in TABLES], snapshot="no_data"
    )
    try:
        connect.start()
        yield DriverRun(
            conninfo=postgres.conninfo,
            servers=kafka.servers,
            orders=topics[0],
            cities=topics[1],
            output="read_while_changed",
            directory=str(tmp_path),
            per_epoch=80,
            baseline=True,
        )
    finally:
        connect.stop()
        postgres.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        for topic in topics:
            kafka.delete_topic(topic)


def wait_for_all_changes(postgres: PostgresServer, kafka: KafkaBroker, run: DriverRun, last: int) -> None:
    """Make a last change of each table, a row with a number of its own, and wait until Debezium has written it."""
    postgres.execute(f"INSERT INTO orders VALUES ({last}, 1, 'last')", f"INSERT INTO cities VALUES ({last}, 'last')")
    for topic in (run.orders, run.cities):
        source = KafkaSource({"bootstrap.servers": kafka.servers}, topic)
        source.open(None)
        for _ in range(120):
            records, _ = source.poll(most_rows=10_000, wait_seconds=1.0)
            if any(value is not None and str(last).encode() in value for value in records.column("value").to_pylist()):
                break
        else:
            raise AssertionError(f"the last change did not come to {topic}")
        source.close()


@pytest.mark.timeout(1800)
def test_tables_that_spark_reads_while_they_change_and_their_streams_miss_nothing_and_count_nothing_twice(
    driver: DriverRun, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    """The tables are read twice: the driver is killed before the epoch that holds them is committed, and they change again.

    A third start is given them too, behind more changes, and does not load them.
    """
    transact(postgres, seed=1)
    before_the_commit = replace(driver, kill=("commit", "before", 0)).outcome()[0]
    transact(postgres, seed=2)
    wait_for_all_changes(postgres, kafka, driver, last=99_998)
    between_both_outputs = replace(driver, kill=("kafka", "before", 1)).outcome()[0]
    transact(postgres, seed=3)
    wait_for_all_changes(postgres, kafka, driver, last=99_999)

    end, emitted = driver.outcome()

    assert [before_the_commit, between_both_outputs, end] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert emitted["epoch"] >= 2
    expected = postgres.execute(JOINED)
    assert sorted(postgres.execute(f"SELECT id, city, note, name FROM {driver.output}")) == expected
    of_kafka = {key["id"]: row for key, row in committed(kafka, driver.output)}
    assert sorted((row["id"], row["city"], row["note"], row["name"]) for row in of_kafka.values() if row) == expected
