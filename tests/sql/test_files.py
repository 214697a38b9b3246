"""Tables in files: what a directory holds is what the table holds, or it is refused with the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zset_join.errors import BadInputError, SqlError
from zset_join.sql import connect
from zset_join.sql.feeds import read_available

COLUMNS = "id INT, name STRING, total DECIMAL(10, 2), at TIMESTAMP(3), day DATE"


def rows_of(directory: Path, text: str, form: str = "json", *, more: str = "", columns: str = COLUMNS) -> list[dict[str, Any]]:
    (directory / f"1.{form}").write_text(text)
    with connect(dialect="flink") as session:
        session.sql(
            f"CREATE TABLE t ({columns}) WITH ('connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = '{form}'{more})"
        )
        running = session.sql("SELECT * FROM t").start()
        read_available(session, wait_seconds=0.0)
        rows: list[dict[str, Any]] = running.table().to_pylist()
        return [{name: str(value) for name, value in row.items() if value is not None} for row in rows]


def test_a_day_of_json_is_read(tmp_path: Path) -> None:
    assert rows_of(tmp_path, '{"id": 1, "day": "2024-01-02"}\n\n{"id": 2}\n') == [{"id": "1", "day": "2024-01-02"}, {"id": "2"}]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_what_an_insert_writes_into_files_is_read_as_the_same_rows(tmp_path: Path, form: str) -> None:
    options = f"'connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = '{form}'"
    kept = "SELECT id, name, total, at, day FROM {}"
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE rows_in ({COLUMNS}); CREATE TABLE files ({COLUMNS}) WITH ({options})")
        session.sql("INSERT INTO files SELECT * FROM rows_in")
        session.sql("INSERT INTO rows_in VALUES (1, 'a,\"b', 1.50, TIMESTAMP '2024-01-02 03:04:05.678', DATE '2024-01-02')")
        session.sql("INSERT INTO rows_in (id, name) VALUES (2, NULL), (3, '')")
        expected = session.sql(kept.format("table(rows_in)")).table().to_pylist()
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE files ({COLUMNS}) WITH ({options})")
        running = session.sql(kept.format("files")).start()
        read_available(session, wait_seconds=0.0)

        assert running.table().sort_by("id").to_pylist() == expected


def test_csv_is_read_with_its_delimiter_quote_and_null(tmp_path: Path) -> None:
    more = ", 'csv.field-delimiter' = ';', 'csv.quote-character' = '''', 'csv.null-literal' = 'n/a'"
    text = "id;name\n1;'a;b'\n2;n/a\n3;''\n4;\n"
    assert rows_of(tmp_path, text, "csv", more=more) == [
        {"id": "1", "name": "a;b"},
        {"id": "2"},
        {"id": "3", "name": ""},
        {"id": "4"},
    ]


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("csv", "1,a,2\n2,b,3\n", r"1\.csv has none of its columns but 1, a, 2; CSV begins with a line of names"),
        ("csv", "id;name\n1;a\n", r"none of its columns but id;name"),
        ("json", '{"ID": 1, "Name": "x"}\n', r"none of its columns but ID, Name\. Did you mean id"),
    ],
)
def test_a_file_without_any_column_of_its_table_is_refused(tmp_path: Path, form: str, text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        rows_of(tmp_path, text, form)


def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"line 3 of .*1\.json is no row of it, it is no JSON object: \{\"id\": oops\}"):
        rows_of(tmp_path, '{"id": 1}\n\n{"id": oops}\n')
    with pytest.raises(BadInputError, match=r'the value of "at" cannot be read as timestamp\[us\]'):
        rows_of(tmp_path, '{"id": 1, "at": 1704067200000}\n')


def test_an_empty_file_and_an_empty_directory_have_no_rows(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "", "csv") == []
    (tmp_path / "1.csv").unlink()
    assert rows_of(tmp_path, "") == []
    (tmp_path / "1.json").unlink()
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}')")

        assert read_available(session, wait_seconds=0.0) == 0


def test_a_path_of_another_file_system_is_refused(tmp_path: Path) -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = 's3://bucket/orders')")
        with pytest.raises(SqlError, match="'s3://bucket/orders' is not on this machine"):
            read_available(session, wait_seconds=0.0)


def test_nan_in_csv_is_a_number(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "x\nNaN\n\n1.5\n", "csv", columns="x DOUBLE") == [{"x": "nan"}, {"x": "1.5"}]
