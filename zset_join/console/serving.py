"""Addresses of the page.

| address | answers |
|---|---|
| `/`, `/static/...` | the page, its scripts and styles |
| `/api/overview`, `/api/changes`, ... | the method of `Watched` of that name, as JSON |
| `/api/rows`, `/api/explain_row` | likewise; `table` or `view`, and `where` as a JSON object of columns to texts |
| `/api/events` | server-sent events: `epochs` as they are committed, with the newest rows of the changelog |
| `/api/actions` | titles of the allowed actions by name; a POST to `/api/actions/NAME` takes one |
| `/metrics` | the numbers of the newest epoch, as Prometheus reads them |
| `/api/verifying` | server-sent events: each `step` of a verification, then its `verdict` |

The law: an error is an answer: its code and message as JSON, status 422, never a trace. One heavy question at a time: the next
one waits. Whether there are new epochs is looked up once a second, and only while somebody listens; less often where looking
takes more than a hundredth of a processor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zset_join.console.watched import ANSWERS, Watched, shown_text
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.core.extras import needed_for

with needed_for("the console"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

__all__ = ["Action", "console_app"]

STATIC = Path(__file__).parent / "static"
POLL_SECONDS = 1.0
_SHARE, _LONGEST_POLL_SECONDS = 0.01, 5.0
_LONGEST_QUESTION = 10_000
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Action:
    """A button of the page, where `--allow-actions` permits it."""

    title: str
    run: Callable[[], str]  # returns what was done as one line of text


def console_app(
    watched: Watched, *, poll_seconds: float = POLL_SECONDS, actions: Mapping[str, Action] = MappingProxyType({})
) -> Starlette:
    """Return the application, without its guard."""
    heavy = threading.Lock()

    def alone(fetch: Callable[[], Any]) -> Any:
        with heavy:
            return fetch()

    async def page(request: Request) -> Response:  # noqa: ARG001 - as a route
        return FileResponse(STATIC / "index.html")

    def answering(name: str) -> Callable[[Request], Any]:
        fetch = getattr(watched, name)

        async def answer(request: Request) -> Response:  # noqa: ARG001 - as a route
            return await _answered(lambda: alone(fetch))

        return answer

    async def epochs(request: Request) -> Response:
        after = _number(request.query_params.get("after"))
        return await _answered(lambda: {"epochs": list(watched.epochs(after))})

    async def rows(request: Request) -> Response:
        table = request.query_params.get("table")
        return await _answered(lambda: alone(lambda: watched.rows(table, _where(request))))

    async def explain_row(request: Request) -> Response:
        view = request.query_params.get("view")
        return await _answered(lambda: alone(lambda: watched.explain_row(view, _where(request))))

    async def events(request: Request) -> Response:
        after = _number(request.query_params.get("after"))
        return StreamingResponse(_epoch_events(watched, after, poll_seconds), media_type="text/event-stream")

    async def verifying(request: Request) -> Response:
        view = request.query_params.get("view")
        return StreamingResponse(_verify_events(watched, view, alone), media_type="text/event-stream")

    async def metrics(request: Request) -> Response:  # noqa: ARG001 - as a route
        try:
            return PlainTextResponse(await run_in_threadpool(watched.metrics), media_type=_PROMETHEUS)
        except (ZsetJoinError, OSError) as error:
            return PlainTextResponse(shown_text(str(error)), status_code=422)

    async def titles(request: Request) -> Response:  # noqa: ARG001 - as a route
        return JSONResponse({name: shown_text(one.title) for name, one in actions.items()})

    async def act(request: Request) -> Response:
        action = actions.get(request.path_params["name"])
        if action is None:
            return PlainTextResponse("There is no such action.", status_code=404)
        return await _answered(lambda: {"done": shown_text(alone(lambda: _taken(action)))})

    routes = [
        Route("/api/actions", titles),
        Route("/api/actions/{name}", act, methods=["POST"]),
        Route("/metrics", metrics),
        Route("/", page),
        Route("/api/epochs", epochs),
        Route("/api/rows", rows),
        Route("/api/explain_row", explain_row),
        Route("/api/events", events),
        Route("/api/verifying", verifying),
        *(Route(f"/api/{name}", answering(name)) for name in ANSWERS),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes)


async def _answered(fetch: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(fetch))
    except (ZsetJoinError, OSError) as error:
        return JSONResponse(_error(error), status_code=422)


def _taken(action: Action) -> str:
    """Take an action; it may run code of the user, whose errors of other kinds become coded ones."""
    try:
        return action.run()
    except (ZsetJoinError, OSError):
        raise
    except Exception as error:
        _log.exception("the action %r failed", action.title)
        raise StateError(
            f"{action.title}: {type(error).__name__}: {error}. The trace is in the log of the console.",
            code="ACTION_FAILED",
            action=action.title,
        ) from error


def _error(error: Exception) -> dict[str, str]:
    return {"code": str(getattr(error, "code", "OS_ERROR")), "message": shown_text(str(error)[:5_000])}


async def _epoch_events(watched: Watched, after: int, poll_seconds: float) -> AsyncIterator[str]:
    """Yield new epochs as they are committed. The newest is given again with the time of its commit."""
    reached, reported, spent = after, "", 0.0
    while True:
        try:
            new, event, spent = await run_in_threadpool(_new_epochs, watched, after, reached)
            if new:
                yield event
                reached, reported = int(new[-1]["epoch"]), ""
            else:
                yield ": waiting\n\n"  # a browser that has gone is noticed by writing to it
        except (ZsetJoinError, OSError) as error:
            if str(error) != reported:
                reported = str(error)
                yield _event("trouble", _error(error))
        await asyncio.sleep(min(max(poll_seconds, spent / _SHARE), max(poll_seconds, _LONGEST_POLL_SECONDS)))


def _new_epochs(watched: Watched, after: int, reached: int) -> tuple[Sequence[Mapping[str, Any]], str, float]:
    """Return epochs that are new, their event, and the seconds of a processor that this took."""
    begun = time.thread_time()
    new, event = watched.epochs(reached), ""
    if new:
        new = watched.epochs(max(after, reached - 1))
        event = _event("epochs", {"epochs": list(new), "changes": watched.changes(after=reached)["epochs"]})
    return new, event, time.thread_time() - begun


async def _verify_events(watched: Watched, view: str | None, alone: Callable[[Callable[[], Any]], Any]) -> AsyncIterator[str]:
    """Yield the steps of a verification, then its result."""
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def show_step(step: str) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, step)

    def verify() -> Mapping[str, Any]:
        try:
            return {"verdict": alone(lambda: watched.verify(view, show_step))}
        except (ZsetJoinError, OSError) as error:
            return {"trouble": _error(error)}
        finally:
            loop.call_soon_threadsafe(steps.put_nowait, None)

    work = asyncio.ensure_future(run_in_threadpool(verify))
    while (step := await steps.get()) is not None:
        yield _event("step", {"step": shown_text(step)})
    for name, found in (await work).items():
        yield _event(name, found)


def _event(name: str, found: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(found)}\n\n"  # JSON of Python has no line breaks


def _where(request: Request) -> dict[str, str]:
    """Return the columns and texts that rows are requested by."""
    text = request.query_params.get("where", "{}")
    try:
        where = json.loads(text) if len(text) <= _LONGEST_QUESTION else None
        json.dumps(where, ensure_ascii=False).encode()  # a half of a surrogate pair is no text
    except (ValueError, RecursionError):
        where = None
    if not isinstance(where, dict) or not all(isinstance(one, str) for one in where.values()):
        raise OptionError(
            "where: expected a JSON object of columns to texts.", code="ROW_QUESTION", expected="a JSON object of texts"
        )
    return where


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() and len(text) < 20 else -1
