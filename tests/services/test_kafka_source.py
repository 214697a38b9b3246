"""A pipeline reads a topic of a real Kafka from its position, and reports lost records."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.services.restored_broker import restored_broker
from tools.servers.kafka_broker import KafkaBroker
from zset_join.core.errors import StateError
from zset_join.sources.kafka import RECORD_SCHEMA, KafkaSource

_numbers = itertools.count()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"records-{next(_numbers)}"
    kafka.create_topic(name)
    return name


def write(kafka: KafkaBroker, topic: str, *values: str, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0, **config})
    for value in values:
        producer.produce(topic, value.encode(), b"k")
    assert producer.flush(60) == 0


def opened(kafka: KafkaBroker, topic: str, position: Any = None) -> KafkaSource:
    source = KafkaSource({"bootstrap.servers": kafka.servers}, topic)
    source.open(position)
    return source


def values(source: KafkaSource, most_rows: int = 1000) -> tuple[list[str], Any]:
    table, position = source.poll(most_rows=most_rows, wait_seconds=5)
    assert table.schema == RECORD_SCHEMA
    return [value.decode() for value in table.column("value").to_pylist()], position


def test_records_come_from_the_beginning_and_then_from_a_position(kafka: KafkaBroker, topic: str) -> None:
    write(kafka, topic, "a", "b", "c")
    source = opened(kafka, topic)

    first, position = values(source, most_rows=2)
    source.close()
    again = opened(kafka, topic, position)
    rest, _ = values(again, most_rows=1)
    again.close()

    assert (first, rest) == (["a", "b"], ["c"])


def test_records_of_an_aborted_transaction_are_not_read(kafka: KafkaBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    for value, is_kept in (("gone", False), ("kept", True)):
        producer.begin_transaction()
        producer.produce(topic, value.encode())
        producer.flush(60)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(60)

    source = opened(kafka, topic)
    assert values(source, most_rows=1)[0] == ["kept"]
    source.close()


def test_a_partition_that_a_topic_gets_while_it_is_read_is_read_from_its_beginning(kafka: KafkaBroker, topic: str) -> None:
    write(kafka, topic, "a")
    source = KafkaSource({"bootstrap.servers": kafka.servers}, topic, partitions_every_seconds=0)
    source.open(None)
    first = values(source, most_rows=1)[0]
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)

    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
    producer.produce(topic, b"b", partition=1)
    assert producer.flush(60) == 0
    second, position = values(source, most_rows=1)
    source.close()

    assert (first, second) == (["a"], ["b"])
    assert position["next"] == {"0": 1, "1": 1}


def test_records_that_retention_removed_are_reported(kafka: KafkaBroker, topic: str) -> None:
    write(kafka, topic, "a", "b", "c")
    source = opened(kafka, topic)
    _, position = values(source, most_rows=1)
    source.close()
    kafka.delete_records(topic, before=2)

    with pytest.raises(StateError, match="retention removed records") as lost:
        opened(kafka, topic, position)

    assert lost.value.code == "SOURCE_LOST_ROWS"


def test_a_topic_that_was_made_again_is_reported(kafka: KafkaBroker, topic: str) -> None:
    write(kafka, topic, "a")
    source = opened(kafka, topic)
    _, position = values(source)
    source.close()
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.delete_topics([topic])[topic].result(60)
    kafka.create_topic(topic)

    with pytest.raises(StateError, match="deleted and rebuilt"):
        opened(kafka, topic, position)


def test_a_topic_that_ends_before_the_position_is_reported(kafka: KafkaBroker, topic: str) -> None:
    write(kafka, topic, "a")
    source = opened(kafka, topic)
    _, position = values(source)
    source.close()

    with pytest.raises(StateError, match="ends at offset 1"):
        opened(kafka, topic, {**position, "next": {"0": 5}})


def test_a_log_that_was_cut_and_has_grown_past_the_position_under_another_leader_is_reported(tmp_path: Path) -> None:
    with restored_broker(tmp_path / "kafka") as broker:
        broker.kafka.create_topic("orders")
        write(broker.kafka, "orders", "a", "b")
        source = opened(broker.kafka, "orders")
        position = values(source, most_rows=2)[1]
        source.close()
        broker.restart()
        write(broker.kafka, "orders", "x", "y", "z")
        assert values(opened(broker.kafka, "orders", position), most_rows=3)[0] == ["x", "y", "z"]

        # It had read two records more of the first leader, which were lost with it.
        source = opened(broker.kafka, "orders", {**position, "next": {"0": 4}})
        with pytest.raises(StateError, match="has lost records") as lost:
            source.poll(most_rows=1, wait_seconds=60)
        source.close()

    assert lost.value.code == "SOURCE_LOST_ROWS"


def test_a_topic_that_is_not_there_is_reported(kafka: KafkaBroker) -> None:
    with pytest.raises(StateError) as refused:
        opened(kafka, "nowhere")

    assert refused.value.code == "SOURCE_MISSING"
