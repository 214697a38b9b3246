"""Descriptions of one query by a classic session and by a client of Spark Connect."""

from __future__ import annotations

from typing import Any

import pytest

from zset_join.checkpoint.descriptions import SESSION, is_of_other_session


def described(text: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "orders", "operation": [text]}], "keeps_view": False, **more}


@pytest.mark.parametrize(
    ("classic", "connect"),
    [
        ("CAST(CASE WHEN (op = 'd') THEN -1 ELSE 1 END AS BIGINT)", "CAST(CASE WHEN (`op` = 'd') THEN -1 ELSE 1 END AS LONG)"),
        ("(total * CAST(2 AS BIGINT)) AS twice", "(`Total` * 2) AS `twice`"),
        ("id", "(`id`)"),
        ("((NOT (a = 'x')) AND (b IN ('x', 'y')))", "((`a` != 'x') AND in(`b`, 'x', 'y'))"),
        ("((a IS NOT NULL) OR (b IS NULL))", "(isNotNull(`a`) OR isNull(`b`))"),
    ],
)
def test_texts_that_differ_in_casts_quotes_and_parentheses_are_one_query(classic: str, connect: str) -> None:
    of_connect = described(connect, **{SESSION: "connect", "line 000": "Where `a`"})
    of_classic = described(classic, **{"line 000": "Where a"})

    assert is_of_other_session(of_connect, of_classic)
    assert is_of_other_session(of_classic, of_connect)
    assert not is_of_other_session(described(classic), of_classic)


@pytest.mark.parametrize(
    ("classic", "connect"),
    [
        ("total > 3", "total > 4"),
        ("name = 'a'", "name = 'A'"),
        ("total > 3", "paid > 3"),
        ("((a + b) * c)", "(a + (b * c))"),
        ("a IN ('x')", "in(`a`, 'y')"),
        ("a IS NULL", "isNotNull(`a`)"),
        ("total > 3", "total >"),
        ("total >", "total > >"),
    ],
)
def test_other_expressions_and_what_cannot_be_read_are_another_query(classic: str, connect: str) -> None:
    assert not is_of_other_session(described(classic), described(connect, **{SESSION: "connect"}))


@pytest.mark.parametrize(
    ("classic", "connect"),
    [
        ("(day > 3)", "(CAST(`day` AS DATE) > 3)"),
        ("(CAST(day AS DATE) > 3)", "(CAST(`day` AS TIMESTAMP) > 3)"),
        ("CAST(total AS INT)", "try_cast(`total` AS INT)"),
        ("try_cast(total AS INT)", "`total`"),
    ],
)
def test_a_cast_that_spark_does_not_add_is_another_query(classic: str, connect: str) -> None:
    assert not is_of_other_session(described(classic), described(connect, **{SESSION: "connect"}))
    assert not is_of_other_session(described(connect, **{SESSION: "connect"}), described(classic))


def test_casts_that_spark_adds_around_one_of_the_program_and_those_of_literals_are_none() -> None:
    connect = described("(CAST(`a` AS INT) = CAST('3' AS BIGINT))", **{SESSION: "connect"})

    assert is_of_other_session(described("(CAST(CAST(a AS INT) AS BIGINT) = '3')"), connect)


def test_every_other_difference_is_another_query() -> None:
    before = described("a", **{SESSION: "connect"})

    assert not is_of_other_session(before, described("a", limit=3))
    assert not is_of_other_session(before, described("a") | {"keeps_view": True})
    assert not is_of_other_session(before, described("a") | {"inputs": []})
