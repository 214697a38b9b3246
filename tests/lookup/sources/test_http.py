"""A real HTTP server of the standard library as an external table."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import pyarrow as pa
import pytest

from zset_join.core.errors import LookupFailedError, OptionError
from zset_join.core.relation import Relation
from zset_join.lookup import Fetcher, HttpSource, Lookup, Secret
from zset_join.pipeline import Pipeline, changes
from zset_join.shapes.lookup import LookupShape
from zset_join.stages.stage import StageOptions
from zset_join.testing.lookups import FakeClock
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
PEOPLE = {1: "Ada", 2: "Bob"}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        url = urlparse(self.path)
        if self.server.script:
            status, headers, body = self.server.script.pop(0)
            if status == "silent":
                self.server.release.wait(10)
                return None
            if status == "drip":
                return self._drip(*body)
            if status == "cut":
                return self._answer(200, body, {}, claimed=10_000)
            return self._answer(status, body, headers)
        if url.path == "/people":
            wanted = [int(key) for key in parse_qs(url.query).get("id", [])]
            return self._answer(
                200, json.dumps({"rows": [{"id": key, "name": PEOPLE[key]} for key in wanted if key in PEOPLE]})
            )
        key = int(url.path.rpartition("/")[2])
        return self._answer(200, json.dumps({"name": PEOPLE[key]})) if key in PEOPLE else self._answer(404, "{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = [key["id"] for key in json.loads(body)["keys"]]
        self._answer(200, json.dumps([{"id": key, "name": PEOPLE[key]} for key in wanted if key in PEOPLE]))

    def _answer(
        self, status: int, body: str | bytes, headers: dict[str, str] | None = None, *, claimed: int | None = None
    ) -> None:
        content = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(claimed or len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _drip(self, begin: str, more: str) -> None:
        """Send a bit of an answer at a time, each well within the timeout, all of them beyond it."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(begin.encode())
            while not self.server.release.wait(0.05):
                self.wfile.write(more.encode())

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""


@contextlib.contextmanager
def _serving(port: int = 0) -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    made.seen, made.script, made.release = [], [], threading.Event()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.release.set()
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with _serving() as made:
        yield made


def _source(server: ThreadingHTTPServer, path: str = "/people/{id}", **more) -> HttpSource:
    return HttpSource(name="people", schema=SCHEMA, url=f"http://127.0.0.1:{server.server_port}{path}", **more)


def _fetch(source: HttpSource, *keys: int, clock: FakeClock | None = None, **hint) -> list[dict]:
    probe = Relation(name="orders", schema=pa.schema({"who": pa.int64()}), join_key=("who",))
    shape = LookupShape.of(probe, Relation(name="people", schema=SCHEMA, join_key=("id",)), "inner")
    settings = Lookup(**hint).resolved(source="people", modes=source.modes, how="inner", is_insert_only=True)
    with Fetcher(source, shape, settings, seed=1, clock=clock) as fetcher:
        return sorted(fetcher.fetch(pa.record_batch({"id": list(keys)})).to_pylist(), key=repr)


FOUND = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize(
    ("path", "more"), [("/people/{id}", {}), ("/people", {"many": "query", "rows_at": "rows"}), ("/people", {"many": "body"})]
)
def test_keys_are_found_one_by_one_or_many_at_once_and_absent_ones_are_misses(server, path, more, async_):
    assert _fetch(_source(server, path, **more), 1, 2, 3, async_=async_) == FOUND


@pytest.mark.parametrize("async_", [False, True])
def test_a_server_error_is_tried_again(server, async_):
    server.script += [(503, {}, ""), (500, {}, "")]
    assert _fetch(_source(server), 1, async_=async_, error_delay="1ms") == FOUND[:1]


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize(("path", "more"), [("/people/{id}", {}), ("/people", {"many": "query", "rows_at": "rows"})])
def test_an_answer_that_breaks_off_half_way_is_requested_again(server, path, more, async_):
    server.script += [("cut", {}, '{"rows": [{"id": 1, "na')]
    assert _fetch(_source(server, path, **more), 1, 2, async_=async_, error_delay="1ms") == FOUND


@pytest.mark.parametrize("async_", [False, True])
def test_a_service_that_does_not_answer_in_time_is_requested_again(server, async_):
    server.script += [("silent", {}, "")]
    assert _fetch(_source(server, timeout_seconds=0.2), 1, async_=async_, error_delay="1ms") == FOUND[:1]
    assert len(server.seen) == 2


@pytest.mark.parametrize("async_", [False, True])
def test_a_service_that_is_silent_for_good_fails_the_epoch_with_source_keys_attempts_and_cure(server, async_):
    server.script += [("silent", {}, "")] * 2
    with pytest.raises(
        LookupFailedError, match=r'"people" .*failed 2 of 2 times .* 1 key such as \(1,\): .*Timeout.*Restart the source'
    ):
        _fetch(_source(server, timeout_seconds=0.1), 1, async_=async_, error_attempts=2, error_delay="1ms")


@pytest.mark.parametrize("async_", [False, True])
def test_a_service_that_restarts_during_a_fetch_is_waited_for(async_):
    with _serving() as first:
        port = first.server_port
    source = HttpSource(name="people", schema=SCHEMA, url=f"http://127.0.0.1:{port}/people/{{id}}")
    with contextlib.ExitStack() as later:
        start = threading.Timer(0.05, lambda: later.enter_context(_serving(port)))
        start.start()
        assert _fetch(source, 1, async_=async_, error_delay="50ms", error_attempts=8) == FOUND[:1]
        start.join()


@pytest.mark.parametrize("async_", [False, True])
def test_several_objects_of_one_key_are_several_matches(server, async_):
    server.script += [(200, {}, '[{"name": "Ada"}, {"name": "Eve"}]')]
    assert _fetch(_source(server), 1, async_=async_) == [{"id": 1, "name": "Ada"}, {"id": 1, "name": "Eve"}]


@pytest.mark.parametrize("async_", [False, True])
def test_a_value_that_its_column_cannot_hold_names_the_column(server, async_):
    server.script += [(200, {}, '{"name": {"first": "Ada"}}')]
    with pytest.raises(LookupFailedError, match='column "name" of type string cannot hold'):
        _fetch(_source(server), 1, async_=async_)


@pytest.mark.parametrize(
    ("requested", "waited_us"),
    [
        ("17", 17_000_000),
        ("31536000", 60_000_000),
        ("9" * 400, 60_000_000),
        ("Wed, 01 Jan 9000 00:00:00 GMT", 60_000_000),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0),
        ("\u00b2", 1_000_000),
        ("soon", 1_000_000),
        ("-5", 1_000_000),
    ],
)
def test_a_rate_limit_is_respected_up_to_the_longest_wait(server, requested, waited_us):
    clock = FakeClock()
    server.script += [(429, {"Retry-After": requested}, "")]
    assert _fetch(_source(server), 1, async_=False, clock=clock, error_delay="1s", error_max_delay="60s") == FOUND[:1]
    assert waited_us / 2 <= clock.now_us() <= waited_us


def test_a_rate_limit_is_respected_by_several_calls_at_a_time_and_may_be_a_date(server):
    server.script += [(429, {"Retry-After": "0"}, ""), (429, {"Retry-After": "Wed, 01 Jan 2020 00:00:00 GMT"}, "")]
    assert _fetch(_source(server), 1, 2, async_=True, batch_keys=1, error_delay="1h", error_max_delay="1h") == FOUND
    assert len(server.seen) == 4


def test_a_refusal_is_not_tried_again_and_shows_no_token(server):
    server.script += [(403, {}, "")]
    source = _source(server, token=Secret.given("secret"))
    with pytest.raises(LookupFailedError, match="refused: HTTP 403") as received:
        _fetch(source, 1, async_=False)
    assert server.seen == [("/people/1", "Bearer secret")]
    assert "secret" not in str(received.value) + repr(source) + str(source.to_json())


@pytest.mark.parametrize(("body", "what"), [("<html>", "no JSON"), ("[1]", "neither an object"), ("3", "neither an object")])
def test_a_malformed_answer_is_reported(server, body, what):
    server.script += [(200, {}, body)]
    with pytest.raises(LookupFailedError, match=what):
        _fetch(_source(server), 1, async_=False)


def test_objects_without_their_key_are_reported(server):
    server.script += [(200, {}, '[{"name": "Ada"}]')]
    with pytest.raises(LookupFailedError, match=r"without the key columns \['id'\]"):
        _fetch(_source(server, "/people", many="query"), 1, async_=False)


def test_nobody_listening_is_reported(server):
    source = HttpSource(name="people", schema=SCHEMA, url="http://127.0.0.1:1/people/{id}")
    with pytest.raises(LookupFailedError, match="failed 2 of 2 times"):
        _fetch(source, 1, error_attempts=2, error_delay="1ms")


def test_credentials_in_the_url_are_refused():
    with pytest.raises(OptionError, match="holds credentials"):
        HttpSource(name="p", schema=SCHEMA, url="https://me:secret@crm/people/{id}")


def test_a_description_survives_json(server):
    source = _source(server, token=Secret.env("TOKEN"), headers={"Accept": "application/json"})
    assert HttpSource.from_json(json.loads(json.dumps(source.to_json()))) == source


_DRIPS = {
    "head": ("HTTP/1.1 200 OK\r\nX: ", "a"),
    "interim answers": ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    "size of a chunk": ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=", "a"),
    "body": ("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "a"),
    "trailer": ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", "a"),
}


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("part", _DRIPS)
def test_an_answer_of_which_any_part_trickles_ends_with_the_timeout(server, part, async_):
    server.script += [("drip", {}, _DRIPS[part])]
    with pytest.raises(LookupFailedError, match=r"longer than timeout_seconds=0\.8"):
        _fetch(_source(server, timeout_seconds=0.8), 1, async_=async_, error_attempts=1)


@pytest.mark.parametrize("async_", [False, True])
def test_a_handshake_that_is_never_answered_ends_with_the_timeout(async_):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/people/{{id}}"
        source = HttpSource(name="people", schema=SCHEMA, url=url, timeout_seconds=0.2)
        with pytest.raises(LookupFailedError, match="ConnectTimeout"):
            _fetch(source, 1, async_=async_, error_attempts=1)


_ADA = b'{"name": "Ada"}'
_ENCODED = {
    "identity": (_ADA, "identity"),
    "gzip": (gzip.compress(_ADA), "gzip"),
    "gzip of two members": (gzip.compress(_ADA[:5]) + gzip.compress(_ADA[5:]), "x-gzip"),
    "deflate": (zlib.compress(_ADA), "deflate"),
    "raw deflate": (zlib.compress(_ADA, wbits=-15), "Deflate"),
}


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("name", _ENCODED)
def test_every_encoding_that_is_offered_is_read(server, name, async_):
    body, encoding = _ENCODED[name]
    server.script += [(200, {"Content-Encoding": encoding}, body)]
    assert _fetch(_source(server), 1, async_=async_) == FOUND[:1]


_LARGE = b'{"name": "' + b"x" * 3_000_000 + b'"}'
_REFUSED = {
    "plain": ((_LARGE, "identity"), "more than max_answer_bytes=100000"),
    "gzip": ((gzip.compress(_LARGE), "gzip"), "more than max_answer_bytes=100000"),
    "many gzip members": ((gzip.compress(b" " * 90_000) * 9, "gzip"), "more than max_answer_bytes=100000"),
    "gzip twice": ((gzip.compress(gzip.compress(_LARGE)), "gzip, gzip"), "the encoding 'gzip, gzip'"),
    "brotli": ((b"any", "br"), "the encoding 'br'"),
    "no gzip": ((_ADA, "gzip"), "bytes that are not gzip"),
    "half of it": ((gzip.compress(_ADA)[:-9], "gzip"), "ends too early"),
    "nested": ((b"[" * 20_000, "identity"), "nested too deeply"),
    "empty objects": (
        (gzip.compress(b"[" + b"{}," * 30_000 + b"{}]"), "gzip"),
        "bytes of memory, more than 16 times max_answer_",
    ),
    "surrogate": ((b'{"name": "\\ud800"}', "identity"), 'column "name" of type string cannot hold'),
}


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("name", _REFUSED)
def test_an_answer_that_is_too_large_or_cannot_be_read_fails_the_epoch_by_name(server, name, async_):
    (body, encoding), what = _REFUSED[name]
    server.script += [(200, {"Content-Encoding": encoding}, body)]
    with pytest.raises(LookupFailedError, match=re.escape(what)) as refused:
        _fetch(_source(server, max_answer_bytes=100_000), 1, async_=async_)
    assert refused.value.code == "LOOKUP_ANSWER"


def test_a_redirect_is_not_followed(server):
    server.script += [(302, {"Location": f"http://127.0.0.1:{server.server_port}/people/2"}, "")]
    with pytest.raises(LookupFailedError, match="refused: HTTP 302"):
        _fetch(_source(server), 1, async_=False)
    assert len(server.seen) == 1


@pytest.mark.parametrize("url", ["https://{id}/x", "https://crm.{id}:80/x", "https://crm:{id}/x", "{id}", "{id}://crm/x"])
def test_a_column_that_would_choose_the_host_is_refused(url):
    with pytest.raises(OptionError, match="would choose the host"):
        HttpSource(name="p", schema=SCHEMA, url=url)


def test_a_row_whose_key_can_never_be_looked_up_is_a_dead_letter_and_its_retraction_too(server):
    source = HttpSource(
        name="people",
        schema=pa.schema({"id": pa.string(), "name": pa.string()}),
        url=f"http://127.0.0.1:{server.server_port}/people/{{id}}",
    )
    orders = changes("orders", {"o": pa.int64(), "who": pa.string(), "_weight": pa.int64()}, weight_column="_weight")
    view = orders.lookup_join(source, on=[("who", "id")], how="left").select("o", "name")
    rows = [(1, "1", 1), (2, "..", 1), (3, "", 1), (4, None, 1), (5, "7", 1)]
    given = {"orders": [{"o": o, "who": who, "_weight": weight} for o, who, weight in rows]}
    retracted = {
        "orders": [
            {"o": 2, "who": "..", "_weight": -1},
            {"o": 1, "who": "1", "_weight": -1},
            {"o": 9, "who": "1", "_weight": -1},
        ]
    }

    def received(pipeline: Pipeline) -> list[tuple[int, str]]:
        return [(json.loads(line["row"])["o"], line["code"]) for line in pipeline.dead_letters.to_pylist()]

    with Pipeline(view) as strict, pytest.raises(LookupFailedError, match=r'epoch 0: row 1 has a key .*"id"=') as refused:
        strict.step(given)
    assert (refused.value.code, server.seen) == ("LOOKUP_KEY_VALUE", [])
    with Pipeline(view, options=StageOptions(on_bad_input="quarantine")) as lenient:
        assert sorted(lenient.step(given).to_pylist()) == [((1, "Ada"), 1), ((4, None), 1), ((5, None), 1)]
        assert received(lenient) == [(2, "LOOKUP_KEY_VALUE"), (3, "LOOKUP_KEY_VALUE")]
        assert lenient.step(retracted).to_pylist() == [((1, "Ada"), -1)]
        assert received(lenient) == [(2, "LOOKUP_KEY_VALUE"), (9, "ABSENT_ROW")]


def test_an_upsert_to_a_key_that_can_never_be_looked_up_is_put_aside_and_a_delete_is_not(server):
    source = _source(server)
    source = HttpSource(name="people", schema=pa.schema({"id": pa.string(), "name": pa.string()}), url=source.url)
    orders = changes("orders", {"o": pa.int64(), "who": pa.string()}, keys="o")
    view = orders.lookup_join(source, on=[("who", "id")]).select("o", "name")

    with Pipeline(view, options=StageOptions(on_bad_input="quarantine")) as pipeline:
        pipeline.step({"orders": [{"o": 1, "who": "1"}]})
        assert pipeline.step({"orders": [{"o": 1, "who": ".."}]}).to_pylist() == []
        gone = ZSet.of({"o": [1], "who": [".."]}, [-1])
        assert pipeline.step({"orders": gone}).to_pylist() == [((1, "Ada"), -1)]
        assert pipeline.dead_letters.num_rows == 0
