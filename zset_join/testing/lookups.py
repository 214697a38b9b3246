"""An outside world for tests of lookup joins: a table that follows a script, and a clock that is never waited for.

    clock = FakeClock()
    table = ScriptedSource("customers", schema, clock=clock)
    table.put({"id": 7, "name": "Ada"}, at=30)      # seconds: the row is late

The law: the same script gives the same calls at the same times, to the microsecond, on every machine.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from zset_join.lookup.source import LookupClient, Opening

__all__ = ["FakeClock", "LookupCall", "ScriptedSource"]


class FakeClock:
    """A clock on which sleeping takes no time, and moves it.

    Args:
        now_us: where it begins, in microseconds since 1970.

    >>> clock = FakeClock()
    >>> clock.sleep(90.0)
    >>> clock.now_us()
    90000000
    """

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us
        self._lock = threading.Lock()

    def now_us(self) -> int:
        return self._now_us

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        return _JumpingLoop(self)


class _JumpingSelector(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._clock.sleep(max(timeout, 1e-6))
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on a `FakeClock`."""

    def __init__(self, clock: FakeClock) -> None:
        self._fake = clock
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self._fake.now_us() / 1_000_000


@dataclass(frozen=True, slots=True)
class LookupCall:
    """One call that the source got."""

    at: float
    keys: tuple[tuple[Any, ...], ...]


class ScriptedSource:
    """A table of rows that appear and go at given times, which counts its calls.

    Args:
        name: what it is called.
        schema: its columns.
        clock: what time it is.
        modes: how it can be read.
        latency: seconds that a call takes, or a function of its keys.
        failures: what the first calls raise, one each.

    Attributes:
        calls: the keys of each call, and when.
        opened: how often a client was opened.
        closed: how often one was closed.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        clock: FakeClock,
        modes: frozenset[str] = frozenset({"sync", "async", "full"}),
        latency: float | Callable[[Sequence[tuple[Any, ...]]], float] = 0.0,
        failures: Sequence[Exception] = (),
    ) -> None:
        self.name = name
        self.schema = schema
        self.modes = modes
        self.clock = clock
        self.calls: list[LookupCall] = []
        self.opened = 0
        self.closed = 0
        self.failures = list(failures)
        self._latency = latency
        self._rows: list[tuple[float, float, Mapping[str, Any]]] = []

    def put(self, row: Mapping[str, Any], *, at: float = 0.0, until: float = float("inf")) -> None:
        """Let a row be there between two times, in seconds."""
        self._rows.append((at, until, dict(row)))

    def rows_now(self) -> list[Mapping[str, Any]]:
        """Return the rows that are present."""
        now = self.clock.now_us() / 1_000_000
        return [row for since, until, row in self._rows if since <= now < until]

    def open(self, opening: Opening) -> LookupClient:
        """Return a client."""
        self.opened += 1
        return _ScriptedClient(self, opening)

    def explain(self) -> str:
        """Return a description."""
        return "scripted table"

    def to_json(self) -> dict[str, Any]:
        """Return its kind; a script is not written down."""
        return {"kind": "scripted", "name": self.name}

    def seconds_for(self, keys: Sequence[tuple[Any, ...]]) -> float:
        """Return how long a call takes."""
        return self._latency(keys) if callable(self._latency) else self._latency


class _ScriptedClient(LookupClient):
    def __init__(self, source: ScriptedSource, opening: Opening) -> None:
        self._source = source
        self._opening = opening

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        requested = self._begin(keys)
        self._source.clock.sleep(self._source.seconds_for(requested))
        return self._found(requested)

    @override
    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        requested = self._begin(keys)
        await asyncio.sleep(self._source.seconds_for(requested))
        return self._found(requested)

    @override
    def load(self) -> pa.Table:
        self._source.calls.append(LookupCall(self._source.clock.now_us() / 1_000_000, ()))
        self._fail()
        return pa.Table.from_pylist([dict(row) for row in self._source.rows_now()], schema=self._source.schema)

    @override
    def close(self) -> None:
        self._source.closed += 1

    def _begin(self, keys: pa.Table) -> list[tuple[Any, ...]]:
        columns = [keys.column(name).to_pylist() for name in self._opening.key]
        requested = list(zip(*columns, strict=True))
        self._source.calls.append(LookupCall(self._source.clock.now_us() / 1_000_000, tuple(requested)))
        self._fail()
        return requested

    def _fail(self) -> None:
        if self._source.failures:
            raise self._source.failures.pop(0)

    def _found(self, requested: Sequence[tuple[Any, ...]]) -> pa.Table:
        wanted = set(requested)
        rows = [row for row in self._source.rows_now() if tuple(row[name] for name in self._opening.key) in wanted]
        schema = pa.schema([self._source.schema.field(name) for name in self._opening.columns])
        return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
