"""Rows that come from outside: files and generated rows; Kafka is tested in `tests/services`."""

from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.errors import BadInputError, SqlError
from zset_join.sql import connect
from zset_join.sql.feeds import KafkaFeed, feeds_of, read_available


def test_files_are_read_one_by_one_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"id": 2}\n')
    (tmp_path / "a.json").write_text('{"id": 1, "v": "x"}\n')
    (tmp_path / "_owner.json").write_text("no row")
    with connect() as session:
        session.sql(f"CREATE TABLE t (id INT, v STRING) WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='json')")

        assert read_available(session) == 2
        assert session.sql("SELECT * FROM t").table().to_pylist() == [{"id": 1, "v": "x"}, {"id": 2, "v": None}]


def test_generated_rows_are_the_same_for_a_seed_and_as_many_as_asked_for() -> None:
    declared = (
        "CREATE TABLE t (id INT, v STRING, x DOUBLE, b BOOLEAN) WITH ('connector'='datagen', 'number-of-rows'='25', "
        "'rows-per-second'='10', 'fields.id.kind'='sequence', 'fields.id.start'='5', 'fields.x.max'='3')"
    )
    with connect() as one, connect() as other:
        one.sql(declared)
        other.sql(declared)

        assert (read_available(one), read_available(other)) == (3, 3)
        rows = one.sql("SELECT * FROM t").table()
        assert rows.equals(other.sql("SELECT * FROM t").table())
        assert rows.column("id").to_pylist() == list(range(5, 30))


def test_a_table_that_a_query_writes_is_not_read_as_well(tmp_path: Path) -> None:
    with connect() as session:
        session.sql(f"CREATE TABLE a (id INT); CREATE TABLE b (id INT) WITH ('connector'='filesystem', 'path'='{tmp_path}/b')")
        session.sql("INSERT INTO b SELECT id FROM a")

        assert feeds_of(session) == []


def test_a_topic_is_read_from_its_beginning_only() -> None:
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE k (id INT) WITH ('connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='b:1', "
            "'scan.startup.mode'='latest-offset')"
        )
        with pytest.raises(SqlError, match="latest-offset"):
            feeds_of(session)


def test_a_record_that_cannot_be_read_is_told_by_its_offset() -> None:
    import pyarrow as pa

    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE k (id INT) WITH ('connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='b:1')")
        feed = KafkaFeed(session.catalog.tables["k"])
        records = pa.table({"offset": [7, 8], "topic": ["t", "t"]})

        assert feed._parsed([b'{"id": 1, "more": true}', b"{}"], records).to_pylist() == [{"id": 1}, {"id": None}]
        with pytest.raises(BadInputError, match="offset 8"):
            feed._parsed([b'{"id": 1}', b'{"id": "x"}'], records)
