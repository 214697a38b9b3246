"""A session in process: statements, consoles, views, and the session of the Timeplus page with its numbers."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.timeplus_page import has_the_numbers_of_the_page, query, rows
from zset_join.core.errors import BadInputError, OptionError, PlanError, SqlError, ZsetJoinError
from zset_join.sql import Message, Session, SqlWarning, connect


@pytest.fixture
def session() -> Any:
    seconds = itertools.count(1_700_000_000_000_000, 1_000_000)
    with connect(dialect="timeplus", clock=lambda: next(seconds)) as opened:
        yield opened


def test_the_session_of_the_timeplus_page_gives_its_numbers(session: Session) -> None:
    has_the_numbers_of_the_page(session)


def test_a_processing_time_column_has_the_time_of_its_epoch(session: Session) -> None:
    session.sql("CREATE STREAM s (a int); INSERT INTO s VALUES (1)")

    (line,) = query(session, "SELECT a, _tp_time FROM s").table().to_pylist()

    assert line["_tp_time"] == datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)


def test_a_changelog_stream_deletes_by_its_delta(session: Session) -> None:
    session.sql("CREATE STREAM t (k string, v int) PRIMARY KEY (k) SETTINGS mode='changelog_kv'")
    running = query(session, "SELECT k, v FROM t").start()

    session.sql("INSERT INTO t (k, v, _tp_delta) VALUES ('a', 1, 1)")
    session.sql("INSERT INTO t (k, v, _tp_delta) VALUES ('a', 1, -1)")

    assert rows(running.changelog()) == [("a", 1, 1), ("a", 1, -1)]


def test_views_represent_their_queries_and_hold_what_they_read(session: Session) -> None:
    session.sql("CREATE MUTABLE STREAM t (k string, v int) PRIMARY KEY (k)")
    session.sql("CREATE VIEW large AS SELECT k, v FROM t WHERE v > 1; CREATE VIEW counted AS SELECT count(*) AS n FROM large")
    session.sql("INSERT INTO t VALUES ('a', 1), ('b', 2)")

    assert rows(query(session, "SELECT * FROM counted").table()) == [(1,)]
    with pytest.raises(SqlError, match="is read by large") as refused:
        session.sql("DROP STREAM t")
    assert refused.value.code == "STILL_READ"
    session.sql("DROP VIEW counted; DROP VIEW large; DROP STREAM t")
    assert session.catalog.relations() == []


def test_insert_select_goes_on_for_streams_and_is_done_at_once_for_stored_rows(session: Session) -> None:
    session.sql("CREATE STREAM s (a int); CREATE STREAM copy (a int); CREATE STREAM once (a int)")
    session.sql("INSERT INTO s VALUES (1); INSERT INTO copy SELECT a + 1 FROM s; INSERT INTO once SELECT a FROM table(s)")
    session.sql("INSERT INTO s VALUES (5)")

    assert sorted(rows(query(session, "SELECT a FROM table(copy)").table())) == [(2,), (6,)]
    assert rows(query(session, "SELECT a FROM table(once)").table()) == [(1,)]


def test_arrow_tables_are_registered_and_the_fluent_api_goes_on(session: Session) -> None:
    session.register("orders", pa.table({"id": [1, 2], "total": [5, 50]}), keys="id")
    made = query(session, "SELECT id, total FROM orders WHERE total > 10")

    assert made.view.columns == ["id", "total"]
    assert rows(made.table()) == [(2, 50)]
    with pytest.raises(OptionError, match="cannot be converted to an Arrow table"):
        session.register("nonsense", 5)


def test_settings_are_checked_when_they_are_given(session: Session) -> None:
    session.sql("SET max_hot_keys = 1000; SET 'table.exec.async-lookup.timeout' = '180s'")
    assert session.catalog.settings["max_hot_keys"] == "1000"

    with pytest.raises(SqlError, match="Did you mean max_hot_keys") as refused:
        session.sql("SET max_hot_key = 5")
    assert refused.value.code == "UNKNOWN_SETTING"
    with pytest.raises(SqlError, match="default_hash_join"):
        session.sql("SET default_hash_join = 'disk'")
    session.sql("SET cold_store = 'duckdb'")
    with pytest.raises(SqlError, match='"files" or "duckdb"'):
        session.sql("SET cold_store = 'tape'")


def test_an_append_only_join_stops_at_its_limit(session: Session) -> None:
    session.sql("CREATE STREAM left_append(i int, k string); CREATE STREAM right_append(ii int, kk string);")
    running = query(
        session,
        "SELECT * FROM left_append JOIN right_append ON left_append.k = right_append.kk SETTINGS join_max_buffered_bytes=10",
    ).start()
    with pytest.raises(ZsetJoinError, match="join_max_buffered_bytes"):
        session.sql("INSERT INTO left_append(i, k) VALUES (1, 'a')")
    running.stop()
    again = query(
        session,
        "SELECT i, ii FROM left_append JOIN right_append ON left_append.k = right_append.kk "
        "SETTINGS join_max_buffered_bytes=102400000",
    ).start()
    session.sql("INSERT INTO right_append(ii, kk) VALUES (22, 'a')")
    assert rows(again.table()) == []  # the refused row is in no table
    session.sql("INSERT INTO left_append(i, k) VALUES (1, 'a')")
    assert rows(again.table()) == [(1, 22)]


def test_describe_shows_what_a_table_is_and_why() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE a (k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts, PRIMARY KEY(k) NOT ENFORCED)")
        session.sql("CREATE TABLE b (k STRING)")

        assert "versioned: it has the primary key (k) and the event time ts" in str(session.sql("DESCRIBE a"))
        assert "latest-only: it has no primary key and no event time" in str(session.sql("DESCRIBE b"))
        shown = session.sql("SHOW TABLES")
        assert isinstance(shown, Message)
        assert str(shown) == "a\nb"
        assert "Select" in str(session.sql("EXPLAIN SELECT k FROM a WHERE k > 'x'")) or "Where" in str(
            session.sql("EXPLAIN SELECT k FROM a WHERE k > 'x'")
        )


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("SELECT b FROM s", "UNKNOWN_COLUMN", 'there is no column "b"'),
        ("SELECT a FROM ss", "UNKNOWN_TABLE", "Did you mean s?"),
        ("SELECT x.a FROM s", "UNKNOWN_TABLE", 'no "x" in FROM'),
        ("SELECT a FROM s, t", "CROSS_JOIN", "cross join"),
        ("SELECT s.a FROM s JOIN t ON s.a < t.a", "CROSS_JOIN", "equal expressions"),
        ("SELECT a FROM s JOIN t ON s.a = t.a", "AMBIGUOUS_COLUMN", "s.a"),
        ("SELECT a FROM s JOIN s ON s.a = s.a", "DUPLICATE_NAME", "another name"),
        ("SELECT a FROM s WHERE a NOT IN (SELECT a FROM t)", "NOT_IN", "NOT EXISTS"),
        ("SELECT a FROM s WHERE a > ALL (SELECT a FROM t)", "NOT_OFFERED", "compare with its max or min"),
        ("SELECT a FROM s WHERE NOT a = ANY (SELECT a FROM t)", "NOT_OFFERED", "Write IN for = ANY"),
        ("SELECT a = ANY (ARRAY[1, 2]) FROM s", "NOT_OFFERED", "Write IN for = ANY"),
        ("SELECT a FROM s WHERE a", "NOT_BOOLEAN", "boolean"),
        ("SELECT now() FROM s", "NON_DETERMINISTIC", "another value"),
        ("SELECT a FROM s ORDER BY a", "NOT_OFFERED", "no order"),
        ("SELECT a FROM s LIMIT 5", "NOT_OFFERED", "no order"),
        ("SELECT a, count(*) FROM s", "NOT_GROUPED", "GROUP BY"),
        ("SELECT min(DISTINCT) FROM s", "NOT_OFFERED", "takes one value"),
        ("SELECT count(DISTINCT) FROM s", "NOT_OFFERED", "takes values"),
        ("SELECT avg() FROM s", "SQL_SYNTAX", "AVG lacks an operand"),
        ("SELECT frobnicate(a) FROM s", "UNKNOWN_FUNCTION", "FROBNICATE"),
        ("SELECT a FROM s INTERSECT ALL SELECT a FROM t", "NOT_OFFERED", "EXISTS"),
        ("WITH RECURSIVE r AS (SELECT a FROM s) SELECT a FROM r", "NOT_OFFERED", "recursive"),
        ("SELECT 1", "NOT_OFFERED", "FROM"),
        ("SELECT a, (SELECT a FROM t) FROM s", "NOT_OFFERED", "subquery"),
        ("SELECT sum(a) OVER (ORDER BY a) FROM s", "NOT_OFFERED", "window function"),
        ("SELECT a FROM (SELECT a, ROW_NUMBER() OVER (PARTITION BY a ORDER BY a) AS rn FROM s)", "NOT_OFFERED", "rn = 1"),
        ("SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY a) AS rn, a FROM s", "NOT_OFFERED", "rn = 1"),
        ("SELECT s.a FROM s RIGHT JOIN t FOR SYSTEM_TIME AS OF s.a ON s.a = t.a", "TEMPORAL_SIDE", "LEFT or INNER"),
        ("SELECT a FROM s SETTINGS max_hot = 5", "UNKNOWN_SETTING", "Did you mean max_hot_keys"),
        ("SELEC a FROM s", "SQL_SYNTAX", "Did you mean SELECT"),
        ("SELECT a FROM", "SQL_SYNTAX", "syntax"),
        ("INSERT INTO s VALUES (1, 2)", "INSERT_COLUMNS", "has 1 values here"),
        ("INSERT INTO s VALUES ('x')", "LITERAL", "does not fit"),
        ("INSERT INTO s (b) VALUES (1)", "UNKNOWN_COLUMN", "no column b"),
        ("CREATE STREAM s (a int)", "NAME_TAKEN", "taken"),
        ("CREATE STREAM u (a integr)", "UNKNOWN_TYPE", "INT"),
        ("CREATE MUTABLE STREAM u (a int)", "NO_PRIMARY_KEY", "PRIMARY KEY"),
        ("CREATE TABLE u (a int) WITH ('connector' = 'kafkaa')", "UNKNOWN_CONNECTOR", "kafka"),
        ("CREATE TABLE u (a int) WITH ('format' = 'jsn')", "UNKNOWN_FORMAT", "json"),
        ("CREATE TABLE u (a int, WATERMARK FOR a AS a * 2)", "WATERMARK", "nothing else"),
        ("DROP VIEW nothing", "UNKNOWN_TABLE", "nothing"),
        ("CREATE FUNCTION f AS 'x'", "NOT_OFFERED", "FUNCTION"),
        ('" " SELECT a FROM s', "SQL_SYNTAX", "does not begin with"),
        ("SELECT a FROM s WHERE a IN s", "NOT_OFFERED", "in brackets"),
        ("SELECT a FROM s WHERE EXISTS (SELECT 1 WHERE a = 1)", "NOT_OFFERED", "reads FROM something"),
        ("SELECT a FROM s FOR SYSTEM_TIME AS OF PROCTIME() AS q", "NOT_OFFERED", "behind JOIN"),
        ("SELECT a FROM s TABLESAMPLE (10 PERCENT)", "NOT_OFFERED", "ample"),
        ("SELECT " + "(" * 100 + "a" + ")" * 100 + " FROM s", "SQL_TOO_DEEP", "views"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_reason_and_where(text: str, code: str, words: str, session: Session) -> None:
    session.sql("CREATE STREAM s (a int); CREATE STREAM t (a int)")

    with pytest.raises(SqlError) as refused:
        session.sql(text)

    assert (refused.value.code, words in str(refused.value)) == (code, True), str(refused.value)
    assert "line 1, column" in str(refused.value)


def test_engines_and_dialects_that_are_not_there_are_refused() -> None:
    with pytest.raises(OptionError, match="use local or spark"):
        connect(engine="flink")
    with pytest.raises(OptionError, match="Did you mean flink"):
        connect(dialect="fllnk")


def test_settings_of_a_query_count_when_it_is_bound() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE o (id INT, k STRING, t TIMESTAMP(3), WATERMARK FOR t AS t)")
        session.sql("CREATE TABLE r (k STRING, v INT, t TIMESTAMP(3), PRIMARY KEY (k), WATERMARK FOR t AS t)")
        text = "SELECT o.id, r.v FROM o LEFT JOIN r FOR SYSTEM_TIME AS OF o.t ON o.k = r.k"
        session.sql("INSERT INTO o VALUES (1, 'a', TIMESTAMP '2024-01-01 00:00:00')")

        with pytest.warns(UserWarning, match="has deletes"):
            assert rows(query(session, text).table()) == []
        with pytest.warns(UserWarning, match="has deletes"):
            assert rows(query(session, f"{text} SETTINGS temporal_join_emit = 'eager'").table()) == [(1, None)]


def test_a_view_is_shown_as_it_was_made_and_a_temporary_one_is_dropped(session: Session) -> None:
    session.sql("CREATE STREAM s (a int); CREATE TEMPORARY VIEW v AS SELECT a + 1 AS b FROM s")

    assert str(session.sql("SHOW CREATE VIEW v")) == "CREATE VIEW `v` AS SELECT a + 1 AS b FROM s"
    assert str(session.sql("DROP TEMPORARY VIEW v")) == "v is dropped"


def test_windows_that_grow_hold_a_row_until_they_end(session: Session) -> None:
    session.sql("CREATE TABLE o (id INT, t TIMESTAMP(3))", dialect="flink")
    session.sql(
        "INSERT INTO o VALUES (1, TIMESTAMP '2024-01-01 00:03:00'), (2, TIMESTAMP '2024-01-01 00:05:00')", dialect="flink"
    )
    text = "FROM TABLE(CUMULATE(TABLE o, DESCRIPTOR(t), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES))"
    made = query(session, f"SELECT id, extract(MINUTE FROM window_start), extract(MINUTE FROM window_end) {text}").table()

    assert sorted(rows(made)) == [(1, 0, 5), (1, 0, 10), (2, 0, 10)]


def test_names_of_types_follow_the_dialect() -> None:
    with connect(dialect="risingwave") as session:
        session.sql("CREATE TABLE t (a FLOAT, b INT8, c INT)")
        made = query(session, "SELECT a, b, c::float AS d, c::int8 AS e, '2024-01-01'::timestamptz AS f FROM t")

        assert [str(kind) for kind in made.schema.types] == ["double", "int64", "double", "int64", "timestamp[us, tz=UTC]"]


def test_a_message_calls_a_function_as_it_was_written(session: Session) -> None:
    session.sql("CREATE STREAM s (a int)")
    with pytest.raises(SqlError, match="the aggregate PERCENTILE is not supported"):
        session.sql("SELECT percentile(a, 0.5) FROM s")
    with pytest.raises(SqlError, match="DECODE is not supported with these operands"):
        session.sql("SELECT decode(a, 'utf-8') FROM s")


def test_a_sink_that_cannot_be_opened_is_not_there(session: Session, tmp_path: Path) -> None:
    (tmp_path / "file.duckdb").write_text("no database")
    session.sql("CREATE STREAM s (a int)")
    with pytest.raises(ZsetJoinError):
        session.sql(f"CREATE SINK k AS SELECT a FROM s WITH (connector='duckdb', path='{tmp_path}/file.duckdb')")

    assert str(session.sql("SHOW SINKS")) == ""


def test_a_hint_or_a_limit_without_what_it_is_for_warns_by_name(session: Session) -> None:
    session.sql("CREATE STREAM s (a int)")
    with pytest.warns(UserWarning, match="'table'='nowhere'"):
        session.sql("SELECT /*+ LOOKUP('table'='nowhere') */ a FROM s")
    with pytest.warns(SqlWarning, match="'max_hot_keys' changes nothing"):
        session.sql("SELECT a FROM s SETTINGS max_hot_keys=3")


def test_stored_rows_are_inserted_as_what_the_table_takes(session: Session) -> None:
    session.sql("CREATE STREAM s (a int, b string, c bigint); CREATE STREAM d (a int, b string)")
    session.sql("INSERT INTO s VALUES (1, 'x', 5)")
    session.sql("INSERT INTO d (b) SELECT c FROM table(s)")

    assert rows(query(session, "SELECT a, b FROM d").table()) == [(None, "5")]
    with pytest.raises(SqlError, match="takes"):
        session.sql("INSERT INTO d SELECT b, b FROM table(s)")
    with pytest.raises(SqlError, match="DECIMAL"):
        session.sql("SELECT CAST(a AS DECIMAL(10, 1.5)) FROM s")


def test_stored_rows_are_inserted_in_order_and_no_more_than_requested(session: Session) -> None:
    session.sql("CREATE STREAM s (a int); CREATE STREAM d (b bigint); INSERT INTO s VALUES (1), (3), (2)")
    session.sql("INSERT INTO d SELECT a FROM table(s) ORDER BY a DESC LIMIT 2")

    assert rows(query(session, "SELECT b FROM table(d) ORDER BY b").table()) == [(2,), (3,)]


def test_rows_that_do_not_fit_are_refused_by_column(session: Session) -> None:
    session.register("t", pa.schema({"k": pa.int32()}))
    with pytest.raises(BadInputError, match='is no int32, as column "k" is'):
        session.insert("t", {"k": ["x"]})
    assert query(session, "SELECT k FROM t").table().num_rows == 0
    with pytest.raises(SqlError, match="places that fit an INT"):
        session.sql("SELECT substring('abc', 9223372036854775807, 2) AS s FROM t")


def test_a_null_goes_into_a_column_of_every_type() -> None:
    kinds = [
        "INT",
        "BIGINT",
        "DOUBLE",
        "DECIMAL(10,2)",
        "STRING",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "ARRAY<INT>",
    ]
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
    with connect(dialect="spark") as session:
        session.sql(f"CREATE TABLE t (id INT, {columns})")
        nulls = ", ".join(["NULL"] * len(kinds))
        session.sql(
            f"INSERT INTO t VALUES (1, {nulls}), (2, 1, 1, 1.5, 1.5, 'x', TRUE, DATE '2024-01-01', "
            "TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP_NTZ '2024-01-01 00:00:00', array(1))"
        )

        query: Any = session.sql("SELECT * FROM t")
        first, second = sorted(query.table().to_pylist(), key=lambda row: row["id"])

    assert [value for name, value in first.items() if name != "id"] == [None] * len(kinds)
    assert None not in second.values()


@pytest.mark.parametrize("text", ["SET temporal_join_emit TO 'eager'", "SET temporal_join_emit = 'eager'"])
def test_a_setting_is_set_by_to_or_by_a_sign(text: str) -> None:
    with connect(dialect="risingwave") as session:
        session.sql(text)

        assert session.catalog.settings["temporal_join_emit"] == "eager"


def test_flush_reports_that_nothing_is_left_to_wait_for() -> None:
    with connect(dialect="risingwave") as session:
        assert "answered when it returns" in str(session.sql("FLUSH"))


@pytest.mark.parametrize("dialect", ["flink", "laminardb", "risingwave", "spark", "timeplus"])
def test_bytes_are_written_in_hexadecimal_digits(dialect: str) -> None:
    with connect(dialect=dialect) as session:
        session.sql("CREATE TABLE t (id INT PRIMARY KEY, b VARBINARY); INSERT INTO t VALUES (1, X'00ff'), (2, x''), (3, NULL)")

        wanted = query(session, "SELECT id, X'1' AS odd FROM t WHERE b = X'00FF' OR b IN (x'', X'01')")
        assert rows(wanted.table()) == [(1, b"\x01"), (2, b"\x01")]


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("SELECT 1 AS a, X'0G' AS b", "SQL_SYNTAX", 16),
        ("SELECT 1 AS a, X'0_1' AS b", "LITERAL", 16),
        ("SELECT 1 AS a, 0xff AS b", "NOT_OFFERED", 16),
        ("SELECT X'00' || 'a' AS b", "TYPE_MISMATCH", 8),
        ("SELECT CAST('a' AS BINARY) AS b", "TYPE_MISMATCH", 13),
        ("SELECT 1 AS a, 'abc", "SQL_SYNTAX", 16),
    ],
)
def test_what_is_no_literal_is_refused_at_its_place(text: str, code: str, column: int) -> None:
    with connect(dialect="spark") as session:
        session.register("t", [{"a": 1}])
        with pytest.raises(SqlError) as failure:
            session.sql(f"{text} FROM t")

    assert "operand " not in str(failure.value)
    assert (failure.value.code, failure.value.facts["column"]) == (code, column)


def test_a_text_that_is_left_open_shows_no_password() -> None:
    with connect() as session, pytest.raises(SqlError) as failure:
        session.sql("CREATE TABLE t (a INT) WITH ('password' = 'hush', 'path' = 'x)")

    assert "hush" not in str(failure.value)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 AS a FROM t;\nINSERT INTO filled VALUES (1)",
        "SELECT a FROM t;\nSET state_ttl_by = 'event'; SET state_ttl = '1 day';\nSELECT DISTINCT a FROM t",
    ],
)
def test_what_a_session_refuses_has_the_place_of_its_statement(text: str, tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql("CREATE TABLE t (a INT)")
        session.sql("CREATE TABLE filled (a INT) WITH ('connector' = 'datagen', 'number-of-rows' = '1')")
        with pytest.raises(PlanError) as failure:
            session.sql(text)

    assert failure.value.facts["line"] == text.count("\n") + 1
    assert "^" in str(failure.value)


def test_distinct_rows_of_groups_end_by_time_as_groups_do(session: Session) -> None:
    session.sql("CREATE STREAM s (k int, v int); SET state_ttl = '1 day'")

    assert query(session, "SELECT DISTINCT sum(v) AS total FROM s GROUP BY k").explain().count("86400 seconds") > 1
