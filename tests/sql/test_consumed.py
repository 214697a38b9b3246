"""Nothing that is written is ignored: what no rule reads is refused by name, clauses are written once, options mean something."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlglot import exp

from tests.sql.test_documents import FILES, outcome, read
from zset_join.core.errors import OptionError, PlanError, SqlError
from zset_join.sql import Session, SqlWarning, connect
from zset_join.sql_expressions import consumed

TABLES = """
CREATE TABLE a (k INT, v INT, t TIMESTAMP);
CREATE TABLE b (k INT, w INT, t TIMESTAMP, PRIMARY KEY (k));
"""
READS = {
    ("Join", "side"): "SELECT a.v, b.w FROM a LEFT JOIN b ON a.k = b.k",
    ("Join", "on"): "SELECT a.v, b.w FROM a JOIN b ON a.k = b.k",
    ("Join", "using"): "SELECT v, w FROM a JOIN b USING (k)",
    ("Join", "method"): "SELECT a.v, b.w FROM a ASOF JOIN b ON a.k = b.k AND a.t >= b.t",
    ("Join", "match_condition"): "SELECT a.v, b.w FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.k = b.k",
    ("Table", "version"): "SELECT a.v, b.w FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k",
    ("Select", "where"): "SELECT v FROM a WHERE v > 1",
    ("Select", "having"): "SELECT k, sum(v) AS s FROM a GROUP BY k HAVING sum(v) > 1",
    ("Select", "distinct"): "SELECT DISTINCT v FROM a",
    ("Select", "hint"): "SELECT /*+ STATE_TTL('a'='1d') */ DISTINCT v FROM a",
    ("Select", "qualify"): "SELECT v FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) = 1",
    ("Window", "partition_by"): "SELECT v FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) = 1",
    ("Ordered", "desc"): "SELECT v FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) = 1",
    ("Filter", "expression"): "SELECT count(*) FILTER (WHERE v > 1) AS n FROM a",
    ("Union", "distinct"): "SELECT v FROM a UNION SELECT w AS v FROM b",
    ("Between", "high"): "SELECT v FROM a WHERE v BETWEEN 1 AND 2",
    ("Case", "default"): "SELECT CASE WHEN v > 1 THEN 1 ELSE 2 END AS c FROM a",
    ("Star", "except_"): "SELECT * EXCEPT (v) FROM a",
    ("In", "query"): "SELECT v FROM a WHERE k IN (SELECT k FROM b)",
    ("Limit", "expression"): "SELECT v FROM table(a) LIMIT 1",
    ("Group", "rollup"): "SELECT k, sum(v) AS s FROM a GROUP BY k WITH ROLLUP",
}
NEVER_READ = (
    "SELECT * RENAME (v AS z) FROM a",
    "SELECT v FROM a FOR UPDATE",
    "SELECT v FROM a WITH ORDINALITY",
    "SELECT v FROM a UNION ALL BY NAME SELECT w FROM b",
    "SELECT v FROM a FOR VERSION AS OF 3",
    "SELECT v FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) = 1",
    "SELECT v FROM a WHERE k IN (SELECT DISTINCT ON (k) w FROM b)",
    "SELECT unix_timestamp('1', 'dd/MM/yyyy HH') AS u FROM a",
    "SELECT initcap('a', '-') AS u FROM a",
    "SELECT v, FROM a",
    "SELECT v FROM a WHERE v IN (1,)",
    "SELECT a.v FROM a LATEST JOIN b ON a.k = b.k",
    "SELECT a.v FROM a ALL LEFT JOIN b ON a.k = b.k",
    "SELECT v FROM a FINAL",
    "SELECT a.v FROM a LEFT JOIN (b JOIN b AS c ON b.k = c.k) ON a.k = b.k",
    "DROP TABLE a CASCADE",
    "SHOW TABLES LIKE 'a'",
    "DESCRIBE a PARTITION",
    "USE d NOW",
    "SELECT v FROM a EMIT",
    "SELECT k FROM a GROUP GROUP BY k",
    "SELECT AS v FROM a",
    "SELECT k FROM a GROUP BY DISTINCT k",
    "SELECT k FROM a GROUP BY ALL k",
    "SELECT k, LISTAGG(CAST(v AS STRING), ',' ON OVERFLOW TRUNCATE) AS s FROM a GROUP BY k",
    "DELETE FROM b WHERE k = 1 LIMIT 1",
    "UPDATE b SET w = 1 WHERE w = 2 LIMIT 1",
    "INSERT INTO a VALUES (1 LIMIT 3, 2, NULL)",
    "INSERT INTO a VALUES (1 x, 2, NULL)",
    "FLUSH TABLES",
    "BEGIN BEGIN",
    "EXECUTE STATEMENT",
    "RESET max_hot_keys max_hot_bytes",
    "EXPLAIN PLAN PLAN FOR SELECT v FROM a",
    "EXPLAIN EXTENDED FORMATTED SELECT v FROM a",
    "EXPLAIN INSERT nonsense SELECT v FROM a",
    "EXPLAIN CREATE nonsense SELECT v FROM a",
    "USE CATALOG DATABASE d",
    "SHOW MATERIALIZED VIEWS a",
)
KAFKA = "'connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='h:1'"
DECLARED = (
    ("CREATE TABLE t (x INT PRIMARY KEY, y INT, PRIMARY KEY (y))", "SAID_TWICE"),
    ("CREATE TABLE t (x TIMESTAMP, y TIMESTAMP, WATERMARK FOR x AS x, WATERMARK FOR y AS y)", "SAID_TWICE"),
    ("CREATE TABLE t (x INT) WITH ('format' = 'json', 'format' = 'csv')", "SAID_TWICE"),
    ("CREATE TABLE t (x INT, )", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT) WITH ('format' = 'json', )", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT, X INT)", "DUPLICATE_COLUMN"),
    ("CREATE VIEW t (x, X) AS SELECT k, v FROM a", "DUPLICATE_COLUMN"),
    ("CREATE TABLE t (x STRING, WATERMARK FOR x AS x)", "WATERMARK"),
    ("CREATE TABLE t (x BIGINT, WATERMARK FOR x AS x)", "WATERMARK"),
    ("CREATE TABLE t (x AS PROCTIME(), y INT, WATERMARK FOR x AS x)", "WATERMARK"),
    ("CREATE TABLE t (x INT) WITH ('connecter' = 'kafka')", "UNKNOWN_OPTION"),
    ("CREATE TABLE t (x INT) USING delta", "UNKNOWN_FORMAT"),
    ("CREATE TABLE t (x INT) WITH ('connector'='datagen', 'number-of-rows'='ten')", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT) WITH ('connector'='datagen', 'number-of-rows'='1', 'fields.y.min'='1')", "UNKNOWN_OPTION"),
    ("CREATE TABLE t (x INT) WITH ('connector'='redis', 'key-pattern'='{x}', 'lookup.cahce'='partial')", "UNKNOWN_OPTION"),
    ("CREATE TABLE t (x INT) WITH ('connector'='redis', 'key-pattern'='{x}', 'lookup.cache'='much')", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT) ON CONFLICT OVERWRITE WITH VERSION COLUMN (x)", "NO_PRIMARY_KEY"),
    ("CREATE TABLE t (x INT, PRIMARY KEY (x)) ON CONFLICT IGNORE", "NOT_OFFERED"),
    ("CREATE STREAM t (x INT, PRIMARY KEY (x)) SETTINGS keep_versions = 3", "NOT_OFFERED"),
    ("SET 'state.tll' = '1 d'", "UNKNOWN_SETTING"),
    ("SET on_bad_input = 'ignore'", "OPTION_VALUE"),
    ("SET 'table.exec.async-lookup.output-mode' = 'disordered'", "OPTION_VALUE"),
    ("SET 'table.exec.async-lookup.buffer-capacity' = 'ten'", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT NOT NULL NULL)", "SAID_TWICE"),
    ("CREATE TABLE t (x INT COMMENT 'a' COMMENT 'b')", "SAID_TWICE"),
    ("CREATE TABLE t (x INT COMMENT y)", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT VIRTUAL)", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT(5))", "SQL_SYNTAX"),
    ("CREATE TABLE t (x DECIMAL(10, 2, 3))", "SQL_SYNTAX"),
    ("CREATE TABLE t (x DECIMAL(p, 2))", "SQL_SYNTAX"),
    ("CREATE TABLE t (x DECIMAL(2, 10))", "UNKNOWN_TYPE"),
    ("CREATE TABLE t (x TIMESTAMP(99))", "UNKNOWN_TYPE"),
    ("CREATE TABLE t (x INT WITHOUT TIME ZONE)", "SQL_SYNTAX"),
    ("CREATE TABLE t (x ARRAY<INT))", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT, y AS x + 1 LIMIT 3)", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT, y AS x + 1 z)", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT, y AS PROCTIME(3))", "NOT_OFFERED"),
    ("CREATE TABLE t (x TIMESTAMP, WATERMARK FOR x AS other.x)", "NOT_OFFERED"),
    ("CREATE TABLE t (x INT) APPEND ONLY APPEND ONLY", "SAID_TWICE"),
    ("CREATE TABLE t (x INT) LIKE a LIKE b", "SAID_TWICE"),
    ("CREATE TABLE t (x INT) PARTITIONED BY (x) MORE", "SQL_SYNTAX"),
    ("CREATE TABLE t (x INT) PARTITIONED BY (y)", "UNKNOWN_COLUMN"),
    ("CREATE TABLE t (x INT) DISTRIBUTED BY (x) INTO MANY BUCKETS", "SQL_SYNTAX"),
    ("CREATE EXTERNAL TABLE t (x INT)", "MISSING_OPTION"),
    ("CREATE EXTERNAL VIEW t AS SELECT k FROM a", "NOT_OFFERED"),
    ("CREATE TEMPORARY MATERIALIZED VIEW t AS SELECT k FROM a", "NOT_OFFERED"),
    ("CREATE OR REPLACE INDEX i ON a (k)", "NOT_OFFERED"),
    ("CREATE OR REPLACE TABLE IF NOT EXISTS t (x INT)", "SAID_TWICE"),
    ("CREATE OR REPLACE VIEW IF NOT EXISTS t AS SELECT k FROM a", "SAID_TWICE"),
    ("INSERT INTO a (k, K) VALUES (1, 2)", "DUPLICATE_COLUMN"),
    ("UPDATE b SET w = 1, w = 2", "SAID_TWICE"),
    ("SELECT a.v FROM a JOIN b USING (k, k)", "DUPLICATE_COLUMN"),
    ("SELECT CAST(v AS DECIMAL(5, 2, 1)) AS d FROM a", "UNKNOWN_TYPE"),
    ("SELECT PROCTIME() AS p, k FROM a UNION ALL SELECT PROCTIME() AS p, k FROM b", "NON_DETERMINISTIC"),
    ("SELECT k FROM (SELECT PROCTIME() AS p, k FROM a UNION ALL SELECT k FROM b)", "NON_DETERMINISTIC"),
    ("CREATE TABLE t (x INT) WITH ('connector'='kafka', 'topic'='', 'properties.bootstrap.servers'='h:1')", "MISSING_OPTION"),
    (f"CREATE TABLE t (x INT) WITH ({KAFKA}, 'scan.startup.mode'='earlyest-offset')", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT) WITH ('connector'='redis', 'key-pattern'='{x}', 'port'='99999')", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT) WITH ('connector'='jdbc', 'url'='jdbc:postgresql://h:port/d', 'table-name'='t')", "OPTION_VALUE"),
    (
        "CREATE TABLE t (x INT) WITH ('connector'='jdbc', 'url'='jdbc:postgresql://h/d?sslmode=require', 'table-name'='t')",
        "NOT_OFFERED",
    ),
    ("CREATE TABLE t (x INT) WITH ('connector'='datagen', 'number-of-rows'='1', 'fields.x.min'='200')", "OPTION_VALUE"),
    ("CREATE TABLE t (x INT) WITH ('connector'='datagen', 'number-of-rows'='1', 'rows-per-second'='0')", "OPTION_VALUE"),
    ("WITH r AS (SELECT k FROM a), r AS (SELECT v FROM a) SELECT v FROM r", "SAID_TWICE"),
    ("DROP VIEW a", "WRONG_KIND"),
    ("DESCRIBE VIEW a", "WRONG_KIND"),
    ("EXPLAIN INSERT INTO nowhere SELECT v FROM a", "UNKNOWN_TABLE"),
    ("EXPLAIN CREATE SINK s AS SELECT v FROM a WITH ('connector' = 'prnt')", "UNKNOWN_CONNECTOR"),
)


@pytest.fixture
def session() -> Iterator[Session]:
    with connect(dialect="spark") as made:
        made.sql(TABLES)
        yield made


@pytest.mark.parametrize(("pair", "text"), READS.items(), ids=[".".join(pair) for pair in READS])
def test_what_its_consumer_does_not_read_any_more_is_refused(
    pair: tuple[str, str], text: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql(text)
    kinds: dict[int, str] = {}
    plain, tracked = consumed._Args.get, consumed.tracked

    def known(node: exp.Expr) -> exp.Expr:
        made = tracked(node)
        kinds.update((id(part.args.read), type(part).__name__) for part in made.walk())
        return made

    def deaf(args: Any, key: str, default: Any = None) -> Any:
        if (kinds.get(id(args.read)), key) == pair:
            return dict.get(args, key, default)
        return plain(args, key, default)

    monkeypatch.setattr("zset_join.sql_expressions.dialects.tracked", known)
    monkeypatch.setattr(consumed._Args, "get", deaf)
    with pytest.raises(SqlError) as refused:
        session.sql(text)
    assert refused.value.code == "NOT_OFFERED"


@pytest.mark.parametrize("text", NEVER_READ)
def test_what_nothing_reads_is_refused(text: str, session: Session) -> None:
    with pytest.raises(SqlError) as refused:
        session.sql(text)
    assert refused.value.code in {"NOT_OFFERED", "SQL_SYNTAX"}


@pytest.mark.filterwarnings("ignore::zset_join.sql.SqlWarning")
@pytest.mark.parametrize(("text", "code"), DECLARED)
def test_a_declaration_has_no_clause_twice_and_none_without_meaning(text: str, code: str, session: Session) -> None:
    with pytest.raises(SqlError) as refused:
        session.sql(text)
    assert refused.value.code == code


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("everyday")])
def test_a_number_too_many_is_refused_warned_of_or_changes_the_plan(name: str) -> None:
    """The law: something written at any place of a statement that runs is never passed over."""
    ran = [text.rstrip(" ;\n") for mark, text in read(name) if mark.startswith("+")]
    made = [text for text in ran if text.startswith(("CREATE TABLE", "CREATE STREAM", "CREATE MUTABLE", "CREATE SOURCE"))]
    with connect(dialect=name.split("/")[0], clock=lambda: 0) as session, warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        session.sql(";\n".join(made))
        queries = [text.split(" ") for text in ran if text.startswith("SELECT")]
        pairs = [
            (" ".join(words), " ".join([*words[:place], "0815", *words[place:]]))
            for number, words in enumerate(queries)
            for place in [1 + number % len(words)]
        ]
        plans = [
            (outcome(session, "+", plain), len(reported), outcome(session, "+", more), len(reported)) for plain, more in pairs
        ]
    passed_over = [
        more for (_, more), (one, before, other, after) in zip(pairs, plans, strict=True) if one == other and after <= before
    ]

    assert passed_over == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("everyday")])
def test_a_word_too_many_in_a_declaration_is_refused_or_warned_of(name: str) -> None:
    """The law for statements that are no queries; where AS or SELECT comes, the query behind it is the law above's."""
    accepted = []
    with connect(dialect=name.split("/")[0], clock=lambda: 0) as session, warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for number, (mark, text) in enumerate(read(name)):
            words = re.findall(r"'(?:[^']|'')*'|[\w.]+|\S", text.rstrip(" ;\n"))
            ends = [place for place, word in enumerate(words) if place and word in {"SELECT", "WITH", "VALUES", "WHERE", "SET"}]
            end = min([*ends, len(words)])
            if mark.startswith("+") and words[0] not in {"SELECT", "WITH", "("} and ";" not in words:
                for place in {1 + number % end, 1 + (number * 7 + 3) % end}:
                    for more in ("0815", "NOT" if words[place - 1].startswith("'") else words[place - 1]):
                        before, changed = len(reported), " ".join([*words[:place], more, *words[place:]])
                        if outcome(session, "+", changed)[0] == "+" and len(reported) == before:
                            accepted.append(changed)
            outcome(session, mark, text)

    assert accepted == []


def test_explain_shows_the_plan_of_a_statement_and_makes_nothing(session: Session) -> None:
    session.sql("CREATE TABLE out (k BIGINT)")
    plans = [
        str(session.sql(f"EXPLAIN {statement}"))
        for statement in (
            "SELECT k FROM a",
            "CREATE VIEW out_view AS SELECT k FROM a",
            "CREATE OR REPLACE MATERIALIZED VIEW out_view AS SELECT k FROM a",
            "CREATE TABLE copied AS SELECT k FROM a",
            "CREATE SINK s AS SELECT k FROM a WITH ('connector' = 'blackhole')",
        )
    ]

    assert plans == [plans[0]] * 5
    assert "CAST" in str(session.sql("EXPLAIN INSERT INTO out SELECT k FROM a"))
    assert session.catalog.relations() == ["a", "b", "out"]
    assert session.running == []
    with pytest.warns(SqlWarning, match="EXTENDED changes nothing"):
        session.sql("EXPLAIN EXTENDED SELECT k FROM a")


def test_a_table_that_is_only_written_warns_of_what_counts_where_rows_are_read(session: Session) -> None:
    with pytest.warns(SqlWarning) as reported:
        session.sql("CREATE TABLE t (x INT, p AS x + 1, e TIMESTAMP, WATERMARK FOR e AS e) WITH ('connector' = 'print')")

    assert [word in str(one.message) for word, one in zip(("columns (p)", "WATERMARK"), reported, strict=True)] == [True, True]


def test_what_is_read_by_others_is_not_replaced(session: Session) -> None:
    session.sql("CREATE VIEW inner_view AS SELECT k, v FROM a; CREATE VIEW outer_view AS SELECT v FROM inner_view")

    with pytest.raises(SqlError, match="outer_view") as refused:
        session.sql("CREATE OR REPLACE MATERIALIZED VIEW inner_view AS SELECT k, v + 1 AS v FROM a")
    assert refused.value.code == "STILL_READ"
    with pytest.raises(SqlError, match="inner_view"):
        session.sql("CREATE OR REPLACE TABLE a (k INT)")


def test_of_two_hints_of_a_table_the_first_counts_and_the_second_warns(session: Session) -> None:
    with pytest.warns(SqlWarning, match="second hint STATE_TTL of 'a'"):
        session.sql("SELECT /*+ STATE_TTL('a'='1d'), STATE_TTL('a'='2d') */ DISTINCT v FROM a")


def test_the_processing_time_of_a_query_below_and_of_a_keyed_table_joins_as_of_it() -> None:
    with connect(dialect="flink") as session:
        with pytest.warns(SqlWarning, match="pt is not one of its columns"):
            session.sql("CREATE TABLE o (id INT, k INT, pt AS PROCTIME(), PRIMARY KEY (id) NOT ENFORCED)")
        session.sql("CREATE TABLE d (k INT, n STRING, PRIMARY KEY (k) NOT ENFORCED)")
        joined = "JOIN d FOR SYSTEM_TIME AS OF o.pt ON o.k = d.k"
        queries = [
            session.sql(f"SELECT o.id, d.n FROM {source} AS o {joined}").start()
            for source in ("o", "(SELECT id, k, PROCTIME() AS pt FROM o)")
        ]
        session.sql("INSERT INTO d VALUES (1, 'one'); INSERT INTO o VALUES (7, 1)")

        assert [one.table().to_pylist() for one in queries] == [[{"id": 7, "n": "one"}]] * 2
        with pytest.raises(SqlError) as refused:
            session.sql("SELECT id, pt FROM o")
        assert refused.value.code == "NON_DETERMINISTIC"


def test_the_processing_time_goes_through_union_all() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE o (id INT, k INT); CREATE TABLE d (k INT, n STRING, PRIMARY KEY (k) NOT ENFORCED)")
        both = "SELECT id, k, PROCTIME() AS pt FROM o UNION ALL SELECT -id, k, PROCTIME() AS pt FROM o"
        query = session.sql(f"SELECT u.id, d.n FROM ({both}) AS u JOIN d FOR SYSTEM_TIME AS OF u.pt ON u.k = d.k").start()
        session.sql("INSERT INTO d VALUES (1, 'one'); INSERT INTO o VALUES (7, 1); INSERT INTO d VALUES (1, 'uno')")

        assert sorted(query.table().to_pydict()["id"]) == [-7, 7]
        assert query.table().to_pydict()["n"] == ["one", "one"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TIMESTAMP WITH TIME ZONE", "timestamp[us, tz=UTC]"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "timestamp[us, tz=UTC]"),
        ("TIMESTAMP(3) WITHOUT TIME ZONE", "timestamp[us]"),
    ],
)
@pytest.mark.parametrize("dialect", ["spark", "flink", "risingwave"])
def test_the_zone_of_a_timestamp_is_what_is_written(kind: str, expected: str, dialect: str) -> None:
    with connect(dialect=dialect) as session:
        session.sql(f"CREATE TABLE t (s VARCHAR, c {kind})")

        types = session.sql(f"SELECT c, CAST(s AS {kind}) AS d FROM t").schema.types

    assert [str(one) for one in types] == [expected] * 2


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("SELECT /*+ STATE_TTL('a'='1d') */ v FROM a", "no rows of it are remembered"),
        ("CREATE VIEW t AS SELECT v FROM a SETTINGS on_bad_input = 'quarantine'", "of a view changes nothing"),
        ("CREATE TABLE t (x INT) WITH ('connector'='print', 'format'='csv')", "'format' changes nothing"),
        (
            "CREATE TABLE t (x INT) WITH ('connector'='datagen', 'number-of-rows'='1', 'fields.x.kind'='sequence', 'fields.x.min'='5')",
            "'fields.x.min' changes nothing",
        ),
    ],
)
def test_what_is_understood_and_changes_nothing_warns(text: str, reported: str, session: Session) -> None:
    with pytest.warns(SqlWarning, match=reported):
        session.sql(text)


@pytest.mark.parametrize("rows", [5, None, "text"])
def test_what_are_no_rows_no_text_and_no_dialect_is_refused_with_a_code(rows: Any, session: Session) -> None:
    with pytest.raises(OptionError, match="cannot be converted to an Arrow table"):
        session.insert("a", rows)
    with pytest.raises(OptionError, match="not a lookup source"):
        session.register_lookup(rows)
    with pytest.raises(SqlError):
        session.sql(rows)
    with pytest.raises(OptionError, match="is not known"):
        connect(dialect=rows)


def test_a_name_is_not_taken_by_rows_that_are_refused(session: Session) -> None:
    with pytest.raises(PlanError, match="UNKNOWN_COLUMN"):
        session.register("r", {"x": [1]}, keys="y")

    assert "r" not in session.catalog.relations()


def test_the_larger_version_wins_whichever_comes_first() -> None:
    with connect(dialect="risingwave") as session:
        session.sql("CREATE TABLE t (id int, v int, n int, PRIMARY KEY (id)) ON CONFLICT OVERWRITE WITH VERSION COLUMN (n)")
        session.sql("INSERT INTO t VALUES (1, 10, 5); INSERT INTO t VALUES (1, 20, 3); INSERT INTO t VALUES (1, 30, 5)")

        assert session.sql("SELECT v FROM t").table().to_pylist() == [{"v": 30}]


def test_an_aggregate_over_nothing_has_its_row_at_once(session: Session, tmp_path: Any) -> None:
    query = "SELECT count(*) AS n, sum(v) AS s FROM a"
    with connect(dialect="spark", directory=tmp_path) as lasting:
        lasting.sql(TABLES)

        rows = [one.sql(query).start().table().to_pylist() for one in (session, lasting)]

    assert rows == [[{"n": 0, "s": None}]] * 2


def test_a_cache_of_a_declaration_is_that_of_the_join() -> None:
    from zset_join.sql.parse.readers import lookup_of

    given = {"lookup.cache": "PARTIAL", "lookup.partial-cache.expire-after-write": "1 h", "lookup.max-retries": "3"}

    assert lookup_of(given).given() == {"cache": "partial", "cache_ttl": "1 h", "error_attempts": 4}
