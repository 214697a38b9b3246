"""A real Debezium writes the changes of a real PostgreSQL to a real Kafka; a pipeline keeps a view of them in PostgreSQL.

In the end the view equals the same query in the source database. Keys change only of rows without a long text: what
PostgreSQL does not send of a row that gets another key is known to nobody, see `docs/how-to/describe-inputs.md`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tools.servers.debezium_connect import DebeziumConnect
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.pipeline import Baseline, Pipeline, View, records, run
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.sources.kafka import KafkaSource
from zset_join.stages import StageOptions

TRANSACTIONS = 400
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string(), "city": pa.string()})
ORDERS = pa.schema({"id": pa.int64(), "customer_id": pa.int64(), "total": pa.decimal128(12, 2), "note": pa.string()})
MADE = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text DEFAULT 'nowhere')",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, total numeric(12, 2), note text)",
    "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",  # long notes are stored apart, and not sent when untouched
    "INSERT INTO customers SELECT n, 'c' || n, CASE WHEN n % 3 > 0 THEN 'city' || n % 3 END FROM generate_series(1, 20) AS n",
    (
        "INSERT INTO orders SELECT n, n % 25, n * 1.5, CASE WHEN n % 2 = 0 THEN repeat('x', 3000) ELSE 'short' END "
        "FROM generate_series(1, 60) AS n"
    ),
)
QUERY = (
    "SELECT c.city, count(*), sum(o.total), sum(length(o.note)) FROM orders AS o JOIN customers AS c ON o.customer_id = c.id "
    "GROUP BY c.city"
)
JOINED = "SELECT o.id, o.total, o.note, c.name, c.city FROM orders AS o LEFT JOIN customers AS c ON o.customer_id = c.id"


@pytest.fixture
def captured(tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[None]:
    postgres.clear(*MADE)
    for table in ("customers", "orders"):
        kafka.create_topic(f"shop.public.{table}")
    tables = ["public.customers", "public.orders"]
    connect = DebeziumConnect(tmp_path / "connect", postgres, kafka, tables, snapshot=getattr(request, "param", "initial"))
    try:
        connect.start()
        yield
    finally:
        connect.stop()
        postgres.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        for table in ("customers", "orders"):
            kafka.delete_topic(f"shop.public.{table}")


def transact(postgres: PostgresServer, seed: int) -> None:
    """Change both tables as applications do: key moves, deletes, untouched long texts, NULLs over defaults, a truncate."""
    draw = random.Random(seed)
    with psycopg.connect(postgres.conninfo) as connection:
        for number in range(TRANSACTIONS):
            order, customer = draw.randrange(1, 90), draw.randrange(1, 25)
            statement: tuple[str, list[Any]] = draw.choice(
                [
                    ("UPDATE orders SET total = total + 1 WHERE id = %s", [order]),
                    ("UPDATE orders SET customer_id = %s WHERE id = %s", [customer, order]),
                    ("UPDATE orders SET id = id + 1000 WHERE id = %s AND id < 1000 AND note = 'short'", [order]),
                    ("DELETE FROM orders WHERE id = %s", [order]),
                    ("INSERT INTO orders VALUES (%s, %s, 9.99, repeat('y', 2500)) ON CONFLICT DO NOTHING", [order, customer]),
                    ("UPDATE customers SET city = NULL WHERE id = %s", [customer]),
                    ("UPDATE customers SET city = 'moved' WHERE id = %s", [customer]),
                    ("DELETE FROM customers WHERE id = %s", [customer]),
                    ("INSERT INTO customers (id, name) VALUES (%s, 'new') ON CONFLICT DO NOTHING", [customer]),
                ]
            )
            if number == TRANSACTIONS // 2:
                statement = ("TRUNCATE orders", [])
            connection.execute(statement[0].encode(), statement[1])
            connection.commit()


def joined(how: str) -> View:
    orders = records("orders", "debezium-json", ORDERS, keys="id")
    customers = records("customers", "debezium-json", CUSTOMERS, keys="id")
    return orders.join(customers, on=[("customer_id", "id")], how=how)


def test_views_of_captured_tables_equal_the_query_in_the_source_database(
    captured: None, tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker
) -> None:
    kafka.create_topic("by-city")
    by_city = joined("inner").groupBy("city").agg(F.count().alias("orders"), F.sum("total").alias("total"))
    sinks = [
        PostgresViewSink(postgres.conninfo, "by_city", ["city"]),
        KafkaTopicSink({"bootstrap.servers": kafka.servers}, "by-city", key=["city"]),
    ]
    rows = joined("left").select("id", "total", "note", "name", "city")
    transact(postgres, seed=1)
    last = postgres.execute("INSERT INTO customers VALUES (99, 'last', 'last') RETURNING id")
    assert last == [(99,)]

    def sources() -> dict[str, KafkaSource]:
        config = {"bootstrap.servers": kafka.servers}
        return {name: KafkaSource(config, f"shop.public.{name}") for name in ("orders", "customers")}

    expected = sorted(postgres.execute(JOINED), key=repr)
    with Pipeline(rows, tmp_path / "rows") as pipeline:
        for _ in range(60):
            run(pipeline, sources(), available_now=True, most_rows=200, trigger_seconds=1)
            found = sorted((tuple(row.values()) for row in pipeline.view().to_pylist()), key=repr)
            if found == expected:
                break
        assert found == expected

    with Pipeline(by_city, tmp_path / "by city", outputs=sinks) as grouped:
        run(grouped, sources(), available_now=True, most_rows=300, trigger_seconds=2)
    ours = sorted(postgres.execute("SELECT city, orders, total FROM by_city"), key=repr)
    assert ours == sorted((row[:3] for row in postgres.execute(QUERY)), key=repr)
    assert "__debezium" not in str(expected)


@pytest.mark.parametrize("captured", ["no_data"], indirect=True)
def test_tables_that_were_read_while_they_changed_and_their_streams_miss_nothing_and_count_nothing_twice(
    captured: None, tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker
) -> None:
    """Each table is read in the middle of 800 transactions; its stream began before all of them.

    What the database did not send of rows that were gone when the table was read is known to nobody; such records go aside.
    """
    transact(postgres, seed=2)
    writer = threading.Thread(target=transact, args=(postgres, 3))
    writer.start()
    read_orders = postgres.execute("SELECT id, customer_id, total, note FROM orders")
    read_customers = postgres.execute("SELECT id, name, city FROM customers")
    writer.join()
    assert postgres.execute("INSERT INTO customers VALUES (99, 'last', 'last') RETURNING id") == [(99,)]
    baselines = {
        "orders": Baseline([dict(zip(ORDERS.names, row, strict=True)) for row in read_orders]),
        "customers": Baseline([dict(zip(CUSTOMERS.names, row, strict=True)) for row in read_customers]),
    }
    expected = sorted(postgres.execute(JOINED), key=repr)
    by_city = joined("inner").groupBy("city").agg(F.count().alias("orders"), F.sum("total").alias("total"))

    def sources() -> dict[str, KafkaSource]:
        config = {"bootstrap.servers": kafka.servers}
        return {name: KafkaSource(config, f"shop.public.{name}") for name in ("orders", "customers")}

    rows = joined("left").select("id", "total", "note", "name", "city")
    aside = StageOptions(on_bad_input="quarantine")
    with Pipeline(rows, tmp_path / "rows", options=aside) as pipeline:
        pipeline.step(baselines)
        for _ in range(60):
            run(pipeline, sources(), available_now=True, most_rows=100, trigger_seconds=1)
            found = sorted((tuple(row.values()) for row in pipeline.view().to_pylist()), key=repr)
            if found == expected:
                break
        assert found == expected

    with Pipeline(by_city, tmp_path / "by city", options=aside) as grouped:
        grouped.step(baselines)
        run(grouped, sources(), available_now=True, trigger_seconds=2)
        ours = sorted((tuple(row.values()) for row in grouped.view().to_pylist()), key=repr)
    assert ours == sorted((row[:3] for row in postgres.execute(QUERY)), key=repr)
    assert read_orders
    assert expected


def test_a_column_that_is_added_while_a_pipeline_follows_is_null_in_the_rows_before(
    captured: None, tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker
) -> None:
    before = {"id": pa.int64(), "name": pa.string(), "city": pa.string()}
    customers = records("customers", "debezium-json", before, keys="id")
    with_points = records("customers", "debezium-json", {**before, "points": pa.int32()}, keys="id")

    def followed(table: View, last: int, statement: str) -> list[tuple[Any, ...]]:
        postgres.execute(statement)
        source = KafkaSource({"bootstrap.servers": kafka.servers}, "shop.public.customers")
        with Pipeline(table, tmp_path / "altered") as pipeline:
            for _ in range(30):
                run(pipeline, {"customers": source}, available_now=True, trigger_seconds=1)
                rows = sorted(tuple(row.values()) for row in pipeline.view().to_pylist() if row["id"] in (19, 20, last))
                if any(row[0] == last for row in rows):
                    return rows
        raise AssertionError("the last row did not come")

    assert followed(customers, 77, "INSERT INTO customers VALUES (77, 'a', 'Rome')") == [
        (19, "c19", "city1"),
        (20, "c20", "city2"),
        (77, "a", "Rome"),
    ]
    postgres.execute(
        "ALTER TABLE customers ADD COLUMN points int DEFAULT 3",
        "UPDATE customers SET name = 'touched' WHERE id = 19",
        "DELETE FROM customers WHERE id = 77",
    )
    with Pipeline(customers, tmp_path / "altered") as pipeline:
        pipeline.evolve(with_points)
    after = followed(with_points, 78, "INSERT INTO customers VALUES (78, 'b', NULL, NULL)")
    assert after[0] == (19, "touched", "city1", 3)
    assert after[1] == (20, "c20", "city2", None)
