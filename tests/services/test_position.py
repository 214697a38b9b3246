"""Outputs in servers say where they stand to who only reads; a transaction that runs is not waited for, no driver is fenced."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from faults.sinks import SINKS
from tests.tools.test_position import ROWS, link, opened, written
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.core.errors import OptionError, SinkError
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.tools.position import positions


def address_of(database: PostgresServer) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(database.conninfo)
    return f"postgresql://{parts['user']}:hush@{parts['host']}:{parts['port']}/{parts['dbname']}"


def test_two_views_of_a_database_stand_beside_a_changelog(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.clear()
    address = address_of(postgres)
    written(PostgresViewSink(postgres.conninfo, "one"), range(3), query_id="q/one")
    written(PostgresViewSink(postgres.conninfo, "two"), range(3), query_id="q/two")
    written(SINKS["parquet"].make(tmp_path), range(5), query_id="q/log")
    with psycopg.connect(postgres.conninfo) as writing:
        writing.execute("UPDATE _zset_join_epochs SET epoch = 9")
        found = positions([address, tmp_path / "log"])
        writing.rollback()

    assert [(one.output.rpartition("/")[2], one.view, one.epoch) for one in found.outputs] == [
        (f"{address.rpartition('/')[2]}#one", "one", 2),
        (f"{address.rpartition('/')[2]}#two", "two", 2),
        ("log", "log", 4),
    ]
    assert (found.common, found.outputs[2].at_common) == (2, "read_changelog(..., up_to_epoch=2)")
    assert "hush" not in str(found)
    with pytest.raises(SinkError, match="and not 'three'"):
        positions([f"{address}#three"])
    with pytest.raises(SinkError, match="cannot be read") as refused:
        positions([address.rpartition("/")[0] + "/absent"])
    assert "hush" not in str(refused.value)


def test_a_topic_is_read_while_its_driver_lives(kafka: KafkaBroker, tmp_path: Path) -> None:
    kafka.create_topic("positions")
    written(SINKS["json-lines"].make(tmp_path), range(2))
    sink = KafkaTopicSink({"bootstrap.servers": kafka.servers}, "positions", "change_data_feed", retry_seconds=20)
    with opened(sink):
        for epoch in range(3):
            sink.write(epoch, [ROWS], link=link(epoch))
        found = positions([f"kafka://{kafka.servers}/positions", tmp_path / "lines"])
        sink.write(3, [ROWS], link=link(3))

    assert [(one.kind, one.epoch) for one in found.outputs] == [("kafka", 2), ("files", 1)]
    assert (found.common, found.outputs[0].at_common) == (1, "the records with _commit_version <= 1")
    with pytest.raises(SinkError, match="cannot be read"):
        positions([f"kafka://{kafka.servers}/nothing"])
    with pytest.raises(OptionError, match="expected kafka"):
        positions([f"kafka://{kafka.servers}"])
