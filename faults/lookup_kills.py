"""Lookup joins whose process is killed: nothing lost, nothing doubled, no call after its answer was journaled.

A pipeline with a directory fetches from a real HTTP server on loopback, keeps misses parked, and writes its answers to an
output. One epoch per process; the process ends by SIGKILL before or after a drawn operation on its files, or in its output,
before or after it has written. In some schedules the server ends in the middle of a request, too, and comes back on the same
port.

The server counts: it answers every question with how often that key was requested, so an answer that did not come from the
journal shows. An odd key is missing until it is requested the second time, so rows wait, and epochs without rows are due.

What is compared: the sum of the outputs has every order once, with an answer that the server gave; the output of an epoch that
is written again is the same; where the journal had an epoch, the server did not receive it again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults.processes import Send, forked, write_the_same
from faults.tally import Tally
from zset_join.lookup import HttpSource, Lookup
from zset_join.pipeline import FunctionSink, Pipeline, appends
from zset_join.storage.operations import Operation, observe

__all__ = ["CountingServer", "run_schedule", "warm_up"]

ORDERS = {"o": pa.int64(), "who": pa.int64()}
TABLE = pa.schema({"id": pa.int64(), "asked": pa.int64()})
_EPOCHS, _QUIET = 3, 4
_STEP_US = 10_000_000
_HINT = Lookup(
    async_=False,
    retry_predicate="lookup_miss",
    retry_strategy="fixed_delay",
    fixed_delay="10s",
    max_attempts=3,
    park="epochs",
    error_attempts=40,
    error_delay="10ms",
    error_max_delay="50ms",
)


class CountingServer:
    """Answer how often a key was requested; `dies_in` requests from now the server ends, and comes back."""

    def __init__(self) -> None:
        self.fetched_keys: Counter[int] = Counter()
        self.requests = self.restarts = 0
        self.dies_in = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def release(self) -> None:
        """Close what a forked process has of it, so that its port is free when it ends."""
        self._server.socket.close()

    def _start(self) -> None:
        counting = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                counting.answer(self)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request, or end in the middle of it."""
        with self._lock:
            if self.dies_in == 1:
                self.dies_in = 0
                handler.connection.shutdown(socket.SHUT_RDWR)
                threading.Thread(target=self._restart, daemon=True).start()
                return
            self.dies_in = max(0, self.dies_in - 1)
            key = int(handler.path.rpartition("/")[2])
            self.fetched_keys[key] += 1
            self.requests += 1
            rows = [] if key % 2 and self.fetched_keys[key] < 2 else [{"id": key, "asked": self.fetched_keys[key]}]
        body = json.dumps(rows).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _restart(self) -> None:
        self.close()
        self._start()
        self.restarts += 1


class _Killing:
    """End the process at the n-th operation on a file, counted from the first one on the journal where that is requested."""

    def __init__(self, number: int, *, is_done: bool, from_journal: bool) -> None:
        self._left, self._is_done, self._counts = number, is_done, not from_journal

    def __call__(self, operation: Operation, act: Callable[[], Any]) -> Any:
        self._counts = self._counts or (operation.kind in ("write", "create") and "/fetched/" in operation.path)
        self._left -= self._counts
        if self._left:
            return act()
        if self._is_done:
            act()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")


def warm_up(directory: Path, server: CountingServer) -> None:
    """Live an uninterrupted life in this process, so that those forked from it have all they need loaded."""
    source = HttpSource(name="table", schema=TABLE, url=f"http://127.0.0.1:{server.port}/{{id}}", timeout_seconds=3.0)
    view = appends("orders", ORDERS).lookup_join(source, on=[("who", "id")], how="left", hint=_HINT)
    for first in (0, 2):
        with Pipeline(
            view, directory / "warm", outputs=[FunctionSink(lambda *_: None)], snapshot_after_bytes=2_000
        ) as pipeline:
            for epoch in (first, first + 1):
                came = [{"o": epoch, "who": epoch}]
                pipeline.step({"orders": came}, processing_time=epoch * _STEP_US, epoch=epoch)


def run_schedule(seed: int, directory: Path, server: CountingServer, tally: Tally) -> None:
    """Run one life of a query with its kills, and compare.

    Args:
        seed: what everything is drawn from.
        directory: of this schedule alone.
        server: of the lookups; its keys are of this schedule alone.
        tally: where to count.
    """
    draw = random.Random(seed)
    base = seed * 10
    orders: dict[int, int] = {}
    for epoch in range(_EPOCHS + _QUIET):
        came = []
        for _ in range(draw.randint(0, 3) if epoch < _EPOCHS else 0):
            orders[len(orders)] = base + draw.randint(0, 4)
            came.append({"o": len(orders) - 1, "who": orders[len(orders) - 1]})
        while True:
            how = draw.choice(["file", "journal", "journal", "output", "none"])
            server.dies_in = draw.randint(1, 2) if draw.random() < 0.3 else 0
            journaled = _has(directory, f"fetched/*/*/{epoch:020d}-*")
            before = server.requests
            outcome = forked(partial(_live, directory, server, epoch, came, how, draw.random()))
            if outcome.error:
                tally.problems.append(f"seed {seed}, epoch {epoch}: {outcome.error}")
                return
            tally.count("lives")
            if journaled:
                tally.count("epochs requested again whose answers were journaled")
                if server.requests != before:
                    tally.problems.append(f"seed {seed}, epoch {epoch}: {server.requests - before} calls after the journal")
            if outcome.signal == signal.SIGKILL:
                tally.count("kills observed")
                is_committed = _has(directory, f"commits/{epoch:020d}.json")
                if is_committed and not (directory / f"out/{epoch}").exists():
                    tally.count("kills between commit and output")
                if not is_committed and _has(directory, f"fetched/*/*/{epoch:020d}-*"):
                    tally.count("kills between fetch and commit")
                continue
            break
    _compare(seed, directory, orders, server, tally)


def _live(directory: Path, server: CountingServer, epoch: int, came: list[Any], how: str, drawn: float, send: Send) -> None:
    """Run one epoch in this process, which may end at any moment."""
    server.release()
    draw = random.Random(drawn)
    source = HttpSource(name="table", schema=TABLE, url=f"http://127.0.0.1:{server.port}/{{id}}", timeout_seconds=3.0)
    view = appends("orders", ORDERS).lookup_join(source, on=[("who", "id")], how="left", hint=_HINT)
    at = draw.choice(["before", "after"])

    def write(number: int, delta: Any) -> None:
        if how == "output" and number == epoch and at == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        write_the_same(directory / "out" / str(number), delta)
        if how == "output" and number == epoch and at == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with Pipeline(view, directory / "state", outputs=[FunctionSink(write)], snapshot_after_bytes=2_000) as pipeline:
            send(pipeline.epoch)
            if pipeline.epoch <= epoch:
                pipeline.step({"orders": came}, processing_time=epoch * _STEP_US, epoch=epoch)

    if how in ("file", "journal"):
        number = draw.randint(1, 90 if how == "file" else 25)
        with observe(_Killing(number, is_done=at == "after", from_journal=how == "journal")):
            work()
    else:
        work()


def _compare(seed: int, directory: Path, orders: dict[int, int], server: CountingServer, tally: Tally) -> None:
    held: Counter[tuple[Any, ...]] = Counter()
    for place in (directory / "out").iterdir():
        for row, weight in json.loads(place.read_text(encoding="utf-8")):
            held[tuple(row)] += weight
    rows = [row for row, weight in held.items() if weight]
    found = Counter(row[0] for row in rows)
    tally.count("comparisons")
    tally.count("rows compared", len(orders))
    tally.lost += sum(order not in found for order in orders)
    tally.doubled += sum(count > 1 for count in found.values()) + sum(weight != 1 for weight in held.values() if weight)
    for order, who, key, fetched_keys in rows:
        if who != orders[order] or key != who or not 1 <= fetched_keys <= server.fetched_keys[who]:
            tally.problems.append(f"seed {seed}: order {order} of {orders[order]} was joined with {key}, {fetched_keys}")


def _has(directory: Path, pattern: str) -> bool:
    return next((directory / "state").rglob(pattern), None) is not None
