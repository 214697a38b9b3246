"""Chains of a statement: kept, or refused with a code, whatever is left of the caller's stack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.expressions.test_chains import deep
from zset_join.core.errors import SqlError
from zset_join.sql import connect

TABLE = "CREATE TABLE o (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED)"
KEPT = {
    "and": "SELECT id FROM o WHERE " + " AND ".join(f"v <> {place}" for place in range(5, 1_000)),
    "or": "SELECT id FROM o WHERE " + " OR ".join(f"v = {place}" for place in range(2, 500)),
    "join": "SELECT o.id FROM o, o AS p WHERE o.id = p.id AND " + " AND ".join(f"p.v <> {place}" for place in range(5, 600)),
    "texts": "SELECT id FROM o WHERE " + " || ".join(["CAST(v AS STRING)"] * 500) + " > '2'",
    "sum": "SELECT id FROM o WHERE " + " + ".join(["v"] * 200) + " > 200",
    "rows": "SELECT id FROM o WHERE v = 3 UNION ALL " + " UNION ALL ".join(["SELECT id FROM o WHERE v > 9"] * 100),
}
REFUSED = {
    "sum": "SELECT id FROM o WHERE " + " + ".join(["v"] * 5_000) + " > 0",
    "not": "SELECT id FROM o WHERE " + "NOT " * 5_000 + "v > 1",
    "is": "SELECT id FROM o WHERE v" + " IS NULL" * 5_000,
    "case": "SELECT id FROM o WHERE " + "CASE WHEN v = 1 THEN TRUE ELSE " * 5_000 + "FALSE" + " END" * 5_000,
    "rows": " UNION ALL ".join(["SELECT id FROM o"] * 5_000),
    "title": "SELECT " + " || ".join(["'a'"] * 5_000) + " FROM o",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_a_chain_made_at_the_top_of_a_program_opens_where_the_stack_is_nearly_used_up(text: str, tmp_path: Path) -> None:
    with connect(directory=tmp_path, dialect="flink") as session:
        session.sql(f"{TABLE}; INSERT INTO o VALUES (1, 1), (2, 3); CREATE MATERIALIZED VIEW m AS {text}")

    def opened() -> list[int]:
        with connect(directory=tmp_path, dialect="flink") as session:
            session.sql("EXPLAIN SELECT id FROM m")
            session.sql("INSERT INTO o VALUES (3, 10000)")
            return sorted(session.views()["m"]["id"].to_pylist())

    assert 2 in deep(opened, frames_left=300)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_too_long_is_refused_with_a_code(text: str) -> None:
    with connect(dialect="flink") as session:
        session.sql(TABLE)
        with pytest.raises(SqlError) as refused:
            deep(lambda: session.sql(text))

    assert refused.value.code == "SQL_TOO_DEEP"


def calls_of(text: str) -> int:
    counted = 0

    def note(*_: object) -> None:
        nonlocal counted
        counted += 1

    with connect(dialect="spark") as session:
        session.sql("CREATE TABLE t (id INT, a STRING, PRIMARY KEY (id)); INSERT INTO t VALUES (1, 'a')")
        sys.setprofile(note)
        try:
            session.sql(text)
        finally:
            sys.setprofile(None)
    return counted


@pytest.mark.parametrize(
    "part",
    [
        ("INSERT INTO t VALUES ", "(1, 'a')", ", "),
        ("SELECT id FROM t WHERE ", "id = 1", " OR "),
        ("SELECT ", "id AS c{place}", ", ", " FROM t"),
        ("", "SELECT id FROM t", " UNION ALL "),
    ],
)
def test_a_statement_of_twice_the_parts_takes_twice_the_calls(part: tuple[str, ...]) -> None:
    begin, repeated, between, *end = part

    few, many = (
        calls_of(begin + between.join(repeated.format(place=n) for n in range(size)) + "".join(end)) for size in (60, 120)
    )
    assert many < 2.3 * few
