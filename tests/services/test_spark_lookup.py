"""Lookup joins inside Spark (local[2]) against a real PostgreSQL and a real Redis: fetched inside the tasks, journaled in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source, run  # noqa: F401 - a fixture
from tools.servers.postgres_server import PostgresServer
from zset_join.core.errors import LookupFailedError
from zset_join.lookup import Lookup, PostgresSource, Secret
from zset_join.spark import appends, changes, rescale

Run = Callable[..., Any]
ORDERS = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64())])
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "orders", ORDERS)


@pytest.fixture
def customers(postgres: PostgresServer) -> PostgresSource:
    postgres.execute(
        "DROP TABLE IF EXISTS spark_customers",
        "CREATE TABLE spark_customers (id bigint PRIMARY KEY, name text)",
        "INSERT INTO spark_customers SELECT i, 'c' || i FROM generate_series(0, 9) AS i",
    )
    return PostgresSource(name="customers", schema=CUSTOMERS, table="spark_customers", host="127.0.0.1", port=postgres.port)


def test_an_update_retracts_its_old_output_for_any_present_table(
    orders: Source,
    customers: PostgresSource,
    postgres: PostgresServer,
    run: Run,  # noqa: F811
) -> None:
    def view() -> Any:
        return changes(orders.stream(), name="orders", keys=["order_id"]).lookup_join(
            customers, on=[("customer_id", "id")], columns=["name"]
        )

    sink = Collected()
    orders.add((1, 3))
    run(view(), sink, buckets=2)
    postgres.execute("UPDATE spark_customers SET name = 'changed' WHERE id = 3")
    orders.add((1, 4))

    run(view(), sink)

    assert sink.epochs[1] == [((1, 3, 3, "c3"), -1), ((1, 4, 4, "c4"), 1)]


def test_a_replay_fetches_nothing_and_credentials_are_in_no_file(
    orders: Source,
    customers: PostgresSource,
    postgres: PostgresServer,
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "password").write_text("hunter2-secret", encoding="utf-8")
    guarded = PostgresSource(**{**vars(customers), "password": Secret.file(str(tmp_path / "password"))})
    orders.add((1, 3))
    sink = Collected()
    sink.fails_in = 0

    def view() -> Any:
        return appends(orders.stream(), name="orders").lookup_join(guarded, on=[("customer_id", "id")], columns=["name"])

    query = run(view(), sink, wait=False, buckets=2)
    with pytest.raises(StreamingQueryException, match="failed in epoch 0"):
        query.awaitTermination()
    postgres.execute("UPDATE spark_customers SET name = 'too late' WHERE id = 3")
    sink.fails_in = -1

    run(view(), sink)

    assert sink.total() == {(1, 3, 3, "c3"): 1}
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert path.is_dir() or b"hunter2-secret" not in path.read_bytes()


def test_parked_rows_survive_a_restart_and_options_may_change(
    orders: Source,
    customers: PostgresSource,
    postgres: PostgresServer,
    run: Run,  # noqa: F811
) -> None:
    def view(hint: Lookup) -> Any:
        return appends(orders.stream(), name="orders").lookup_join(
            customers, on=[("customer_id", "id")], how="left", hint=hint, columns=["name"]
        )

    retry = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "park": "epochs"}
    sink = Collected()
    orders.add((1, 42))
    run(view(Lookup(fixed_delay="1ms", max_attempts=50, **retry)), sink, buckets=2)
    assert sink.total() == {}
    postgres.execute("INSERT INTO spark_customers VALUES (42, 'late')")
    orders.add((2, 3))

    run(view(Lookup(fixed_delay="1ms", max_attempts=51, **retry)), sink)

    assert sink.total() == {(1, 42, 42, "late"): 1, (2, 3, 3, "c3"): 1}


def test_parked_rows_move_with_their_keys_when_the_buckets_become_more(
    spark: SparkSession,
    orders: Source,
    customers: PostgresSource,
    postgres: PostgresServer,
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    retry = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "fixed_delay": "1ms", "max_attempts": 50}

    def view() -> Any:
        return appends(orders.stream(), name="orders").lookup_join(
            customers, on=[("customer_id", "id")], how="left", hint=Lookup(park="epochs", **retry), columns=["name"]
        )

    late = range(100, 120)
    sink = Collected()
    orders.add(*((number, number) for number in late), (1, 3))
    run(view(), sink, buckets=2)
    assert sink.total() == {(1, 3, 3, "c3"): 1}
    rescale(tmp_path / "checkpoint", buckets=5, session=spark, local_state_dir=str(tmp_path / "local"))
    postgres.execute("INSERT INTO spark_customers SELECT i, 'late' FROM generate_series(100, 119) AS i")
    orders.add((2, 5))

    run(view(), sink)

    assert sink.total() == {
        (1, 3, 3, "c3"): 1,
        (2, 5, 5, "c5"): 1,
        **{(number, number, number, "late"): 1 for number in late},
    }


def test_a_source_that_is_gone_stops_the_query_with_its_own_error(orders: Source, customers: PostgresSource, run: Run) -> None:  # noqa: F811
    gone = PostgresSource(**{**vars(customers), "port": 1})
    orders.add((1, 3))
    view = appends(orders.stream(), name="orders").lookup_join(gone, on=[("customer_id", "id")], hint=Lookup(error_attempts=1))

    query = run(view, Collected(), wait=False, buckets=2)

    with pytest.raises(LookupFailedError, match='lookup source "customers"'):
        query.awaitTermination()
