"""SQL inside Spark with real systems: Kafka into Kafka; generated rows, a lookup in PostgreSQL and a view there; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services.test_sql_connectors import send
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.maven_jars import SPARK_KAFKA, jars_of
from tools.servers.postgres_server import PostgresServer
from zset_join.sources.kafka import KafkaSource
from zset_join.sql import connect
from zset_join.sql.tables.table_sources import GeneratedRows

PIPELINE = """
CREATE TABLE orders (id INT, customer STRING, total INT, at BIGINT METADATA FROM 'offset', twice AS total * 2) WITH (
    'connector' = 'kafka', 'topic' = 'spark-orders', 'properties.bootstrap.servers' = '{servers}', 'format' = 'json');
CREATE TABLE customers (id STRING, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH (
    'connector' = 'upsert-kafka', 'topic' = 'spark-customers', 'properties.bootstrap.servers' = '{servers}', 'format' = 'json');
CREATE TABLE revenue (name STRING, revenue BIGINT, PRIMARY KEY (name) NOT ENFORCED) WITH (
    'connector' = 'upsert-kafka', 'topic' = 'spark-revenue', 'properties.bootstrap.servers' = '{servers}', 'format' = 'json');
INSERT INTO revenue SELECT name, sum(twice) FROM orders AS o JOIN customers AS c ON o.customer = c.id GROUP BY name;
"""


_PROGRAM = "import sys; from zset_join.cli import main; sys.exit(main(sys.argv[1:]))"


def run_in_spark(file: Path, directory: Path) -> None:
    """Run the file as a user does: a process of its own, whose JVM is started with Spark's connector."""
    jars = sorted(str(path) for path in jars_of(SPARK_KAFKA, with_dependencies=False).glob("*.jar"))
    words = ["run", str(file), "--engine", "spark", "--dialect", "flink", "--once", "--directory", str(directory)]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(jars)} --conf spark.ui.enabled=false pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def records_of(kafka: KafkaBroker, topic: str) -> list[Any]:
    source = KafkaSource({"bootstrap.servers": kafka.servers}, topic)
    source.open(None)
    records, _ = source.poll(most_rows=1000, wait_seconds=5.0)
    source.close()
    return [None if value is None else json.loads(value) for value in records.column("value").to_pylist()]


@pytest.mark.timeout(1200)
def test_topics_are_joined_into_a_topic_and_a_second_run_goes_on(kafka: KafkaBroker, tmp_path: Path) -> None:
    for topic in ("spark-orders", "spark-customers", "spark-revenue"):
        kafka.create_topic(topic)
    file = tmp_path / "pipeline.sql"
    file.write_text(PIPELINE.format(servers=kafka.servers))

    def run() -> list[Any]:
        run_in_spark(file, tmp_path / "state")
        return records_of(kafka, "spark-revenue")

    send(kafka, "spark-customers", ('{"id":"a"}', '{"name":"Ada"}'), ('{"id":"b"}', '{"name":"Bob"}'))
    send(kafka, "spark-orders", (None, '{"id":1,"customer":"a","total":30}'), (None, '{"id":2,"customer":"b","total":5}'))
    first = run()
    assert sorted(one["revenue"] for one in first) == [10, 60]

    send(kafka, "spark-customers", ('{"id":"b"}', None))
    send(kafka, "spark-orders", (None, '{"id":3,"customer":"a","total":1}'))
    second = run()[len(first) :]

    assert [one for one in second if one is not None] == [{"name": "Ada", "revenue": 62}]
    assert second.count(None) == 1


LOOKED_UP = """
CREATE TABLE orders (id INT, customer INT, total INT, at AS PROCTIME()) WITH (
    'connector' = 'datagen', 'number-of-rows' = '4000', 'rows-per-second' = '500', 'fields.id.kind' = 'sequence',
    'fields.customer.min' = '1', 'fields.customer.max' = '20', 'fields.total.min' = '1', 'fields.total.max' = '9');
CREATE TABLE customers (id INT, name STRING) WITH (
    'connector' = 'jdbc', 'url' = 'jdbc:postgresql://127.0.0.1:{port}/postgres', 'username' = 'postgres',
    'table-name' = 'customers');
CREATE TABLE revenue (name STRING, orders BIGINT, PRIMARY KEY (name) NOT ENFORCED) WITH (
    'connector' = 'jdbc', 'url' = 'jdbc:postgresql://127.0.0.1:{port}/postgres', 'username' = 'postgres',
    'table-name' = 'revenue');
INSERT INTO revenue SELECT c.name, count(*) FROM orders AS o
    JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id GROUP BY c.name;
"""


def interrupted(words: list[str], postgres: PostgresServer) -> tuple[int, str]:
    """Run until something is in the view, then press Ctrl-C: a terminal sends it to every process of the group."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 400
    while process.poll() is None and time.monotonic() < until and not _is_begun(postgres):
        time.sleep(0.2)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=200)
    return process.returncode, complaints


def _is_begun(postgres: PostgresServer) -> bool:
    if postgres.execute("SELECT to_regclass('revenue')") == [(None,)]:
        return False
    return postgres.execute("SELECT count(*) FROM revenue") != [(0,)]


@pytest.mark.timeout(1200)
def test_generated_rows_are_looked_up_in_postgres_and_ctrl_c_ends_a_run_that_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    postgres.clear(
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "INSERT INTO customers SELECT n, 'name ' || n % 4 FROM generate_series(1, 16) AS n",
    )
    file = tmp_path / "pipeline.sql"
    file.write_text(LOOKED_UP.format(port=postgres.port))
    words = ["run", str(file), "--engine", "spark", "--dialect", "flink", "--directory", str(tmp_path / "state")]

    code, complaints = interrupted(words, postgres)

    assert code == 0, complaints[-4000:]
    assert "stopped. Run it again to go on." in complaints
    assert "running_files.py" not in complaints  # a worker of Spark's, which is interrupted too, may print a traceback

    run_in_spark(file, tmp_path / "state")

    with connect(dialect="flink") as session:
        session.sql(LOOKED_UP.split("CREATE TABLE customers")[0])
        source = GeneratedRows(session.catalog.tables["orders"], lambda _, rows: rows)
        polled = iter(lambda: source.poll(wait_seconds=0)[0], None)
        requested = [one for rows in polled for one in rows["customer"].to_pylist()]
    expected: dict[str, int] = {}
    for customer in requested:
        if customer <= 16:
            expected[f"name {customer % 4}"] = expected.get(f"name {customer % 4}", 0) + 1
    assert dict(postgres.execute("SELECT name, orders FROM revenue")) == expected
    assert len(requested) == 4000
