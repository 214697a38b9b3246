"""What a query reads about its Kafka topics, with a scripted client; a real broker is used in `tests/services`."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage

from zset_join.core.errors import StateError
from zset_join.runners.spark.frames.classic.kafka_topics import KafkaTopics

KNOWN = {"orders": {"shop.orders": "id of the first"}}


class Cluster:
    """Replace the Java classes: a client for the topics that are present."""

    def __init__(self, topics: dict[str, str], *, has_client: bool = True) -> None:
        self.topics = topics
        self.configs: list[dict[str, str]] = []
        admin = SimpleNamespace(AdminClient=self if has_client else JavaPackage("AdminClient", None))
        kafka = SimpleNamespace(clients=SimpleNamespace(admin=admin))
        util = SimpleNamespace(ArrayList=Names, Properties=Properties)
        self.jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(kafka=kafka)), java=SimpleNamespace(util=util))

    def create(self, config: dict[str, str]) -> Cluster:
        self.configs.append(dict(config))
        return self

    def describeTopics(self, names: list[str]) -> Any:  # noqa: N802 - Java's name
        answers = {name: Answer(SimpleNamespace(topicId=lambda name=name: Id(self.topics[name]))) for name in names}
        return SimpleNamespace(topicNameValues=lambda: answers)

    def close(self) -> None:
        self.configs.clear()


class Names(list[str]):
    add = list.append


class Properties(dict[str, str]):
    setProperty = dict.__setitem__  # noqa: N815 - Java's name


class Id(str):
    toString = str.__str__  # noqa: N815 - Java's name


class Answer:
    def __init__(self, value: Any) -> None:
        self.get = lambda: value


def stream(cluster: Cluster, source: str = "kafka", **options: str) -> Any:
    """Return what a streaming DataFrame of one source shows of itself."""
    given = {"kafka.bootstrap.servers": "one:9092", "subscribe": "shop.orders", **options}
    leaf = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: "StreamingRelationV2"),
        sourceName=lambda: source,
        extraOptions=lambda: SimpleNamespace(asCaseSensitiveMap=lambda: given),
    )
    leaves = SimpleNamespace(size=lambda: 1, apply=[leaf].__getitem__)
    plan = SimpleNamespace(collectLeaves=lambda: leaves)
    frame = SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: plan))
    return SimpleNamespace(_jdf=frame, sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_gateway=cluster)))


def topics_of(cluster: Cluster, *args: Any, **options: Any) -> KafkaTopics:
    return KafkaTopics([("orders", stream(cluster, *args, **options))], "/data/checkpoint")


def test_the_ids_of_topics_are_kept_and_requested_with_the_options_of_the_stream() -> None:
    cluster = Cluster({"shop.orders": "id of the first"})
    topics = topics_of(cluster, **{"kafka.security.protocol": "SSL"})

    assert topics.start({}) == KNOWN
    assert topics.check_epoch(KNOWN) == KNOWN
    assert cluster.configs == [{"bootstrap.servers": "one:9092", "security.protocol": "SSL"}]


def test_a_topic_that_was_made_again_is_reported() -> None:
    topics = topics_of(Cluster({"shop.orders": "id of the second"}))

    with pytest.raises(StateError, match=r'"shop\.orders" was deleted and rebuilt') as reported:
        topics.check_epoch(KNOWN)

    assert reported.value.code == "SOURCE_LOST_ROWS"
    assert "/data/checkpoint" in reported.value.message


def test_a_stream_that_may_lose_records_and_other_sources_are_left_alone() -> None:
    cluster = Cluster({"shop.orders": "id of the second"})

    assert topics_of(cluster, failOnDataLoss="false").check_epoch(KNOWN) == KNOWN
    assert topics_of(cluster, "rate").check_epoch({}) == {}
    assert cluster.configs == []


def test_a_cluster_without_ids_is_not_compared() -> None:
    assert topics_of(Cluster({"shop.orders": "AAAAAAAAAAAAAAAAAAAAAA"})).check_epoch({}) == {}


def test_without_a_client_a_warning_reports_that_nobody_looks(caplog: pytest.LogCaptureFixture) -> None:
    topics = topics_of(Cluster({}, has_client=False))

    with caplog.at_level(logging.WARNING, logger="zset_join.kafka"):
        assert topics.start(KNOWN) == KNOWN

    assert "will not be noticed" in caplog.text
    assert topics.check_epoch(KNOWN) == KNOWN
