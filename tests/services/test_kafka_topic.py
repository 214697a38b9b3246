"""A topic of a real Kafka carries every answer exactly once, whatever is retried."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.pipeline.test_durable_changes import BY_CITY, LARGE, MORE, ROWS, held
from tools.servers.kafka_broker import KafkaBroker
from zset_join.changelog import RecordForm
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.pipeline import Pipeline
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.unfit_values import fitting
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
ANSWER = Relation(name="answer", schema=SCHEMA, primary_key=("id",), mode="changelog")
_numbers = itertools.count()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = f"answers-{next(_numbers)}"
    kafka.create_topic(name)
    return name


def changes(*lines: tuple[int, str | None, int]) -> list[ZSet]:
    rows = {"id": [line[0] for line in lines], "v": [line[1] for line in lines]}
    return [ZSet.of(rows, [line[2] for line in lines], schema=SCHEMA)]


def opened(kafka: KafkaBroker, topic: str, form: RecordForm = "upsert", query_id: str = "q", **options: Any) -> KafkaTopicSink:
    sink = KafkaTopicSink({"bootstrap.servers": kafka.servers}, topic, form, retry_seconds=20, **options)
    sink.open(ANSWER, query_id)
    return sink


def committed(kafka: KafkaBroker, topic: str) -> list[tuple[Any, Any]]:
    """Return key and value of every committed record, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[Any, Any]] = []
        while True:
            message: Message | None = consumer.poll(20.0)
            assert message is not None, "the broker does not answer"
            if message.error() is not None:
                return found
            key, value = message.key(), message.value()
            found.append((key and json.loads(key), value and json.loads(value)))
    finally:
        consumer.close()


def test_upserts_leave_the_newest_row_of_every_key_and_nothing_where_it_is_gone(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)

    sink.write(0, changes((1, "a", 1), (2, "b", 1)))
    sink.write(1, changes((1, "a", -1), (1, "c", 1), (2, "b", -1)))
    sink.close()

    assert {key["id"]: value for key, value in committed(kafka, topic)} == {1: {"id": 1, "v": "c"}, 2: None}


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("weight", [{"id": 1, "v": "a", "_weight": -1}, {"id": 1, "v": None, "_weight": 1}]),
        ("row_kind", [{"id": 1, "v": "a", "_row_kind": "-U"}, {"id": 1, "v": None, "_row_kind": "+U"}]),
        ("debezium", [{"before": {"id": 1, "v": "a"}, "after": {"id": 1, "v": None}, "op": "u"}]),
    ],
)
def test_every_form_shows_what_an_update_did(kafka: KafkaBroker, topic: str, form: RecordForm, values: list[Any]) -> None:
    sink = opened(kafka, topic, form)
    sink.write(0, changes((1, "a", 1)))

    sink.write(1, changes((1, "a", -1), (1, None, 1)))
    sink.close()

    assert [value for _, value in committed(kafka, topic)][1:] == values


def test_an_epoch_that_comes_again_writes_nothing(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)
    sink.write(0, changes((1, "a", 1)))
    sink.close()

    again = opened(kafka, topic)

    assert again.last_epoch() == 0
    assert again.write(0, changes((1, "a", 1))).replayed
    again.write(1, [])
    again.close()
    assert len(committed(kafka, topic)) == 1


def test_an_epoch_that_fails_half_way_is_not_seen(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)

    def breaking(producer: Any, name: str, key: str, value: str | None) -> None:
        producer.produce(topic, b"half", b"half")
        raise KeyboardInterrupt

    sink._produce = breaking  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sink.write(0, changes((1, "a", 1), (2, "b", 1)))
    del sink._produce  # type: ignore[attr-defined]

    sink.write(0, changes((1, "a", 1)))
    sink.close()
    assert committed(kafka, topic) == [({"id": 1}, {"id": 1, "v": "a"})]


def test_a_driver_that_starts_fences_off_the_one_before(kafka: KafkaBroker, topic: str) -> None:
    first = opened(kafka, topic)
    first.write(0, changes((1, "a", 1)))
    second = opened(kafka, topic)

    with pytest.raises(SinkError, match="could not be written in epoch 1") as fenced:
        first.write(1, changes((2, "b", 1)))

    assert isinstance(fenced.value.__cause__, KafkaException)
    second.write(1, changes((2, "c", 1)))
    second.close()
    first.close()
    assert [value["v"] for _, value in committed(kafka, topic)] == ["a", "c"]


def test_the_topic_of_another_query_is_refused(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)
    sink.write(0, changes((1, "a", 1)))
    sink.close()

    with pytest.raises(SinkError, match="belongs to query") as refused:
        opened(kafka, topic, query_id="another")

    assert refused.value.code == "SINK_QUERY_ID"


def test_another_form_is_refused(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)
    sink.write(0, changes((1, "a", 1)))
    sink.close()

    with pytest.raises(SinkError, match=r"was made with form=.upsert."):
        opened(kafka, topic, "weight")


def test_a_topic_that_is_not_there_is_reported(kafka: KafkaBroker) -> None:
    with pytest.raises(SinkError, match="does not exist"):
        opened(kafka, "nowhere")


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka")).start()
    try:
        yield broker
    finally:
        broker.stop()


def test_a_broker_that_was_killed_and_started_again_holds_what_was_committed(own_broker: KafkaBroker) -> None:
    own_broker.create_topic("t")
    sink = opened(own_broker, "t")
    sink.write(0, changes((1, "a", 1)))

    own_broker.kill()
    own_broker.start()
    sink.write(1, changes((2, "b", 1)))
    sink.close()

    again = opened(own_broker, "t")
    assert again.last_epoch() == 1
    again.close()
    assert [value["v"] for _, value in committed(own_broker, "t")] == ["a", "b"]


def test_an_epoch_of_another_chain_is_refused(kafka: KafkaBroker, topic: str) -> None:
    sink = opened(kafka, topic)
    sink.write(0, changes((1, "a", 1)), link=ChainLink("d0"))
    sink.write(1, [], link=ChainLink("d1", "d0"))
    sink.close()
    sink = opened(kafka, topic)

    assert sink.write(1, [], link=ChainLink("d1", "d0")).replayed
    with pytest.raises(SinkError, match="another one") as refused:
        sink.write(2, changes((2, "b", 1)), link=ChainLink("d2", "other"))
    sink.close()

    assert refused.value.code == "SINK_OTHER_CHAIN"


def test_a_record_larger_than_the_topic_takes_does_not_fit_and_small_ones_are_not_joined_beyond_it(kafka: KafkaBroker) -> None:
    kafka.create_topic("small", max_message_bytes=10_000)
    answer = changes((1, "x" * 4_000, 1), (2, "y" * 20_000, 1), (3, "z" * 4_000, 1), (4, "w" * 4_000, 1))
    sink = opened(kafka, "small")

    with pytest.raises(SinkError, match="more than 10000 bytes") as refused:
        fitting(sink, answer[0], drops=False, epoch=0)
    sink.write(0, [fitting(sink, answer[0], drops=True, epoch=0)])
    sink.close()

    assert refused.value.code == "SINK_VALUE"
    assert [key["id"] for key, _ in committed(kafka, "small") if key is not None] == [1, 3, 4]


def test_where_the_configuration_of_a_topic_may_not_be_read_that_is_logged(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Denied:
        def result(self) -> None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(AdminClient, "describe_configs", lambda _self, requested, **_: {requested[0]: Denied()})

    opened(kafka, topic).close()

    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


class Dying:
    """A producer whose process dies before one of its calls: of a broker's view it is silent from there on."""

    def __init__(self, inner: Any, left: int) -> None:
        self.inner, self.left = inner, left

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any) -> Any:
            if self.left <= 0:
                if name in ("purge", "flush", "abort_transaction"):
                    return None
                raise KeyboardInterrupt
            self.left -= 1
            return getattr(self.inner, name)(*given)

        return called


def test_a_kill_at_any_call_of_a_change_leaves_the_topic_of_one_query_or_the_other(kafka: KafkaBroker, tmp_path: Path) -> None:
    number, was_killed = 0, True
    while was_killed:
        kafka.create_topic(name := f"changed-{number}-{next(_numbers)}")

        def sink(name: str = name) -> KafkaTopicSink:
            return KafkaTopicSink({"bootstrap.servers": kafka.servers}, name, "weight", retry_seconds=20)

        def total(name: str = name) -> Counter[Any]:
            found = Counter[Any]()
            for _, value in committed(kafka, name):
                found[tuple(value.values())[:-1]] += value["_weight"]
            return Counter({row: weight for row, weight in found.items() if weight})

        first, place = sink(), tmp_path / str(number)
        with Pipeline(BY_CITY, place, outputs=[first]) as pipeline:
            pipeline.step(ROWS)
            first._producer = Dying(first._producer, number)  # type: ignore[assignment]
            was_killed = False
            try:
                pipeline.evolve(LARGE)
            except KeyboardInterrupt:
                was_killed = True
        has_changed = bool(diff_of_checkpoint(place, BY_CITY).rebuilt)
        with Pipeline(LARGE if has_changed else BY_CITY, place, outputs=[sink()]) as again:
            assert (number, total()) == (number, Counter(held(again)))
            again.step(MORE)
            assert (number, total()) == (number, Counter(held(again)))
        number += 1

    assert number > 3
