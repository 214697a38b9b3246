"""A word that another system has is refused by its name and with a cure, wherever in a statement it is written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import Session, connect

JOINS = (
    "SELECT a.v FROM a {} JOIN b ON a.k = b.k",
    "SELECT a.v FROM a INNER {} JOIN b ON a.k = b.k",
    "SELECT x.v FROM a AS x LEFT {} JOIN b USING (k)",
    "SELECT x.v FROM a x {} LEFT JOIN b ON x.k = b.k",
    "SELECT x.v FROM (SELECT * FROM a) AS x {} JOIN b ON x.k = b.k",
    "SELECT x.v FROM a x JOIN b y ON x.k = y.k {} JOIN b z ON z.k = x.k",
    "CREATE VIEW w AS SELECT v FROM a WHERE k IN (SELECT a.k FROM a FULL {} JOIN b ON a.k = b.k)",
)
ENDS = (
    "SELECT v FROM a {}",
    "SELECT v FROM a AS x {}",
    "SELECT v FROM a WHERE v > 1 {}",
    "SELECT v, count(*) AS n FROM a GROUP BY v {}",
    "SELECT v FROM (SELECT v FROM a x {}) q",
    "WITH q AS (SELECT v, count(*) AS n FROM a GROUP BY v {}) SELECT v FROM q",
    "SELECT x.v FROM a AS x {} JOIN b ON x.k = b.k",
    "INSERT INTO c SELECT v FROM a UNION ALL SELECT v FROM a x {}",
    "EXPLAIN SELECT v FROM a WHERE k IN (SELECT k FROM b y {})",
)
CLAUSES = (
    "FINAL", "EMIT PERIODIC 1s", "EMIT CHANGELOG PERIODIC 1s", "EMIT AFTER WATERMARK", "EMIT ON WINDOW CLOSE", "PREWHERE v > 1",
    "SAMPLE 0.1", "SHUFFLE BY k", "FORMAT JSON", "WITH TOTALS", "SETTINGS", "MATCH_RECOGNIZE (PARTITION BY k)",
)  # fmt: skip
JOINED = ("LATEST", "ALL", "GLOBAL", "ARRAY", "WINDOW")


@pytest.fixture(scope="module", params=["timeplus", "risingwave"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with connect(dialect=request.param) as made:
        made.sql("CREATE TABLE a (k INT, v INT); CREATE TABLE b (k INT, w INT); CREATE TABLE c (v INT)")
        yield made


@pytest.mark.parametrize(("word", "form"), [*product(JOINED, JOINS), *product(CLAUSES, ENDS)])
def test_a_word_of_another_system_is_refused_by_its_name_at_every_place(session: Session, word: str, form: str) -> None:
    with pytest.raises(SqlError, match=f"{word.split()[0]}.* is not supported") as refused:
        session.sql(form.format(word))

    assert refused.value.code == "NOT_OFFERED"
    assert refused.value.facts["column"] > 1


@pytest.mark.parametrize(
    "text",
    [
        "SELECT latest.v FROM a latest JOIN b ON latest.k = b.k",
        "SELECT x.final FROM (SELECT v AS final, k AS emit FROM a) AS x",
        "SELECT v AS sample, k AS format FROM a AS settings",
    ],
)
def test_where_it_can_be_a_name_it_is_one(session: Session, text: str) -> None:
    session.sql(text)


@pytest.mark.parametrize("clause", ["TTL at + INTERVAL 1 DAY", "ENGINE = MergeTree()", "ORDER BY k", "PARTITION BY k"])
def test_a_clause_of_another_system_s_declaration_is_refused_with_its_cure(session: Session, clause: str) -> None:
    with pytest.raises(SqlError, match=r"\[NOT_OFFERED\] [A-Z ]+ is not supported here\. [A-Z]"):
        session.sql(f"CREATE TABLE d (k INT, v INT) {clause}")
