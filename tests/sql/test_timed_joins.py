"""Temporal, as-of and lookup joins by SQL, each with rows: the worked examples of the documents."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import SqlError
from zset_join.lookup.sources.function import FunctionSource
from zset_join.sql import Query, Session, connect


def started(session: Session, text: str) -> Any:
    made = session.sql(text)
    assert isinstance(made, Query)
    return made.start()


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(line.values()) for line in table.to_pylist()), key=repr)


RATES = """
CREATE TABLE rates (currency STRING, rate DECIMAL(10, 2), at TIMESTAMP(3), WATERMARK FOR at AS at, PRIMARY KEY (currency) NOT ENFORCED)
    WITH ('format' = 'json');
CREATE TABLE orders (id INT, currency STRING, amount INT, t TIMESTAMP(3), WATERMARK FOR t AS t);
"""


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
@pytest.mark.parametrize("versioned", ["", "VERSIONED ON at"])
def test_a_row_meets_the_version_that_was_valid_at_its_time_once_the_watermark_has_passed(versioned: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(RATES)
        running = started(
            session,
            "SELECT o.id, o.amount * r.rate AS total FROM orders AS o "
            f"LEFT JOIN rates FOR SYSTEM_TIME AS OF o.t {versioned} AS r ON o.currency = r.currency",
        )

        session.sql("INSERT INTO rates VALUES ('EUR', 1.10, TIMESTAMP '2024-01-01 00:00:05')")
        session.sql("INSERT INTO orders VALUES (1, 'EUR', 100, TIMESTAMP '2024-01-01 00:00:07')")
        assert running.changelog().num_rows == 0
        session.sql("INSERT INTO rates VALUES ('EUR', 1.20, TIMESTAMP '2024-01-01 00:00:08')")
        session.sql("INSERT INTO orders VALUES (2, 'EUR', 100, TIMESTAMP '2024-01-01 00:00:09')")

        assert [(line["id"], str(line["total"])) for line in running.changelog().to_pylist()] == [(1, "110.00")]


def test_the_function_of_older_flink_gives_the_versions_of_an_append_only_table() -> None:
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE history (currency STRING, rate INT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('format'='json')"
        )
        session.sql("CREATE TABLE orders (id INT, currency STRING, t TIMESTAMP(3), WATERMARK FOR t AS t)")
        session.create_temporal_table_function("rates", "history", "at", "currency")
        running = started(
            session,
            "SELECT o.id, r.rate FROM orders AS o, LATERAL TABLE(rates(o.t)) AS r WHERE o.currency = r.currency",
        )

        session.sql(
            "INSERT INTO history VALUES ('EUR', 1, TIMESTAMP '2024-01-01 00:00:01'), ('EUR', 2, TIMESTAMP '2024-01-01 00:00:05')"
        )
        session.sql("INSERT INTO orders VALUES (1, 'EUR', TIMESTAMP '2024-01-01 00:00:03')")
        session.sql("INSERT INTO history VALUES ('USD', 9, TIMESTAMP '2024-01-01 00:01:00')")
        session.sql("INSERT INTO orders VALUES (2, 'EUR', TIMESTAMP '2024-01-01 00:02:00')")

        assert rows(running.table()) == [(1, 1)]


@pytest.mark.parametrize(("how", "match"), [("ASOF JOIN", "t.ts >= q.ts"), ("ASOF LEFT JOIN", "t.ts < q.ts")])
@pytest.mark.parametrize("condition", ["q.bid IS NOT NULL", "q.bid <> t.size", "q.bid IN (20, 40)", "t.id = 2"])
def test_the_other_conditions_of_an_as_of_join_choose_the_rows_that_may_be_nearest(
    how: str, match: str, condition: str
) -> None:
    query = f"SELECT t.id, q.i FROM trades t {how} quotes q ON t.k = q.k AND {match} AND {condition}"
    changes = (
        "INSERT INTO quotes VALUES (1, 'a', 2, 20), (2, 'a', 4, NULL), (3, 'a', 6, 30), (4, 'a', 9, 40), (5, 'b', 1, 50)",
        "INSERT INTO trades VALUES (1, 'a', 7, 30), (2, 'a', 4, 20), (3, 'b', 5, 50), (4, 'a', 1, 10)",
        "DELETE FROM quotes WHERE i = 3",
        "INSERT INTO quotes VALUES (6, 'a', 5, 40), (7, 'b', 4, 10)",
        "UPDATE quotes SET bid = 20 WHERE i = 2",
        "DELETE FROM trades WHERE id = 1",
        "UPDATE quotes SET bid = NULL WHERE i = 6",
    )
    tables = (
        "CREATE TABLE trades (id INT PRIMARY KEY, k VARCHAR, ts INT, size INT); "
        "CREATE TABLE quotes (i INT PRIMARY KEY, k VARCHAR, ts INT, bid INT)"
    )
    with connect(dialect="laminardb", keep_inputs=True) as session, duckdb.connect() as other:
        session.sql(tables)
        other.execute(tables)
        running = started(session, query)
        for change in changes:
            session.sql(change)
            other.execute(change)
            assert rows(running.table()) == sorted(other.sql(query).fetchall(), key=repr), change
        assert running.verify().equal


def test_a_lookup_join_reads_the_external_table_and_hints_are_read(tmp_path: Path) -> None:
    file = tmp_path / "dim.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE customers (id INT, country TEXT)")
        database.execute("INSERT INTO customers VALUES (1, 'FR')")
    database.close()
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TEMPORARY TABLE Customers (id INT, country STRING) WITH ('connector' = 'jdbc', "
            f"'url' = 'jdbc:sqlite:{file}', 'table-name' = 'customers')"
        )
        session.sql("CREATE TABLE Orders (order_id INT, customer_id INT, proc_time AS PROCTIME())")
        running = started(
            session,
            "SELECT /*+ LOOKUP('table'='Customers', 'async'='false') */ o.order_id, c.country FROM Orders AS o "
            "LEFT JOIN Customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id",
        )

        session.sql("INSERT INTO Orders (order_id, customer_id) VALUES (10, 1), (11, 2)")

        assert rows(running.table()) == [(10, "FR"), (11, None)]
        running.stop()


def test_an_external_table_with_the_names_of_the_stream_is_distinguished() -> None:
    source = FunctionSource(
        name="dim",
        schema=pa.schema({"id": pa.int32(), "name": pa.string()}),
        function=lambda keys: pa.table(
            {"id": keys.column("id"), "name": ["x"] * keys.num_rows}, schema=pa.schema({"id": pa.int32(), "name": pa.string()})
        ),
    )
    with connect() as session:
        session.register_lookup(source)
        session.sql("CREATE TABLE s (id INT, name STRING)")
        running = started(
            session, "SELECT s.id, s.name, d.name AS found FROM s JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON s.id = d.id"
        )

        session.sql("INSERT INTO s VALUES (1, 'own')")

        assert rows(running.table()) == [(1, "own", "x")]
        running.stop()


def test_versioned_on_another_column_has_no_watermark_and_explains_why() -> None:
    with connect(dialect="flink") as session:
        session.sql(RATES.replace("at TIMESTAMP(3),", "at TIMESTAMP(3), written TIMESTAMP(3),"))

        with pytest.raises(SqlError) as refused:
            session.sql(
                "SELECT o.id, r.rate FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.t VERSIONED ON written AS r "
                "ON o.currency = r.currency"
            )

        assert refused.value.code == "TEMPORAL_WATERMARK"


def test_a_time_that_no_left_row_has_is_refused() -> None:
    with connect(dialect="flink") as session:
        session.sql(RATES + "CREATE TABLE hidden (currency STRING, w TIMESTAMP(3));")

        with pytest.raises(SqlError, match="the right side of a semi or anti join"):
            session.sql(
                "SELECT o.id FROM orders AS o LEFT SEMI JOIN hidden AS h ON o.currency = h.currency "
                "JOIN rates FOR SYSTEM_TIME AS OF w AS r ON o.currency = r.currency"
            )


def test_an_as_of_join_with_a_match_condition_may_compare_other_columns_beside_it() -> None:
    with connect(dialect="spark") as session:
        session.sql("CREATE TABLE trades (id INT, s STRING, t INT, size INT); CREATE TABLE quotes (s STRING, at INT, size INT)")
        running = started(
            session,
            "SELECT t.id, q.at FROM trades AS t ASOF LEFT JOIN quotes AS q MATCH_CONDITION (t.t >= q.at) "
            "ON t.s = q.s AND q.size >= t.size",
        )

        session.sql("INSERT INTO quotes VALUES ('a', 5, 10), ('a', 8, 1)")
        session.sql("INSERT INTO trades VALUES (1, 'a', 7, 3), (2, 'a', 9, 3)")

        assert rows(running.table()) == [(1, 5), (2, 5)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.t AS r ON o.currency = r.currency",
        "SELECT o.id FROM orders AS o ASOF LEFT JOIN rates AS r ON o.currency = r.currency AND o.t >= r.at",
        "SELECT id FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY t DESC) AS n FROM orders) WHERE n = 1",
    ],
)
def test_what_is_too_far_ahead_of_its_table_is_put_aside_by_every_query(query: str) -> None:
    with connect(dialect="flink") as session:
        session.sql("SET max_watermark_jump = '1 hour'; SET on_bad_input = 'quarantine'")
        session.sql(RATES)
        running = started(session, query)
        session.sql("INSERT INTO rates VALUES ('EUR', 1, TIMESTAMP '2026-01-01 10:00:00')")
        session.sql("INSERT INTO orders VALUES (1, 'EUR', 1, TIMESTAMP '2026-01-01 10:00:00')")

        session.sql("INSERT INTO orders VALUES (2, 'EUR', 1, TIMESTAMP '2062-01-01 10:00:00')")
        session.sql("INSERT INTO rates VALUES ('EUR', 2, TIMESTAMP '2026-01-01 10:30:00')")
        session.sql("INSERT INTO orders VALUES (3, 'EUR', 1, TIMESTAMP '2026-01-01 10:20:00')")

        assert rows(running.table()) == [(1,), (3,)]
