"""SQL from a real Kafka to a real Kafka and a real PostgreSQL."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.sources.kafka import KafkaSource
from zset_join.sql import Session, connect

_numbers = itertools.count()


@pytest.fixture
def topics(kafka: KafkaBroker) -> dict[str, str]:
    made = {}
    for name in ("orders", "customers", "revenue", "changes"):
        made[name] = f"sql-{name}-{next(_numbers)}"
        kafka.create_topic(made[name])
    return made


def send(kafka: KafkaBroker, topic: str, *records: tuple[str | None, str | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(20) == 0


def declared(session: Session, kafka: KafkaBroker, name: str, columns: str, topic: str, connector: str, form: str) -> None:
    session.sql(
        f"CREATE TABLE {name} ({columns}) WITH ('connector'='{connector}', 'topic'='{topic}', "
        f"'properties.bootstrap.servers'='{kafka.servers}', 'format'='{form}')"
    )


def test_topics_are_joined_into_a_topic_of_the_newest_rows_and_a_table(
    kafka: KafkaBroker, postgres: PostgresServer, topics: dict[str, str]
) -> None:
    send(
        kafka,
        topics["orders"],
        (None, '{"id": 1, "customer": "a", "total": 30}'),
        (None, '{"id": 2, "customer": "b", "total": 5}'),
        (None, '{"id": 3, "customer": "a", "total": 1}'),
    )
    send(kafka, topics["customers"], ('{"id":"a"}', '{"name":"Ada"}'), ('{"id":"b"}', '{"name":"Bob"}'), ('{"id":"b"}', None))
    with connect(dialect="flink") as session:
        declared(session, kafka, "orders", "id INT, customer STRING, total INT, at BIGINT METADATA FROM 'offset'", topics["orders"],
                 "kafka", "json")  # fmt: skip
        declared(session, kafka, "customers", "id STRING, name STRING, PRIMARY KEY (id) NOT ENFORCED", topics["customers"],
                 "upsert-kafka", "json")  # fmt: skip
        declared(session, kafka, "revenue", "name STRING, revenue BIGINT, PRIMARY KEY (name) NOT ENFORCED", topics["revenue"],
                 "upsert-kafka", "json")  # fmt: skip
        session.sql(
            "CREATE TABLE kept (name STRING, revenue BIGINT, PRIMARY KEY (name) NOT ENFORCED) WITH ('connector'='jdbc', "
            f"'url'='jdbc:postgresql://127.0.0.1:{postgres.port}/postgres', 'table-name'='sql_kept', 'username'='postgres')"
        )
        query = "SELECT c.name, sum(o.total) FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name"
        session.sql(f"INSERT INTO revenue {query}; INSERT INTO kept {query}")
        session.read(wait_seconds=3.0)

        assert session.sql("SELECT id, at FROM orders").table().column("at").to_pylist() == [0, 1, 2]
        assert session.sql("SELECT id FROM customers").table().to_pylist() == [{"id": "a"}]

    with connect(dialect="flink") as session:
        declared(session, kafka, "revenue", "name STRING, revenue BIGINT, PRIMARY KEY (name) NOT ENFORCED", topics["revenue"],
                 "upsert-kafka", "json")  # fmt: skip
        session.read(wait_seconds=3.0)
        assert session.sql("SELECT * FROM revenue").table().to_pylist() == [{"name": "Ada", "revenue": 31}]
    with psycopg.connect(postgres.conninfo) as database:
        assert database.execute("SELECT name, revenue FROM sql_kept").fetchall() == [("Ada", 31)]


def test_changes_are_written_as_envelopes_and_read_again(kafka: KafkaBroker, topics: dict[str, str]) -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (k STRING, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
        declared(session, kafka, "out", "k STRING, v BIGINT, PRIMARY KEY (k) NOT ENFORCED", topics["changes"], "kafka",
                 "debezium-json")  # fmt: skip
        session.sql("INSERT INTO out SELECT k, v FROM t")
        session.sql("INSERT INTO t VALUES ('a', 1), ('b', 2)")
        session.sql("INSERT INTO t VALUES ('a', 3)")

    with connect(dialect="flink") as session:
        declared(session, kafka, "out", "k STRING, v BIGINT, PRIMARY KEY (k) NOT ENFORCED", topics["changes"], "kafka",
                 "debezium-json")  # fmt: skip
        session.read(wait_seconds=3.0)
        found = session.sql("SELECT * FROM out").table().to_pylist()

    assert sorted(json.dumps(row) for row in found) == ['{"k": "a", "v": 3}', '{"k": "b", "v": 2}']


def test_a_session_in_a_directory_goes_on_behind_what_it_has_read(
    kafka: KafkaBroker, topics: dict[str, str], tmp_path: Path
) -> None:
    """Orders as JSON, customers as changes of Debezium; revenue into a topic, all of it twice interrupted."""

    def life() -> None:
        with connect(dialect="flink", directory=tmp_path) as session:
            declared(session, kafka, "orders", "id INT, customer STRING, total INT, at BIGINT METADATA FROM 'offset'",
                     topics["orders"], "kafka", "json")  # fmt: skip
            declared(session, kafka, "customers", "id STRING, name STRING, PRIMARY KEY (id) NOT ENFORCED", topics["customers"],
                     "kafka", "debezium-json")  # fmt: skip
            declared(session, kafka, "revenue", "name STRING, revenue BIGINT, PRIMARY KEY (name) NOT ENFORCED", topics["revenue"],
                     "kafka", "debezium-json")  # fmt: skip
            session.sql(
                "INSERT INTO revenue SELECT c.name, sum(o.total) FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name"
            )
            session.read(wait_seconds=3.0)

    def changed(before: str | None, after: str | None, place: int) -> tuple[str, str]:
        rows = [None if name is None else {"id": "a", "name": name} for name in (before, after)]
        operation = "c" if before is None else "u"
        return '{"id":"a"}', json.dumps({"op": operation, "before": rows[0], "after": rows[1], "source": {"lsn": place}})

    send(kafka, topics["orders"], (None, '{"id": 1, "customer": "a", "total": 30}'))
    send(kafka, topics["customers"], changed(None, "Ada", 1))
    life()
    send(kafka, topics["orders"], (None, '{"id": 2, "customer": "a", "total": 12}'))
    life()
    send(kafka, topics["customers"], changed("Ada", "Eve", 2))
    life()
    life()

    source = KafkaSource({"bootstrap.servers": kafka.servers}, topics["revenue"])
    source.open(None)
    found, _ = source.poll(most_rows=100, wait_seconds=5.0)
    source.close()
    reported = [json.loads(value) for value in found.column("value").to_pylist() if value is not None]
    rows = [(one["op"], (one["before"] or {}).get("revenue"), (one["after"] or {}).get("revenue")) for one in reported]
    assert rows == [("c", None, 30), ("u", 30, 42), ("d", 42, None), ("c", None, 42)]
