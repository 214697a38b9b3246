"""The server of the page, in a thread of this process, its guard, and the verb `console` of the command line.

The law: it listens on 127.0.0.1 alone; closing it ends the thread and closes the socket. The thread is a daemon, so it keeps no
process alive.

Without the cookie nothing is served, neither page nor script nor answer. The token in the first address is exchanged for it
once; a second exchange is refused. A request whose Host is not this server's loopback address is refused before anything else,
so a name that is made to point at 127.0.0.1 reaches nothing. No request changes anything, unless actions are allowed: then a
POST to `/api/actions/...` with the cookie, the console's own `Origin` and the actions token in `X-CSRF-Token` is served; that
token is in the fragment of the address, which browsers send to no server. `/metrics` is also served to a request with the
metrics token in `Authorization: Bearer ...`, which opens nothing else.

Clients without the token cannot take descriptors from the engine: at most `MOST_CONNECTIONS` are open, besides those of one
turn of the event loop, which accepts at most `_BACKLOG` at a time. One more closes the oldest that has not sent its request,
and is closed itself where all have. A request whose head is not complete after `REQUEST_SECONDS` ends its connection.

Known limit: browsers send cookies to all ports of a host, so another server of this machine in the same browser sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from zset_join.console.serving import POLL_SECONDS, Action, console_app
from zset_join.console.watched import Watched
from zset_join.console.watched_checkpoint import QueryAnswers, WatchedCheckpoint
from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.storage.trusted_files import kept_token
from zset_join.tools.dead_letters import is_program, replay

__all__ = ["Console", "Guard", "allowed_actions", "open_console", "serve_console"]

with needed_for("the console"):
    from starlette.datastructures import Headers, MutableHeaders, QueryParams
    from starlette.requests import cookie_parser
    from starlette.responses import PlainTextResponse, RedirectResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Let requests with the cookie pass."""

    def __init__(self, app: ASGIApp, *, port: int, token: str, metrics_token: str, may_act: bool = False) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._cookie = f"zset_console_{port}"
        self._token: str | None = token
        self._bearer = f"Bearer {metrics_token}"
        self._session = secrets.token_urlsafe(32)
        self._actions_token = secrets.token_urlsafe(32) if may_act else None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered[name] = value
            await send(message)

        await self._answering(scope, headers)(scope, receive, send_guarded)

    def _answering(self, scope: Scope, headers: Headers) -> ASGIApp:
        if headers.get("host") not in self._hosts:
            return PlainTextResponse("This address is not the console's.", status_code=421)
        if scope["method"] not in ("GET", "HEAD"):
            return self._acting(scope, headers)
        if scope["path"] == "/metrics" and _same(headers.get("authorization", ""), self._bearer):
            return self._app
        given = QueryParams(scope["query_string"]).get("token") if scope["path"] == "/" else None
        if given is not None:
            return self._exchanged(given)
        return self._app if self._has_cookie(headers) else _unopened()

    def _has_cookie(self, headers: Headers) -> bool:
        return _same(cookie_parser(headers.get("cookie", "")).get(self._cookie, ""), self._session)

    def _acting(self, scope: Scope, headers: Headers) -> ASGIApp:
        if self._actions_token is None or scope["method"] != "POST" or not scope["path"].startswith("/api/actions/"):
            return PlainTextResponse("The console only answers questions.", status_code=405)
        if not self._has_cookie(headers):
            return _unopened()
        is_own = headers.get("origin") == f"http://{headers.get('host')}"
        if not is_own or not _same(headers.get("x-csrf-token", ""), self._actions_token):
            return PlainTextResponse("Actions are only taken from the page that the first address opened.", status_code=403)
        return self._app

    def _exchanged(self, given: str) -> ASGIApp:
        with self._lock:
            if self._token is None or not _same(given, self._token):
                return PlainTextResponse("This address was opened before, or is not the console's.", status_code=401)
            self._token = None
        place = "/" if self._actions_token is None else f"/#actions={self._actions_token}"
        answer = RedirectResponse(place, status_code=303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


def _unopened() -> ASGIApp:
    return PlainTextResponse("Open the address that the console printed; it works once.", status_code=401)


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


with needed_for("the console"):
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol


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


def serve_console(
    options: argparse.Namespace,
    *,
    diff: Callable[..., Any] | None,
    run: Callable[[str, str | None, str | None], int],
    print_line: Callable[[str], None],
) -> int:
    """Serve the page until Ctrl-C; return the exit code."""
    token = None if options.metrics_token_file is None else kept_token(options.metrics_token_file)
    actions = allowed_actions(options, run)
    watched = WatchedCheckpoint(options.checkpoint, QueryAnswers(diff=diff), dead_letters=options.dead_letters)
    with open_console(watched, port=options.port, metrics_token=token, actions=actions) as console:
        print_line(f"open {console.url}  (the address works once; Ctrl-C ends the console)")
        console.wait_for_interrupt()
    return 0


def allowed_actions(options: argparse.Namespace, run: Callable[[str, str | None, str | None], int]) -> dict[str, Action]:
    target = options.replay
    if options.allow_actions != (target is not None):
        raise _refused("expected both --allow-actions and --replay TARGET, or none: no other action exists.")
    if target is None:
        return {}
    if is_program(target) and options.dead_letters is not None:
        raise _refused(f"--replay {target} takes the dead letters in the directory of its pipeline; leave --dead-letters out.")

    def send_again() -> str:
        sent = replay(options.checkpoint, target, path=options.dead_letters, run=run)
        return f"{sent} sent again to {target}"

    return {"replay": Action(f"send again to {target}", send_again)}


def _refused(why: str) -> OptionError:
    return OptionError(why, code="OPTION_VALUE", name="--allow-actions", value="")
