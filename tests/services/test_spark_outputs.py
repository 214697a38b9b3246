"""Kafka into Spark by its own connector, and out to PostgreSQL and Kafka at once, whenever the driver is killed."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.services.restored_broker import restored_broker
from tests.services.spark_driver import DriverRun
from tests.services.test_kafka_topic import committed
from tests.sweeps import some_of
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.changelog.formats.records import UNAVAILABLE

_numbers = itertools.count()


def change(op: str, key: dict[str, Any], row: dict[str, Any] | None, lsn: int) -> tuple[str | None, str]:
    value = {"op": op, "before": key if op == "d" else None, "after": row, "source": {"lsn": lsn}}
    return (json.dumps(key) if op != "t" else None), json.dumps(value)


def order(op: str, number: int, lsn: int, city: int = 0, note: str | None = None) -> tuple[str | None, str]:
    return change(op, {"id": number}, None if op in "dt" else {"id": number, "city": city, "note": note}, lsn)


def write(kafka: KafkaBroker, topic: str, *records: tuple[str | None, str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
    for key, value in records:
        producer.produce(topic, value.encode(), None if key is None else key.encode())
    assert producer.flush(60) == 0


@pytest.fixture(params=some_of(["executors", "driver"], short=["driver"]))
def driver(kafka: KafkaBroker, postgres: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest) -> DriverRun:
    postgres.clear()
    number = next(_numbers)
    run = DriverRun(
        conninfo=postgres.conninfo,
        servers=kafka.servers,
        orders=f"spark-orders-{number}",
        cities=f"spark-cities-{number}",
        output=f"spark_view_{number}",
        directory=str(tmp_path),
        execution=request.param,
    )
    for topic in (run.orders, run.cities, run.output):
        kafka.create_topic(topic)
    cities = [change("c", {"city": city}, {"city": city, "name": f"city {city}"}, city) for city in (1, 2)]
    write(kafka, run.cities, *cities)
    return run


def orders_of(*numbers: int) -> list[tuple[str | None, str]]:
    return [order("c", number, number, 1) for number in numbers]


def let_retention_remove(kafka: KafkaBroker, driver: DriverRun, taken: int) -> None:
    """Remove two records that the query has not taken, and all before them."""
    write(kafka, driver.orders, *orders_of(7, 8, 9, 10))
    kafka.delete_records(driver.orders, before=taken + 2)


def make_again(kafka: KafkaBroker, driver: DriverRun, taken: int) -> None:
    """Replace the topic by another of the same name, with as many records as the query has taken."""
    kafka.delete_topic(driver.orders)
    kafka.create_topic(driver.orders)
    write(kafka, driver.orders, *orders_of(*range(20, 20 + taken)))


def contents(run: DriverRun, postgres: PostgresServer) -> list[tuple[Any, ...]]:
    return sorted(postgres.execute(f"SELECT id, city, note, name FROM {run.output}"))


@pytest.mark.timeout(2400)
def test_both_outputs_have_every_epoch_once_wherever_the_driver_is_killed_and_records_that_are_gone_are_reported(
    driver: DriverRun, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    """A start of Spark takes 10 s or more: what is lost is lost behind the last epoch, and no second query begins for it."""
    first = [order("c", number, 10 + number, 1, f"a long text {number}") for number in (1, 2, 3, 4)]
    second = [order("u", 1, 20, 2, UNAVAILABLE), order("d", 2, 21), order("u", 3, 22, 2, "short"), order("c", 5, 23, 9, "x")]
    third = [order("t", 0, 30), order("c", 1, 31, 1, "anew"), order("c", 6, 32, 2, "y"), order("u", 6, 33, 1, UNAVAILABLE)]
    write(kafka, driver.orders, *first, *second, *third)
    kills: list[Any] = [("postgres", "after", 1), ("kafka", "before", 2)]
    if driver.execution == "driver":
        kills = [kills[0], ("kafka", "after", 1), kills[1]]

    ends = [replace(driver, kill=kill).outcome()[0] for kill in kills]
    end, emitted = driver.outcome()

    assert ends == [-signal.SIGKILL] * len(kills)
    assert end == 0
    if driver.execution == "executors":  # on the driver verify() takes records that leave columns out for whole ones
        assert emitted["verified"].startswith("equal")
    assert contents(driver, postgres) == [(1, 1, "anew", "city 1"), (6, 1, "y", "city 1")]
    of_kafka: dict[int, Any] = {}
    lines = committed(kafka, driver.output)
    for key, value in lines:
        of_kafka[key["id"]] = value
    assert sorted((row["id"], row["city"], row["note"], row["name"]) for row in of_kafka.values() if row) == contents(
        driver, postgres
    )
    assert len(lines) == 4 + 4 + 5, "an epoch was written twice, or not at all"
    assert postgres.execute(f"SELECT epoch FROM _zset_join_epochs WHERE view = '{driver.output}'") == [(2,)]

    before, taken = contents(driver, postgres), len(first + second + third)
    losses: list[Callable[[], None]] = [lambda: let_retention_remove(kafka, driver, taken)]
    if driver.execution == "driver":
        losses.append(lambda: make_again(kafka, driver, taken))
    for lose in losses:
        lose()
        _, emitted = driver.outcome()
        assert emitted["code"] == "SOURCE_LOST_ROWS"
        assert driver.orders in emitted["message"]
        assert driver.directory in emitted["message"]
        assert contents(driver, postgres) == before


@pytest.mark.timeout(2400)
def test_a_broker_that_was_set_back_to_an_older_state_is_reported(postgres: PostgresServer, tmp_path: Path) -> None:
    with restored_broker(tmp_path / "kafka") as broker:
        run = DriverRun(
            conninfo=postgres.conninfo,
            servers=broker.kafka.servers,
            orders="orders",
            cities="cities",
            output="set_back",
            directory=str(tmp_path),
        )
        for topic in (run.orders, run.cities, run.output):
            broker.kafka.create_topic(topic)
        write(broker.kafka, run.orders, *orders_of(1, 2))
        broker.save()
        write(broker.kafka, run.orders, *orders_of(3, 4))
        assert run.outcome()[1]["verified"].startswith("equal")

        broker.restore()
        _, emitted = run.outcome()

    assert emitted["code"] == "SINK_EPOCH_GAP"  # the broker has the output too: its gap is seen before the source is read
    assert run.output in emitted["message"]
