"""How long does a row take from one Kafka topic through a join into another?

    python -m benchmarks.kafka_latency [--rows 1000] [--per-second 40]

    orders (topic) JOIN customers -> topic

Every contestant is given the same orders at the same rate from the same broker, and answers into a topic of its own; a consumer
compares its clock with the time that the producer wrote into the order. From produce to consume, so polling, epoch, commit and
the consumer's fetch are in it.

- `in process`: a `Pipeline` with its directory, `run(trigger_seconds=0.02)`, customers changing, a transaction per epoch;
- `inside Spark`: the same join with `trigger(processingTime="0 seconds")`, `local[2]`, customers a changing table;
- `Spark, stream-static`: Spark's own join of the stream with a DataFrame that does not change, its own Kafka sink, no state, no
  transactions: not the same guarantee, the least that Spark can take.

The consumer reads committed records only. The first rows are a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.machine import describe_machine, versions
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.maven_jars import SPARK_KAFKA, jars_of

CUSTOMERS = 1_000
ORDERS_SCHEMA = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "sent_ns": pa.int64()})
CUSTOMERS_SCHEMA = pa.schema({"customer_id": pa.int64(), "name": pa.string()})


def send_customers(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(CUSTOMERS):
        row = {"customer_id": number, "name": f"c{number}"}
        producer.produce("customers", json.dumps(row), json.dumps({"customer_id": number}))
    producer.flush(30)


def send_orders(servers: str, topic: str, count: int, per_second: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    started = time.monotonic()
    for number in range(count):
        ahead = number / per_second - (time.monotonic() - started)
        if ahead > 0:
            time.sleep(ahead)
        row = {"order_id": number, "customer_id": number % CUSTOMERS, "sent_ns": time.time_ns()}
        producer.produce(topic, json.dumps(row), json.dumps({"order_id": number}))
        producer.poll(0)
    producer.flush(30)


def latencies_ms(servers: str, topic: str, count: int, limit_seconds: float) -> np.ndarray:
    """Return what the rows of a topic took, in the order in which they came."""
    config = {"bootstrap.servers": servers, "group.id": "latency", "isolation.level": "read_committed", "fetch.wait.max.ms": 5}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[float] = []
    until = time.monotonic() + limit_seconds
    try:
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append((time.time_ns() - json.loads(message.value())["sent_ns"]) / 1e6)
    finally:
        consumer.close()
    if len(found) < count:
        raise RuntimeError(f"{topic}: {len(found)} of {count} rows came within {limit_seconds:.0f} s")
    return np.array(found)


@contextlib.contextmanager
def in_process(servers: str, orders: str, answers: str, directory: Path) -> Iterator[None]:
    from zset_join.pipeline import Pipeline, records, run
    from zset_join.sinks.kafka_topic import KafkaTopicSink
    from zset_join.sources.kafka import KafkaSource

    kafka = {"bootstrap.servers": servers}
    view = records("orders", "upsert-json", ORDERS_SCHEMA, keys="order_id").join(
        records("customers", "upsert-json", CUSTOMERS_SCHEMA, keys="customer_id"), on="customer_id"
    )
    stopping = threading.Event()
    sink = KafkaTopicSink(kafka, answers, key=["order_id"])
    pipeline = Pipeline(view, directory, keep_view=False, outputs=[sink])
    sources = {"orders": KafkaSource(kafka, orders), "customers": KafkaSource(kafka, "customers")}
    thread = threading.Thread(target=lambda: run(pipeline, sources, trigger_seconds=0.02, stop=stopping.is_set))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(60)
        pipeline.close()


def spark_session() -> Any:
    from zset_join.spark import local_session

    jars = sorted(str(path) for path in jars_of(SPARK_KAFKA, with_dependencies=False).glob("*.jar"))
    session = local_session("latency", cores=2, options={"spark.jars": ",".join(jars), "spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    return session


def topic_stream(session: Any, servers: str, topic: str, *, streaming: bool = True) -> Any:
    reader = session.readStream if streaming else session.read
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).load()


@contextlib.contextmanager
def inside_spark(servers: str, orders: str, answers: str, directory: Path) -> Iterator[None]:
    from zset_join.spark import changes

    session = spark_session()

    def table(topic: str, name: str, schema: pa.Schema, key: str) -> Any:
        return changes(topic_stream(session, servers, topic), format="upsert-json", name=name, schema=schema, keys=[key])

    joined = table(orders, "orders", ORDERS_SCHEMA, "order_id").join(
        table("customers", "customers", CUSTOMERS_SCHEMA, "customer_id"), on="customer_id"
    )
    writer = joined.writeStream.option("checkpointLocation", str(directory)).option("buckets", 2)
    query = (
        writer.trigger(processingTime="0 seconds").toKafka({"bootstrap.servers": servers}, answers, key=["order_id"]).start()
    )
    try:
        yield
    finally:
        query.stop()


@contextlib.contextmanager
def stream_static(servers: str, orders: str, answers: str, directory: Path) -> Iterator[None]:
    session = spark_session()
    texts = "CAST(value AS STRING) AS value"
    rows = topic_stream(session, servers, orders).selectExpr(texts)
    rows = rows.selectExpr("from_json(value, 'order_id long, customer_id long, sent_ns long') AS r").select("r.*")
    static = topic_stream(session, servers, "customers", streaming=False).selectExpr(texts)
    static = static.selectExpr("from_json(value, 'customer_id long, name string') AS r").select("r.*").cache()
    static.count()
    joined = rows.join(static, "customer_id")
    writer = joined.selectExpr("CAST(order_id AS STRING) AS key", "to_json(struct(*)) AS value").writeStream.format("kafka")
    writer = writer.options(**{"kafka.bootstrap.servers": servers, "topic": answers, "checkpointLocation": str(directory)})
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        yield
    finally:
        query.stop()


CONTESTANTS: dict[str, Callable[..., Any]] = {
    "in process": in_process,
    "inside Spark": inside_spark,
    "Spark, stream-static": stream_static,
}


def measure(name: str, broker: KafkaBroker, directory: Path, count: int, warm_up: int, per_second: float) -> np.ndarray:
    orders, answers = (f"{what}-{name.replace(' ', '-').replace(',', '')}" for what in ("orders", "answers"))
    broker.create_topic(orders)
    broker.create_topic(answers)
    sending = threading.Thread(target=send_orders, args=(broker.servers, orders, warm_up + count, per_second))
    with CONTESTANTS[name](broker.servers, orders, answers, directory / orders):
        sending.start()
        found = latencies_ms(broker.servers, answers, warm_up + count, 120 + (warm_up + count) / per_second)
        sending.join()
    return found[warm_up:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--warm-up", type=int, default=600)
    parser.add_argument("--per-second", type=float, default=40.0)
    options = parser.parse_args()
    print(describe_machine(), versions())
    with tempfile.TemporaryDirectory(prefix="latency-") as made:
        broker = KafkaBroker(Path(made) / "kafka").start()
        try:
            broker.create_topic("customers")
            send_customers(broker.servers)
            print(f"{options.rows} rows after {options.warm_up}, {options.per_second:.0f} per second; milliseconds")
            print(f"{'':24} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}")
            for name in CONTESTANTS:
                found = measure(name, broker, Path(made), options.rows, options.warm_up, options.per_second)
                p50, p90, p99 = np.percentile(found, [50, 90, 99])
                print(f"{name:24} {p50:8.0f} {p90:8.0f} {p99:8.0f} {found.max():8.0f}", flush=True)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
