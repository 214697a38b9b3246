"""Records for Kafka as they are, bytes and all; who sends them again wants nothing changed.

The law: when it returns None, every record is acknowledged by all replicas in sync, in the order given. A record that is sent
again after a failure may be there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zset_join.core.extras import needed_for

with needed_for("sending records to Kafka"):
    from confluent_kafka import KafkaException, Producer

__all__ = ["ORIGIN_HEADER", "send_records"]

ORIGIN_HEADER = "zset_join.replayed"
"""The header with a record's former place: topic/partition/offset."""

_WITHIN_SECONDS = 60.0


def send_records(config: Mapping[str, Any], records: Sequence[tuple[str, bytes | None, bytes | None, str]]) -> str | None:
    """Send records and wait until they are taken; return the first reason why one was not."""
    failed: list[str] = []
    timeout_ms = int(_WITHIN_SECONDS * 1000)
    try:
        producer = Producer({"log_level": 0, "message.timeout.ms": timeout_ms, **config, "enable.idempotence": True})
        for topic, key, value, origin in records:
            _produce(producer, topic, key, value, origin, _noting(failed))
        left = producer.flush(_WITHIN_SECONDS)
    except KafkaException as error:
        return str(error)
    if failed:
        return failed[0]
    return f"{left} records were not taken within {_WITHIN_SECONDS:.0f} s" if left else None


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    origin: str,
    noted: Callable[[Any, Any], None],
) -> None:
    headers: list[tuple[str, str | bytes | None]] = [(ORIGIN_HEADER, origin.encode())]
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=noted)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)  # the queue of the client is full: wait until some of it is sent


def _noting(failed: list[str]) -> Callable[[Any, Any], None]:
    def noted(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    return noted
