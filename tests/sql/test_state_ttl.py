"""State that ends by time, written in SQL: hints and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import Session, SqlWarning, connect

TABLES = """
CREATE TABLE orders (id INT, who STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);
CREATE TABLE people (who STRING, name STRING);
"""
JOIN = "SELECT /*+ {} */ o.id, p.name FROM orders AS o LEFT JOIN people AS p ON o.who = p.who"


@pytest.fixture
def session() -> Iterator[Session]:
    with connect(dialect="flink") as made:
        made.sql(TABLES)
        yield made


def started(session: Session, text: str) -> Any:
    made: Any = session.sql(text)
    return made.start()


def insert(session: Session, *orders: tuple[int, str, int]) -> None:
    values = ", ".join(f"({number}, '{who}', TIMESTAMP '2026-01-01 00:00:{second:02}')" for number, who, second in orders)
    session.sql(f"INSERT INTO orders VALUES {values}")


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(line.values()) for line in table.to_pylist())


def test_a_hint_shows_how_long_the_rows_of_a_table_live_in_a_join(session: Session) -> None:
    session.sql("SET state_ttl_by = 'event'")
    session.sql("INSERT INTO people VALUES ('A', 'Ada')")
    running = started(session, JOIN.format("STATE_TTL('ORDERS'='10 s', 'p'='0')"))

    insert(session, (1, "A", 0), (2, "A", 5))
    insert(session, (3, "A", 11))

    assert rows(running.table()) == [(2, "Ada"), (3, "Ada")]


def test_a_setting_holds_for_groups_and_a_query_has_settings_of_its_own(session: Session) -> None:
    session.sql("SET table.exec.state.ttl = '36 h'")
    session.sql("SET state_ttl_by = 'event'")
    short = started(session, "SELECT who, count(*) AS n FROM orders GROUP BY who SETTINGS state_ttl = '10 seconds'")
    long = started(session, "SELECT who, count(*) AS n FROM orders GROUP BY who")

    insert(session, (1, "A", 0), (2, "B", 5), (3, "B", 11))

    assert rows(short.table()) == [("B", 2)]
    assert rows(long.table()) == [("A", 1), ("B", 2)]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_view_gets_another_duration_and_counts_what_it_ends_and_what_has_ended(tmp_path: Path, is_durable: bool) -> None:
    with connect(directory=tmp_path if is_durable else None, dialect="flink") as session:
        session.sql(TABLES + "SET state_ttl_by = 'event';")
        session.sql("CREATE MATERIALIZED VIEW v AS " + JOIN.format("STATE_TTL('o'='30 s','p'='0')"))
        insert(session, (1, "A", 0), (2, "A", 15))
        insert(session, (3, "A", 20))

        change = "ALTER MATERIALIZED VIEW v AS " + JOIN.format("STATE_TTL('o'='10 s','p'='0')")
        foreseen, text = str(session.sql(f"EXPLAIN {change}")), str(session.sql(change))
        insert(session, (4, "A", 21))
        longer = str(session.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS " + JOIN.format("STATE_TTL('o'='40 s','p'='0')")))
        after = rows(session.views()["v"])
        insert(session, (5, "A", 32))
        at_last = rows(session.views()["v"])

    ended = "rows or keys that the shorter state_ttl ends with the next epoch, not shown above: state_ttl-0 1"
    assert (ended in foreseen, ended in text) == (True, True)
    assert 'keeps 1 of 1 stage\nview "v" is unchanged\nrows that have ended stay so: state_ttl-0' in longer
    assert "1 ended by time" in longer
    assert [[number for number, _ in found] for found in (after, at_last)] == [[2, 3, 4], [2, 3, 4, 5]]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_changed_view_reads_a_table_that_is_new_to_it_at_the_time_that_this_has_come_to(
    tmp_path: Path, is_durable: bool
) -> None:
    with connect(directory=tmp_path if is_durable else None, dialect="flink") as session:
        session.sql(TABLES + "SET state_ttl_by = 'event'; CREATE MATERIALIZED VIEW v AS SELECT who AS id FROM people")
        insert(session, (1, "A", 0), (2, "A", 40))
        session.sql("INSERT INTO people VALUES ('A', 'Ada')")

        session.sql("ALTER MATERIALIZED VIEW v AS SELECT /*+ STATE_TTL('orders'='10s') */ DISTINCT id, at FROM orders")
        found = rows(session.views()["v"])

    assert [number for number, _ in found] == [2]


def test_first_rows_and_distinct_rows_end_by_a_hint(session: Session) -> None:
    session.sql("SET state_ttl_by = 'event'")
    first = started(
        session,
        "SELECT id FROM (SELECT /*+ STATE_TTL('orders'='10s') */ id, at, ROW_NUMBER() OVER (PARTITION BY who ORDER BY id) AS n "
        "FROM orders) WHERE n = 1",
    )
    distinct = started(session, "SELECT /*+ STATE_TTL('orders'='10s') */ DISTINCT who, at FROM orders")

    insert(session, (1, "A", 0), (2, "A", 1))
    insert(session, (3, "B", 11))

    assert rows(first.table()) == [(3,)]
    assert [who for who, _ in rows(distinct.table())] == ["B"]


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("STATE_TTL('order'='1d')", "for 'order', which FROM does not name"),
        ("STATE_TTL('o'='soon')", "for 'o': the option state_ttl"),
        ("STATE_TTL(o)", "it takes pairs 'table'='duration'"),
        ("BROADCAST(o)", "LOOKUP and STATE_TTL are"),
    ],
)
def test_a_hint_that_cannot_be_honoured_warns(session: Session, hint: str, message: str) -> None:
    with pytest.warns(SqlWarning, match=message.replace("(", r"\(")):
        session.sql(JOIN.format(hint))


def test_rows_are_not_forgotten_where_later_answers_would_contradict(session: Session) -> None:
    session.sql("SET state_ttl_on_expire = 'forget'")

    with pytest.raises(SqlError, match="retract") as caught:
        session.sql(JOIN.format("STATE_TTL('p'='1 d')"))
    assert caught.value.code == "STATE_TTL_FORGET"


def test_a_setting_is_checked_when_it_is_made(session: Session) -> None:
    with pytest.raises(SqlError, match="on_expire='drop'"):
        session.sql("SET state_ttl_on_expire = 'drop'")
