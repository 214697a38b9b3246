"""A table in a DuckDB or SQLite file, opened read-only and looked up by one statement per batch of keys.

DuckDB joins with the keys as an Arrow table; SQLite with a list of values, of which it takes a few thousand per statement.
Sync, or loaded as a whole. The file is opened for each worker, by its first call.

Needs `duckdb` (extra `duckdb`) for DuckDB; SQLite comes with Python. Limits: a DuckDB file that another process writes to
cannot be opened.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import LookupFailedError
from zset_join.core.extras import needed_for
from zset_join.lookup.source import LookupClient, Opening, TransientLookupError
from zset_join.lookup.sources.written import WrittenSource, register_source, table_of

__all__ = ["DuckDBFileSource", "SQLiteFileSource"]

_SQLITE_VALUES = 30_000  # its own limit is 32,766 per statement


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


@dataclass(frozen=True, kw_only=True)
class _TableInFile:
    kind_shown: ClassVar[str] = ""

    name: str
    schema: pa.Schema
    path: str
    table: str

    @property
    def modes(self) -> frozenset[str]:
        """Return sync and full."""
        return frozenset({"sync", "full"})

    def explain(self) -> str:
        """Return table and file."""
        return f"{self.kind_shown} table {self.table} in {self.path}"

    def refused(self, error: Exception) -> LookupFailedError:
        """Return the error of a file that cannot be read."""
        return LookupFailedError(
            f'the lookup source "{self.name}" ({self.explain()}) refused: {error}. The epoch was not applied. Correct path, '
            f"table or "
            "columns.",
            code="LOOKUP_REFUSED",
            source=self.name,
        )


@dataclass(frozen=True, kw_only=True)
class DuckDBFileSource(_TableInFile, WrittenSource):
    """Describe a table in a DuckDB file.

    Args:
        name: in plans and messages.
        schema: the columns that may be requested.
        path: of the file.
        table: its name in the file.
    """

    kind: ClassVar[str] = "duckdb_file"
    kind_shown: ClassVar[str] = "DuckDB"

    def open(self, opening: Opening) -> LookupClient:
        return _DuckDBClient(self, opening)


@dataclass(frozen=True, kw_only=True)
class SQLiteFileSource(_TableInFile, WrittenSource):
    """Describe a table in a SQLite file.

    Args:
        name: in plans and messages.
        schema: the columns that may be requested.
        path: of the file.
        table: its name in the file.
    """

    kind: ClassVar[str] = "sqlite_file"
    kind_shown: ClassVar[str] = "SQLite"

    def open(self, opening: Opening) -> LookupClient:
        return _SQLiteClient(self, opening)


register_source("duckdb_file", DuckDBFileSource.from_json)
register_source("sqlite_file", SQLiteFileSource.from_json)


class _DuckDBClient(LookupClient):
    def __init__(self, source: DuckDBFileSource, opening: Opening) -> None:
        self._duckdb = _duckdb()
        self._source = source
        self._opening = opening
        self._columns = ", ".join(f"t.{_quoted(name)}" for name in opening.columns)
        pairs = " AND ".join(f"t.{_quoted(name)} = requested.{_quoted(name)}" for name in opening.key)
        self._from = f"{_quoted(source.table)} AS t"
        self._statement = f"SELECT {self._columns} FROM {self._from} JOIN requested ON {pairs}"  # noqa: S608 - names are quoted
        self._connection: Any = None

    def _opened(self) -> Any:
        if self._connection is None:
            self._connection = self._duckdb.connect(self._source.path, read_only=True)
            self._connection.execute("SET threads = 1")
        return self._connection

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        return self._queried(self._statement, keys)

    @override
    def load(self) -> pa.Table:
        self.close()  # so that what another process has written meanwhile is seen
        return self._queried(f"SELECT {self._columns} FROM {self._from}", None)  # noqa: S608 - names are quoted

    def _queried(self, statement: str, keys: pa.Table | None) -> pa.Table:
        try:
            connection = self._opened()
            if keys is not None:
                connection.register("requested", keys.select(list(self._opening.key)))
            return connection.sql(statement).to_arrow_table()
        except self._duckdb.IOException as error:
            raise TransientLookupError(str(error)) from error
        except self._duckdb.Error as error:
            raise self._source.refused(error) from error

    @override
    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _SQLiteClient(LookupClient):
    def __init__(self, source: SQLiteFileSource, opening: Opening) -> None:
        self._source = source
        self._opening = opening
        self._wanted = pa.schema([source.schema.field(name) for name in opening.columns])
        self._columns = ", ".join(f"t.{_quoted(name)}" for name in opening.columns)
        self._connection: sqlite3.Connection | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            path = quote(str(Path(self._source.path).absolute()))
            self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        return self._connection

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        names = self._opening.key
        requested = list(zip(*(keys.column(name).to_pylist() for name in names), strict=True))
        at_once = max(1, _SQLITE_VALUES // len(names))
        rows: list[tuple[Any, ...]] = []
        for begin in range(0, len(requested), at_once):
            part = requested[begin : begin + at_once]
            places = ", ".join([f"({', '.join('?' * len(names))})"] * len(part))
            pairs = " AND ".join(f"t.{_quoted(name)} = requested.column{at}" for at, name in enumerate(names, 1))
            text = (
                f"SELECT {self._columns} FROM (VALUES {places}) AS requested JOIN {_quoted(self._source.table)} AS t ON {pairs}"  # noqa: S608 - names are quoted, keys are parameters
            )
            rows += self._fetched(text, [value for key in part for value in key])
        return table_of(self._wanted, rows, source=self._source.name)

    @override
    def load(self) -> pa.Table:
        rows = self._fetched(f"SELECT {self._columns} FROM {_quoted(self._source.table)} AS t", [])  # noqa: S608 - names are quoted
        return table_of(self._wanted, rows, source=self._source.name)

    def _fetched(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._opened().execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "unable to open" in str(error):
                raise TransientLookupError(str(error)) from error
            raise self._source.refused(error) from error
        except sqlite3.Error as error:
            raise self._source.refused(error) from error

    @override
    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _duckdb() -> Any:
    with needed_for("a lookup in a DuckDB file"):
        import duckdb
    return duckdb
