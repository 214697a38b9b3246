"""A real S3 interface on loopback, in memory: moto's server, with requests counted, cut, and answers that get lost."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

__all__ = ["LATE_SECONDS", "ObjectStoreServer"]

_KEY = "loopback"
LATE_SECONDS = 1.5
"""Of an answer that comes later than a client with `timeout=1s` waits."""


class ObjectStoreServer:
    """Serve buckets until `stop`.

    Attributes:
        counts: how often each request was made, such as `PUT` and `PUT if-none-match`; `LIST` is a `GET` of a bucket.
        is_conditional: whether it looks at `If-None-Match`, as it should.
        at: method and part of a path to what is called when such a request comes, once: with False before it is done,
            with True after.
        to_lose: requests whose answers are still to get lost.
        to_cut: requests that are still to end before they are done.
        faults: number of a request, from the last `counted` on, to the fault that it meets: "500" and "503" in place of the
            work, "done 500" after it, "cut" before and "lost" after it, "late" some seconds later, "half" of its answer.
        met: what met a fault.
        port: where it listens.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.counts: Counter[str] = Counter()
        self.is_conditional = True
        self.at: dict[tuple[str, str], Callable[[bool], None]] = {}
        self.to_lose: list[tuple[str, str]] = []
        self.to_cut: list[tuple[str, str]] = []
        self.faults: dict[int, str] = {}
        self.met: list[str] = []
        self._requests = 0
        self._lock = threading.Lock()
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def client(self) -> Any:
        """Return a client of Amazon's own library."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=_KEY,
            aws_secret_access_key=_KEY,
        )

    def bucket(self, name: str) -> str:
        """Make a bucket, and return its URI."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return all objects of a bucket."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        names = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the requests inside."""
        counts: Counter[str] = Counter()
        before, self._requests = Counter(self.counts), 0
        yield counts
        counts.update(self.counts - before)

    def lose(self, method: str, part: str) -> None:
        """Do the next request whose path has a part, and close the connection in place of an answer."""
        with self._lock:
            self.to_lose.append((method, part))

    def cut(self, method: str, part: str) -> None:
        """Close the connection of the next request whose path has a part, before it is done."""
        with self._lock:
            self.to_cut.append((method, part))

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        is_bucket = "/" not in path.strip("/")
        kind = "LIST" if method == "GET" and is_bucket else "DELETE" if method == "POST" and is_bucket else method
        kind += " if-none-match" if "HTTP_IF_NONE_MATCH" in environ else ""
        with self._lock:
            self.counts[kind] += 1
            fault = self.faults.pop(self._requests, "")
            self._requests += 1
            self.met += [f"{fault} {kind}"] if fault else []
            is_cut, is_lost = (_is_due(due, method, path) for due in (self.to_cut, self.to_lose))
            key = next((one for one in self.at if one[0] == method and one[1] in path), None)
            call = None if key is None else self.at.pop(key)
        if call is not None:
            call(False)
        if not self.is_conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault == "late":
            time.sleep(LATE_SECONDS)
        is_cut, is_lost = is_cut or fault == "cut", is_lost or fault == "lost"
        if is_cut or fault in ("500", "503"):
            answer = []
            start(f"{fault if fault in ('500', '503') else 500} Fault", [])
        elif fault == "done 500":
            answer = list(self._application(environ, lambda *_: None))[:0]
            start("500 Fault", [])
        elif fault == "half":
            sent: list[Any] = []
            whole = b"".join(self._application(environ, lambda *given: sent.extend(given[:2])))
            lines = dict.fromkeys([f"HTTP/1.1 {sent[0]}", *map(": ".join, sent[1]), f"Content-Length: {len(whole)}"])
            environ["werkzeug.socket"].sendall("\r\n".join([*lines, "", ""]).encode() + whole[: len(whole) // 2])
            start(sent[0], [])
            answer, is_lost = [], True
        else:
            answer = self._application(environ, start)
        if call is not None:
            call(True)
        if is_cut or is_lost:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def _is_due(due: list[tuple[str, str]], method: str, path: str) -> bool:
    """Return whether a request is among those to which something is due, which it is no more."""
    found = next((one for one in due if one[0] == method and one[1] in path), None)
    if found is not None:
        due.remove(found)
    return found is not None
