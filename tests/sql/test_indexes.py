"""Indexes: names for the copy of a table that joins share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import Session, connect

TABLES = """
CREATE TABLE rates (currency STRING, rate INT, at TIMESTAMP(3), WATERMARK FOR at AS at, PRIMARY KEY (currency) NOT ENFORCED);
CREATE TABLE orders (id INT, currency STRING, land STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts);
CREATE TABLE names (currency STRING, country STRING, name STRING)
"""
JOIN = "SELECT o.id, rates.rate FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts ON o.currency = rates.currency"


@pytest.fixture
def session() -> Iterator[Session]:
    with warnings.catch_warnings(), connect(dialect="flink") as made:
        warnings.simplefilter("ignore")
        made.sql(TABLES)
        yield made


def test_explain_names_the_index_that_joins_share(session: Session) -> None:
    session.sql("CREATE INDEX by_currency ON rates (Currency)")

    reported = session.sql(f"{JOIN} UNION ALL {JOIN} AND o.id > 3").explain()

    assert reported.count("looks up in index by_currency (currency): one copy, shared with stage") == 2


TWICE = (
    "SELECT o.id, r.rate AS one, q.rate AS other FROM orders AS o "
    "JOIN rates FOR SYSTEM_TIME AS OF {time} AS r ON o.currency = r.currency AND r.rate > 1 "
    "LEFT JOIN rates FOR SYSTEM_TIME AS OF {time} AS q ON o.land = q.currency AND q.rate < 9"
)


@pytest.mark.parametrize("time", ["o.ts", "PROCTIME()"])
def test_a_table_under_two_aliases_of_a_statement_is_kept_once(time: str, session: Session) -> None:
    session.sql("CREATE INDEX by_currency ON rates (currency)")
    session.sql(f"CREATE MATERIALIZED VIEW both_rates AS {TWICE.format(time=time)}")
    session.sql(
        "INSERT INTO rates VALUES ('EUR', 2, TIMESTAMP '2026-01-01 00:00:00'), ('USD', 3, TIMESTAMP '2026-01-01 00:00:00')"
    )
    session.sql("INSERT INTO rates VALUES ('EUR', 9, TIMESTAMP '2026-01-01 00:00:01')")
    at = "TIMESTAMP '2026-01-01 00:00:01'"
    session.sql(f"INSERT INTO orders VALUES (1, 'EUR', 'USD', {at}), (2, 'USD', 'EUR', {at})")

    reported = session.sql(TWICE.format(time=time)).explain()

    assert reported.count("looks up in index by_currency (currency): one copy, shared with stage") == 2
    stored = session.sql("SELECT * FROM table(both_rates)").table().to_pylist()
    assert sorted(stored, key=lambda row: row["id"]) == [{"id": 1, "one": 9, "other": 3}, {"id": 2, "one": 3, "other": None}]


def test_a_join_by_processing_time_goes_by_the_columns_of_an_index(session: Session) -> None:
    session.sql("CREATE INDEX by_country ON names (country)")

    reported = session.sql(
        "SELECT o.id, n.name FROM orders AS o JOIN names FOR SYSTEM_TIME AS OF PROCTIME() AS n "
        "ON o.currency = n.currency AND o.land = n.country"
    ).explain()

    assert "looks up in index by_country (country)" in reported


def test_they_are_shown_described_and_dropped(session: Session) -> None:
    assert str(session.sql("CREATE INDEX a ON rates (currency); CREATE INDEX b ON names (country, name)"))

    assert session.sql("SHOW INDEXES").rows.to_pylist() == [
        {"name": "a", "table": "rates", "columns": "currency"},
        {"name": "b", "table": "names", "columns": "country, name"},
    ]
    assert str(session.sql("SHOW INDEXES FROM names")) == "b on names (country, name)"
    assert "index a (currency)" in str(session.sql("DESCRIBE rates"))
    assert str(session.sql("DROP INDEX a")) == "index a is dropped"
    assert str(session.sql("DROP INDEX IF EXISTS a")) == "there is no index a"
    session.sql("DROP TABLE names")
    assert session.sql("SHOW INDEXES").rows.num_rows == 0


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("CREATE INDEX i ON rates (price)", "UNKNOWN_COLUMN", "has no column price"),
        ("CREATE INDEX i ON rates (rate, rate)", "INDEX_COLUMNS", "twice"),
        ("CREATE INDEX i ON prices (rate)", "UNKNOWN_TABLE", "prices"),
        ("CREATE INDEX i ON rates (rate) INCLUDE (at)", "SQL_SYNTAX", "expected the end"),
        ("CREATE INDEX i ON rates (rate); CREATE INDEX i ON rates (at)", "NAME_TAKEN", "already"),
        ("DROP INDEX i", "NO_SUCH_INDEX", "there is no index"),
    ],
)
def test_what_is_refused_names_the_reason(text: str, code: str, words: str, session: Session) -> None:
    with pytest.raises(SqlError, match=words) as caught:
        session.sql(text)
    assert caught.value.code == code
