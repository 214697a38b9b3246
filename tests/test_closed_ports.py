"""Where nobody listens: every system is named with its address, the reason, and no password."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tools.servers.ports import free_port
from zset_join.core.errors import SinkError, StateError
from zset_join.core.relation import Relation
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.sources.kafka import KafkaSource

ANSWER = Relation(name="answer", schema=pa.schema({"k": pa.int64()}), primary_key=("k",), mode="changelog")


def test_a_broker_that_is_not_there_is_named_by_source_and_sink() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(StateError, match=f'topic "t" at {address} cannot be read: .*(Timed out|transport)') as read:
        KafkaSource({"bootstrap.servers": address}, "t", retry_seconds=0.3).open(None)
    with pytest.raises(SinkError, match=f'topic "t" at {address} could not be opened: .*(Timed out|transport)') as written:
        KafkaTopicSink({"bootstrap.servers": address}, "t", retry_seconds=1).open(ANSWER, "q")
    assert (read.value.code, written.value.code) == ("SOURCE_IO", "SINK_IO")


@pytest.mark.parametrize(
    ("conninfo", "reason"),
    [
        ("host=127.0.0.1 port={port} user=me password=hush-hush dbname=hush-hush", 'server at "127.0.0.1", port {port} failed'),
        ("postgresql://me:hush%2Dhush@127.0.0.1:{port}/hush-hush", 'server at "127.0.0.1", port {port} failed'),
        ("host=127.0.0.1 hush-hush", "the connection string cannot be read"),
    ],
)
def test_a_database_that_is_not_there_is_named_with_the_reason_and_without_the_password(conninfo: str, reason: str) -> None:
    port = free_port()
    with pytest.raises(SinkError) as refused:
        PostgresViewSink(conninfo.format(port=port), "v").open(ANSWER, "q")
    assert reason.format(port=port) in str(refused.value)
    assert "hush" not in str(refused.value)
    assert refused.value.code == "SINK_IO"
