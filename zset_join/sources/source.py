"""The contract of a source that a pipeline polls, without a JVM.

The law: `poll` after `open(position)` returns the rows after that position, and the next position. A pipeline keeps
the position in the commit record of the epoch that took the rows, so no row is taken twice or omitted, whatever is killed.

`rows_again`: rows of a source that is read again, so that a changed query finds columns which no state has.

    orders.parquet              a file: Parquet, CSV, JSON; also a pattern such as orders/*.parquet
    shop.duckdb:orders          a table of a DuckDB file
    postgresql://host/db:orders a table of PostgreSQL

The law: a table is read in one statement, so its rows are of one moment. Memory: all of them.

`Undecodable`, `UnreadText`: unreadable input of a source: texts of rows and records, each with its error.

    rows, unread = read_csv_rows(text, schema, CsvForm())
    letters = unread_records(unread, topic="1.csv")

Memory: the texts that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.core.hidden_settings import is_secret_name

__all__ = ["Source", "Undecodable", "UnreadText", "rows_again", "unread_records", "wanted_text"]


@runtime_checkable
class Source(Protocol):
    """Interface of a source for `run`. It is used by one thread."""

    def open(self, position: Any) -> None:
        """Go to a position.

        Args:
            position: from an earlier `poll`, JSON-ready; None: from the beginning.

        Raises:
            StateError: the rows after the position are gone, or the position is not of this source.
        """

    def poll(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next rows, at most so many, and the next position; no rows if none arrived in time.

        Raises:
            StateError: rows were lost meanwhile.
        """

    def close(self) -> None:
        """Release connections. Closing twice is allowed."""


# ruff: noqa: S608 - names and paths are quoted; they cannot be parameters here.


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


_SHOWN = 200
_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class UnreadText:
    number: int  # of a file, the line it begins in, from 1; of texts, its number among them, from 0
    text: bytes
    expected: str
    column: str | None = None  # None where the text is no row at all

    @property
    def code(self) -> str:
        return "UNDECODABLE_RECORD" if self.column is None else "UNDECODABLE_VALUE"

    @property
    def reason(self) -> str:
        if self.column is None:
            return f"it is no {self.expected}"
        return f'the value of "{self.column}" cannot be read as {self.expected}'

    @property
    def shown(self) -> str:
        return f"{self.reason}: {self.text[:_SHOWN].decode('utf-8', errors='replace')}"


@dataclass(frozen=True)
class Undecodable:
    source: str
    records: pa.Table  # `code`, `reason`, and `key`, `value`, `topic`, `partition`, `offset` of a record, or `row` as JSON


def unread_records(unread: Sequence[UnreadText], *, topic: str) -> pa.Table:
    """Return texts as records that cannot be read: `value` has the bytes, `offset` the number."""
    lines = [
        {"value": one.text, "topic": topic, "partition": 0, "offset": one.number, "code": one.code, "reason": one.reason}
        for one in unread
    ]
    return pa.Table.from_pylist(lines, schema=_RECORDS)


def wanted_text(field: pa.Field) -> str:
    """Return the accepted values of a column, as text."""
    return f"{field.type}{'' if field.nullable else ' NOT NULL'}"
