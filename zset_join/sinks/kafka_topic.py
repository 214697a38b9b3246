"""A Kafka topic that carries every change of an answer, or the newest row of every key.

The law: a reader with `isolation.level=read_committed` sees the answers of all epochs up to the last one, each exactly once
and whole, whatever was retried, replayed or killed on the way.

One Kafka transaction writes the records of an epoch and one record on the topic `<topic>.zset_join.epochs`, with the
query and the epoch: so what was written and how far it goes are one thing. The transactional id names query and topic, so a
driver that starts fences off one that is still alive.

Forms: `upsert` (the record key is the key of the row as JSON, the value the row, or nothing where the key is gone: what a
compacted topic keeps is the view), `weight`, `row_kind` and `change_data_feed` (every change, with fields of what it
does), `debezium` (envelopes with `before`, `after` and `op`), `append` (rows alone).
Without a key column the record key is the whole row. See `zset_join.sinks.record_texts`.

Memory: the answer of one epoch, and its texts. Cost: one JSON text per record and one call of Kafka's client.

Limits: a record is at most as long as `message.max.bytes` of `config` (1,000,000) and the `max.message.bytes` that the topic
has when the sink is opened, both before compression; a row whose record may be longer never fits (see `unfit`). Where the user
may not read the topic's configuration, that is logged, and the broker finds such a record after the commit. A transaction
lasts at most `transaction_timeout_seconds`. Kafka keeps changes as long as the topic is set to; a topic in `upsert` form
should be compacted. The topic is not made here; the topic of the epochs is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, get_args

import pyarrow as pa
from typing_extensions import override

from zset_join.changelog import RecordForm, encoded_schema
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_sink import EpochSink, Position, check_layout, check_names, given_key
from zset_join.sinks.record_texts import RECORD_FORMS, RecordWriter
from zset_join.sinks.sink import StoredEpochs, marks_of, newest_digests
from zset_join.sinks.unfit_values import UnfitRows
from zset_join.zset import ZSet

with needed_for("a Kafka output"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.cimpl import NewTopic

__all__ = ["KafkaTopicSink", "stored_epochs"]

_EPOCHS_SUFFIX = ".zset_join.epochs"
_ATTEMPTS = 5
_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_log = logging.getLogger("zset_join.sinks")
_CLIENT_MESSAGE_BYTES = 1_000_000
"""librdkafka's default of `message.max.bytes`."""


class KafkaTopicSink(EpochSink):
    """Write every answer to a Kafka topic, one transaction per epoch.

    Args:
        config: of librdkafka; at least `bootstrap.servers`. It is never shown.
        topic: an existing topic.
        form: see the module.
        key: columns that identify a row; default: the primary key of the output relation. `upsert` needs one.
        transaction_timeout_seconds: the most that writing an epoch may take.
        retry_seconds: how long a broker that does not answer is waited for.

    Raises:
        OptionError: an argument that is not allowed.
    """

    _errors = (KafkaException, TimeoutError)

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        form: RecordForm = "upsert",
        key: Sequence[str] | None = None,
        *,
        transaction_timeout_seconds: int = 300,
        retry_seconds: int = 60,
    ) -> None:
        if form not in get_args(RecordForm) or not topic or "bootstrap.servers" not in config:
            raise OptionError(
                f"topic={topic!r}, form={form!r}, config with {sorted(config)}: a topic has a name, a form is one of "
                f"{', '.join(get_args(RecordForm))}, and config names bootstrap.servers.",
                code="SINK_OPTION",
                topic=topic,
                form=form,
            )
        self.topic = topic
        self.form: RecordForm = form
        self.key = given_key(key)
        self._config = {"log_level": 0, **config}
        self._client_bytes = self._most_bytes = int(config.get("message.max.bytes", _CLIENT_MESSAGE_BYTES))
        self._timeout_seconds = transaction_timeout_seconds
        self._retry_seconds = retry_seconds
        self._last_epoch: int | None = None
        self._digests: dict[int, str] = {}
        self._producer: Producer | None = None
        self._writer: RecordWriter | None = None

    def __repr__(self) -> str:
        return f"KafkaTopicSink({self.topic!r}, form={self.form!r}, key={self.key!r})"

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        writer = self._writer
        return () if writer is None else [*writer.unfit(rows), *writer.oversized(rows, self._most_bytes)]

    @override
    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        super().close()

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    @override
    def _described(self) -> str:
        return f'Kafka topic "{self.topic}"'

    @property
    def _epochs(self) -> str:
        return f"{self.topic}{_EPOCHS_SUFFIX}"

    @override
    def _take(self, output: Relation) -> None:
        check_names(self._described, output.schema.names, self._key, needs_key=self.form == "upsert")
        encoded_schema(output.schema, RECORD_FORMS[self.form])
        self._writer = RecordWriter(output.schema, self.form, self._key)
        self.written_as = self._writer.written_as

    @override
    def _position(self) -> Position:
        return self._last_epoch, self._digests.get

    def _connect(self) -> None:
        admin = AdminClient(self._config)
        topics = admin.list_topics(timeout=self._retry_seconds).topics
        if self.topic not in topics:
            raise SinkError(
                f"{self._described} does not exist. Create it with the partitions you want, and cleanup.policy=compact for "
                'form="upsert".',
                code="SINK_IO",
                topic=self.topic,
            )
        if self._epochs not in topics:
            creations = admin.create_topics([NewTopic(self._epochs, 1, -1, config={"cleanup.policy": "compact"})])
            try:
                creations[self._epochs].result(self._retry_seconds)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        topic_bytes = self._topic_bytes(admin)
        self._most_bytes = min(self._client_bytes, topic_bytes)
        self._producer = Producer(
            {
                **self._config,
                # The client joins records up to this size, and the topic's limit is for records joined.
                "batch.size": min(int(self._config.get("batch.size", _CLIENT_MESSAGE_BYTES)), topic_bytes),
                "transactional.id": f"zset_join-{self._query_id}-{self.topic}",
                "transaction.timeout.ms": self._timeout_seconds * 1000,
                "message.timeout.ms": self._timeout_seconds * 1000,
                "linger.ms": 5,
            }
        )
        self._retried(self._producer.init_transactions)

    def _topic_bytes(self, admin: AdminClient) -> int:
        """Return the largest record that the topic takes; what the client takes where the user may not read it."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            entries = admin.describe_configs([resource], request_timeout=self._retry_seconds)[resource].result()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_ALLOWED:
                raise
            _log.warning(
                "%s: its configuration may not be read (%s), so a record that is larger than its max.message.bytes is found "
                "only by the broker, once the epoch is committed. Allow DESCRIBE_CONFIGS on it, or set message.max.bytes.",
                self._described,
                error.args[0].name(),
            )
            return self._client_bytes
        entry = entries.get("max.message.bytes")
        return self._client_bytes if entry is None or entry.value is None else int(entry.value)

    @override
    def _attach(self) -> None:
        self._connect()
        self._last_epoch, self._digests = None, {}
        for mark in _marks(self._config, self.topic, f"zset_join-{self._query_id}", self._retry_seconds):
            check_layout(self._described, mark, self._layout())
            self._last_epoch = int(mark["epoch"])
            self._digests = dict(mark.get("chain", ()))

    # -- writing ------------------------------------------------------------------------------------------------------

    @override
    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int]:
        delta = self._delta(epoch, chunks).consolidated()
        producer, writer = self._producer, self._writer
        if producer is None or writer is None:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED", topic=self.topic)
        records = writer.records(delta, epoch=epoch)
        digests = newest_digests(self._digests, epoch, link)
        producer.begin_transaction()
        try:
            for key, value, _ in records:
                self._produce(producer, self.topic, key, value)
            mark = {**self._layout(), "epoch": epoch, "chain": list(digests.items())}
            self._produce(producer, self._epochs, self.topic, json.dumps(mark))
            self._retried(producer.commit_transaction)
        except BaseException:
            self._abort(producer)
            raise
        self._last_epoch, self._digests = epoch, digests
        return len(records), sum(goes for _, _, goes in records)

    def _produce(self, producer: Producer, topic: str, key: str, value: str | None) -> None:
        until = monotonic() + self._timeout_seconds
        while True:
            try:
                producer.produce(topic, value, key)
                return
            except BufferError:
                if monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                producer.poll(0.1)  # the queue of the client is full: wait until some of it is sent

    def _retried(self, call: Any) -> None:
        """Call until it succeeds, as Kafka's client allows; bounded."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                call(self._retry_seconds)
                return
            except KafkaException as error:
                if attempt == _ATTEMPTS or not error.args[0].retriable():
                    raise

    def _abort(self, producer: Producer) -> None:
        """Give the transaction up; where that fails too, the next start does it."""
        try:
            producer.purge()
            producer.abort_transaction(self._retry_seconds)
        except KafkaException:
            self._producer, self._output = None, None  # of no use any more; opening the sink again fences it off

    @override
    def _failed(self, what: str, error: Any) -> SinkError:
        reason = KafkaError(KafkaError._TIMED_OUT) if isinstance(error, TimeoutError) else error.args[0]
        return SinkError(
            f"{self._described} at {self._config['bootstrap.servers']} could not be {what}: {reason.str()} "
            f"({reason.name()}). Nothing of the epoch is committed "
            "there; check "
            "that the broker runs, the rights of the user, and that no other driver runs this query.",
            code="SINK_IO",
            topic=self.topic,
            kafka=reason.name(),
        )


def stored_epochs(config: Mapping[str, Any], topic: str, *, patience_seconds: float = 10.0) -> StoredEpochs:
    """Return which epochs a topic holds; it is only read, and no driver of its query is fenced off."""
    quiet = {"log_level": 0, "allow.auto.create.topics": False, **config}
    try:
        marks = list(_marks(quiet, topic, "zset_join-position", patience_seconds))
    except KafkaException as error:
        reason = error.args[0]
        raise SinkError(
            f'the epochs of Kafka topic "{topic}" at {config["bootstrap.servers"]} cannot be read: {reason.str()} '
            f"({reason.name()}). Check that the broker runs, and that the user may read {topic}{_EPOCHS_SUFFIX}.",
            code="SINK_IO",
            topic=topic,
            kafka=reason.name(),
        ) from error
    if not marks:
        raise SinkError(
            f'Kafka topic "{topic}" holds no epoch of a query. Give a topic that one has written to.',
            code="SINK_IO",
            topic=topic,
        )
    newest = marks[-1]
    return StoredEpochs(
        newest["query_id"], int(newest["epoch"]), marks_of(dict(newest.get("chain", ()))), detail=newest["form"]
    )


def _marks(config: Mapping[str, Any], topic: str, group: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the committed epoch marks of this topic, oldest first."""
    settings = {
        **config,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(f"{topic}{_EPOCHS_SUFFIX}", 0, 0)])
        until = monotonic() + seconds
        while monotonic() < until:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is not None:
                raise KafkaException(error)
            mark = message.value()
            if message.key() == topic.encode() and mark is not None:
                yield json.loads(mark)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    finally:
        consumer.close()
