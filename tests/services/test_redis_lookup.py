"""A real Redis as an external table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.services.fetching import fetch, fetcher_for
from tools.servers.redis_server import RedisServer
from zset_join.core.errors import LookupFailedError, OptionError
from zset_join.lookup import RedisSource

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "total": pa.float64()})


@pytest.fixture(scope="module")
def hashes(redis_server: RedisServer) -> RedisSource:
    with redis_server.client() as client:
        client.hset("customer:1", mapping={"name": "Ada", "total": "12.5", "unasked": "x"})
        client.hset("customer:2", mapping={"name": "Bob"})
        client.set("json:1", json.dumps({"name": "Ada", "total": 12.5}))
        client.set("json:2", json.dumps([{"name": "Bob", "total": 1}, {"name": "Eve", "total": None}]))
        client.set("json:3", "{broken")
        client.hset("customer:4", mapping={"name": "Zed", "total": "much"})
    return RedisSource(name="customers", schema=SCHEMA, key_pattern="customer:{id}", host="127.0.0.1", port=redis_server.port)


def _json(hashes: RedisSource) -> RedisSource:
    return RedisSource(**{**vars(hashes), "key_pattern": "json:{id}", "layout": "json"})


@pytest.mark.parametrize("async_", [False, True])
class TestLookups:
    def test_hashes_are_rows_and_missing_fields_null(self, hashes, async_):
        assert fetch(hashes, "id", SCHEMA.names, [1, 2, 3], async_=async_) == [
            {"id": 1, "name": "Ada", "total": 12.5},
            {"id": 2, "name": "Bob", "total": None},
        ]

    def test_json_texts_are_rows_and_lists_are_several(self, hashes, async_):
        assert fetch(_json(hashes), "id", SCHEMA.names, [1, 2, 9], async_=async_) == [
            {"id": 1, "name": "Ada", "total": 12.5},
            {"id": 2, "name": "Bob", "total": 1.0},
            {"id": 2, "name": "Eve", "total": None},
        ]

    def test_a_malformed_text_is_reported(self, hashes, async_):
        with pytest.raises(LookupFailedError, match="holds no JSON"):
            fetch(_json(hashes), "id", SCHEMA.names, [3], async_=async_)

    def test_a_text_of_another_type_names_its_column(self, hashes, async_):
        with pytest.raises(LookupFailedError, match='a text in "total" that is not a double'):
            fetch(hashes, "id", SCHEMA.names, [4], async_=async_)

    def test_a_batch_is_one_pipeline(self, hashes, async_):
        with fetcher_for(hashes, "id", ["id", "name"], async_=async_, batch_keys=1000) as fetcher:
            fetcher.fetch(pa.record_batch({"id": pa.array(range(2500), pa.int64())}))
            assert fetcher.counts.calls == 3

    def test_nobody_listening_is_tried_again_and_then_reported(self, hashes, async_):
        gone = RedisSource(**{**vars(hashes), "port": 1})
        with pytest.raises(LookupFailedError, match="failed 2 of 2 times"):
            fetch(gone, "id", SCHEMA.names, [1], async_=async_, error_attempts=2, error_delay="1ms")

    def test_a_server_that_restarts_is_waited_for(self, tmp_path, async_):
        server = RedisServer(tmp_path / f"restarting{async_}").start()
        try:
            source = RedisSource(name="c", schema=SCHEMA, key_pattern="c:{id}", host="127.0.0.1", port=server.port)
            with fetcher_for(source, "id", ["id", "name"], async_=async_, error_delay="50ms", error_attempts=8) as fetcher:
                assert fetcher.fetch(pa.record_batch({"id": [1]})).num_rows == 0
                server.stop()
                server.start()
                with server.client() as client:
                    client.hset("c:1", mapping={"name": "Ada"})
                assert fetcher.fetch(pa.record_batch({"id": [1]})).num_rows == 1
        finally:
            server.stop()


def test_a_join_on_other_columns_than_the_key_pattern_is_refused(hashes):
    with pytest.raises(OptionError, match="finds rows by"), fetcher_for(hashes, "name", ["id", "name"]) as fetcher:
        fetcher.fetch(pa.record_batch({"name": ["Ada"]}))
