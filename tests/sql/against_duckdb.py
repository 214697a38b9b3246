"""What DuckDB answers to a text, after every change, beside what a query holds."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

import duckdb

from zset_join.sql import Session

__all__ = ["assert_equals_duckdb", "bag"]


def bag(rows: list[dict[str, Any]]) -> collections.Counter[tuple[Any, ...]]:
    """Return how often each row is present, its values as texts."""
    return collections.Counter(tuple(None if value is None else str(value) for value in row.values()) for row in rows)


def assert_equals_duckdb(session: Session, created: str, changes: Iterable[str], text: str) -> None:
    """Check a query after every change; the tables are in the session already.

    Args:
        session: with the tables, empty.
        created: the statements that make them in DuckDB.
        changes: INSERT, which replaces rows of the same key, UPDATE or DELETE.
        text: the query.
    """
    with duckdb.connect() as database:
        database.sql("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        database.sql(created)
        running: Any = session.sql(text)
        running = running.start()
        for change in changes:
            session.sql(change)
            database.sql(change.replace("INSERT INTO", "INSERT OR REPLACE INTO"))
            expected = database.sql(text).to_arrow_table().to_pylist()

            assert bag(running.table().to_pylist()) == bag(expected), change
