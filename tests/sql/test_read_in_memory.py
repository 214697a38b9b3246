"""Rows of connectors: files and generated rows; Kafka is tested in `tests/services`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import connect
from zset_join.sql.tables.table_sources import TopicRows


def test_files_are_read_one_by_one_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"id": 2}\n')
    (tmp_path / "a.json").write_text('{"id": 1, "v": "x"}\n')
    (tmp_path / "_owner.json").write_text("no row")
    with connect() as session:
        session.sql(f"CREATE TABLE t (id INT, v STRING) WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='json')")

        running = session.sql("SELECT * FROM t").start()
        assert session.read() == 2
        assert running.table().to_pylist() == [{"id": 1, "v": "x"}, {"id": 2, "v": None}]


def test_a_table_that_no_query_reads_is_not_empty_beside_others_and_one_that_is_read_keeps_its_columns(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"id": 1}')
    files = f"WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='json')"
    with connect() as session:
        session.sql(f"CREATE TABLE f (id INT, PRIMARY KEY (id)) {files}; CREATE TABLE g (id INT) {files}")
        session.sql("SELECT * FROM f").start()
        session.read()
        with pytest.raises(SqlError, match='no query of the session reads "g"'):
            session.sql("SELECT g.id FROM f JOIN g ON f.id = g.id").table()
        with pytest.raises(SqlError, match="in memory it keeps its columns"):
            session.sql("ALTER TABLE f ADD COLUMN v INT")


def test_generated_rows_are_the_same_for_a_seed_and_as_many_as_requested() -> None:
    declared = (
        "CREATE TABLE t (id INT, v STRING, x DOUBLE, b BOOLEAN) WITH ('connector'='datagen', 'number-of-rows'='25', "
        "'rows-per-second'='10', 'fields.id.kind'='sequence', 'fields.id.start'='5', 'fields.x.max'='3')"
    )
    with connect() as one, connect() as other:
        one.sql(declared)
        other.sql(declared)
        running = one.sql("SELECT * FROM t").start()

        assert one.read() == 3
        rows = running.table()
        assert rows.equals(other.sql("SELECT * FROM t").table())
        assert rows.column("id").to_pylist() == list(range(5, 30))


def test_a_table_that_a_query_writes_is_not_read_as_well(tmp_path: Path) -> None:
    with connect() as session:
        session.sql(f"CREATE TABLE a (id INT); CREATE TABLE b (id INT) WITH ('connector'='filesystem', 'path'='{tmp_path}/b')")
        session.sql("INSERT INTO b SELECT id FROM a; INSERT INTO a VALUES (1)")

        assert session.read() == 0


def test_a_topic_is_read_from_its_beginning_only() -> None:
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE k (id INT) WITH ('connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='b:1', "
            "'scan.startup.mode'='latest-offset')"
        )
        with pytest.raises(SqlError, match="latest-offset"):
            session.sql("SELECT id FROM k").start()


def test_the_metadata_of_a_record_of_changes_is_in_the_columns_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are passed on; a real Kafka is read in `tests/services`."""
    reported = [
        ("c", None, '{"id": 1, "name": "Ada"}', 1_700_000_000_000, 10),
        ("u", '{"id": 1, "name": "Ada"}', '{"id": 1, "name": "Eve"}', 1_700_000_005_000, 11),
    ]
    values = [
        f'{{"op": "{op}", "before": {before or "null"}, "after": {after}, "source": {{"lsn": {lsn}, "ts_us": {ms}000}}}}'.encode()
        for op, before, after, ms, lsn in reported
    ]
    records = pa.table(
        {
            "key": pa.array([b'{"id": 1}'] * 2),
            "value": pa.array(values),
            "topic": ["customers"] * 2,
            "partition": pa.array([3] * 2, pa.int32()),
            "offset": pa.array([7, 8], pa.int64()),
        }
    )
    left = [records, records.slice(2)]
    monkeypatch.setattr(TopicRows, "poll_records", lambda *_, **__: (left.pop(0), None))
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE customers (id INT, name STRING, changed TIMESTAMP(3) METADATA FROM 'value.source.timestamp', "
            "place BIGINT METADATA FROM 'offset', PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'kafka', "
            "'topic' = 'customers', 'properties.bootstrap.servers' = 'none', 'format' = 'debezium-json')"
        )
        running = session.sql("SELECT * FROM customers").start()
        assert session.read() == 1

        (row,) = running.table().to_pylist()

    assert (row["name"], row["place"]) == ("Eve", 8)
    assert row["changed"].isoformat().startswith("2023-11-14T22:13:25")
