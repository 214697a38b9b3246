"""A table or query of PostgreSQL, looked up by one statement per batch of keys.

The law: one call is one round trip, whatever its keys: `SELECT ... FROM table JOIN unnest(keys) ...`, with the keys as arrays,
never as text in the statement. Only the wanted columns are requested. A dropped or refused connection, a server that starts or
stops, a deadlock, a statement that timed out and a network that is silent are transient; a wrong password, a missing table or
column are not.

Keys go as binary arrays straight from Arrow's buffers; the bytes are those that psycopg makes of a list of the same values:
five big-endian words (dimensions, whether there are NULLs, type of the elements, their number, the first index), then each
element behind its length. A column with a NULL, without rows, or of another type goes to psycopg as a list.

An answer is one row, each wanted column as an array in it; nested columns, and those of types without arrays in psycopg,
such as enums, are fetched row by row instead, and so is what PostgreSQL cannot put into an array (1 GB).

Sync: one connection. Async: a pool of at most `max_connections`, made when they are needed, so that one that cannot be made
fails its call at once. Connections are read-only.

Known limits: key columns of integer, text, boolean, floating, date, timestamp or decimal type; others, such as UUIDs, by a
query that makes them text, `table="(SELECT id::text AS id, ... FROM t)"`, with an index on that.
Needs `psycopg[binary]` (extra `postgres`).

Source: Flink's JDBC lookup, which fetches row by row; the PostgreSQL documentation of the binary formats.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.errors import LookupFailedError, OptionError
from zset_join.core.extras import needed_for
from zset_join.lookup.secret import Secret, as_secret, refuse_credentials, without_secrets
from zset_join.lookup.source import LookupClient, Opening, TransientLookupError
from zset_join.lookup.sources.written import WrittenSource, register_source, table_of, table_of_columns

__all__ = ["BinaryArray", "PostgresSource", "binary_array", "possible_keys", "register_binary_arrays"]

_DAYS_TO_2000 = 10_957
_US_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_FIXED = {  # kind of array: Arrow type, type of an element, words on the wire, what to take off
    "boolean[]": (pa.uint8(), 16, ">u1", 0),
    "bigint[]": (pa.int64(), 20, ">i8", 0),
    "double precision[]": (pa.float64(), 701, ">f8", 0),
    "date[]": (pa.int32(), 1082, ">i4", _DAYS_TO_2000),
    "timestamp[]": (pa.int64(), 1114, ">i8", _US_TO_2000),
    "timestamptz[]": (pa.int64(), 1184, ">i8", _US_TO_2000),
}
_VARYING = {"text[]": 25, "bytea[]": 17}


@dataclass(frozen=True, slots=True)
class BinaryArray:
    """The bytes of an array."""

    data: bytes


def possible_keys(keys: pa.Table) -> pa.Table:
    """Return the keys that a row can have: no text of PostgreSQL contains U+0000, and the server refuses such a text.

    >>> possible_keys(pa.table({"k": ["a", "a" + chr(0)]})).column("k").to_pylist()
    ['a']
    """
    for name, kind in zip(keys.schema.names, keys.schema.types, strict=True):
        if pt.is_string(kind) or pt.is_large_string(kind):
            has_nul = pc.fill_null(pc.match_substring(keys.column(name), "\0"), fill_value=False)
            keys = keys.filter(pc.invert(has_nul))
    return keys


def binary_array(column: pa.ChunkedArray, kind: str) -> BinaryArray | list[Any]:
    """Return a parameter of an array type.

    >>> binary_array(pa.chunked_array([[7]], pa.int64()), "bigint[]").data.hex(" ", 4)
    '00000001 00000000 00000014 00000001 00000001 00000008 00000000 00000007'
    >>> binary_array(pa.chunked_array([[7, None]], pa.int64()), "bigint[]")
    [7, None]
    """
    values = column.combine_chunks()
    if not len(values) or values.null_count or kind not in _FIXED | _VARYING:
        return list(column.to_pylist())
    if kind in _VARYING:
        return BinaryArray(_head(_VARYING[kind], len(values)) + _varying(values))
    storage, oid, word, less = _FIXED[kind]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    elif pa.types.is_date(values.type):
        values = values.cast(pa.date32())
    numbers = values.cast(storage).to_numpy()
    sent = np.empty(len(numbers), [("length", ">i4"), ("value", word)])
    sent["length"] = np.dtype(word).itemsize
    sent["value"] = numbers - less if less else numbers
    return BinaryArray(_head(oid, len(numbers)) + sent.tobytes())


def _head(oid: int, count: int) -> bytes:
    return np.array([1, 0, oid, count, 1], ">i4").tobytes()


def _varying(values: pa.Array) -> bytes:
    """Return texts or bytes, each behind its length."""
    values = values.cast(pa.large_binary())
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    taken: npt.NDArray[np.uint8] = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    places = ((offsets[:-1] - offsets[0] + 4 * np.arange(len(values)))[:, None] + np.arange(4)).ravel()
    sent = np.empty(len(taken) + len(places), np.uint8)
    is_length = np.zeros(len(sent), np.bool_)
    is_length[places] = True
    sent[places] = lengths.astype(">i4").view(np.uint8)
    sent[~is_length] = taken
    return sent.tobytes()


def register_binary_arrays(connection: Any) -> None:
    """Let a connection of psycopg send `BinaryArray`; the statement contains its type."""
    with needed_for("a PostgreSQL lookup", "psycopg"):
        from psycopg.adapt import Dumper
        from psycopg.pq import Format

    class _Sent(Dumper):
        format = Format.BINARY
        oid = 0

        def dump(self, obj: BinaryArray) -> bytes:
            return obj.data

    connection.adapters.register_dumper(BinaryArray, _Sent)


_TRANSIENT_STATES = ("08", "40", "53", "55", "57")
_LIMIT_EXCEEDED = "54"
_KEY_ARRAYS = (
    (pt.is_boolean, "boolean[]"),
    (pt.is_integer, "bigint[]"),
    (pt.is_floating, "double precision[]"),
    (pt.is_decimal, "numeric[]"),
    (pt.is_date, "date[]"),
    (pt.is_binary, "bytea[]"),
    (pt.is_large_binary, "bytea[]"),
)


@dataclass(frozen=True, kw_only=True)
class PostgresSource(WrittenSource):
    """Describe a table of PostgreSQL.

    Args:
        name: in plans and messages.
        schema: the columns that may be requested, with their Arrow types.
        table: the table, `schema.table` if need be; or a query in parentheses.
        host: where the server is.
        port: of the server.
        database: its name.
        user: of the connection.
        password: a `Secret`, or text, which is never stored.
        connect_timeout_seconds: for making a connection.
        statement_timeout_seconds: for one statement, at the server; without an answer the connection is closed
            `connect_timeout_seconds` later.
        sslmode: as libpq names it; None: its default.

    >>> source = PostgresSource(name="customers", schema=pa.schema({"id": pa.int64()}), table="customers", password="hunter2")
    >>> source.explain()
    'PostgreSQL customers at localhost:5432/postgres as postgres'
    >>> "hunter2" in repr(source) or "hunter2" in str(source.to_json())
    False
    """

    kind: ClassVar[str] = "postgres"
    secrets: ClassVar[tuple[str, ...]] = ("password",)

    name: str
    schema: pa.Schema
    table: str
    host: str = "localhost"
    port: int = 5432
    database: str = "postgres"
    user: str = "postgres"
    password: Secret | str | None = None
    connect_timeout_seconds: int = 10
    statement_timeout_seconds: int = 60
    sslmode: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "password", as_secret(self.password))
        refuse_credentials(self.name, self.host, self.database)

    @property
    def modes(self) -> frozenset[str]:
        return frozenset({"sync", "async", "full"})

    def open(self, opening: Opening) -> LookupClient:
        return _PostgresClient(self, opening)

    def explain(self) -> str:
        shown = "a query" if self.table.lstrip().startswith("(") else self.table
        return f"PostgreSQL {shown} at {self.host}:{self.port}/{self.database} as {self.user}"

    @property
    def answer_seconds(self) -> float:
        """Return how long a statement is waited for: the server ends it before, unless the network is silent."""
        return self.statement_timeout_seconds + self.connect_timeout_seconds

    def connection_options(self) -> dict[str, Any]:
        """Return the connection arguments of psycopg."""
        secret = as_secret(self.password)
        options: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "connect_timeout": self.connect_timeout_seconds,
            "application_name": "zset_join lookup",
            "options": f"-c statement_timeout={self.statement_timeout_seconds * 1000} -c default_transaction_read_only=on",
            "autocommit": True,
            "client_encoding": "utf8",
        }
        if secret is not None:
            options["password"] = secret.value()
        if self.sslmode is not None:
            options["sslmode"] = self.sslmode
        return options


register_source("postgres", PostgresSource.from_json)


class _PostgresClient(LookupClient):
    """Connections to one server."""

    def __init__(self, source: PostgresSource, opening: Opening) -> None:
        self._psycopg = _library()
        self._source = source
        self._opening = opening
        self._wanted = pa.schema([source.schema.field(name) for name in opening.columns])
        self._arrays = [_array_type(source, name) for name in opening.key]
        self._by_columns = not any(pt.is_nested(kind) for kind in self._wanted.types)
        self._connection: Any = None
        self._idle: list[Any] = []
        self._watchdog = _Watchdog(source.answer_seconds)
        self._places = asyncio.Semaphore(opening.max_connections)

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        self._watchdog.has_bitten = False
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._psycopg.connect(**self._source.connection_options())
                register_binary_arrays(self._connection)
            cursor, parameters = self._connection.cursor(binary=True), self._parameters(keys)
            as_columns = self._by_columns
            with self._watchdog.watching(self._connection):
                rows = cursor.execute(self._statement(as_columns=as_columns), parameters).fetchall()
                if as_columns and self._is_unread(rows):
                    as_columns = False
                    rows = cursor.execute(self._statement(as_columns=False), parameters).fetchall()
        except self._psycopg.Error as error:
            raise (self._no_answer() if self._watchdog.has_bitten else self._translated(error)) from None
        return self._found(rows, as_columns=as_columns)

    @override
    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        bitten: list[bool] = []
        as_columns = self._by_columns

        def bite(connection: Any) -> None:
            bitten.append(True)
            _shut(connection)

        try:
            async with self._free_connection() as connection:
                end = asyncio.get_running_loop().call_later(self._source.answer_seconds, bite, connection)
                try:
                    cursor, parameters = connection.cursor(binary=True), self._parameters(keys)
                    rows = await (await cursor.execute(self._statement(as_columns=as_columns), parameters)).fetchall()
                    if as_columns and self._is_unread(rows):
                        as_columns = False
                        rows = await (await cursor.execute(self._statement(as_columns=False), parameters)).fetchall()
                finally:
                    end.cancel()
        except self._psycopg.Error as error:
            raise (self._no_answer() if bitten else self._translated(error)) from None
        return self._found(rows, as_columns=as_columns)

    @contextlib.asynccontextmanager
    async def _free_connection(self) -> AsyncIterator[Any]:
        """Lend a connection that no one uses, or a new one; a call that is cancelled or fails closes its own."""
        async with self._places:
            while self._idle and self._idle[-1].closed:
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await self._new_connection()
            try:
                yield connection
            except BaseException:
                await connection.close()
                raise
            self._idle.append(connection)

    async def _new_connection(self) -> Any:
        connection = await self._psycopg.AsyncConnection.connect(**self._source.connection_options())
        register_binary_arrays(connection)
        return connection

    @override
    def load(self) -> pa.Table:
        self._watchdog.has_bitten = False
        try:
            columns = ", ".join(_quoted(name) for name in self._wanted.names)
            with (
                self._psycopg.connect(**self._source.connection_options()) as connection,
                self._watchdog.watching(connection),
            ):
                rows = connection.execute(f"SELECT {columns} FROM {self._from} AS t".encode()).fetchall()  # noqa: S608 - names are quoted
        except self._psycopg.Error as error:
            raise (self._no_answer() if self._watchdog.has_bitten else self._translated(error)) from None
        return table_of(self._wanted, rows, source=self._source.name)

    @override
    async def aclose(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    @override
    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._watchdog.close()
        if connection is not None:
            connection.close()

    @property
    def _from(self) -> str:
        table = self._source.table
        return table if table.lstrip().startswith("(") else ".".join(_quoted(part) for part in table.split("."))

    def _statement(self, *, as_columns: bool) -> bytes:
        """Return the SELECT list: one row that has each wanted column as an array, or a row per match."""
        # As arrays, an answer is no Python object per row, which halves the time of a call.
        shown = "array_agg(t.{})" if as_columns else "t.{}"
        columns = ", ".join(shown.format(_quoted(name)) for name in self._wanted.names)
        names = [f"k{at}" for at in range(len(self._arrays))]
        arrays = ", ".join(f"%s::{kind}" for kind in self._arrays)
        pairs = " AND ".join(f"t.{_quoted(name)} = keys.{own}" for name, own in zip(self._opening.key, names, strict=True))
        text = f"SELECT {columns} FROM unnest({arrays}) AS keys({', '.join(names)}) JOIN {self._from} AS t ON {pairs}"  # noqa: S608 - names are quoted, keys are parameters
        return text.encode()

    def _is_unread(self, rows: list[tuple[Any, ...]]) -> bool:
        """Return whether an array is of a type that psycopg does not read, such as an enum: from then on rows are requested."""
        is_unread = not all(column is None or isinstance(column, list) for column in rows[0])
        self._by_columns = self._by_columns and not is_unread
        return is_unread

    def _found(self, rows: list[tuple[Any, ...]], *, as_columns: bool) -> pa.Table:
        if as_columns:
            return table_of_columns(self._wanted, [column or () for column in rows[0]], source=self._source.name)
        return table_of(self._wanted, rows, source=self._source.name)

    def _parameters(self, keys: pa.Table) -> list[Any]:
        columns = zip(self._opening.key, self._arrays, strict=True)
        keys = possible_keys(keys)
        return [binary_array(keys.column(name), kind) for name, kind in columns]

    def _no_answer(self) -> TransientLookupError:
        return TransientLookupError(f"no answer within {self._source.answer_seconds:g} s, and the connection was given up")

    def _translated(self, error: Exception) -> Exception:
        """Return an error without credentials: one that may pass, or one that will not."""
        cause = without_secrets(str(error).strip() or type(error).__name__, as_secret(self._source.password))
        state = getattr(error, "sqlstate", None)
        if self._by_columns and str(state)[:2] == _LIMIT_EXCEEDED:
            self._by_columns = False
            return TransientLookupError(f"{cause}; rows are requested one by one")
        is_connection = isinstance(error, self._psycopg.OperationalError) and state is None
        refused_for_good = any(word in cause for word in ("authentication failed", "no password supplied", "does not exist"))
        if (is_connection or str(state or "")[:2] in _TRANSIENT_STATES) and not refused_for_good:
            return TransientLookupError(cause)
        return LookupFailedError(
            f'the lookup source "{self._source.name}" ({self._source.explain()}) refused: {cause}. The epoch was not applied. '
            "Correct the connection, the table or the columns it was declared with.",
            code="LOOKUP_REFUSED",
            source=self._source.name,
            state=state,
        )


class _Watchdog:
    """Shut a connection that has been silent for too long, from another thread; the call on it then fails.

    The thread sleeps until the end of the call it saw last, so that calls which are answered in time do not wake it.
    """

    def __init__(self, seconds: float) -> None:
        self.has_bitten = False
        self._seconds = seconds
        self._watched: tuple[Any, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, connection: Any) -> Iterator[None]:
        """Watch one call."""
        self._watched = connection, time.monotonic() + self._seconds
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zset-join-lookup-watchdog", daemon=True)
            self._thread.start()
        try:
            yield
        finally:
            self._watched = None

    def _run(self) -> None:
        wait = self._seconds
        while not self._closed.wait(wait):
            watched, wait = self._watched, self._seconds
            if watched is not None:
                connection, until = watched
                wait = until - time.monotonic()
                if wait <= 0:
                    self.has_bitten, wait = True, self._seconds
                    _shut(connection)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()


def _shut(connection: Any) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _library() -> Any:
    with needed_for("a PostgreSQL lookup", "psycopg"):
        import psycopg
    return psycopg


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'.replace("%", "%%")


def _array_type(source: PostgresSource, column: str) -> str:
    kind = source.schema.field(column).type
    for is_kind, array in _KEY_ARRAYS:
        if is_kind(kind):
            return array
    if pt.is_string(kind) or pt.is_large_string(kind):
        return "text[]"
    if pt.is_timestamp(kind):
        return "timestamp[]" if kind.tz is None else "timestamptz[]"
    raise OptionError(
        f'the lookup source "{source.name}" is looked up by "{column}" of type {kind}, which is not supported for a '
        "key in PostgreSQL; use an integer, text, date, timestamp or decimal column.",
        code="LOOKUP_KEY_TYPE",
        column=column,
        type=str(kind),
    )
