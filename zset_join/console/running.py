"""The server of the page, in a thread of this process.

The law: it listens on 127.0.0.1 alone; closing it ends the thread and closes the socket. The thread is a daemon, so it keeps no
process alive.

Clients without the token cannot take descriptors from the engine: at most `MOST_CONNECTIONS` are open, besides those of one
turn of the event loop, which accepts at most `_BACKLOG` at a time. One more closes the oldest that has not sent its request,
and is closed itself where all have. A request whose head is not complete after `REQUEST_SECONDS` ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from zset_join.console.guarding import Guard
from zset_join.console.serving import POLL_SECONDS, Action, console_app
from zset_join.console.watched import Watched
from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for

with needed_for("the console"):
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Console", "open_console"]

_LOOPBACK = "127.0.0.1"
_START_SECONDS = 20.0
MOST_CONNECTIONS = 32
REQUEST_SECONDS = 5.0
_BACKLOG = 16


class _Connection(H11Protocol):
    """A connection that is closed where its next request does not arrive in time, or where another one needs its place."""

    _end: asyncio.TimerHandle | None = None

    @property
    def _awaits_request(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete  # no answer of this server reads a body

    def _limit(self) -> None:
        if self._awaits_request and self._end is None and not self.transport.is_closing():
            self._end = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        elif not self._awaits_request:
            self._unlimit()

    def _unlimit(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [one for one in self.connections if isinstance(one, _Connection) and not one.transport.is_closing()]
        super().connection_made(transport)
        if len(others) >= MOST_CONNECTIONS:
            waiting = [one for one in others if one._end is not None]
            oldest = min(waiting, key=lambda one: one._end.when(), default=self)  # type: ignore[union-attr]
            oldest.transport.abort()
        self._limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        super().connection_lost(exc)


class Console:
    """A page that is being served on a `port` of 127.0.0.1.

    `url` works once, in one browser; `metrics_url` is for a scraper, with the header `Authorization: Bearer <metrics_token>`.
    """

    def __init__(
        self,
        watched: Watched,
        *,
        port: int = 0,
        poll_seconds: float = POLL_SECONDS,
        metrics_token: str | None = None,
        actions: Mapping[str, Action] = MappingProxyType({}),
    ) -> None:
        self._watched = watched
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(32)
        self.url = f"http://{_LOOPBACK}:{self.port}/?token={token}"
        self.metrics_url = f"http://{_LOOPBACK}:{self.port}/metrics"
        self.metrics_token = metrics_token or secrets.token_urlsafe(32)
        app = Guard(
            console_app(watched, poll_seconds=poll_seconds, actions=actions),
            port=self.port,
            token=token,
            metrics_token=self.metrics_token,
            may_act=bool(actions),
        )
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            backlog=_BACKLOG,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
            workers=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name=f"zset-join console {self.port}", daemon=True)
        self._thread.start()
        self._wait_until_started()

    def wait(self) -> None:
        """Return when the page is no longer served, as after Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def wait_for_interrupt(self) -> None:
        """Return at Ctrl-C, or when the page is no longer served."""
        with contextlib.suppress(KeyboardInterrupt):
            self.wait()

    def close(self) -> None:
        """Stop serving. Closing twice is allowed."""
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        close: Any = getattr(self._watched, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Console({self.url!r})"

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _wait_until_started(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self._server.started:
            self.close()
            raise OptionError(
                f"the console did not start on port {self.port} within {_START_SECONDS:.0f} seconds; try another port.",
                code="OPTION_VALUE",
                name="port",
                value=self.port,
            )


def open_console(
    watched: Watched, *, port: int = 0, metrics_token: str | None = None, actions: Mapping[str, Action] = MappingProxyType({})
) -> Console:
    """Serve the page about a query until it is closed."""
    return Console(watched, port=port, metrics_token=metrics_token, actions=actions)


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((_LOOPBACK, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise OptionError(
            f"port={port}: {error}. Name another port of {_LOOPBACK}, or 0 for a free one.",
            code="OPTION_VALUE",
            name="port",
            value=port,
        ) from error
    return found
