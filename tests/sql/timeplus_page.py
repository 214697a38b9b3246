"""The session of Timeplus's page "Bidirectional Join" and its numbers, for whatever runs statements.

Source: the page "Bidirectional Join", run the join and aggregation with concrete data samples.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zset_join.sql import Query, Running, Session

TABLES = """CREATE MUTABLE STREAM left_mu (
        i  int,
        k  string,
        k1 string
    )
    PRIMARY KEY (k, k1);

    CREATE MUTABLE STREAM right_mu (
        ii  int,
        kk  string,
        kk1 string
    )
    PRIMARY KEY (kk, kk1);"""
AGGREGATES = """SELECT
    count(),
    min(i), max(i), avg(i),
    min(ii), max(ii), avg(ii)
FROM left_mu
JOIN right_mu
ON left_mu.k = right_mu.kk;"""
JOINED = "SELECT *, _tp_delta FROM left_mu JOIN right_mu ON left_mu.k = right_mu.kk EMIT CHANGELOG;"


def query(session: Session, text: str) -> Query:
    made = session.sql(text)
    assert isinstance(made, Query)
    return made


def rows(table: pa.Table, *without: str) -> list[tuple[Any, ...]]:
    kept = [name for name in table.column_names if name not in without]
    return [tuple(line[name] for name in kept) for line in table.select(kept).to_pylist()]


def has_the_numbers_of_the_page(session: Session) -> Running:
    """Run the statements of the page, compare every answer with the one it shows, and return the aggregates, running."""
    session.sql(TABLES)
    times = ("_tp_time", "right_mu._tp_time")
    console_1 = query(session, JOINED).start()
    console_2 = query(session, AGGREGATES).start()

    session.sql("INSERT INTO left_mu(i, k, k1) VALUES (1, 'a', 'b'); INSERT INTO right_mu(ii, kk, kk1) VALUES (11, 'a', 'bb');")
    first = console_1.changelog()
    assert first.column_names == ["i", "k", "k1", "_tp_time", "ii", "kk", "kk1", "right_mu._tp_time", "_tp_delta"]
    assert rows(first, *times) == [(1, "a", "b", 11, "a", "bb", 1)]
    assert rows(console_2.table()) == [(1, 1, 1, 1.0, 11, 11, 11.0)]

    session.sql("INSERT INTO left_mu(i, k, k1) VALUES (2, 'a', 'b');")
    assert rows(console_1.changelog(), *times) == [(1, "a", "b", 11, "a", "bb", -1), (2, "a", "b", 11, "a", "bb", 1)]
    assert rows(console_2.table()) == [(1, 2, 2, 2.0, 11, 11, 11.0)]

    session.sql("INSERT INTO right_mu(ii, kk, kk1) VALUES (22, 'a', 'bb');")
    assert rows(console_1.changelog(), *times) == [(2, "a", "b", 11, "a", "bb", -1), (2, "a", "b", 22, "a", "bb", 1)]
    assert rows(console_2.table()) == [(1, 2, 2, 2.0, 22, 22, 22.0)]

    historical = AGGREGATES.replace("FROM left_mu", "FROM table(left_mu) AS left_mu")
    historical = historical.replace("JOIN right_mu", "JOIN table(right_mu) AS right_mu")
    assert rows(query(session, historical).table()) == [(1, 2, 2, 2.0, 22, 22, 22.0)]
    return console_2
