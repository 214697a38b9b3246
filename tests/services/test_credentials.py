"""Passwords of a real PostgreSQL and a real Redis: used, and shown nowhere, in process and inside Spark with every log at DEBUG."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lookup.shown import forms_of, run_and_show
from tests.services.spark_driver import ROOT
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisServer
from zset_join.lookup import Lookup, PostgresSource, RedisSource, Secret

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
RIGHT, WRONG = "r1ght/one&only", "wr0ng'one%only"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, RedisServer]]:
    postgres = PostgresServer(tmp_path_factory.mktemp("guarded-postgres"), password=RIGHT).start()
    redis = RedisServer(tmp_path_factory.mktemp("guarded-redis"), password=RIGHT).start()
    try:
        postgres.execute("CREATE TABLE guarded (id bigint, name text)", "INSERT INTO guarded VALUES (1, 'Ada'), (3, 'Eve')")
        with redis.client() as client:
            client.hset("c:1", mapping={"name": "Ada"})
            client.hset("c:3", mapping={"name": "Eve"})
        yield postgres, redis
    finally:
        postgres.stop()
        redis.stop()


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("password", [RIGHT, WRONG])
@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_password_is_used_and_shown_nowhere(
    guarded: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, kind: str, password: str, async_: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    postgres, redis = guarded
    if kind == "postgres":
        place = {"host": "127.0.0.1", "port": postgres.port}
        source: Any = PostgresSource(name="c", schema=SCHEMA, table="guarded", password=password, **place)
    else:
        place = {"host": "127.0.0.1", "port": redis.port}
        source = RedisSource(name="c", schema=SCHEMA, key_pattern="c:{id}", password=Secret.given(password), **place)

    rows, failed, shown = run_and_show(source, tmp_path, hint=Lookup(async_=async_, error_delay="1ms"))

    assert (rows, failed is None) == (([((5, 1, 1, "Ada"), 1)], True) if password == RIGHT else (None, False))
    assert failed is None or " times " not in str(failed), "a wrong password is tried once"
    assert [form for form in forms_of(password) if form in shown + caplog.text] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("password", [RIGHT, WRONG])
def test_inside_spark_they_are_in_no_log_no_event_no_error_and_no_file(guarded: Any, tmp_path: Path, password: str) -> None:
    postgres, redis = guarded
    settings = {"directory": str(tmp_path), "postgres": postgres.port, "redis": redis.port, "redis_password": password}
    environment = {
        **os.environ,
        "CRM_PASSWORD": RIGHT,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (tmp_path / "said").open("wb") as emitted:
        command = [sys.executable, "-m", "tests.services.secret_program", json.dumps(settings)]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=emitted, stderr=emitted, timeout=500, check=False)

    shown = {str(path): path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()}
    reported = shown[str(tmp_path / "said")]
    assert done.returncode == 0, reported[-3000:]
    assert "DEBUG" in reported
    assert ('rows [[1, 3, 3, "Eve", 3, "Eve"], [2, 99, null, null, null, null]]' in reported) == (password == RIGHT)
    assert ("refused" in reported) == (password == WRONG)
    assert [
        (form, path) for secret in (RIGHT, password) for form in forms_of(secret) for path in shown if form in shown[path]
    ] == []
