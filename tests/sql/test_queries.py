"""Parts of queries that are beside each other: each answer is Spark's, and DuckDB's where both agree; or it is refused."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.sql.against_duckdb import assert_equals_duckdb
from zset_join.core.errors import SqlError
from zset_join.sql import Session, connect

CREATED = """
CREATE TABLE l (id INT, k INT, v INT, s STRING, PRIMARY KEY (id));
CREATE TABLE r (rid INT, k INT, w INT, PRIMARY KEY (rid));
"""
EPOCHS = (
    "INSERT INTO l VALUES (1, 1, 0, 'a'), (2, 1, 2, 'b'), (3, NULL, 2, 'a'), (4, 2, NULL, NULL), (5, 3, 1, 'b')",
    "INSERT INTO r VALUES (1, 1, 0), (2, 1, 3), (4, 2, 2), (6, NULL, 5), (7, 9, 1)",
    "INSERT INTO l VALUES (1, 2, 2, 'b'), (6, NULL, 2, 'a'), (7, 3, 0, 'b')",
    "DELETE FROM r WHERE w = 3",
)
NUMBERED = "SELECT id, k, v, s, ROW_NUMBER() OVER (PARTITION BY s ORDER BY {}, id) AS rn FROM l"
COUNTED = (
    "SELECT k, s, count(*) AS n, ROW_NUMBER() OVER (PARTITION BY k ORDER BY count(*) DESC, max(id)) AS rn FROM l GROUP BY k, s"
)
EQUAL = [
    # The first rows are taken before other conditions, wherever these are.
    f"SELECT id FROM ({NUMBERED.format('k')}) WHERE v > 0 AND rn = 1",
    f"SELECT id FROM ({NUMBERED.format('k')}) WHERE (rn <= 2) AND v > 0",
    f"SELECT id FROM ({NUMBERED.format('k DESC')}) x WHERE rn = 1 AND EXISTS (SELECT 1 FROM r WHERE r.rid = x.id)",
    f"SELECT id FROM ({NUMBERED.format('v')}) x WHERE k IN (SELECT k FROM r) AND x.rn < 3",
    f"SELECT id FROM ({NUMBERED.format('v')}) WHERE rn BETWEEN 1 AND 2",
    f"SELECT * FROM ({NUMBERED.format('v')}) WHERE rn = 1",
    f"SELECT id, rn + 1 AS n FROM ({NUMBERED.format('v')}) WHERE rn <= 1",
    f"SELECT r.rid, x.id FROM r JOIN ({NUMBERED.format('v')}) x ON x.k = r.k WHERE x.rn = 1",
    f"SELECT r.rid, x.id FROM r LEFT JOIN ({NUMBERED.format('v')}) x ON x.k = r.k AND x.rn = 1",
    f"SELECT rid FROM r WHERE k IN (SELECT k FROM ({NUMBERED.format('v')}) WHERE rn = 1)",
    f"SELECT k, n FROM ({COUNTED}) WHERE rn = 1",
    "SELECT s, count(*) AS n FROM l GROUP BY s QUALIFY ROW_NUMBER() OVER (PARTITION BY s ORDER BY count(*)) = 1",
    "SELECT id, s FROM l QUALIFY ROW_NUMBER() OVER (PARTITION BY s ORDER BY v, id) <= 2",
    "SELECT id FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY v DESC, id) AS rn FROM l) WHERE rn <= 3",
    # NULLs in an order.
    f"SELECT id FROM ({NUMBERED.format('k NULLS LAST')}) WHERE rn = 1",
    f"SELECT id FROM ({NUMBERED.format('k DESC NULLS FIRST')}) WHERE rn = 1",
    f"SELECT id FROM ({NUMBERED.format('k NULLS FIRST')}) WHERE rn = 1",
    # Names for columns.
    "WITH q(a, b) AS (SELECT id, k FROM l) SELECT a FROM q WHERE b > 0",
    "WITH q(k, id) AS (SELECT id, k FROM l) SELECT id, k FROM q",
    "SELECT k, x.id FROM (SELECT id, k FROM l) AS x(k, id)",
    "SELECT k, a FROM l AS x(k, a, b, c) WHERE x.a > 0",
    "SELECT x.a, r.w FROM r JOIN l AS x(a, k, b, c) USING (k)",
    # USING.
    "SELECT k, id FROM l JOIN r USING (k) WHERE k > 0",
    "SELECT k, count(*) AS n FROM l JOIN r USING (k) GROUP BY k",
    "SELECT k, id, rid FROM l FULL JOIN r USING (k)",
    "SELECT K, id, rid FROM l RIGHT JOIN r USING (k) WHERE K > 1",
    "SELECT k, l.id, x.rid FROM l JOIN r USING (k) JOIN (SELECT rid, k FROM r) x USING (k)",
    "SELECT k, l.id, x.rid FROM l FULL JOIN r USING (k) FULL JOIN (SELECT rid, k FROM r WHERE w > 1) x USING (k)",
    "SELECT k, l.id FROM l JOIN r USING (k) WHERE EXISTS (SELECT 1 FROM (SELECT rid FROM r) WHERE rid = k)",
    # HAVING names what the SELECT list shows.
    "SELECT k + 1 AS k FROM l GROUP BY k HAVING k > 1",
    "SELECT k + 10 AS v, max(v) AS m FROM l GROUP BY k HAVING max(v) > 1 AND m < 3",
    # A value beside groups.
    "SELECT k, (SELECT count(*) FROM r WHERE r.k = l.k) AS c FROM l GROUP BY k",
    "SELECT s, sum((SELECT max(w) FROM r WHERE r.k = l.k)) AS t FROM l GROUP BY s",
    # Groups that leave open only how often a row is present.
    "SELECT id FROM l WHERE NOT EXISTS (SELECT count(*) FROM r WHERE r.k = l.k AND w > v GROUP BY r.k, rid)",
    "SELECT id FROM l WHERE k IN (SELECT r.k FROM r WHERE w > v GROUP BY w, r.k)",
    # Sets of keys.
    "SELECT 'x' AS c FROM l GROUP BY CUBE (k)",
    "SELECT DISTINCT count(*) AS n FROM l GROUP BY CUBE (k, v)",
    "SELECT k, count(*) FILTER (WHERE k > 1) AS n, sum(k) AS t FROM l GROUP BY ROLLUP (k)",
    "SELECT k AS x, count(*) AS n FROM l GROUP BY ROLLUP (x)",
    "SELECT k AS x, s, count(*) AS n FROM l GROUP BY ROLLUP (1, 2)",
    "SELECT l.k AS x, count(*) AS n FROM l GROUP BY ROLLUP (k) HAVING n > 1",
    "SELECT k + 1 AS y, k AS x, count(*) AS n FROM l GROUP BY CUBE (k, k + 1)",
    "SELECT k, s, grouping(k) AS g, grouping_id(k, s) AS i, count(*) AS n FROM l GROUP BY CUBE (k, s)",
    "SELECT l.s, count(rid) AS n FROM l JOIN r USING (k) GROUP BY GROUPING SETS ((s), (k), (s))",
    # Groups.
    "SELECT count(*) AS n FROM l WHERE id > 100 GROUP BY ()",
    "SELECT k, count(*) AS n FROM l GROUP BY k, '1'",
    "SELECT string_agg(id, ',') AS n FROM l WHERE id = 2",
    # The wider type of both sides.
    "SELECT k FROM l UNION ALL SELECT w + 0.5 FROM r",
    "SELECT k, s FROM l UNION ALL SELECT NULL, NULL FROM r",
    "SELECT NULL AS k FROM l UNION SELECT rid FROM r",
    "SELECT k FROM l EXCEPT SELECT CAST(k AS BIGINT) FROM r",
    # Names that the SELECT list gave before.
    "SELECT id + 1 AS b, b * 2 AS c, c - b AS id FROM l",
    "SELECT k, count(*) AS n, n + 1 AS m, sum(v) AS t, t + m AS u FROM l GROUP BY k",
    # EXISTS within an expression, and other queries within it.
    "SELECT id, EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND w > 1) AS e FROM l",
    "SELECT id FROM l WHERE id IN (SELECT rid FROM r WHERE w > (SELECT min(v) FROM l))",
    # Items between commas in any order.
    "SELECT l.id, x.id AS other FROM l, l AS x, r WHERE l.k = r.k AND x.v = r.w AND l.v <= x.v",
    "SELECT l.id FROM l, l AS x, r, r AS y WHERE y.w = x.v AND l.k = r.k AND y.rid = r.rid AND l.v + x.v > 0",
    # A comma, and a value beside it.
    "SELECT l.id, r.rid FROM l, r WHERE l.k = r.k AND l.v + r.w > (SELECT min(w) FROM r)",
]
REFUSED = [
    ("SELECT id FROM l WHERE EXISTS (SELECT k FROM r GROUP BY k HAVING count(*) > l.v)", "NOT_OFFERED", "Group in a query in FROM"),
    ("SELECT id FROM l WHERE id IN (SELECT max(rid) FROM r WHERE r.k = l.k)", "NOT_OFFERED", "compare with its value"),
    ("SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.w = l.gone)", "UNKNOWN_COLUMN", '"l" has no column "gone"'),
    ("SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.gone = l.k)", "UNKNOWN_COLUMN", '"r" has no column "gone"'),
    ("SELECT id FROM l WHERE k IN (SELECT k FROM r WHERE EXISTS (SELECT 1 FROM r x WHERE x.w = v))", "NOT_OFFERED", "two queries"),
    ("SELECT l.id FROM l JOIN r ON r.k = x.k JOIN l x ON x.id = l.id", "UNKNOWN_COLUMN", "from its own ON on"),
    ("SELECT id FROM l WHERE k IN (SELECT k FROM (SELECT k FROM r WHERE r.w = v) q)", "NOT_OFFERED", '"v" is of the query'),
    ("SELECT id FROM l WHERE k IN (WITH q AS (SELECT k FROM r WHERE r.w = l.v) SELECT k FROM q)", "NOT_OFFERED", "FROM and WITH"),
    ("SELECT id FROM l WHERE EXISTS (SELECT k FROM r WHERE w = v EXCEPT SELECT k FROM r)", "NOT_OFFERED", "EXCEPT behind EXISTS"),
    ("SELECT id FROM l LEFT SEMI JOIN r ON l.k = r.k WHERE r.w > 0", "UNKNOWN_COLUMN", "in its own ON only"),
    ("SELECT id FROM l LEFT ANTI JOIN r ON l.k = r.k WHERE w > 0", "UNKNOWN_COLUMN", "in its own ON only"),
    ("SELECT l.id FROM l, r RIGHT JOIN l AS x ON x.k = r.k WHERE l.k = r.k", "NOT_OFFERED", "behind a comma"),
    ("SELECT l.id FROM l LEFT JOIN r WHERE l.k = r.k", "CROSS_JOIN", "no pair of equal"),
    (f"{NUMBERED.format('v')} UNION ALL {NUMBERED.format('v')}", "NOT_OFFERED", "nothing uses the ROW_NUMBER"),
    (f"SELECT id FROM r LEFT JOIN ({NUMBERED.format('v')}) x ON x.k = r.k WHERE rn = 1", "NOT_OFFERED", "outer join pads"),
    ("SELECT k FROM (SELECT DISTINCT k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY k) AS rn FROM l) WHERE rn < 3",
     "NOT_OFFERED", "the numbers differ"),
    ("SELECT s, count(*) AS n FROM l GROUP BY s QUALIFY n > 3", "NOT_OFFERED", "QUALIFY"),
    ("SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k LIMIT 0)", "NOT_OFFERED", "LIMIT"),
    ("SELECT id FROM l WHERE k IN (SELECT k FROM table(r) ORDER BY k LIMIT 1)", "NOT_OFFERED", "LIMIT"),
    ("SELECT id FROM (SELECT id FROM table(l) ORDER BY id LIMIT 1)", "NOT_OFFERED", "LIMIT"),
    ("WITH q AS (SELECT id FROM table(l) LIMIT 1) SELECT id FROM q", "NOT_OFFERED", "LIMIT"),
    ("(SELECT id FROM table(l) LIMIT 1) UNION ALL SELECT rid FROM table(r)", "NOT_OFFERED", "LIMIT"),
    ("SELECT id, (SELECT (SELECT max(w) FROM r) FROM l x) AS c FROM l", "NOT_OFFERED", "several rows"),
    ("SELECT id, (SELECT count(*) FROM r WHERE r.k = l.k HAVING count(*) > 1) AS c FROM l", "NOT_OFFERED", "HAVING"),
    ("SELECT id, (SELECT collect_list(w) FROM r WHERE r.k = l.k) AS c FROM l", "NOT_OFFERED", "a list for each row"),
    ("SELECT id, (SELECT max(w) + r.k FROM r WHERE r.k = l.k) AS c FROM l", "NOT_GROUPED", '"k" is not aggregated'),
    ("SELECT s, (SELECT max(w) FROM r WHERE r.k = l.k) AS c FROM l GROUP BY s", "NOT_GROUPED", "keys of GROUP BY"),
    ("SELECT max(id, v) AS m FROM l", "NOT_OFFERED", "greatest(a, b)"),
    ("SELECT max_by(id, v, 2) AS m FROM l", "NOT_OFFERED", "too many operands"),
    ("SELECT max(DISTINCT id, v) AS m FROM l", "NOT_OFFERED", "one value"),
    ("SELECT string_agg(s, v) AS m FROM l", "NOT_OFFERED", "literal text"),
    ("SELECT array_agg(v ORDER BY v) AS m FROM l", "NOT_OFFERED", "with an order"),
    ("SELECT count(*) AS n FROM l GROUP BY 1", "NOT_OFFERED", "not grouped by an aggregate"),
    ("SELECT id FROM l WHERE count(*) > 1", "NOT_OFFERED", "the aggregate COUNT is allowed in SELECT and HAVING only"),
    ("SELECT grouping(s) AS g FROM l GROUP BY ROLLUP (k)", "NOT_OFFERED", "take keys of GROUP BY"),
    ("SELECT k FROM l UNION ALL SELECT s FROM l", "UNION_TYPES", "by position"),
    ("SELECT id FROM l WHERE v > 1 OR EXISTS (SELECT max(w) FROM r WHERE r.k = l.k)", "NOT_OFFERED", "one that aggregates"),
    ("SELECT id FROM l JOIN r ON (l.k, v) = (r.k, w)", "NOT_OFFERED", "column by column"),
    ("SELECT b * 2 AS c, id + 1 AS b FROM l", "UNKNOWN_COLUMN", 'no column "b"'),
    ("SELECT l.id, r.rid AS k FROM table(l) JOIN table(r) ON l.k = r.k ORDER BY l.k", "NOT_OFFERED", "of the SELECT list"),
    ("SELECT id FROM table(l) ORDER BY 2", "NOT_OFFERED", "of the SELECT list"),
    (f"SELECT id, rn FROM ({NUMBERED.format('v')}) WHERE rn <= 2", "NOT_OFFERED", "cannot be shown"),
    ("SELECT id FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY s) AS rn FROM l) WHERE rn = 1", "NOT_OFFERED", "needs ORDER BY"),
    ("SELECT a FROM l AS x(a, b)", "NOT_OFFERED", "4 columns (id, k, v, s), and 2 names"),
    ("SELECT a FROM l AS x(a, b, a, c)", "DUPLICATE_COLUMN", '"a"'),
    ("SELECT id FROM l JOIN r USING (v)", "UNKNOWN_COLUMN", "not in both sides"),
]  # fmt: skip


def contents(session: Session, text: str) -> list[tuple[Any, ...]]:
    rows = session.sql(text).table().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.fixture
def session() -> Any:
    with connect() as session:
        session.sql(CREATED.replace("(id)", "(id) NOT ENFORCED").replace("(rid)", "(rid) NOT ENFORCED"))
        yield session


@pytest.mark.parametrize("text", EQUAL)
def test_a_query_equals_duckdb_s_answer_after_every_change(session: Session, text: str) -> None:
    assert_equals_duckdb(session, CREATED.replace("STRING", "VARCHAR"), EPOCHS, text)


OUTER_ON = [
    # The condition of ON, that of WHERE.
    ("x.w > v", "TRUE"),
    ("x.w > v", "x.rid IS NULL"),
    ("x.w > l.v AND x.w < l.v + 9", "(x.w = 2 OR x.rid IS NULL)"),
    ("x.w IS NOT DISTINCT FROM v", "x.rid IS NOT NULL"),
    ("l.v > 0", "x.rid IS NULL AND l.id > 1"),
]


@pytest.mark.parametrize(
    "requested", ["EXISTS (SELECT 1 FROM {})", "NOT EXISTS (SELECT x.w FROM {})", "id IN (SELECT r.rid FROM {})"]
)
@pytest.mark.parametrize(("on", "where"), OUTER_ON)
def test_on_of_an_outer_join_reads_the_query_around(session: Session, requested: str, on: str, where: str) -> None:
    """DuckDB has no such query: it runs row by row."""
    below = "r LEFT JOIN r AS x ON r.w = x.rid AND {} WHERE r.k = l.k AND {}"
    query: Any = session.sql(f"SELECT id FROM l WHERE {requested.format(below.format(on, where))}")
    running = query.start()
    with duckdb.connect() as database:
        database.sql(CREATED.replace("STRING", "VARCHAR"))
        for change in EPOCHS:
            session.sql(change)
            database.sql(change.replace("INSERT INTO", "INSERT OR REPLACE INTO"))
            expected = []
            for row_id, k, v, _ in database.sql("SELECT * FROM l").fetchall():
                text = requested.format(below.format(on, where))
                for name, value in (("l.k", k), ("l.v", v), ("l.id", row_id), ("id", row_id), ("v", v)):
                    text = re.sub(rf"(?<![\w.]){name}\b", "CAST(NULL AS INT)" if value is None else str(value), text)
                if database.sql(f"SELECT {text}").fetchall() == [(True,)]:
                    expected.append(row_id)

            assert sorted(row["id"] for row in running.table().to_pylist()) == sorted(expected), change


@pytest.mark.parametrize(("text", "code", "words"), REFUSED)
def test_a_query_whose_answer_would_be_another_is_refused_at_its_place(
    session: Session, text: str, code: str, words: str
) -> None:
    with pytest.raises(SqlError) as refused:
        session.sql(text).start()

    assert refused.value.code == code
    assert words in str(refused.value)
    assert "line 1, column " in str(refused.value)


def test_a_star_begins_with_the_columns_of_using_as_in_spark(session: Session) -> None:
    query = session.sql("SELECT * FROM l JOIN (SELECT w, k, v FROM r JOIN l USING (k)) USING (k, v)")

    assert query.schema.names == ["k", "v", "id", "s", "w"]


def test_a_number_that_is_one_keeps_its_place_in_a_star(session: Session) -> None:
    numbered = "SELECT id, ROW_NUMBER() OVER (PARTITION BY s ORDER BY id) AS rn, s FROM l"

    assert session.sql(f"SELECT * FROM ({numbered}) WHERE rn = 1").schema.names == ["id", "rn", "s"]
    assert session.sql(f"SELECT * FROM ({numbered}) WHERE rn <= 2").schema.names == ["id", "s"]


def test_an_empty_table_has_no_group_in_any_of_several_sets_as_in_spark(session: Session) -> None:
    assert contents(session, "SELECT k, count(*) AS n FROM l GROUP BY ROLLUP (k)") == []
    assert contents(session, "SELECT count(*) AS n FROM l GROUP BY GROUPING SETS (())") == [(0,)]


def test_brackets_around_a_query_keep_its_order_and_limit(session: Session) -> None:
    session.sql(EPOCHS[0])

    assert session.sql("(SELECT id FROM table(l)) ORDER BY id DESC LIMIT 2").table().to_pydict() == {"id": [5, 4]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id, k FROM table(l) ORDER BY k, id DESC", [3, 2, 1, 4, 5]),
        ("SELECT id, k FROM table(l) ORDER BY k NULLS LAST, id", [1, 2, 4, 5, 3]),
        ("SELECT id, k FROM table(l) ORDER BY k DESC NULLS FIRST, id", [3, 5, 4, 1, 2]),
        ("SELECT id, k FROM table(l) ORDER BY 2 DESC, 1 FETCH FIRST 2 ROWS ONLY", [5, 4]),
        ("SELECT l.id, r.rid AS k FROM table(l) JOIN table(r) ON l.k = r.k ORDER BY r.rid DESC, l.id", [4, 1, 2, 1, 2]),
        ("SELECT * FROM table(l) ORDER BY l.ID DESC", [5, 4, 3, 2, 1]),
    ],
)
def test_an_order_is_spark_s(session: Session, text: str, expected: list[int]) -> None:
    session.sql(EPOCHS[0])
    session.sql(EPOCHS[1])

    assert session.sql(text).table().column("id").to_pylist() == expected


def test_a_row_without_a_time_is_in_no_window() -> None:
    with connect(dialect="flink") as session:
        session.register("e", pa.schema({"id": pa.int32(), "t": pa.timestamp("us")}), keys="id")
        session.insert("e", pa.table({"id": pa.array([1], pa.int32()), "t": pa.array([None], pa.timestamp("us"))}))
        minutes = "INTERVAL '2' MINUTES, INTERVAL '4' MINUTES"

        assert contents(session, "SELECT id FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(t), INTERVAL '2' MINUTES))") == []
        assert contents(session, f"SELECT id FROM TABLE(CUMULATE(TABLE e, DESCRIPTOR(t), {minutes}))") == []


def test_a_window_does_not_take_the_place_of_a_column() -> None:
    with connect(dialect="flink") as session:
        session.register("e", pa.schema({"id": pa.int32(), "t": pa.timestamp("us"), "window_end": pa.int32()}), keys="id")

        with pytest.raises(SqlError, match="has a column window_end"):
            session.sql("SELECT id FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(t), INTERVAL '2' MINUTES))")


@pytest.mark.parametrize(
    ("interval", "kind"),
    [
        ("'24' HOUR", "timestamp[us, tz=UTC]"),
        ("'1' DAY", "date32[day]"),
        ("'2 weeks 1 day'", "date32[day]"),
        ("'1 day 24 hours'", "timestamp[us, tz=UTC]"),
    ],
)
def test_a_date_stays_one_only_where_days_are_added_to_it(session: Session, interval: str, kind: str) -> None:
    query = session.sql(f"SELECT DATE '2024-01-01' + INTERVAL {interval} AS d FROM l")

    assert str(query.schema.field("d").type) == kind


@pytest.mark.parametrize(("amount", "words"), [("NaN", "a number and a unit"), ("1_0", "a number"), ("1.5", "whole number")])
def test_an_interval_that_is_no_number_is_refused(session: Session, amount: str, words: str) -> None:
    with pytest.raises(SqlError, match=words):
        session.sql(f"SELECT DATE '2024-01-01' + INTERVAL '{amount}' MONTH AS d FROM l")


@pytest.mark.parametrize(
    ("condition", "words"),
    [("l.k IS NOT DISTINCT FROM r.k", "joined by = here"), ("l.k = lower(r.k)", "is a column of it")],
)
@pytest.mark.parametrize("join", ["ASOF JOIN r ON {} AND l.id >= r.rid", "JOIN r FOR SYSTEM_TIME AS OF l.at ON {}"])
def test_keys_that_a_join_by_time_would_compare_otherwise_are_refused(join: str, condition: str, words: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(
            "CREATE TABLE l (id INT, k STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);"
            "CREATE TABLE r (rid INT, k STRING, at TIMESTAMP(3), PRIMARY KEY (k) NOT ENFORCED, WATERMARK FOR at AS at);"
        )

        with pytest.raises(SqlError, match=words):
            session.sql(f"SELECT l.id FROM l {join.format(condition)}")
