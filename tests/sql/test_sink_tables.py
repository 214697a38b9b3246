"""Queries write outside, epoch by epoch: files, DuckDB, the screen."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from zset_join.errors import SinkError, SqlError
from zset_join.sql import Session, SqlWarning, connect

TABLES = """
CREATE TABLE orders (id INT, customer STRING, total INT, PRIMARY KEY (id) NOT ENFORCED);
CREATE TABLE log (id INT, v STRING);
"""
REVENUE = "SELECT customer, sum(total) AS revenue FROM orders GROUP BY customer"


def shop() -> Session:
    session = connect(dialect="flink")
    session.sql(TABLES)
    return session


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_query_that_takes_rows_back_is_written_to_files_with_weights(tmp_path: Path) -> None:
    with shop() as session:
        session.sql(
            f"CREATE TABLE out (customer STRING, revenue BIGINT) WITH ('connector'='filesystem', 'path'='{tmp_path}/out')"
        )
        session.sql(f"INSERT INTO out {REVENUE}")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 30)")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 40)")

    assert lines(tmp_path / "out" / "epoch-000000000000.json") == [{"customer": "Ada", "revenue": 30, "_tp_delta": 1}]
    assert lines(tmp_path / "out" / "epoch-000000000001.json") == [
        {"customer": "Ada", "revenue": 30, "_tp_delta": -1},
        {"customer": "Ada", "revenue": 40, "_tp_delta": 1},
    ]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_query_of_appended_rows_is_written_as_rows_repeats_included(tmp_path: Path, form: str) -> None:
    with shop() as session:
        session.sql(
            f"CREATE TABLE out (v STRING, id BIGINT) WITH ('connector'='filesystem', 'path'='{tmp_path}/out', 'format'='{form}')"
        )
        session.sql("INSERT INTO out (id, v) SELECT id, upper(v) FROM log")
        session.sql("INSERT INTO log VALUES (1, 'a'), (1, 'a')")

    written = tmp_path / "out" / f"epoch-000000000000.{form}"
    rows = pq.read_table(written).to_pylist() if form == "parquet" else written.read_text().splitlines()
    assert rows == ([{"v": "A", "id": 1}] * 2 if form == "parquet" else ['"v","id"', '"A",1', '"A",1'])


def test_a_view_in_duckdb_is_kept_equal(tmp_path: Path) -> None:
    with shop() as session:
        session.sql(
            "CREATE TABLE out (customer STRING, revenue BIGINT, PRIMARY KEY (customer) NOT ENFORCED) "
            f"WITH ('connector'='duckdb', 'path'='{tmp_path}/shop.db')"
        )
        session.sql(f"INSERT INTO out {REVENUE}")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 30), (2, 'Bob', 5)")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 40)")

    with duckdb.connect(str(tmp_path / "shop.db")) as database:
        assert sorted(database.sql("SELECT customer, revenue FROM out").fetchall()) == [("Ada", 40), ("Bob", 5)]


def test_a_sink_prints_the_changes_of_a_view(capsys: pytest.CaptureFixture[str]) -> None:
    with connect(dialect="risingwave") as session:
        session.sql(
            "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v"
        )
        session.sql("CREATE SINK shown FROM m WITH (connector='print', \"print-identifier\"='m')")
        session.sql("CREATE SINK nowhere AS SELECT v FROM m WITH (connector='blackhole', type='append-only')")
        session.sql("INSERT INTO t VALUES (1, 2)")

    assert capsys.readouterr().out == 'm> {"v": 2, "n": 1, "_tp_delta": 1}\n'


def test_what_a_sink_was_given_before_is_not_written_over(tmp_path: Path) -> None:
    declared = f"CREATE TABLE out (id INT, v STRING) WITH ('connector'='filesystem', 'path'='{tmp_path}/out')"
    with shop() as session:
        session.sql(f"{declared}; INSERT INTO out SELECT id, v FROM log; INSERT INTO log VALUES (1, 'a')")

    with shop() as session, pytest.raises(SinkError) as failure:
        session.sql(f"{declared}; INSERT INTO out SELECT id, v FROM log")
    assert failure.value.code == "SINK_QUERY_ID"


@pytest.mark.parametrize(
    ("statement", "code", "named"),
    [
        ("CREATE TABLE x (a INT) WITH ('connector'='kafka', 'topc'='t')", "UNKNOWN_OPTION", "topic"),
        ("CREATE TABLE x (a INT) WITH ('connector'='kafka', 'topic'='t')", "MISSING_OPTION", "properties.bootstrap.servers"),
        ("CREATE TABLE x (a INT) WITH ('connector'='filesystem', 'path'='p', 'format'='orc')", "UNKNOWN_FORMAT", "csv"),
        ("CREATE TABLE x (a INT) WITH ('connector'='filesystem', 'path'='p', 'format'='jason')", "UNKNOWN_FORMAT", "json"),
        ("CREATE SINK s AS SELECT id FROM log WITH ('connector'='memory')", "NOT_OFFERED", "outside"),
        ("CREATE SINK s AS SELECT id FROM log WITH (connector='print') FORMAT PLAIN ENCODE AVRO", "UNKNOWN_FORMAT", "JSON"),
        ("CREATE TABLE x (a INT, b DATE) WITH ('connector'='print'); INSERT INTO x SELECT id, id FROM log", "INSERT_COLUMNS", "b date32"),
        (
            "CREATE TABLE x (a INT) WITH ('connector'='upsert-kafka', 'topic'='t', 'properties.bootstrap.servers'='b:1')",
            "NO_PRIMARY_KEY",
            "PRIMARY KEY",
        ),
        (
            "CREATE TABLE x (a INT) WITH ('connector'='jdbc', 'url'='jdbc:sqlite:x', 'table-name'='t'); INSERT INTO x SELECT id FROM log",
            "NOT_OFFERED",
            "PostgreSQL",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_with_what_can(statement: str, code: str, named: str) -> None:
    with shop() as session, pytest.raises(SqlError, match=named) as failure:
        session.sql(statement)
    assert failure.value.code == code


def test_an_option_that_changes_nothing_warns_by_name() -> None:
    with shop() as session, pytest.warns(SqlWarning, match=r"sink\.parallelism"):
        session.sql("CREATE TABLE x (a INT) WITH ('connector'='print', 'sink.parallelism'='4')")


def test_columns_are_assigned_as_spark_does_and_those_left_out_are_null() -> None:
    with shop() as session:
        session.sql("CREATE TABLE t (id BIGINT, total DECIMAL(10,2), v STRING, PRIMARY KEY (id) NOT ENFORCED)")
        session.sql("INSERT INTO t (total, id) SELECT total, id FROM orders")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 30)")

        assert [str(row) for row in session.sql("SELECT * FROM t").table().to_pylist()] == [
            "{'id': 1, 'total': Decimal('30.00'), 'v': None}"
        ]
