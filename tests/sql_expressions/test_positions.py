from __future__ import annotations

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import connect
from zset_join.sql_expressions.consumed import Position, near
from zset_join.sql_expressions.dialects import split


def test_a_place_shows_its_line_with_a_caret_under_it() -> None:
    place = Position("SELECT a,\n  b FROM t", 12)

    assert (place.line, place.column) == (2, 3)
    assert str(place).splitlines()[1:] == ["    b FROM t", "    ^"]


def test_a_long_line_is_cut_around_the_place() -> None:
    shown = str(Position("x" * 1000, 500)).splitlines()

    assert len(shown[1]) < 200
    assert shown[2].index("^") < 200


def test_near_names_what_is_alike_and_else_what_there_is() -> None:
    assert near("ordrs", ["orders", "customers"]) == " Did you mean orders?"
    assert near("zzz", ["a", "b"]) == " There are a, b."
    assert near("zzz", []) == ""


def test_a_place_shows_no_password_and_its_caret_stays() -> None:
    text = (
        "CREATE TABLE t WITH ('password' = 'it''s hush', 'url' = 'jdbc:mysql://me:hush@crm/db?sslkey=hush&x=1', 'nope' = '1')"
    )
    (statement,) = split(text, dialect="spark")
    shown = str(Position(statement.text, text.index("'nope'")))

    assert "hush" not in shown
    assert "it" not in shown
    assert "password' = ****** *****, 'url'" in str(statement.place(0))
    assert shown.splitlines()[2].index("^") == shown.splitlines()[1].index("'nope'")


@pytest.mark.parametrize("url", ["jdbc:postgresql://me:hush@crm/db", "jdbc:postgresql://crm/db?user=me&password=hush"])
def test_a_url_with_credentials_is_refused_without_showing_them(url: str) -> None:
    made = f"CREATE TABLE t (id INT) WITH ('connector' = 'jdbc', 'table-name' = 't', 'url' = '{url}')"
    with connect(dialect="flink") as session, pytest.raises(SqlError, match="'username' and 'password'") as reported:
        session.sql(made)
    assert reported.value.code == "SECRET_IN_URL"
    assert "hush" not in str(reported.value) + repr(reported.value.facts)
