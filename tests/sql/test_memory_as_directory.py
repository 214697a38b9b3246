"""One law for both kinds of session in this process: the same statements leave the same rows and report the same change.

Views end their rows by event time, so what a change builds again, and what it continues with, shows in their rows.
"""

from __future__ import annotations

import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from zset_join.core.errors import ZsetJoinError
from zset_join.sql import Session, connect

_TABLES = """
CREATE TABLE orders (id INT, who STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);
CREATE TABLE people (who STRING, name STRING, PRIMARY KEY (who));
CREATE TABLE marks (who STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);
SET state_ttl_by = 'event';
"""
_LEFT = "SELECT /*+ STATE_TTL('o'='{ttl} s','p'='0') */ o.id, p.name FROM orders AS o LEFT JOIN people AS p ON o.who = p.who"
_TEXTS = (
    _LEFT,
    _LEFT.replace("LEFT JOIN", "JOIN") + " WHERE o.id <> 2",
    _LEFT.replace("LEFT JOIN people AS p", "JOIN marks AS p").replace("p.name", "p.who AS name").replace("'0'", "'{ttl} s'"),
    "SELECT count(*) AS id, who AS name FROM orders GROUP BY who SETTINGS state_ttl = '{ttl} seconds'",
    "SELECT id, who AS name FROM orders WHERE id > 1",
    "SELECT /*+ STATE_TTL('orders'='{ttl} s') */ DISTINCT id, who AS name, at FROM orders",
    "SELECT id, who AS name FROM (SELECT id, who, ROW_NUMBER() OVER (PARTITION BY who ORDER BY id) AS n FROM orders) WHERE n = 1",
)
_QUERIES = st.builds(lambda text, ttl: text.format(ttl=ttl), st.sampled_from(_TEXTS), st.sampled_from([5, 10, 30]))
_BESIDE = st.sampled_from(
    [
        "SELECT max(id) AS id, who AS name FROM orders GROUP BY who",
        "SELECT o.id, p.name FROM orders AS o JOIN people AS p ON o.who = p.who",
        "SELECT count(*) AS id, name FROM people GROUP BY name",
    ]
)
"""Of the other view: in a directory a stage that differs in its duration alone begins with the rows of that one."""
_WHO, _SECONDS = st.sampled_from(["A", "B"]), st.integers(0, 59)


def _order(number: int, who: str, second: int) -> str:
    return f"INSERT INTO orders VALUES ({number}, '{who}', TIMESTAMP '2026-01-01 00:00:{second:02}')"


_MARKS = st.builds(
    lambda who, second: f"INSERT INTO marks VALUES ('{who}', TIMESTAMP '2026-01-01 00:00:{second:02}')", _WHO, _SECONDS
)
_PEOPLE = st.builds(lambda who, name: f"INSERT INTO people VALUES ('{who}', '{name}')", _WHO, st.sampled_from("xy"))
_ORDERS = st.builds(_order, st.integers(1, 4), _WHO, _SECONDS)
_STATEMENTS = st.one_of(
    _ORDERS,
    # Rows end with the next epoch: in memory that of a table which the view reads, in a directory that of any table.
    st.builds("{};{}".format, st.one_of(_MARKS, _PEOPLE), _ORDERS),
    st.builds("ALTER MATERIALIZED VIEW v AS {}".format, _QUERIES),
    st.builds("CREATE OR REPLACE MATERIALIZED VIEW v AS {}".format, _QUERIES),
    st.builds("ALTER MATERIALIZED VIEW w AS {}".format, _BESIDE),
)


def _rows(session: Session) -> dict[str, list[Any]]:
    return {
        name: sorted((tuple(row.values()) for row in table.to_pylist()), key=repr) for name, table in session.views().items()
    }


def _ran(session: Session, statement: str) -> tuple[str, ...]:
    """Run a statement; return what it reports of each view, or the code of its refusal."""
    try:
        return tuple(line for line in str(session.sql(statement)).splitlines() if line.startswith('view "'))
    except ZsetJoinError as error:
        return (error.code,)


@given(first=st.tuples(_QUERIES, _BESIDE), statements=st.lists(_STATEMENTS, min_size=3, max_size=12))
@settings(deadline=None, max_examples=8, derandomize=True, database=None, phases=[Phase.generate])
def test_a_session_in_memory_changes_its_views_as_one_in_a_directory(first: tuple[str, str], statements: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        connect(dialect="flink") as memory,
        connect(directory=place, dialect="flink") as directory,
    ):
        for session in (memory, directory):
            session.sql(_TABLES)
            for name, query in zip("vw", first, strict=True):
                session.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        for statement in statements:
            assert _ran(memory, statement) == _ran(directory, statement), statement
            assert _rows(memory) == _rows(directory), statement
