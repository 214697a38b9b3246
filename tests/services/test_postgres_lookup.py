"""A real PostgreSQL as an external table."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from tests.services.fetching import fetch, fetcher_for
from tools.servers.postgres_server import PostgresServer
from zset_join.core.errors import LookupFailedError
from zset_join.lookup import PostgresSource

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "credit": pa.decimal128(10, 2),
        "born": pa.date32(),
        "seen": pa.timestamp("us", tz="UTC"),
        "active": pa.bool_(),
    }
)
COLUMNS = list(SCHEMA.names)


@pytest.fixture(scope="module")
def customers(postgres: PostgresServer) -> PostgresSource:
    postgres.execute(
        "DROP TABLE IF EXISTS customers",
        "CREATE TABLE customers (id bigint, name text, credit numeric(10,2), born date, seen timestamptz, active boolean, secret text)",
        "INSERT INTO customers VALUES (1, 'Ada', 12.50, '1815-12-10', '2026-01-01 10:00+00', true, 'x'), (2, 'Bob', NULL, NULL, NULL, false, 'y'), (2, 'Bob again', 1, NULL, NULL, NULL, 'z')",
        "CREATE INDEX ON customers (id)",
    )
    return PostgresSource(name="customers", schema=SCHEMA, table="public.customers", host="127.0.0.1", port=postgres.port)


@pytest.mark.parametrize("async_", [False, True])
class TestLookups:
    def test_types_come_back_exactly_and_duplicates_are_several_matches(self, customers, async_):
        seen = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
        assert fetch(customers, "id", COLUMNS, [1, 2, 3], async_=async_) == [
            {
                "id": 1,
                "name": "Ada",
                "credit": decimal.Decimal("12.50"),
                "born": datetime.date(1815, 12, 10),
                "seen": seen,
                "active": True,
            },
            {"id": 2, "name": "Bob again", "credit": decimal.Decimal("1.00"), "born": None, "seen": None, "active": None},
            {"id": 2, "name": "Bob", "credit": None, "born": None, "seen": None, "active": False},
        ]

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("name", "Ada"),
            ("credit", decimal.Decimal("12.50")),
            ("born", datetime.date(1815, 12, 10)),
            ("seen", datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)),
            ("active", True),
        ],
    )
    def test_keys_may_be_of_any_plain_type(self, customers, async_, column, value):
        assert fetch(customers, column, ["id", column], [value], async_=async_) == [{"id": 1, column: value}]

    def test_types_that_have_no_array_which_is_known_come_back_too(self, postgres, customers, async_):
        postgres.execute(
            "DROP TABLE IF EXISTS odd",
            "DROP TYPE IF EXISTS mood",
            "CREATE TYPE mood AS ENUM ('sad', 'glad')",
            "CREATE TABLE odd (id bigint, mood mood, tags text[], doc jsonb)",
            "INSERT INTO odd VALUES (1, 'glad', '{a,b}', '{\"x\": 1}'), (1, 'sad', '{}', NULL), (2, NULL, NULL, NULL)",
        )
        kinds = {"id": pa.int64(), "mood": pa.string(), "tags": pa.list_(pa.string())}
        odd = PostgresSource(**{**vars(customers), "table": "odd", "schema": pa.schema(kinds)})
        plain = [{"id": 1, "mood": "glad"}, {"id": 1, "mood": "sad"}, {"id": 2, "mood": None}]
        assert fetch(odd, "id", ["id", "mood"], [1, 2, 3], async_=async_, batch_keys=1) == plain
        assert fetch(odd, "id", ["id", "tags"], [1, 2, 3], async_=async_) == [
            {"id": 1, "tags": ["a", "b"]},
            {"id": 1, "tags": []},
            {"id": 2, "tags": None},
        ]

    def test_many_calls_of_one_client_find_all_none_and_some_rows(self, customers, async_):
        with fetcher_for(customers, "id", ["id", "name"], async_=async_, batch_keys=1) as fetcher:
            found = [fetcher.fetch(pa.record_batch({"id": requested})).num_rows for requested in ([1, 2], [7], [9, 1], [2])]
        assert found == [3, 0, 1, 2]

    def test_text_that_looks_like_sql_stays_text(self, customers, async_):
        assert fetch(customers, "name", ["id", "name"], ["'); DROP TABLE customers; --", "%s", "Ada"], async_=async_) == [
            {"id": 1, "name": "Ada"}
        ]

    def test_a_query_may_replace_the_table(self, customers, async_):
        query = PostgresSource(
            **{
                **vars(customers),
                "table": "(SELECT id, upper(name) AS name FROM customers WHERE active)",
                "schema": pa.schema({"id": pa.int64(), "name": pa.string()}),
            }
        )
        assert fetch(query, "id", ["id", "name"], [1, 2], async_=async_) == [{"id": 1, "name": "ADA"}]

    def test_a_missing_column_is_reported_at_once(self, customers, async_):
        wrong = PostgresSource(**{**vars(customers), "schema": pa.schema({"id": pa.int64(), "nope": pa.int64()})})
        with pytest.raises(LookupFailedError, match=r'"customers".*t.nope does not exist'):
            fetch(wrong, "id", ["id", "nope"], [1], async_=async_)

    def test_nobody_listening_is_tried_again_and_then_reported(self, customers, async_):
        gone = PostgresSource(**{**vars(customers), "port": 1, "connect_timeout_seconds": 2})
        with pytest.raises(LookupFailedError, match=r"failed 2 of 2 times when looking up 1 key such as \(1,\)"):
            fetch(gone, "id", COLUMNS, [1], async_=async_, error_attempts=2, error_delay="1ms")

    def test_a_dropped_connection_is_made_again(self, postgres, customers, async_):
        with fetcher_for(customers, "id", ["id", "name"], async_=async_, error_delay="1ms", max_connections=1) as fetcher:
            one = pa.record_batch({"id": [1]})
            assert fetcher.fetch(one).num_rows == 1
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'zset_join lookup'"
            )
            assert fetcher.fetch(one).num_rows == 1
            assert fetcher.counts.transient_errors == 1

    def test_a_slow_statement_is_ended_by_the_server(self, customers, async_):
        slow = PostgresSource(
            **{**vars(customers), "table": "(SELECT id, name FROM customers, pg_sleep(5))", "statement_timeout_seconds": 1}
        )
        with pytest.raises(LookupFailedError, match="statement timeout"):
            fetch(slow, "id", ["id", "name"], [1], async_=async_, error_attempts=1)


def test_only_wanted_columns_are_requested(postgres, customers):
    postgres.execute(
        "REVOKE ALL ON customers FROM PUBLIC",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        "GRANT SELECT (id, name) ON customers TO clerk",
    )
    clerk = PostgresSource(**{**vars(customers), "user": "clerk"})
    assert fetch(clerk, "id", ["id", "name"], [1]) == [{"id": 1, "name": "Ada"}]
    with pytest.raises(LookupFailedError, match="permission denied"):
        fetch(clerk, "id", COLUMNS, [1])
    postgres.execute("DROP OWNED BY clerk", "DROP ROLE clerk")


def test_one_call_is_one_statement_whatever_its_keys(postgres, customers):
    with fetcher_for(customers, "id", ["id", "name"], batch_keys=5000) as fetcher:
        fetcher.fetch(pa.record_batch({"id": pa.array(range(12_000), pa.int64())}))
        assert fetcher.counts.calls == 3


def test_connections_are_bounded(postgres, customers):
    source = PostgresSource(
        **{
            **vars(customers),
            "table": "(SELECT id, name FROM customers, pg_sleep(0.2))",
            "schema": pa.schema({"id": pa.int64(), "name": pa.string()}),
        }
    )
    with fetcher_for(source, "id", ["id", "name"], batch_keys=1, max_connections=3) as fetcher:
        fetcher.fetch(pa.record_batch({"id": pa.array(range(12), pa.int64())}))
        open_now = postgres.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'zset_join lookup'")
        assert open_now[0][0] <= 3


def test_the_whole_table_can_be_loaded(customers):
    assert [row["name"] for row in fetch(customers, "id", ["id", "name"], [2, 7], cache="full")] == ["Bob again", "Bob"]


def test_a_server_that_restarts_during_a_fetch_is_waited_for(tmp_path):
    server = PostgresServer(tmp_path / "restarting").start()
    try:
        server.execute("CREATE TABLE t (id bigint)", "INSERT INTO t VALUES (1)")
        source = PostgresSource(name="t", schema=pa.schema({"id": pa.int64()}), table="t", host="127.0.0.1", port=server.port)
        with fetcher_for(source, "id", ["id"], error_delay="200ms", error_attempts=8) as fetcher:
            assert fetcher.fetch(pa.record_batch({"id": [1]})).num_rows == 1
            server.kill()
            server.start()
            assert fetcher.fetch(pa.record_batch({"id": [1]})).num_rows == 1
    finally:
        server.stop()
