"""Names of users in SQL."""

from __future__ import annotations

import duckdb
import pytest

from zset_join.sinks.duckdb_file import quote

HOSTILE_NAMES = ['a"b', 'x"; DROP TABLE victim; --', "select", "é😀", " ", "a.b", "it's", "tab\there", "$1", "%s", "\\"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_quoted_name_means_exactly_that_name(name: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE {quote(name)} ({quote(name)} INTEGER)")

        found = connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()

    assert found == [(name, name)]
