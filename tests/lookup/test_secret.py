"""Secrets: named where they are used, and in nothing that a lookup join shows, whatever the external system does."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lookup.shown import forms_of, run_and_show
from zset_join.core.errors import OptionError, StateError
from zset_join.lookup import FunctionSource, HttpSource, Lookup, PostgresSource, RedisSource, Secret

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
TOKEN, KEY, PASSWORD = "t0ken/of&mine", "hunter2-key", "pass w0rd'%"
FOUND = '{"name": "Ada"}'
REDIS = {"key_pattern": "c:{id}", "port": 1}


class _Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.requested.append((self.headers["Authorization"], self.headers["X-Api-Key"]))
        status, body = self.server.reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    made.requested, made.reply = [], (200, FOUND)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Log everything, of every library."""
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("reply", [(200, FOUND), (200, f'{{"name": "{TOKEN}'), (403, TOKEN), (429, KEY)])
def test_token_and_headers_of_a_service_reach_it_and_nobody_else(
    service: ThreadingHTTPServer,
    logged: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reply: tuple[int, str],
    async_: bool,
) -> None:
    monkeypatch.setenv("CRM_TOKEN", TOKEN)
    service.reply = reply
    source = HttpSource(
        name="crm",
        schema=SCHEMA,
        url=f"http://127.0.0.1:{service.server_port}/{{id}}",
        token=Secret.env("CRM_TOKEN"),
        headers={"X-Api-Key": KEY},
    )

    _, failed, shown = run_and_show(source, tmp_path, hint=Lookup(async_=async_, error_attempts=2, error_delay="1ms"))

    assert set(service.requested) == {(f"Bearer {TOKEN}", KEY)}
    assert (failed is None) == (reply == (200, FOUND))
    assert "/1" in logged.text, "the client logs its requests"
    assert [form for secret in (TOKEN, KEY) for form in forms_of(secret) if form in shown + logged.text] == []


@pytest.mark.parametrize(
    "source",
    [
        PostgresSource(name="c", schema=SCHEMA, table="c", port=1, password=PASSWORD),
        RedisSource(name="c", schema=SCHEMA, password=PASSWORD, **REDIS),
        RedisSource(name="c", schema=SCHEMA, password=PASSWORD, user="me", layout="json", **REDIS),
        HttpSource(name="c", schema=SCHEMA, url="http://127.0.0.1:1/{id}", token=PASSWORD),
        HttpSource(name="c", schema=SCHEMA, url="http://127.0.0.1:1/{id}", token=f"{PASSWORD}\n"),
        HttpSource(name="c", schema=SCHEMA, url="http://127.0.0.1:1/{id}", headers={"Cookie": f"{PASSWORD}\0"}),
    ],
    ids=["postgres", "redis", "redis-json", "http", "http-token-with-a-line-end", "http-header-that-cannot-be-sent"],
)
@pytest.mark.parametrize("async_", [False, True])
def test_a_password_is_not_shown_where_nobody_listens(
    logged: pytest.LogCaptureFixture, tmp_path: Path, source: Any, async_: bool
) -> None:
    _, failed, shown = run_and_show(source, tmp_path, hint=Lookup(async_=async_, error_attempts=2, error_delay="1ms"))

    assert failed is not None
    assert [form for form in forms_of(PASSWORD) if form in shown + logged.text] == []


def test_a_secret_in_a_clients_message_is_starred_and_its_traceback_left_out(tmp_path: Path) -> None:
    class Careless(HttpSource):
        def open(self, opening: Any) -> Any:  # noqa: ARG002 - the contract
            raise RuntimeError(f"cannot open with {self.token.value()}")

    source = Careless(name="c", schema=SCHEMA, url="http://127.0.0.1:1/{id}", token=TOKEN)

    _, failed, shown = run_and_show(source, tmp_path)

    assert "cannot open with ***" in str(failed)
    assert TOKEN not in shown


def test_an_error_without_secrets_keeps_its_cause(tmp_path: Path) -> None:
    def broken(keys: pa.Table) -> pa.Table:
        raise ValueError("no such shelf")

    _, failed, shown = run_and_show(FunctionSource(name="c", schema=SCHEMA, function=broken), tmp_path)

    assert isinstance(failed.__cause__, ValueError)
    assert "no such shelf" in shown


@pytest.mark.parametrize(
    "make",
    [
        lambda: HttpSource(name="c", schema=SCHEMA, url="https://me:hush@crm/{id}"),
        lambda: HttpSource(name="c", schema=SCHEMA, url="https://crm/{id}?api_key=hush"),
        lambda: HttpSource(name="c", schema=SCHEMA, url="https://crm/all?X-Token=hush", many="query"),
        lambda: PostgresSource(name="c", schema=SCHEMA, table="c", host="postgresql://me:hush@crm/db"),
        lambda: PostgresSource(name="c", schema=SCHEMA, table="c", database="dbname=crm password=hush"),
        lambda: RedisSource(name="c", schema=SCHEMA, key_pattern="{id}", host="redis://:hush@crm"),
    ],
)
def test_an_address_that_holds_credentials_is_refused_without_showing_them(make: Any) -> None:
    with pytest.raises(OptionError, match="holds credentials") as reported:
        make()
    assert reported.value.code == "SECRET_IN_URL"
    assert "hush" not in str(reported.value) + repr(reported.value.facts)


def test_a_header_that_names_its_secret_survives_json_and_one_that_was_given_does_not() -> None:
    given = {"Accept": "text/json", "X-Api-Key": "hush", "X-Auth": Secret.env("CRM_KEY"), "X-Page": Secret.file("/run/page")}
    source = HttpSource(name="c", schema=SCHEMA, url="https://crm/{id}", headers=given)

    written = json.dumps(source.to_json())
    again = HttpSource.from_json(json.loads(written))

    assert "hush" not in written + repr(source)
    assert again.headers == {**given, "X-Api-Key": Secret("given")}
    with pytest.raises(OptionError, match="given in memory and is lost"):
        again.headers["X-Api-Key"].value()
    with pytest.raises(StateError, match="ENV_NOT_ALLOWED"):
        again.headers["X-Auth"].value()


@pytest.mark.parametrize("secret", [Secret.env("NOT_SET_ANYWHERE"), Secret.file("/not/there")])
def test_a_secret_that_is_missing_names_its_place(secret: Secret) -> None:
    with pytest.raises(OptionError, match=secret.place) as reported:
        secret.value()
    assert reported.value.code == "SECRET_MISSING"
