"""What queries of a session with a directory read: positions, generated rows, records that are decoded in the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import SqlError, StateError
from zset_join.pipeline import Pipeline
from zset_join.sql import connect
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.table_sources import TableSource, decoded_rows, source_of

KAFKA = "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:1', 'format' = 'debezium-json')"


def declared(text: str) -> Table:
    with connect(dialect="flink") as session:
        session.sql(text)
        return next(iter(session.catalog.tables.values()))


def as_they_are(_: Table, rows: pa.Table) -> pa.Table:
    return rows


def test_generated_rows_go_on_behind_a_position() -> None:
    table = declared(
        "CREATE TABLE g (v INT) WITH ('connector'='datagen', 'number-of-rows'='20', 'rows-per-second'='10', 'seed'='3')"
    )
    source = source_of(table, as_they_are)
    source.open(None)
    _, position = source.poll(wait_seconds=0.0)
    second, end = source.poll(wait_seconds=0.0)
    source.open(position)

    assert source.poll(wait_seconds=0.0) == (second, end)
    assert source.poll(wait_seconds=0.0) == (None, end)


def files_of(place: Path) -> TableSource:
    table = declared(f"CREATE TABLE f (v INT) WITH ('connector'='filesystem', 'path'='{place / 'in'}', 'format'='json')")
    return source_of(table, as_they_are, names=place / "read")


def put(place: Path, name: str, value: int) -> None:
    (place / "in").mkdir(exist_ok=True)
    (place / "in" / name).write_text(f'{{"v": {value}}}\n')


def test_files_go_on_behind_those_that_were_read_whatever_their_names(tmp_path: Path) -> None:
    put(tmp_path, "b.json", 2)
    source = files_of(tmp_path)
    source.open(None)
    _, position = source.poll(wait_seconds=0.0)
    put(tmp_path, "a.json", 1)
    source.poll(wait_seconds=0.0)  # never committed
    again = files_of(tmp_path)
    again.open(position)
    rows, behind = again.poll(wait_seconds=0.0)

    assert isinstance(rows, pa.Table)
    assert (rows.to_pylist(), behind["names"]) == ([{"v": 1}], 2)
    assert (tmp_path / "read" / "f.names").read_text().split() == ['"b.json"', '"a.json"']


def test_a_position_does_not_grow_with_the_files_that_were_read(tmp_path: Path) -> None:
    [put(tmp_path, f"{number}.json", number) for number in range(9)]
    source = files_of(tmp_path)
    source.open(None)

    positions = [source.poll(wait_seconds=0.0)[1] for _ in range(9)]

    assert [one["names"] for one in positions] == list(range(1, 10))
    assert all(one.keys() == {"names", "crc32"} for one in positions)


@pytest.mark.parametrize("text", ["", '"other.json"\n', '"b.json"'])
def test_names_that_were_lost_or_changed_are_refused(tmp_path: Path, text: str) -> None:
    put(tmp_path, "b.json", 2)
    source = files_of(tmp_path)
    source.open(None)
    _, position = source.poll(wait_seconds=0.0)
    (tmp_path / "read" / "f.names").write_text(text)

    with pytest.raises(StateError, match="missing or damaged"):
        files_of(tmp_path).open(position)


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
def test_metadata_that_records_do_not_have_is_refused_where_it_is_declared(column: str, options: str, code: str) -> None:
    with connect(dialect="flink") as session, pytest.raises(SqlError) as failure:
        session.sql(
            f"CREATE TABLE c (k STRING, {column}, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'kafka', 'topic' = 't', "
            f"'properties.bootstrap.servers' = 'b:1', {options})"
        )

    assert (failure.value.code, failure.value.facts["line"]) == (code, 1)
