"""Queries write outside, epoch by epoch: files, DuckDB, the screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import SinkError, SqlError
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


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_query_that_retracts_rows_is_written_to_files_with_weights(tmp_path: Path, form: str) -> None:
    options = f"'connector'='filesystem', 'path'='{tmp_path}/out', 'format'='{form}'"
    with shop() as session:
        session.sql(f"CREATE TABLE out (customer STRING, revenue BIGINT) WITH ({options})")
        session.sql(f"INSERT INTO out {REVENUE}")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 30)")
        session.sql("INSERT INTO orders VALUES (1, 'Ada', 40)")

    files = [tmp_path / "out" / f"epoch-00000000000{epoch}.{form}" for epoch in range(2)]
    written = [lines(path) if form == "json" else pyarrow.csv.read_csv(path).to_pylist() for path in files]
    assert written == [
        [{"customer": "Ada", "revenue": 30, "_tp_delta": 1}],
        [{"customer": "Ada", "revenue": 30, "_tp_delta": -1}, {"customer": "Ada", "revenue": 40, "_tp_delta": 1}],
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


SUMS = """
    CREATE TABLE orders (id INT PRIMARY KEY, customer VARCHAR, total INT);
    CREATE TABLE sums (customer VARCHAR PRIMARY KEY, total BIGINT);
    CREATE MATERIALIZED VIEW by_customer AS SELECT customer, sum(total) AS total FROM orders GROUP BY customer;
"""


@pytest.fixture
def market() -> Iterator[Session]:
    with connect(dialect="risingwave") as session:
        session.sql(SUMS)
        yield session


def contents(session: Session, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in session.sql(f"SELECT * FROM {table}").table().to_pylist())


@pytest.mark.parametrize(
    "text",
    [
        "CREATE SINK s INTO sums FROM by_customer",
        "CREATE SINK s INTO sums (customer, total) AS SELECT customer, total FROM by_customer",
        "CREATE SINK IF NOT EXISTS s INTO sums FROM by_customer WITH (type = 'upsert', primary_key = 'customer')",
    ],
)
def test_a_sink_into_a_table_keeps_it_equal_to_a_view_until_it_is_dropped(market: Session, text: str) -> None:
    market.sql(text)
    market.sql("INSERT INTO orders VALUES (1, 'Ada', 1), (2, 'Ada', 2), (3, 'Bob', 5)")
    market.sql("DELETE FROM orders WHERE id = 2; UPDATE orders SET customer = 'Eve' WHERE id = 3")

    assert contents(market, "sums") == [("Ada", 1), ("Eve", 5)]
    assert str(market.sql("SHOW SINKS")) == "s"
    market.sql("DROP SINK s; INSERT INTO orders VALUES (4, 'Zoe', 1)")
    assert contents(market, "sums") == []


def test_a_sink_that_is_replaced_writes_no_more(market: Session) -> None:
    market.sql("CREATE SINK s INTO sums FROM by_customer; INSERT INTO orders VALUES (1, 'Ada', 1)")

    market.sql("CREATE OR REPLACE SINK s INTO sums AS SELECT customer, total + 100 FROM by_customer")
    market.sql("INSERT INTO orders VALUES (2, 'Ada', 1)")

    assert contents(market, "sums") == [("Ada", 102)]
    assert [running.name for running in market.running] == ["by_customer", "s"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE SINK s INTO sums FROM by_customer WITH (type = 'append-only')", "NOT_OFFERED"),
        ("CREATE SINK s INTO sums FROM by_customer WITH (type = 'debezium')", "UNKNOWN_OPTION"),
        ("CREATE SINK s INTO sums FROM by_customer WITH (primary_key = 'total')", "NOT_OFFERED"),
        ("CREATE SINK s INTO sums FROM by_customer WITH (topic = 'x')", "UNKNOWN_OPTION"),
        ("CREATE SINK s INTO sums (who) FROM by_customer", "UNKNOWN_COLUMN"),
        ("CREATE SINK s INTO by_customer FROM orders", "NOT_A_TABLE"),
        ("CREATE SINK s INTO sums AS SELECT customer, total + 1 FROM sums", "CIRCLE"),
        ("CREATE SINK orders INTO sums FROM by_customer", "NAME_TAKEN"),
    ],
)
def test_a_sink_into_a_table_that_cannot_be_is_refused_and_nothing_runs(market: Session, text: str, code: str) -> None:
    with pytest.raises(SqlError) as failure:
        market.sql(text)

    assert (failure.value.code, [running.name for running in market.running]) == (code, ["by_customer"])


def test_a_table_that_a_sink_writes_is_not_dropped_before_it(market: Session) -> None:
    market.sql("CREATE SINK s INTO sums FROM by_customer")

    with pytest.raises(SqlError, match="is written by s"):
        market.sql("DROP TABLE sums")
    market.sql("DROP SINK s; DROP TABLE sums")
    assert "sums" not in market.catalog.tables


def test_a_sink_that_would_drop_deletions_warns(market: Session) -> None:
    with pytest.warns(SqlWarning, match="force_append_only"):
        market.sql("CREATE SINK s INTO sums FROM by_customer WITH (type = 'append-only', force_append_only = 'true')")
    with pytest.warns(SqlWarning, match="force_append_only"):
        market.sql("CREATE SINK shown FROM by_customer WITH (connector = 'blackhole', force_append_only = 'true')")


@pytest.mark.parametrize("directory", [None, "kept"])
def test_a_query_whose_rows_would_come_back_to_it_is_refused(tmp_path: Path, directory: str | None) -> None:
    declared = "CREATE TABLE a (v INT); CREATE TABLE b (v INT); CREATE TABLE c (v INT)"
    with connect(directory=None if directory is None else tmp_path / directory) as session:
        session.sql(f"{declared}; INSERT INTO b SELECT v + 1 FROM a; INSERT INTO c SELECT v + 1 FROM b")

        with pytest.raises(SqlError) as failure:
            session.sql("INSERT INTO a SELECT v + 1 FROM c")
        session.sql("INSERT INTO a VALUES (1)")

        assert failure.value.code == "CIRCLE"
        assert contents(session, "c") == [(3,)]


def test_a_table_is_replaced_once_nothing_reads_it_and_forgets_its_rows() -> None:
    with connect() as session:
        session.sql("CREATE TABLE t (v INT); INSERT INTO t VALUES (1)")
        reader = session.sql("SELECT v FROM t").start()

        with pytest.raises(SqlError, match="query_1") as refused:
            session.sql("CREATE OR REPLACE TABLE t (v STRING, w INT)")
        reader.stop()
        session.sql("CREATE OR REPLACE TABLE t (v STRING, w INT); INSERT INTO t VALUES ('a', 2)")

        assert refused.value.code == "STILL_READ"
        assert contents(session, "t") == [("a", 2)]
