"""Outputs in servers show their position to a reader, which waits for no transaction and fences no driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.several_outputs import Bank, kill_at_seams, seams_of
from faults.sinks import SINKS
from faults.tally import Tally
from property_tests.bank import bank_epoch, bank_views
from tests.tools.test_position import ROWS, link, opened, written
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from zset_join.core.errors import OptionError, SinkError
from zset_join.pipeline import Pipeline
from zset_join.sinks.kafka_topic import KafkaTopicSink
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.tools.position import OutputPosition, positions


def address_of(database: PostgresServer) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(database.conninfo)
    return f"postgresql://{parts['user']}:hush@{parts['host']}:{parts['port']}/{parts['dbname']}"


def test_two_views_of_a_database_may_be_beside_a_changelog(postgres: PostgresServer, tmp_path: Path) -> None:
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


def test_a_pipeline_killed_between_outputs_in_postgres_and_files_brings_all_to_the_same_epoch(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    warm = Pipeline(bank_views())
    for epoch in range(3):
        warm.step(bank_epoch(epoch))

    def read(output: OutputPosition) -> set[tuple[Any, ...]]:
        return set(postgres.execute(f'SELECT * FROM "{output.view}"'))

    bank = Bank(
        tmp_path / "bank",
        more=lambda: {name: [PostgresViewSink(postgres.conninfo, name)] for name in ("by_account", "by_branch")},
        addresses=[address_of(postgres)],
        read=read,
        clear=postgres.clear,
    )
    seams, tally = seams_of(bank), Tally()

    kill_at_seams(bank, [*range(10, 16), seams - 1], tally)

    assert tally.problems == []
    assert (seams, tally.of("kills observed"), tally.of("comparisons")) == (48, 7, 2 * 7 * 7)
    assert tally.of("apart") > 0
