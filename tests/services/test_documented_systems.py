"""The blocks of the documentation that need real servers run against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_documentation import ROOT, SERVICES_MARK, Page
from tools.servers.kafka_broker import KafkaBroker
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisServer

PAGES = [
    path for path in sorted((ROOT / "docs").rglob("*.md")) if SERVICES_MARK in path.read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run(
    path: Path,
    postgres: PostgresServer,
    redis_server: RedisServer,
    kafka: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTGRES", postgres.conninfo)
    monkeypatch.setenv("REDIS_PORT", str(redis_server.port))
    monkeypatch.setenv("KAFKA_SERVERS", kafka.servers)
    postgres.clear()
    for topic in ("orders_by_customer", "shop.public.orders"):
        kafka.ensure_topic(topic)
    page = Page(path, runs_services=True)

    page.run_through(len(page.python_blocks()) - 1)

    assert page.blocks_run == len(page.python_blocks())
