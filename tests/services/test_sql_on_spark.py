"""SQL inside Spark from a real Kafka into a real Kafka: rows, records of changes, and a run that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tools.servers.kafka_broker import KafkaBroker
from tools.servers.maven_jars import SPARK_KAFKA, jars_of
from zset_join.sources.kafka import KafkaSource

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
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def send(kafka: KafkaBroker, topic: str, *records: tuple[str | None, str | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(20) == 0


def records_of(kafka: KafkaBroker, topic: str) -> list[Any]:
    source = KafkaSource({"bootstrap.servers": kafka.servers}, topic)
    source.open(None)
    records, _ = source.poll(most_rows=1000, wait_seconds=5.0)
    source.close()
    return [None if value is None else json.loads(value) for value in records.column("value").to_pylist()]


@pytest.mark.timeout(600)
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
