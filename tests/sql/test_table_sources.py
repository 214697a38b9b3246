"""What queries of a session with a directory read: positions, generated rows, records that are decoded in the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.errors import SqlError
from zset_join.pipeline import Pipeline
from zset_join.sql import connect
from zset_join.sql.catalog import Table
from zset_join.sql.stored_tables import StoredTables
from zset_join.sql.table_sources import decoded_rows, source_of

KAFKA = "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:1', 'format' = 'debezium-json')"


def declared(text: str) -> Table:
    with connect(dialect="flink") as session:
        session.sql(text)
        return next(iter(session.catalog.tables.values()))


def as_they_are(_: Table, rows: pa.Table) -> pa.Table:
    return rows


def test_generated_rows_go_on_behind_a_position(tmp_path: Path) -> None:
    table = declared(
        "CREATE TABLE g (v INT) WITH ('connector'='datagen', 'number-of-rows'='20', 'rows-per-second'='10', 'seed'='3')"
    )
    source = source_of(table, StoredTables(tmp_path), as_they_are)
    source.open(None)
    _, position = source.poll(wait_seconds=0.0)
    second, end = source.poll(wait_seconds=0.0)
    source.open(position)

    assert source.poll(wait_seconds=0.0) == (second, end)
    assert source.poll(wait_seconds=0.0) == (None, end)


def test_files_go_on_behind_those_that_were_read_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"v": 2}\n')
    table = declared(f"CREATE TABLE f (v INT) WITH ('connector'='filesystem', 'path'='{tmp_path}', 'format'='json')")
    source = source_of(table, StoredTables(tmp_path / "none"), as_they_are)
    source.open(None)
    _, position = source.poll(wait_seconds=0.0)
    (tmp_path / "a.json").write_text('{"v": 1}\n')
    again = source_of(table, StoredTables(tmp_path / "none"), as_they_are)
    again.open(position)
    rows, behind = again.poll(wait_seconds=0.0)

    assert isinstance(rows, pa.Table)
    assert (rows.to_pylist(), behind) == ([{"v": 1}], {"files": ["b.json", "a.json"]})


def record(operation: str, before: Any, after: Any, at: int) -> dict[str, Any]:
    value = {"op": operation, "before": before, "after": after, "source": {"ts_us": at, "lsn": at}}
    return {"key": '{"k": "a"}', "value": json.dumps(value), "topic": "t", "partition": 0, "offset": at}


def test_records_of_changes_are_decoded_with_the_time_of_the_change() -> None:
    table = declared(
        "CREATE TABLE c (k STRING, v INT, at TIMESTAMP_LTZ(3) METADATA FROM 'value.source.timestamp', twice AS v * 2, "
        f"PRIMARY KEY (k) NOT ENFORCED) {KAFKA}"
    )
    view = decoded_rows(table, "flink")
    assert view is not None
    with Pipeline(view) as pipeline:
        pipeline.step({"c": [record("c", None, {"k": "a", "v": 1}, 5)]})
        pipeline.step({"c": [record("u", {"k": "a", "v": 1}, {"k": "a", "v": 3}, 9)]})
        row = pipeline.view().to_pylist()

    assert [(one["k"], one["v"], one["twice"], one["at"].microsecond) for one in row] == [("a", 3, 6, 9)]


@pytest.mark.parametrize(
    ("column", "options", "code"),
    [
        ("x STRING METADATA FROM 'headers'", "'format' = 'debezium-json'", "UNKNOWN_COLUMN"),
        ("x STRING METADATA FROM 'headers'", "'format' = 'json'", "UNKNOWN_COLUMN"),
        ("x BIGINT METADATA FROM 'lsn'", "'format' = 'canal-json'", "UNKNOWN_COLUMN"),
        ("x TIMESTAMP(3) METADATA FROM 'timestamp'", "'format' = 'upsert-json'", "UNKNOWN_COLUMN"),
        ("x BIGINT METADATA FROM 'lsn', y BIGINT METADATA FROM 'position'", "'format' = 'debezium-json'", "DUPLICATE_COLUMN"),
    ],
)
def test_metadata_that_records_do_not_tell_is_refused_where_it_is_declared(column: str, options: str, code: str) -> None:
    with connect(dialect="flink") as session, pytest.raises(SqlError) as failure:
        session.sql(
            f"CREATE TABLE c (k STRING, {column}, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'kafka', 'topic' = 't', "
            f"'properties.bootstrap.servers' = 'b:1', {options})"
        )

    assert (failure.value.code, failure.value.facts["line"]) == (code, 1)
