"""Queries that people write daily give, epoch after epoch, what DuckDB answers to the same text; statements that change rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.sql.against_duckdb import assert_equals_duckdb
from zset_join.core.errors import BadInputError, SqlError
from zset_join.sql import SqlWarning, connect

CREATED = """
CREATE TABLE o (id INT, customer STRING, total INT, qty INT, PRIMARY KEY (id) NOT ENFORCED);
CREATE TABLE c (id STRING, name STRING, PRIMARY KEY (id) NOT ENFORCED);
"""
EPOCHS = [
    "INSERT INTO o VALUES (1, 'a', 10, 1), (2, 'a', 20, NULL), (3, 'b', 5, 2), (4, NULL, 7, 3)",
    "INSERT INTO c VALUES ('a', 'Ada'), ('b', 'Bob'), ('x', 'Xi')",
    "INSERT INTO o VALUES (1, 'b', 30, 1), (5, 'z', 1, NULL), (6, 'b', 5, 2)",
    "DELETE FROM o WHERE total = 20",
    "UPDATE o SET total = total + 1, qty = NULL WHERE customer = 'b'",
    "DELETE FROM c",
]
QUERIES = [
    "SELECT id FROM o WHERE total > (SELECT avg(total) FROM o)",
    "SELECT id, (SELECT max(total) FROM o) AS m FROM o",
    "SELECT id, (SELECT count(*) FROM o WHERE total > 100) AS m FROM c",
    "SELECT id, (SELECT count(*) FROM o i WHERE i.customer = c.id) AS n FROM c",
    "SELECT id FROM o WHERE total >= (SELECT max(i.total) FROM o i WHERE i.customer = o.customer AND i.qty > 0)",
    "SELECT id, (SELECT name FROM c WHERE c.id = o.customer) AS name FROM o",
    "SELECT o.id, total - (SELECT min(total) FROM o) AS above FROM o JOIN c ON o.customer = c.id WHERE qty > 0",
    "SELECT o.id FROM o SEMI JOIN c ON o.customer = c.id",
    "SELECT o.id FROM o ANTI JOIN c ON o.customer = c.id AND qty > 0",
    "SELECT customer FROM o EXCEPT SELECT id FROM c",
    "SELECT customer FROM o INTERSECT SELECT id FROM c",
    "SELECT customer, qty, sum(total) AS s FROM o GROUP BY GROUPING SETS ((customer), (qty), ())",
    "SELECT customer, qty, count(*) AS s FROM o GROUP BY ROLLUP (customer, qty)",
    "SELECT customer, qty, max(total) AS s FROM o GROUP BY CUBE (customer, qty) HAVING count(*) > 1",
    "SELECT customer, count(*) AS n FROM o GROUP BY ALL",
    "SELECT id FROM o WHERE (customer, total) IN (('a', 10), ('b', 5))",
    "SELECT id FROM o WHERE (customer, qty) IN (SELECT customer, qty FROM o WHERE total > 5)",
    "SELECT id FROM o WHERE customer IN (SELECT id FROM c UNION ALL SELECT i.customer FROM o i WHERE i.id > o.id)",
    "SELECT id FROM o WHERE customer IN (SELECT c.id FROM c INTERSECT SELECT i.customer FROM o i WHERE i.id = o.id + 1)",
    "SELECT id FROM o WHERE customer IN (SELECT c.id FROM c EXCEPT SELECT i.customer FROM o i WHERE i.id = o.id + 1)",
    "SELECT id FROM o WHERE customer IN (WITH q AS (SELECT id FROM c WHERE name > 'B') SELECT id FROM q)",
    "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE c.id = o.customer UNION SELECT 1 FROM o i WHERE i.id = o.qty + 3)",
    "SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.id = o.customer UNION SELECT 1 FROM o i WHERE i.id = o.qty)",
    "SELECT id FROM o WHERE EXISTS (SELECT customer FROM o EXCEPT SELECT id FROM c)",
    "SELECT id FROM o WHERE total > 20 OR EXISTS (SELECT id FROM c INTERSECT SELECT customer FROM o WHERE total > 29)",
    "SELECT customer, bit_and(qty) AS b, bit_or(qty) AS c, bit_xor(qty) AS x FROM o GROUP BY customer",
    "SELECT customer, count(DISTINCT qty) AS n FROM o GROUP BY customer",
    "SELECT id, concat_ws('-', customer, CAST(total AS VARCHAR)) AS t, lpad(customer, 3, 'x') AS p FROM o",
    "SELECT id, TRY_CAST(customer AS INT) AS n, split_part(customer || ',q', ',', 2) AS p FROM o",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_equals_duckdb_s_answer_after_every_change(text: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(CREATED)
        assert_equals_duckdb(session, CREATED.replace("STRING", "VARCHAR").replace("NOT ENFORCED", ""), EPOCHS, text)


def test_windows_hold_the_rows_of_their_time() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE e (k STRING, v INT, at TIMESTAMP(3))")
        texts = {
            "tumble": "SELECT window_start, sum(v) AS s FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '10' MINUTES)) GROUP BY window_start",
            "hop": "SELECT window_end, sum(v) AS s FROM HOP(e, at, INTERVAL '5 minutes', INTERVAL '10 minutes') GROUP BY window_end",
        }  # fmt: skip
        running = {name: session.sql(text).start() for name, text in texts.items()}
        session.sql(
            "INSERT INTO e VALUES ('a', 1, TIMESTAMP '2024-01-01 00:04:59'), ('a', 2, TIMESTAMP '2024-01-01 00:10:00'), "
            "('a', 4, TIMESTAMP '1969-12-31 23:59:59')"
        )

        def found(name: str) -> list[tuple[str, int]]:
            return sorted((str(row), value) for row, value in zip(*running[name].table().to_pydict().values(), strict=True))

        assert found("tumble") == [("1969-12-31 23:50:00", 4), ("2024-01-01 00:00:00", 1), ("2024-01-01 00:10:00", 2)]
        assert found("hop") == [
            ("1970-01-01 00:00:00", 4), ("1970-01-01 00:05:00", 4), ("2024-01-01 00:05:00", 1), ("2024-01-01 00:10:00", 1),
            ("2024-01-01 00:15:00", 2), ("2024-01-01 00:20:00", 2),
        ]  # fmt: skip


def test_timeplus_writes_a_window_and_a_path_in_its_own_way() -> None:
    with connect(dialect="timeplus", clock=lambda: 0) as session:
        session.sql("CREATE STREAM e (j string, at datetime64)")
        session.sql("""INSERT INTO e (j, at) VALUES ('{"a": {"b": 3}}', TIMESTAMP '2024-01-01 00:01:00')""")

        text = "SELECT json_extract_int(j, 'a.b') AS b, to_start_of_hour(at) AS h, window_start FROM tumble(e, at, 1m)"
        assert [str(value) for value in session.sql(text).table().to_pylist()[0].values()] == [
            "3", "2024-01-01 00:00:00+00:00", "2024-01-01 00:01:00+00:00",
        ]  # fmt: skip


def test_strings_of_a_group_are_put_together_and_arrays_are_columns() -> None:
    with connect() as session:
        session.sql("CREATE TABLE t (k STRING, v STRING, tags ARRAY<STRING>)")
        session.register("given", pa.table({"tags": [["a", "b"], []]}))
        session.sql("INSERT INTO t (k, v) VALUES ('a', 'x'), ('a', 'x'), ('b', NULL)")

        assert session.sql("SELECT k, string_agg(v, '+') AS s FROM t GROUP BY k").table().to_pylist() == [
            {"k": "a", "s": "x+x"}, {"k": "b", "s": None},
        ]  # fmt: skip
        assert session.sql("SELECT size(tags) AS n, array_contains(tags, 'b') AS b FROM given").table().to_pylist() == [
            {"n": 2, "b": True}, {"n": 0, "b": False},
        ]  # fmt: skip


def test_columns_are_left_out_of_a_star_and_given_other_values() -> None:
    with connect() as session:
        session.sql("CREATE TABLE t (a INT, b INT, c INT); INSERT INTO t VALUES (1, 2, 3)")

        assert session.sql("SELECT * EXCEPT (b) FROM t").table().to_pylist() == [{"a": 1, "c": 3}]
        with pytest.raises(SqlError, match="no column"):
            session.sql("SELECT * EXCEPT (z) FROM t")


def test_a_table_is_made_like_another_or_of_a_query() -> None:
    with connect(dialect="flink") as session:
        session.sql(CREATED)
        session.sql("CREATE TABLE o2 LIKE o; CREATE TABLE big AS SELECT customer, sum(total) AS s FROM o GROUP BY customer")
        session.sql(EPOCHS[0])

        assert session.catalog.tables["o2"].primary_key == ("id",)
        assert session.sql("SELECT * FROM big WHERE customer = 'a'").table().to_pylist() == [{"customer": "a", "s": 30}]
        assert "PRIMARY KEY (`id`) NOT ENFORCED" in str(session.sql("SHOW CREATE TABLE o2"))


@pytest.mark.filterwarnings("ignore:.*its WATERMARK for at changes nothing")
def test_a_declaration_is_shown_without_its_secrets_and_can_be_declared_again() -> None:
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE t (id INT, at TIMESTAMP(3), n AS id + 1, WATERMARK FOR at AS at - INTERVAL '5' SECOND, "
            "PRIMARY KEY (id) NOT ENFORCED) WITH ('connector'='jdbc', 'url'='jdbc:postgresql://h/d', 'table-name'='t', 'password'='hush')"
        )
        shown = str(session.sql("SHOW CREATE TABLE t"))

        assert "hush" not in shown
        session.sql(shown.replace("CREATE TABLE `t`", "CREATE TABLE `u`"), dialect="spark")
        assert session.catalog.tables["u"].watermark == ("at", 5_000_000)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT id, (SELECT total FROM o i WHERE i.customer = o.customer) AS t FROM o", "NOT_OFFERED"),
        ("SELECT id, (SELECT max(total) FROM o i WHERE i.total > o.total) AS t FROM o", "NOT_OFFERED"),
        ("SELECT id, (SELECT id, total FROM o) AS t FROM o", "NOT_OFFERED"),
        ("SELECT customer FROM o EXCEPT ALL SELECT id FROM c", "NOT_OFFERED"),
        ("SELECT first(total) FROM o", "NOT_OFFERED"),
        ("SELECT * FROM TUMBLE(o, total, INTERVAL '1' HOUR)", "NOT_OFFERED"),
        ("UPDATE o SET id = 2", "NOT_OFFERED"),
        ("UPDATE o SET totl = 2", "UNKNOWN_COLUMN"),
        ("UPDATE o SET total = 2) FROM c --", "SQL_SYNTAX"),
        ("UPDATE o SET total = 2, 3", "SQL_SYNTAX"),
        ("DELETE FROM o WHERE total = 1) OR (1 = 1", "SQL_SYNTAX"),
        ("MERGE INTO o USING c ON o.id = c.id", "NOT_OFFERED"),
        ("SET 'table.exec.async-lookup.timout' = '1 s'", "UNKNOWN_SETTING"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_up_to_date_is_refused(statement: str, code: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(CREATED)
        with pytest.raises(SqlError) as failure:
            session.sql(statement)
        assert failure.value.code == code


def test_a_setting_of_another_system_warns_and_reset_restores_settings() -> None:
    with connect(dialect="flink") as session:
        with pytest.warns(SqlWarning, match="mini-batch"):
            session.sql("SET 'table.exec.mini-batch.enabled' = 'true'")
        session.sql("SET 'idle_timeout' = '3 s'; RESET idle_timeout; BEGIN STATEMENT SET; END; USE CATALOG default_catalog")
        assert session.catalog.settings == {}


@pytest.mark.parametrize("dialect", ["flink", "laminardb", "risingwave", "spark", "timeplus"])
def test_a_cast_fails_where_it_must_and_try_cast_gives_null(dialect: str) -> None:
    with connect(dialect=dialect) as session:
        session.register("t", [{"a": "x"}])

        assert session.sql("SELECT TRY_CAST(a AS INT) AS n FROM t").table().to_pylist() == [{"n": None}]
        for text in ("SELECT CAST(a AS INT) AS n FROM t", "SELECT a::INT AS n FROM t"):
            with pytest.raises(BadInputError):
                session.sql(text).table()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT max_by(, total) AS n FROM o GROUP BY customer",
        "SELECT nvl2(qty, , 0) AS u FROM o",
        "SELECT id, (SELECT max(total)) AS m FROM o",
        "SELECT nothing_like_it(qty) FILTER (WHERE qty > 1) AS n FROM o",
        "SELECT count(*) AS n FROM table() AS x JOIN c ON x.id = c.id",
        "SELECT regexp_replace(customer, 'a+' 'b') FROM o",
    ],
)
def test_what_a_fuzzer_crashed_on_is_refused(text: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(CREATED)
        with pytest.raises(SqlError):
            session.sql(text)
