"""Access to the page, for the browser that opened the first address.

The law: without the cookie nothing is served, neither page nor script nor answer. The token in the first address is exchanged
for it once; a second exchange is refused. A request whose Host is not this server's loopback address is refused before anything
else, so a name that is made to point at 127.0.0.1 reaches nothing. No request changes anything, unless actions are allowed:
then a POST to `/api/actions/...` with the cookie, the console's own `Origin` and the actions token in `X-CSRF-Token` is served.
That token is in the fragment of the address that the first one leads to, which browsers send to no server.

`/metrics` is also served to a request with the metrics token in its header `Authorization: Bearer ...`, as scrapers send it;
that token opens nothing else.

Known limit: browsers send cookies to all ports of a host, so another server of this machine in the same browser sees it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping

from zset_join.core.extras import needed_for

with needed_for("the console"):
    from starlette.datastructures import Headers, MutableHeaders, QueryParams
    from starlette.requests import cookie_parser
    from starlette.responses import PlainTextResponse, RedirectResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

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
