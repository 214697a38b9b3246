"""The Kafka topics that a query reads, by their ids: one that was rebuilt is reported, however many records it has.

Spark identifies a topic by its name and how far it has read. A topic that was deleted, rebuilt and filled again looks to it
like the old one: it continues in the middle of other records. Kafka gives every topic an id of its own that never comes again.

The law: an epoch is committed only while every topic it read has the id under which the query began to read it. The ids are
read when the query starts, and again behind the work of every epoch, so a topic that is exchanged meanwhile is noticed before
its records count. They are kept in the commit record, with the epoch.

The driver uses the Kafka client that Spark's connector brings, and with the options of the stream, so that servers and
rights are the same. Streams with `failOnDataLoss=false` are omitted: their user allows missing records.

Memory: one id per topic; one connection per set of options.

Cost: one request per epoch and connection, about a millisecond.

Limits: a Kafka older than 2.8 has no ids, and a platform may bring its Kafka client under another name; where the ids cannot be
read at the start a warning is logged, and the query continues without.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from zset_join.core.errors import StateError

__all__ = ["KafkaTopics"]

_log = logging.getLogger("zset_join.kafka")
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic of a Kafka without ids, as its client writes it: zero."""
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionException"
_TopicIds = Mapping[str, Mapping[str, str]]
"""Name of a stream to its topics, each with its id."""


class KafkaTopics:
    def __init__(self, streams: Sequence[tuple[str, DataFrame]], location: str) -> None:
        self._reads = [one for name, rows in streams for one in _reads(name, rows)]
        self._location = location
        self._gateway: Any = None if not streams else streams[0][1].sparkSession.sparkContext._gateway
        self._clients: dict[tuple[tuple[str, str], ...], Any] = {}

    def start(self, known: _TopicIds) -> _TopicIds:
        try:
            return self.check(known)
        except (Py4JJavaError, _NoClientError) as error:
            _log.warning(
                "the ids of the Kafka topics of %s cannot be read (%s); a topic that is deleted, rebuilt and filled again "
                "will not be noticed",
                self._location,
                _first_line(error),
            )
            self._reads = []
            return known

    def check_epoch(self, known: _TopicIds) -> _TopicIds:
        try:
            return self.check(known)
        except Py4JJavaError as error:
            raise StateError(
                f"Kafka does not report whether the topics of this query are still the same: {_first_line(error)}. Nothing was "
                "committed; check that the broker runs and start the query again: it continues with this epoch.",
                code="SOURCE_IO",
                location=self._location,
            ) from error

    def check(self, known: _TopicIds) -> _TopicIds:
        ids: dict[str, dict[str, str]] = {name: dict(topics) for name, topics in known.items()}
        for read in self._reads:
            before = known.get(read.stream, {})
            for topic, topic_id in self._ids(read, before).items():
                if topic in before and topic_id != before[topic]:
                    raise self._lost(topic, "was deleted and rebuilt" if topic_id else "is gone")
                if topic_id:
                    ids.setdefault(read.stream, {})[topic] = topic_id
        return ids

    def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _ids(self, read: _Read, known: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of a stream's topics; one that does not exist has none."""
        client = self._client(read)
        topics = {*known, *read.topics}
        if read.pattern is not None:
            pattern = self._gateway.jvm.java.util.regex.Pattern.compile(read.pattern)
            topics |= {name for name in map(str, client.listTopics().names().get()) if pattern.matcher(name).matches()}
        names = self._gateway.jvm.java.util.ArrayList()
        for topic in sorted(topics):
            names.add(topic)
        answers = client.describeTopics(names).topicNameValues()
        ids = {}
        for topic in sorted(topics):
            try:
                topic_id = str(answers.get(topic).get().topicId().toString())
            except Py4JJavaError as error:
                if _UNKNOWN_TOPIC not in str(error.java_exception):
                    raise
                topic_id = ""
            if topic_id != _NO_ID:
                ids[topic] = topic_id
        return ids

    def _client(self, read: _Read) -> Any:
        key = tuple(sorted(read.config.items()))
        if key not in self._clients:
            kind = self._gateway.jvm.org.apache.kafka.clients.admin.AdminClient
            if isinstance(kind, JavaPackage):
                raise _NoClientError("there is no org.apache.kafka.clients.admin.AdminClient")
            config = self._gateway.jvm.java.util.Properties()
            for name, value in read.config.items():
                config.setProperty(name, value)
            self._clients[key] = kind.create(config)
        return self._clients[key]

    def _lost(self, topic: str, what: str) -> StateError:
        return StateError(
            f'Kafka topic "{topic}" {what}: it is not the topic that the query has read. Nothing was committed, and the '
            f"missing records cannot be read any more: start over with a new checkpointLocation (this one is {self._location}) "
            "and a new output. The option failOnDataLoss=false would continue where the old topic ended, and the output "
            "would be wrong.",
            code="SOURCE_LOST_ROWS",
            location=self._location,
            topic=topic,
        )


class _NoClientError(Exception):
    """There is no Kafka client under its usual name."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """Topics that a stream reads."""

    stream: str
    config: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None


def _reads(name: str, rows: DataFrame) -> list[_Read]:
    """Return the topics that a stream reads and must not lose."""
    leaves: Any = rows._jdf.queryExecution().analyzed().collectLeaves()
    reads = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if str(leaf.getClass().getSimpleName()) != "StreamingRelationV2" or str(leaf.sourceName()).lower() != "kafka":
            continue
        given = {str(option): str(value) for option, value in leaf.extraOptions().asCaseSensitiveMap().items()}
        lower = {option.lower(): value for option, value in given.items()}
        if lower.get("failondataloss", "true").lower() != "false":
            config = {option[6:]: value for option, value in given.items() if option.lower().startswith("kafka.")}
            topics = [*lower.get("subscribe", "").split(","), *json.loads(lower.get("assign", "{}"))]
            named = tuple(topic.strip() for topic in topics if topic.strip())
            reads.append(_Read(stream=name, config=config, topics=named, pattern=lower.get("subscribepattern")))
    return reads


def _first_line(error: Exception) -> str:
    message = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return message.splitlines()[0]
