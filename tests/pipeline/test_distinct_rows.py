"""What is proven to be there once is not consolidated, and all else is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as in PySpark
from zset_join.plan.query_plan import emits_distinct_rows
from zset_join.query.view import View
from zset_join.zset import ZSet

ORDERS = {"id": pa.int64(), "customer": pa.int64(), "total": pa.int64()}
CUSTOMERS = {"customer_id": pa.int64(), "city": pa.string()}


def named_alike(how: str) -> View:
    """Return a join that shows the key once: what a match adds may be all NULL."""
    customers = changes("customers", CUSTOMERS, keys="customer_id").withColumnRenamed("customer_id", "customer")
    return changes("orders", ORDERS, keys="id").join(customers, "customer", how)


def joined(how: str, *, other: pa.DataType = CUSTOMERS["customer_id"]) -> View:
    orders = changes("orders", ORDERS, keys="id")
    customers = changes("customers", CUSTOMERS | {"customer_id": other}, keys="customer_id")
    return orders.join(customers, orders["customer"] == customers["customer_id"], how)


VIEWS = {
    "all": (lambda: joined("inner"), True),
    "other key left out": (lambda: joined("inner").select("city", "id", "customer", "total"), True),
    "behind a condition": (lambda: joined("inner").select("id", "customer", "total", "city").where("total > 1"), True),
    "own key left out": (lambda: joined("inner").select("id", "customer_id", "total", "city"), True),
    "key of another type left out": (
        lambda: joined("inner", other=pa.int32()).select("id", "customer_id", "total", "city"),
        False,
    ),
    "a value left out": (lambda: joined("inner").select("id", "customer", "city"), False),
    "both keys left out": (lambda: joined("inner").select("id", "total", "city"), False),
    "padded, and the other key shows": (lambda: joined("left"), True),
    "padded, and only a value shows": (lambda: named_alike("left"), False),
    "padded on both sides": (lambda: named_alike("full"), False),
    "not padded": (lambda: named_alike("inner"), True),
    "a padded key left out": (lambda: joined("left").select("id", "customer", "total", "city"), False),
    "a computed value": (lambda: joined("inner").selectExpr("id", "customer", "total + 0 AS t", "city"), False),
}
EPOCHS = [
    {
        "orders": [{"id": 1, "customer": 1, "total": 5}, {"id": 2, "customer": 2, "total": 5}],
        "customers": [{"customer_id": 2, "city": "a"}],
    },
    {"customers": [{"customer_id": 1, "city": None}, {"customer_id": 3, "city": "a"}]},  # where padded: as if nothing came
    {"orders": [{"id": 2, "customer": 2, "total": 6}]},
    {"orders": [{"id": 2, "customer": 3, "total": 6}]},
    {"orders": [{"id": 1, "customer": 2, "total": 5}], "customers": [{"customer_id": 2, "city": "b"}]},
]


@pytest.mark.parametrize("name", VIEWS)
def test_an_answer_is_consolidated_unless_the_plan_proves_that_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, is_proven = VIEWS[name]
    requested = []
    consolidated = ZSet.consolidated
    monkeypatch.setattr(
        ZSet, "consolidated", lambda rows, *given, **named: requested.append(rows) or consolidated(rows, *given, **named)
    )
    pipeline = Pipeline(make(), keep_view=False)
    requested.clear()

    answers = [pipeline.step(epoch) for epoch in EPOCHS]

    assert bool(requested) is not is_proven
    assert [len(consolidated(answer)) for answer in answers] == list(map(len, answers))
    assert sum(map(len, answers)) >= 4


@pytest.mark.parametrize("name", [name for name, (_, is_proven) in VIEWS.items() if not is_proven and "type" not in name])
def test_a_key_that_is_kept_is_no_proof(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Pipeline(VIEWS[name][0](), keep_view=False).plan
    monkeypatch.setattr("zset_join.runners.local.engine.emits_distinct_rows", lambda stage, steps: True)  # noqa: ARG005
    mutant = Pipeline(VIEWS[name][0](), keep_view=False)
    (feed,) = plan.outputs

    answers = [mutant.step(epoch) for epoch in EPOCHS]

    assert not emits_distinct_rows(plan.nodes[feed.origin].stage, feed.steps)
    if name != "a computed value":  # not proven, though no two rows become one
        assert any(len(answer.consolidated()) < len(answer) for answer in answers)


def test_a_union_is_consolidated() -> None:
    one, other = (changes(name, ORDERS, keys="id") for name in ("a", "b"))
    row = {"id": 1, "customer": 1, "total": 1}

    assert Pipeline(one.union(other)).step({"a": [row], "b": [row]}).to_pylist() == [((1, 1, 1), 2)]


def test_a_listed_union_takes_branches_that_differ_in_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.runners.local.contents._LEAST_ROWS", 1)
    one, other = (changes(name, {"k": pa.int64(), "n": pa.int64()}, keys="k") for name in ("one", "other"))
    counted = one.groupBy("k").agg(F.count().alias("n"))  # a count is never NULL
    pipeline = Pipeline(counted.union(other.groupBy("k").agg(F.max("n").alias("n"))))
    for key in (1, 2):
        pipeline.step({"one": [{"k": key, "n": 5}], "other": [{"k": key, "n": None}]})

    assert pipeline.view().to_pylist() == [{"k": key, "n": n} for n in (1, None) for key in (1, 2)]
