"""The examples of FLIP-234, word for word where there are words, against a real PostgreSQL: orders enriched with customers."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from tools.servers.postgres_server import PostgresServer
from zset_join.expressions import left
from zset_join.lookup import FunctionSource, Lookup, LookupHintWarning, LookupSettings, PostgresSource
from zset_join.pipeline import Pipeline, appends

ORDERS = {"order_id": pa.int64(), "total": pa.int64(), "customer_id": pa.int64()}
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string(), "country": pa.string(), "zip": pa.string()})
BOTH, SYNC_ONLY, ASYNC_ONLY = frozenset({"sync", "async"}), frozenset({"sync"}), frozenset({"async"})
SECOND = 1_000_000


@pytest.fixture(scope="module")
def customers(postgres: PostgresServer) -> PostgresSource:
    postgres.execute(
        'CREATE TABLE "Customers" (id bigint PRIMARY KEY, name text, country text, zip text)',
        """INSERT INTO "Customers" VALUES (1, 'Ada', 'UK', 'W1')""",
    )
    return PostgresSource(name="Customers", schema=CUSTOMERS, table="Customers", host="127.0.0.1", port=postgres.port)


def resolved(hint: dict[str, str], *, job: dict[str, str] | None = None, modes: frozenset[str] = BOTH) -> LookupSettings:
    """Return what a hint does, given the options of the job and what the source offers."""
    defaults = None if job is None else Lookup.from_hint(job)
    return Lookup.from_hint(hint).over(defaults).resolved(source="dim1", modes=modes, how="inner", is_insert_only=True)


def enriched(customers: PostgresSource, hint: Lookup | None = None):
    """Return SELECT o.order_id, o.total, c.country, c.zip FROM Orders o JOIN Customers FOR SYSTEM_TIME AS OF o.proc_time c."""
    view = appends("Orders", ORDERS).lookup_join(customers, on=[("customer_id", "id")], hint=hint, columns=["country", "zip"])
    return view.select("order_id", "total", "country", "zip")


RETRIED = {
    "table": "dim1",
    "retry-predicate": "lookup_miss",
    "retry-strategy": "fixed_delay",
    "fixed-delay": "10s",
    "max-attempts": "3",
}
UNORDERED = {"async": "true", "output-mode": "allow_unordered", "capacity": "100", "timeout": "180s"}


@pytest.mark.parametrize(
    ("hint", "modes", "expected"),
    [
        ({"async": "false"}, BOTH, {"is_async": False}),
        ({"async": "true"}, BOTH, {"is_async": True}),
        (UNORDERED, BOTH, {"is_async": True, "is_ordered": False, "capacity": 100, "timeout_us": 180 * SECOND}),
        ({}, SYNC_ONLY, {"is_async": False}),
        ({}, ASYNC_ONLY, {"is_async": True}),
        ({}, BOTH, {"is_async": True}),
        ({**RETRIED, "async": "true"}, BOTH, {"is_async": True, "max_retries": 3, "delay_us": 10 * SECOND}),
        ({**RETRIED, "async": "false"}, BOTH, {"is_async": False, "max_retries": 3, "delay_us": 10 * SECOND}),
        (RETRIED, SYNC_ONLY, {"is_async": False, "max_retries": 3, "delay_us": 10 * SECOND}),
        (RETRIED, ASYNC_ONLY, {"is_async": True, "max_retries": 3, "delay_us": 10 * SECOND}),
    ],
)
def test_a_hint_of_the_document_has_its_meaning(hint, modes, expected):
    found = resolved({"table": "dim1", **hint}, modes=modes)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (
            {"table": "dim1", "async": "true", "output-mode": "allow_unordered"},
            {"table": "dim1", "async": "true", "output-mode": "allow_unordered", "capacity": "100", "timeout": "180s"},
        ),
        (
            {"table": "dim1", "async": "true", "timeout": "300s"},
            {"table": "dim1", "async": "true", "output-mode": "ordered", "capacity": "100", "timeout": "300s"},
        ),
    ],
)
def test_with_the_options_of_the_job_these_pairs_are_equivalent(short, long):
    job = {"output-mode": "ordered", "capacity": "100", "timeout": "180s"}
    assert resolved(short, job=job) == resolved(long)


def test_async_on_a_source_that_is_sync_only_takes_no_effect():
    with pytest.warns(LookupHintWarning, match="async=true changes nothing"):
        found = resolved({"table": "dim1", "async": "true"}, modes=SYNC_ONLY)
    assert found == resolved({"table": "dim1"}, modes=SYNC_ONLY)


@pytest.mark.parametrize(
    "invalid", [{"capacity": "many"}, {"timeout": "soon"}, {"output-mode": "sorted"}, {"retries": "3"}, {"async": "perhaps"}]
)
def test_an_invalid_option_keeps_the_plan_unchanged(invalid):
    with pytest.warns(LookupHintWarning, match="changes nothing|is unknown and ignored"):
        found = resolved({"table": "dim1", **invalid})
    assert found == resolved({"table": "dim1"})


@pytest.mark.parametrize(
    "hint",
    [
        {"table": "dim1", "async": "false"},
        {"table": "dim1", "async": "true"},
        {"table": "dim1", "async": "true", "output-mode": "allow_unordered", "capacity": "100", "timeout": "180s"},
        {"table": "dim1", "async": "true", "output-mode": "allow_unordered"},
        {"table": "dim1", "async": "true", "timeout": "300s"},
        {"table": "dim1", "async": "true", "output-mode": "ordered", "capacity": "100", "timeout": "300s"},
        {**RETRIED, "async": "true"},
        {**RETRIED, "async": "false"},
        RETRIED,
    ],
    ids=lambda hint: ", ".join(f"{name}={value}" for name, value in hint.items() if name != "table"),
)
def test_every_hint_of_the_document_is_honoured_by_the_server_and_answers_alike(customers, hint):
    view = appends("Orders", ORDERS).lookup_join(
        customers, on=[("customer_id", "id")], alias="dim1", hint=Lookup.from_hint(hint), columns=["country", "zip"]
    )
    with warnings.catch_warnings(), Pipeline(view.select("order_id", "country", "zip")) as pipeline:
        warnings.simplefilter("error")
        came = [{"order_id": number, "total": 5, "customer_id": 1} for number in (12, 10, 11)]
        assert pipeline.step({"Orders": came}).to_pylist() == [((number, "UK", "W1"), 1) for number in (12, 10, 11)]
        assert [counts["calls"] for counts in pipeline.progress["lookups"].values()] == [1]


def test_lookup_join_with_retry_by_jdbc(postgres, customers):
    hint = Lookup.from_hint(
        {
            "table": "Customers",
            "retry-predicate": "lookup_miss",
            "retry-strategy": "fixed_delay",
            "fixed-delay": "10s",
            "max-attempts": "3",
            "park": "epochs",
        }
    )
    with Pipeline(enriched(customers, hint)) as pipeline:
        came = [{"order_id": 10, "total": 5, "customer_id": 1}, {"order_id": 11, "total": 6, "customer_id": 3}]
        assert pipeline.step({"Orders": came}, processing_time=0).to_pylist() == [((10, 5, "UK", "W1"), 1)]
        postgres.execute("""INSERT INTO "Customers" VALUES (3, 'Eve', 'FR', '75')""")
        assert pipeline.step(processing_time=9 * SECOND).to_pylist() == []
        assert pipeline.step(processing_time=10 * SECOND).to_pylist() == [((11, 6, "FR", "75"), 1)]


def test_two_retry_strategies_for_two_joins_with_one_table(customers):
    """Rejected alternative 1: binding the strategy to the table would not allow this."""
    retry = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "fixed_delay": "10s"}
    orders = appends("Orders", {**ORDERS, "payer_id": pa.int64()})
    once = orders.lookup_join(
        customers, on=[("customer_id", "id")], alias="c", hint=Lookup(table="c", max_attempts=1, **retry), columns=["name"]
    )
    twice = once.select("order_id", "payer_id", buyer=left("name")).lookup_join(
        customers, on=[("payer_id", "id")], alias="p", hint=Lookup(table="p", max_attempts=5, **retry), columns=["name"]
    )
    text = twice.plan().explain()
    assert "requested 1 more times" in text
    assert "requested 5 more times" in text


def test_a_table_that_no_join_looks_up_warns_and_changes_nothing(customers):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        enriched(customers, Lookup(table="Suppliers", cache="partial"))
    assert ["Suppliers" in str(one.message) for one in caught] == [True]


def test_exceptions_are_not_retried_by_the_hint():
    calls = []

    def broken(keys: pa.Table) -> pa.Table:
        calls.append(keys.num_rows)
        raise KeyError("no such shelf")

    source = FunctionSource(name="dim1", schema=pa.schema({"id": pa.int64(), "v": pa.int64()}), function=broken)
    hint = Lookup(retry_predicate="lookup_miss", retry_strategy="fixed_delay", fixed_delay="1ms", max_attempts=3)
    view = appends("Orders", ORDERS).lookup_join(source, on=[("customer_id", "id")], hint=hint)
    with Pipeline(view) as pipeline, pytest.raises(Exception, match="no such shelf"):
        pipeline.step({"Orders": [{"order_id": 1, "total": 1, "customer_id": 1}]})
    assert calls == [1]
