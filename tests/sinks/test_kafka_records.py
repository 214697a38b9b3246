"""Records for Kafka reach a broker that librdkafka simulates in this process; real ones are in tests/services."""

from __future__ import annotations

import pytest

from zset_join.sinks.kafka_records import send_records

ROOM = 10
CONFIG = {"test.mock.num.brokers": 1, "queue.buffering.max.messages": ROOM}


@pytest.mark.timeout(30)
def test_more_records_than_the_client_has_room_for_are_all_taken() -> None:
    assert send_records(CONFIG, [("letters", b"key", b"value", "t/0/1")] * (5 * ROOM)) is None
