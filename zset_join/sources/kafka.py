"""Records of a Kafka topic, for a pipeline in process.

The law: as `Source`. The position is the next offset of every partition, the leader epoch of the record before it, and the id
of the topic; nothing is committed to Kafka, so only the pipeline's checkpoint has what was taken. Only committed records are
read.

Loss is reported, never skipped: a topic whose records before the position were removed by retention, that ends before the
position, that was rebuilt, or whose log was cut before the position and has grown again since (the broker keeps where each
leader epoch ended), stops the pipeline.

Within a partition records arrive in the order of their offsets; those of several partitions come in the order of partitions per
call. Partitions that a topic gets while it is read are noticed, and read from their beginning.

Memory: the records of one call.

Limits: a broker that was set back to an older state, and then leads in an epoch of the same number again, looks like the old
one once it has grown past the position. The client gives one Python object per record, whose parts are put into columns here;
from there on nothing looks at single records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError, StateError
from zset_join.core.extras import needed_for

with needed_for("a Kafka source"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient

__all__ = ["RECORD_SCHEMA", "KafkaSource"]

RECORD_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
    }
)
_AT_ONCE = 10_000
_LATER_SECONDS = 5.0  # the client's own timeout comes first and has the reason
_LOOKS_WITHIN_SECONDS = 5.0
_log = logging.getLogger("zset_join.sources")


class KafkaSource:
    """Read a topic from its beginning, or from a pipeline's position.

    Args:
        config: of librdkafka; at least `bootstrap.servers`. It is never shown.
        topic: the topic.
        retry_seconds: how long a broker that does not answer is waited for.
        partitions_every_seconds: how often the broker is requested partitions that are new; one round trip each.

    Raises:
        OptionError: no bootstrap.servers, or no topic.
    """

    def __init__(
        self, config: Mapping[str, Any], topic: str, *, retry_seconds: float = 60.0, partitions_every_seconds: float = 30.0
    ) -> None:
        if "bootstrap.servers" not in config or not topic:
            raise OptionError(
                f"KafkaSource({sorted(config)}, topic={topic!r}): config names bootstrap.servers, and a topic has a name.",
                code="SOURCE_OPTION",
                topic=topic,
            )
        self.topic = topic
        self._config = {"log_level": 0, **config}
        self._retry_seconds = retry_seconds
        self._partitions_every_seconds = partitions_every_seconds
        self._partitions_read_at = 0.0
        self._consumer: Consumer | None = None
        self._next: dict[int, int] = {}
        self._leader_epochs: dict[int, int] = {}
        self._id = ""

    def __repr__(self) -> str:
        return f"KafkaSource({self.topic!r})"

    def open(self, position: Any) -> None:
        self.close()
        config = {
            **self._config,
            "group.id": f"zset_join-{self.topic}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
        self._consumer = Consumer(config)
        try:
            self._id, partitions = self._described()
            wanted = {} if position is None else {int(number): int(at) for number, at in position["next"].items()}
            if position is not None and position["id"] != self._id:
                raise self._lost("was deleted and rebuilt", position["id"])
            epochs = {} if position is None else position.get("leader_epochs", {})
            self._leader_epochs = {int(number): int(epoch) for number, epoch in epochs.items()}
            # First of all, for the client compares leader epochs only of partitions it has not fetched from.
            self._consumer.assign([self._place(number, at) for number, at in wanted.items() if number in partitions])
            self._next = {number: self._start(number, wanted.get(number)) for number in partitions}
            self._partitions_read_at = monotonic()
            if self._next.keys() - wanted.keys():
                self._assign_all()
        except KafkaException as error:
            self.close()
            raise self._failed(error) from error
        except StateError:
            self.close()
            raise

    def poll(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        consumer = self._connected()
        messages: list[Message] = []
        until = monotonic() + wait_seconds
        try:
            if monotonic() >= self._partitions_read_at + self._partitions_every_seconds:
                self._take_new_partitions()
            while len(messages) < most_rows:
                batch = consumer.consume(min(_AT_ONCE, most_rows - len(messages)), max(0.0, until - monotonic()))
                for message in batch:
                    error = message.error()
                    if error is not None:
                        raise KafkaException(error)
                messages += batch
                if not batch or monotonic() >= until:
                    break
        except KafkaException as error:
            code = error.args[0].code()
            if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise self._lost("has lost records that were not read yet", self._id) from error
            raise self._failed(error) from error
        messages.sort(key=lambda message: (message.partition(), message.offset()))
        for message in messages:
            partition, leader_epoch = _number(message.partition()), message.leader_epoch()
            self._next[partition] = _number(message.offset()) + 1
            if leader_epoch is not None:
                self._leader_epochs[partition] = leader_epoch
        return _table(messages), {
            "id": self._id,
            "next": {str(number): at for number, at in self._next.items()},
            "leader_epochs": {str(number): epoch for number, epoch in self._leader_epochs.items()},
        }

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _connected(self) -> Consumer:
        if self._consumer is None:
            raise StateError(
                f'Kafka topic "{self.topic}" is not open; call open first.', code="SOURCE_CLOSED", topic=self.topic
            )
        return self._consumer

    def _described(self) -> tuple[str, list[int]]:
        admin = AdminClient(self._config)
        descriptions = admin.describe_topics(TopicCollection([self.topic]), request_timeout=self._retry_seconds)
        try:
            topic = descriptions[self.topic].result(self._retry_seconds + _LATER_SECONDS)
        except TimeoutError as error:
            raise self._failed(KafkaException(KafkaError(KafkaError._TIMED_OUT))) from error
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise StateError(
                    f'Kafka topic "{self.topic}" does not exist. Create it, or correct the name.',
                    code="SOURCE_MISSING",
                    topic=self.topic,
                ) from error
            raise
        return str(topic.topic_id), sorted(partition.id for partition in topic.partitions)

    def _take_new_partitions(self) -> None:
        """Begin to read partitions that the topic has got; a broker that does not answer is tried again later."""
        self._partitions_read_at = monotonic()
        wait_seconds = min(_LOOKS_WITHIN_SECONDS, self._retry_seconds)
        try:
            topic = self._connected().list_topics(self.topic, wait_seconds).topics[self.topic]
        except KafkaException as error:
            _log.warning("the partitions of Kafka topic %s cannot be requested now: %s", self.topic, error.args[0].str())
            return
        come = sorted(topic.partitions.keys() - self._next.keys())
        if come:
            _log.info("Kafka topic %s has new partitions %s", self.topic, come)
            self._next |= {number: self._start(number, None) for number in come}
            self._assign_all()

    def _assign_all(self) -> None:
        self._connected().assign([self._place(number, at) for number, at in self._next.items()])

    def _place(self, number: int, offset: int) -> TopicPartition:
        epoch = self._leader_epochs.get(number)
        if epoch is None:
            return TopicPartition(self.topic, number, offset)
        return TopicPartition(self.topic, number, offset, leader_epoch=epoch)

    def _start(self, number: int, wanted: int | None) -> int:
        low, high = self._connected().get_watermark_offsets(TopicPartition(self.topic, number), self._retry_seconds)
        if wanted is None:
            return low
        if wanted > high:
            raise self._lost(f"ends at offset {high} of partition {number}, before", wanted)
        if wanted < low:
            raise self._lost(f"begins at offset {low} of partition {number} by now: retention removed records after", wanted)
        return wanted

    def _lost(self, what: str, position: Any) -> StateError:
        return StateError(
            f'Kafka topic "{self.topic}" {what} (the pipeline is at {position}). The missing records cannot be read any more: '
            "start over from a complete topic with a new directory and output, and give the topic a longer retention.",
            code="SOURCE_LOST_ROWS",
            topic=self.topic,
            position=position,
        )

    def _failed(self, error: KafkaException) -> StateError:
        reason = error.args[0]
        return StateError(
            f'Kafka topic "{self.topic}" at {self._config["bootstrap.servers"]} cannot be read: {reason.str()} '
            f"({reason.name()}). Check that the broker runs, and the "
            "rights of the user; the pipeline resumes from its position.",
            code="SOURCE_IO",
            topic=self.topic,
            kafka=reason.name(),
        )


def _number(given: int | None) -> int:
    if given is None:
        raise TypeError("a record that was read has a partition and an offset")
    return given


def _table(messages: list[Message]) -> pa.Table:
    columns = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.timestamp()[1] for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RECORD_SCHEMA)
