"""Statements as people write them: sets of statements, and views that name their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import SqlWarning, connect
from zset_join.sql_expressions.dialects import DIALECTS


def test_a_statement_set_runs_the_statements_in_it() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (a INT, PRIMARY KEY (a) NOT ENFORCED)")
        session.sql("EXECUTE STATEMENT SET BEGIN INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); END;")
        session.sql("BEGIN STATEMENT SET; INSERT INTO t VALUES (3); END")
        session.sql("EXECUTE INSERT INTO t VALUES (4)")

        assert sorted(session.sql("SELECT a FROM table(t)").table()["a"].to_pylist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("word", ["VIEW", "MATERIALIZED VIEW"])
def test_a_view_names_its_columns(word: str) -> None:
    with connect(dialect="risingwave") as session:
        session.sql("CREATE TABLE t (a INT, b INT)")
        session.sql(f"CREATE {word} v (x, y) COMMENT 'why' AS SELECT b, a + 1 FROM t")
        session.sql("INSERT INTO t VALUES (1, 10)")

        assert session.sql("SELECT x, y FROM table(v)").table().to_pylist() == [{"x": 10, "y": 2}]
        assert session.sql("SHOW CREATE VIEW v").text == f"CREATE {word} `v` (`x`, `y`) AS SELECT b, a + 1 FROM t"


def test_a_view_with_more_names_than_columns_is_refused() -> None:
    with connect(dialect="risingwave") as session:
        session.sql("CREATE TABLE t (a INT, b INT)")
        with pytest.raises(SqlError, match=r"the view names 1 column \(x\), and its query has 2 \(a, b\)"):
            session.sql("CREATE VIEW v (x) AS SELECT a, b FROM t")


@pytest.mark.parametrize(
    ("dialect", "text", "value"),
    [
        *[(dialect, "'it''s'", "it's") for dialect in DIALECTS],
        *[(dialect, r"'\d+'", r"\d+") for dialect in ("flink", "laminardb", "risingwave")],
        *[(dialect, r"'C:\'", "C:\\") for dialect in ("flink", "laminardb", "risingwave")],
        *[(dialect, r"'a\'b\n'", "a'b\n") for dialect in ("spark", "timeplus")],
    ],
)
def test_quotes_and_backslashes_of_texts_mean_what_they_mean_in_the_system(dialect: str, text: str, value: str) -> None:
    with connect(dialect=dialect) as session:
        session.sql("CREATE TABLE t (a STRING)")
        session.sql(f"INSERT INTO t (a) VALUES ({text})")

        assert session.sql(f"SELECT a FROM table(t) WHERE a = {text}").table()["a"].to_pylist() == [value]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT k FROM e GROUP BY TUMBLE(at, INTERVAL '1' DAY), k", r"FROM TUMBLE\(TABLE t, DESCRIPTOR\(time\), size\)"),
        ("SELECT HOP_START(at, INTERVAL '1' HOUR, INTERVAL '1' DAY) FROM e", r"FROM HOP\(TABLE t, .*, slide, size\)"),
        (
            "SELECT * FROM TABLE(SESSION(TABLE e PARTITION BY k, DESCRIPTOR(at), INTERVAL '5' MINUTES))",
            "SESSION .*\n.*column 21",
        ),
        ("SELECT * FROM TUMBLE(SIZE => INTERVAL '1' DAY, DATA => TABLE e)", "are in this order: DATA, .*\n.*column 48"),
        ("CREATE TABLE r (a ROW<x INT>)", r"JSON_VALUE\(c, '\$\.a'\) gives its fields.\nline 1, column 19"),
        ("CREATE FUNCTION f AS 'com.x.F'", "use a UDF inside Spark"),
        ("ADD JAR 'x.jar'", "ADD is not supported. There are no jars"),
        ("STOP JOB 'x'", "zset-join backup copies a checkpoint"),
    ],
)
def test_what_is_refused_shows_what_to_write(text: str, message: str) -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE e (k STRING, at TIMESTAMP(3))")
        with pytest.raises(SqlError, match=message):
            session.sql(text)


def test_the_operands_of_a_window_may_be_named() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE e (v INT, at TIMESTAMP(3))")
        session.sql("INSERT INTO e VALUES (1, TIMESTAMP '2024-01-01 00:04:59'), (2, TIMESTAMP '2024-01-01 00:05:00')")
        for call in (
            "TUMBLE(DATA => TABLE e, TIMECOL => DESCRIPTOR(at), SIZE => INTERVAL '5' MINUTES)",
            "TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '5' MINUTES)",
        ):
            rows = session.sql(f"SELECT sum(v) AS s FROM TABLE({call}) GROUP BY window_start").start().table()
            assert sorted(rows["s"].to_pylist()) == [1, 2]


def test_a_hint_behind_a_table_warns() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE e (v INT)")
        with pytest.warns(SqlWarning, match=r"the hint OPTIONS\('a'=\*\*\*\) behind e changes nothing"):
            session.sql("SELECT * FROM e /*+ OPTIONS('a'='b') */ AS t")


def test_a_watermark_may_stay_behind_by_a_part_of_a_second() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE e (at TIMESTAMP(3), WATERMARK FOR at AS at - INTERVAL '0.001' SECOND)")
        session.sql("CREATE TABLE f (at TIMESTAMP(3), WATERMARK FOR at AS at - INTERVAL '1.5' HOUR)")

        assert session.catalog.tables["e"].watermark == ("at", 1_000)
        assert session.catalog.tables["f"].watermark == ("at", 5_400_000_000)


KAFKA = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:9092'"


@pytest.mark.parametrize(
    "option",
    [
        "'format' = 'debezium-json', 'debezium-json.schema-include' = 'true'",
        "'value.format' = 'json', 'value.json.fail-on-missing-field' = 'false'",
        "'format' = 'canal-json', 'canal-json.ignore-parse-errors' = 'true'",
    ],
)
def test_options_of_formats_warn(option: str) -> None:
    with connect(dialect="flink") as session, pytest.warns(SqlWarning, match="changes nothing here"):
        session.sql(f"CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ({KAFKA}, {option})")


def test_columns_that_only_the_key_of_a_record_holds_are_refused_where_values_are_read() -> None:
    with connect(dialect="flink") as session, pytest.raises(SqlError, match="the columns of its key would be NULL"):
        session.sql(f"CREATE TABLE t (id INT) WITH ({KAFKA}, 'format' = 'json', 'value.fields-include' = 'EXCEPT_KEY')")


def test_options_of_encode_json_warn_and_credentials_in_the_url_of_a_sink_are_refused() -> None:
    with connect(dialect="risingwave") as session:
        with pytest.warns(SqlWarning, match=r"'timestamptz\.handling\.mode' of ENCODE JSON changes nothing"):
            session.sql(
                "CREATE TABLE t (id int, PRIMARY KEY (id)) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = "
                "'b:9092') FORMAT UPSERT ENCODE JSON (timestamptz.handling.mode = 'milli')"
            )
        session.sql("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        with pytest.raises(SqlError, match="the url holds credentials"):
            session.sql(
                "CREATE SINK s FROM v WITH (connector = 'jdbc', jdbc.url = 'jdbc:postgresql://h/db?user=u&password=p', "
                "table.name = 't', type = 'upsert', primary_key = 'id')"
            )


def test_progress_counts_what_was_put_aside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"op": "c", "after": {"id": 1}}\nnonsense\n')
    with connect(dialect="flink", directory=tmp_path / "state") as session:
        session.sql(
            "SET 'on_bad_input' = 'quarantine'; CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = "
            f"'filesystem', 'path' = '{tmp_path}/in', 'format' = 'debezium-json')"
        )
        running = session.sql("SELECT id FROM t").start()
        session.read(wait_seconds=0.0)

        assert running.progress() == {"query": "query_1", "epoch": 0, "rows_in": 2, "rows_out": 1, "dead_letters": 1}


@pytest.mark.parametrize(
    "text",
    [
        """SELECT "id" FROM t""",
        """SELECT id FROM t WHERE "customer" = 'Ada'""",
        """SELECT count(*) AS n FROM t GROUP BY "customer\"""",
        """SELECT t."id" FROM t AS "t\"""",
        """CREATE TABLE u ("id" INT)""",
        """CREATE VIEW "v" AS SELECT id FROM t""",
        """INSERT INTO t VALUES (1, "Ada")""",
        """UPDATE t SET customer = "Ada\"""",
    ],
)
def test_flink_has_no_double_quotes_so_a_name_in_them_is_never_a_text(text: str) -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE t (id INT, customer STRING, PRIMARY KEY (id) NOT ENFORCED)")
        with pytest.raises(SqlError, match=r"is in double quotes.*A name is in backticks, as `\w+`"):
            session.sql(text)


@pytest.mark.parametrize("dialect", ["timeplus", "risingwave", "laminardb"])
def test_in_other_dialects_double_quotes_are_those_of_a_name(dialect: str) -> None:
    with connect(dialect=dialect) as session:
        session.sql("""CREATE TABLE t ("id" INT, customer STRING); INSERT INTO t VALUES (1, 'Ada')""")

        assert session.sql("""SELECT "id" FROM table(t) WHERE "customer" = 'Ada'""").table().to_pylist() == [{"id": 1}]
