"""The ids of the Kafka topics that a query reads, where a JVM beside this process can read them; nothing else elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import DataFrame

__all__ = ["TopicIds", "Topics", "topics_of"]

TopicIds = Mapping[str, Mapping[str, str]]
"""Name of a stream to its topics, each with its id."""


class NamedRows(Protocol):
    """A stream of a query."""

    @property
    def name(self) -> str: ...

    @property
    def dataframe(self) -> DataFrame: ...


class Topics(Protocol):
    """Compare ids; see `classic.kafka_topics`."""

    def start(self, known: TopicIds) -> TopicIds:
        """Return the ids at the start of a query."""

    def check_epoch(self, known: TopicIds) -> TopicIds:
        """Return the ids behind the work of an epoch."""

    def close(self) -> None: ...


class _NoTopics:
    """Compare nothing: a client of Spark Connect has no Kafka client beside it."""

    def start(self, known: TopicIds) -> TopicIds:
        return known

    def check_epoch(self, known: TopicIds) -> TopicIds:
        return known

    def close(self) -> None:
        pass


def topics_of(streams: Sequence[NamedRows], location: str, *, is_served: bool) -> Topics:
    if is_served:
        return _NoTopics()
    from zset_join.runners.spark.frames.classic.kafka_topics import KafkaTopics

    return KafkaTopics([(stream.name, stream.dataframe) for stream in streams], location)
