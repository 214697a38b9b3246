"""Statements as people write them: sets of statements, and views that name their columns."""

from __future__ import annotations

import pytest

from zset_join.errors import SqlError
from zset_join.sql import connect
from zset_join.sql.dialects import DIALECTS


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
        with pytest.raises(SqlError, match=r"the view names 1 columns \(x\), and its query has 2 \(a, b\)"):
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
