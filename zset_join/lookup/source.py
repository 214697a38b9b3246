"""The contract of an external table: a description that can be pickled, and the client that a worker opens from it.

A `LookupSource` has the name of the table, its columns, and the modes in which it can be read. It holds no
connection, and its JSON and its `repr` no credentials. `open` gives a `LookupClient`, once per worker; `close` ends it.

The law a client obeys: `lookup(keys)` returns every row of the table whose key is among the given ones, with at least the
columns of the opening, the key among them; none for a key that does not exist. Rows of other keys are ignored. It raises
`TransientLookupError` for what may pass if tried again (a dropped connection, a rate limit) and anything else for what will
not.

A source of your own implements these two, or wraps a function: `FunctionSource`.

`SystemClock` is the clock of the fetch step; a test replaces it (`zset_join.testing.FakeClock`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

__all__ = ["Clock", "LookupClient", "LookupSource", "Opening", "SelectiveSource", "SystemClock", "TransientLookupError"]


class Clock(Protocol):
    """The clock of the fetch step."""

    def now_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""

    def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop whose sleeps follow this clock."""


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()


class TransientLookupError(Exception):
    """An error that may not recur when the call is repeated.

    Args:
        reason: the error of the external system, without credentials.
        retry_after_seconds: how long to wait, if it demands that.
    """

    def __init__(self, reason: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Describe the use a client is opened for.

    Args:
        key: columns that are looked up by.
        columns: the columns that are wanted, the key among them.
        is_async: whether `lookup_async` will be called.
        max_connections: how many connections it may have.
        clock: for waiting.
        constants: fixed values by key column, which are part of every key.
    """

    key: tuple[str, ...]
    columns: tuple[str, ...]
    is_async: bool = False
    max_connections: int = 1
    clock: Clock = field(default_factory=SystemClock)
    constants: Mapping[str, Any] = field(default_factory=dict)


class LookupClient:
    """An open connection to an external table. A client implements the modes its source offers."""

    def lookup(self, keys: pa.Table) -> pa.Table:
        """Return the rows of these distinct keys."""
        raise NotImplementedError(type(self).__name__)

    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        """Return the rows of these distinct keys."""
        raise NotImplementedError(type(self).__name__)

    def load(self) -> pa.Table:
        """Return all rows."""
        raise NotImplementedError(type(self).__name__)

    def close(self) -> None:
        """Release open resources. May be called twice."""

    async def aclose(self) -> None:
        """Release the resources of the event loop; called before `close` of an async client."""


@runtime_checkable
class LookupSource(Protocol):
    """Description of an external table."""

    @property
    def name(self) -> str:
        """Return the name in plans and messages."""

    @property
    def schema(self) -> pa.Schema:
        """Return its columns."""

    @property
    def modes(self) -> frozenset[str]:
        """Return how it can be read: `sync`, `async`, `full`."""

    def open(self, opening: Opening) -> LookupClient:
        """Return a client."""

    def explain(self) -> str:
        """Return a description in one line, without credentials."""

    def to_json(self) -> dict[str, Any]:
        """Return everything about it with its `kind`, without credentials."""


@runtime_checkable
class SelectiveSource(LookupSource, Protocol):
    """A source that can never look up some keys. Rows with such a key are bad input, found before anything is called."""

    def unaskable(self, keys: pa.RecordBatch) -> Mapping[int, str]:
        """Return why some keys can never be requested, by their rows. It follows from the source and the keys alone.

        Args:
            keys: the columns that are looked up by; not distinct. A key with a NULL is never requested, and not among the rows.
        """
