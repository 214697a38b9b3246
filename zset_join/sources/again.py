"""Rows of a source that is read again, so that a changed query finds columns which no state has.

    orders.parquet              a file: Parquet, CSV, JSON; also a pattern such as orders/*.parquet
    shop.duckdb:orders          a table of a DuckDB file
    postgresql://host/db:orders a table of PostgreSQL

The law: a table is read in one statement, so its rows are of one moment. Memory: all of them.
"""

# ruff: noqa: S608 - names and paths are quoted; they cannot be parameters here.

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import is_secret_name

__all__ = ["rows_again"]


def rows_again(given: Any) -> Any:
    """Return the present rows of a source.

    >>> rows_again(lambda: [{"id": 1}])
    [{'id': 1}]
    """
    if isinstance(given, str):
        return _read(given)
    return given() if callable(given) else given


def _read(text: str) -> Any:
    place, colon, table = text.rpartition(":")
    try:
        if text.startswith(("postgresql://", "postgres://")):
            return _of_postgres(place, table)
        if colon and place.endswith((".duckdb", ".db")):
            return _of_duckdb(f"SELECT * FROM again.{_name(table)}", place)
        return _of_duckdb(f"SELECT * FROM '{_quoted(text)}'", None)
    except OSError as error:
        raise _unreadable(text, error) from error


def _of_duckdb(query: str, path: str | None) -> Any:
    with needed_for("reading a source again"):
        import duckdb
    try:
        with duckdb.connect() as connection:
            if path is not None:
                connection.execute(f"ATTACH '{_quoted(path)}' AS again (READ_ONLY)")
            return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise _unreadable(path or query, error) from error


def _of_postgres(url: str, table: str) -> Any:
    if any(mark in table for mark in "/@?"):  # the text names no table, and what it ends in may be a password
        raise _unreadable("a place of PostgreSQL", "no table behind the last colon")
    with needed_for("reading a source again", "psycopg"):
        import psycopg
    try:
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {_name(table)}".encode())
            names = [column.name for column in cursor.description or ()]
            columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
            return {name: list(values) for name, values in zip(names, columns, strict=True)}
    except psycopg.Error as error:
        raise _unreadable(f"the table {table} of PostgreSQL", _without_secrets(str(error), url)) from None


def _without_secrets(text: str, url: str) -> str:
    """Return a text without the secrets of a URL, and without parts of it that libpq repeats."""
    login = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    named = [value for name, value in parse_qsl(url.partition("?")[2]) if is_secret_name(name)]
    for secret in {login, unquote(login), *named} - {""}:
        text = text.replace(secret, "***")
    return text


def _name(table: str) -> str:
    return ".".join(f'"{part}"' for part in table.replace('"', '""').split("."))


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _unreadable(what: str, error: Exception | str) -> OptionError:
    return OptionError(
        f"{what} cannot be read again: {error}. Expected a file of Parquet, CSV or JSON, FILE.duckdb:TABLE, "
        "postgresql://...:TABLE, rows, or a function that returns rows.",
        code="REREAD",
        source=what,
    )
