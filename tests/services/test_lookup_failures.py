"""A lookup retries when the network to a real PostgreSQL or Redis fails, counts it, and reports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.services.fetching import fetch, fetcher_for
from tests.services.tcp_proxy import TcpProxy
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisServer
from zset_join.core.errors import LookupFailedError
from zset_join.lookup import PostgresSource, RedisSource

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
KEYS = 500
REQUESTED = pa.record_batch({"id": pa.array(range(KEYS), pa.int64())})
NAMES = [f"name {key} {'x' * 200}" for key in range(KEYS)]  # an answer of 100 kB: several packets


@pytest.fixture(scope="module")
def ports(postgres: PostgresServer, redis_server: RedisServer) -> dict[str, int]:
    postgres.execute(
        "DROP TABLE IF EXISTS far_away",
        "CREATE TABLE far_away (id bigint, name text)",
        f"INSERT INTO far_away SELECT i, 'name ' || i || ' ' || repeat('x', 200) FROM generate_series(0, {KEYS - 1}) AS i",
    )
    with redis_server.client() as client:
        pipeline = client.pipeline()
        for key, name in enumerate(NAMES):
            pipeline.hset(f"far:{key}", mapping={"name": name})
        pipeline.execute()
    return {"postgres": postgres.port, "redis": redis_server.port}


@pytest.fixture(params=["postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(ports: dict[str, int], kind: str) -> Iterator[TcpProxy]:
    with TcpProxy(ports[kind]) as made:
        yield made


def source_at(kind: str, port: int, schema: pa.Schema = SCHEMA) -> Any:
    if kind == "postgres":
        seconds = {"connect_timeout_seconds": 1, "statement_timeout_seconds": 1}
        return PostgresSource(name="far", schema=schema, table="far_away", host="127.0.0.1", port=port, **seconds)
    return RedisSource(name="far", schema=schema, key_pattern="far:{id}", host="127.0.0.1", port=port, timeout_seconds=0.5)


@pytest.mark.parametrize("async_", [False, True])
class TestTheNetwork:
    def fetching(self, proxy: TcpProxy, kind: str, async_: bool, **hint: Any) -> Any:
        return fetcher_for(source_at(kind, proxy.port), "id", ["id", "name"], async_=async_, error_delay="1ms", **hint)

    def test_a_connection_that_is_dropped_half_way_through_an_answer_is_made_again(self, proxy, kind, async_):
        with self.fetching(proxy, kind, async_) as fetcher:
            fetcher.fetch(pa.record_batch({"id": [0]}))
            proxy.cuts, proxy.cut_after = 1, 20_000
            found = fetcher.fetch(REQUESTED)

            assert sorted(found["name"].to_pylist()) == sorted(NAMES)
            assert (fetcher.counts.transient_errors, fetcher.counts.calls, proxy.connections) == (1, 3, 2)

    def test_one_that_is_dropped_every_time_fails_the_epoch_with_source_keys_attempts_and_cure(self, proxy, kind, async_):
        proxy.cuts = 1000
        with (
            self.fetching(proxy, kind, async_, error_attempts=3) as fetcher,
            pytest.raises(
                LookupFailedError,
                match=r'(?s)"far" .*failed 3 of 3 times when looking up 500 keys such as \(0,\).*Restart the source',
            ),
        ):
            fetcher.fetch(REQUESTED)
        assert fetcher.counts.transient_errors == 3

    def test_a_server_that_is_slow_is_given_up_and_requested_again(self, proxy, kind, async_):
        with self.fetching(proxy, kind, async_, error_attempts=2) as fetcher:
            fetcher.fetch(pa.record_batch({"id": [0]}))
            proxy.passes.clear()
            with pytest.raises(LookupFailedError, match=r"failed 2 of 2 times") as reported:
                fetcher.fetch(REQUESTED)
            proxy.passes.set()
            fetcher._circuit.succeeded()
            assert "no answer" in str(reported.value) or "timeout" in str(reported.value).lower()
            assert fetcher.fetch(REQUESTED).num_rows == KEYS

    def test_an_answer_that_is_nonsense_fails_the_epoch_and_the_next_one_is_whole(self, proxy, kind, async_):
        with self.fetching(proxy, kind, async_, error_attempts=1) as fetcher:
            fetcher.fetch(pa.record_batch({"id": [0]}))
            proxy.garbles = 1
            with pytest.raises(LookupFailedError, match='"far"'):
                fetcher.fetch(REQUESTED)
            proxy.garbles = 0
            fetcher._circuit.succeeded()
            assert fetcher.fetch(REQUESTED).num_rows == KEYS

    def test_calls_that_are_cut_while_others_are_under_way_lose_and_double_nothing(self, proxy, kind, async_):
        with self.fetching(proxy, kind, async_, batch_keys=50, max_connections=3) as fetcher:
            proxy.cuts, proxy.cut_after = 2, 5_000
            found = fetcher.fetch(REQUESTED)

            assert sorted(found["name"].to_pylist()) == sorted(NAMES)
            assert fetcher.counts.transient_errors == 2
            assert proxy.connections <= 3 + 2


@pytest.mark.parametrize("async_", [False, True])
class TestTypes:
    def test_a_value_that_its_column_cannot_hold_names_the_column(self, ports, kind, async_):
        wrong = source_at(kind, ports[kind], pa.schema({"id": pa.int64(), "name": pa.int64()}))
        with pytest.raises(LookupFailedError, match='"name"') as reported:
            fetch(wrong, "id", ["id", "name"], [1], async_=async_)
        assert reported.value.code == "LOOKUP_ANSWER"

    def test_a_key_of_another_type_than_the_tables_is_reported_by_the_server(self, ports, async_):
        wrong = PostgresSource(**{**vars(source_at("postgres", ports["postgres"])), "schema": pa.schema({"name": pa.int64()})})
        with pytest.raises(LookupFailedError, match="operator does not exist: text = bigint"):
            fetch(wrong, "name", ["name"], [1], async_=async_)
