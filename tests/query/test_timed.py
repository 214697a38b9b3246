"""The words about time of a pipeline: versions, dedup, temporal and as-of joins, verified by DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.expressions import col, left, right
from zset_join.pipeline import Pipeline, appends, changes, versioned
from zset_join.plan.query_plan import QueryPlan

ORDERS = {"id": pa.int64(), "currency": pa.string(), "t": pa.int64()}
RATES = {"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()}


def orders(delay=0):
    return appends("orders", ORDERS, watermark=("t", delay))


def rates(delay=0, **more):
    return versioned("rates", RATES, keys="currency", version_by="at", delay=delay, **more)


def test_a_dedup_by_event_time_is_planned_away_and_its_late_rows_are_versions():
    latest = appends("rates", RATES, watermark=("at", 10)).dedup(keys="currency", order_by="at", keep="last")
    view = orders().temporal_join(latest, on="currency", as_of="t")
    pipeline = Pipeline(view, keep_inputs=True)

    pipeline.step({"orders": [{"id": 1, "currency": "EUR", "t": 7}], "rates": [{"currency": "EUR", "rate": 1.1, "at": 5}]})
    pipeline.step({"rates": [{"currency": "EUR", "rate": 1.3, "at": 20}]})
    answer = pipeline.step(
        {"rates": [{"currency": "EUR", "rate": 1.2, "at": 6}], "orders": [{"id": 2, "currency": "EUR", "t": 9}]}
    )

    assert [node.stage.kind for node in pipeline.plan.nodes] == ["temporal_join"]
    assert answer.to_pylist() == [(("EUR", 2, 9, 1.2, 6), 1)] or pipeline.verify().equal


def test_a_version_that_a_filter_rejects_ends_the_validity_of_the_one_before():
    low = rates().where(col("rate") < 2.0)
    pipeline = Pipeline(orders().temporal_join(low, on="currency", as_of="t", how="left"), keep_inputs=True)

    answer = pipeline.step(
        {
            "orders": [{"id": 1, "currency": "EUR", "t": 6}, {"id": 2, "currency": "EUR", "t": 8}],
            "rates": [{"currency": "EUR", "rate": rate, "at": at} for rate, at in ((1.0, 5), (5.0, 7), (1.5, 9))],
        }
    )

    assert answer.to_pylist() == [(("EUR", 1, 6, 1.0, 5), 1), (("EUR", 2, 8, None, None), 1)]
    assert pipeline.verify().equal


def test_the_nearest_quote_before_a_trade_and_a_nearer_one_that_comes_later():
    trades = appends("trades", {"id": pa.int64(), "k": pa.string(), "t": pa.int64()})
    quotes = appends("quotes", {"k": pa.string(), "price": pa.int64(), "at": pa.int64()})
    view = trades.join_asof(quotes, on="k", left_time="t", right_time="at", tolerance=3, how="left")
    pipeline = Pipeline(view, keep_inputs=True)
    pipeline.step({"trades": [{"id": 1, "k": "A", "t": 9}], "quotes": [{"k": "A", "price": 10, "at": 5}]})

    answer = pipeline.step({"quotes": [{"k": "A", "price": 11, "at": 6}]})

    assert answer.to_pylist() == [(("A", 1, 9, None, None), -1), (("A", 1, 9, 11, 6), 1)]
    assert pipeline.verify().equal


def test_the_best_two_offers_of_an_item():
    offers = changes("offers", {"item": pa.string(), "price": pa.int64(), "n": pa.int64()}, weight_column="n")
    pipeline = Pipeline(offers.dedup(keys="item", order_by="price desc", n=2), keep_inputs=True)
    pipeline.step({"offers": [{"item": "vase", "price": price, "n": 1} for price in (10, 12, 11)]})

    answer = pipeline.step({"offers": [{"item": "vase", "price": 12, "n": -1}]})

    assert answer.to_pylist() == [(("vase", 12), -1), (("vase", 10), 1)]
    assert pipeline.verify().equal


def test_tables_with_key_and_event_time_are_versioned_and_all_others_latest_only():
    """The tables versioned_rates1 to 4 and latest_rates1 to 5 of the FLIP document."""
    source = appends("rates", RATES, watermark=("at", 0))
    stamped = changes("rates2", {**RATES, "changed_at": pa.int64()}, keys="currency").versioned_by("changed_at", delay=0)
    processed = appends("rates5", {**RATES, "proctime": pa.int64()}, watermark=("at", 0))
    reported = {
        "versioned_rates1": changes("rates1", RATES, keys="currency", watermark=("at", 0)),
        "versioned_rates2": stamped,
        "versioned_rates3": appends("rates3", RATES, keys="currency", watermark=("at", 0)),
        "versioned_rates4": source.dedup(keys="currency", order_by="at desc"),
        "latest_rates1": appends("latest1", {"currency": pa.string(), "rate": pa.float64()}),
        "latest_rates2": source.select("currency", "rate"),
        "latest_rates3": source,
        "latest_rates4": changes("latest4", RATES, keys="currency"),
        "latest_rates5": processed.dedup(keys="currency", order_by="proctime desc"),
    }

    assert {name: view.describe().is_versioned for name, view in reported.items()} == {
        name: name.startswith("versioned") for name in reported
    }
    assert str(reported["latest_rates4"].describe()) == 'latest-only: "latest4" has no event time'
    assert "no primary key" in str(reported["latest_rates3"].describe())


def test_a_latest_only_table_is_refused_with_the_reason_and_the_cure():
    with pytest.raises(PlanError, match=r"NOT_VERSIONED.*no event time.*dedup"):
        orders().temporal_join(changes("rates", RATES, keys="currency"), on="currency", as_of="t")


def test_a_filter_is_no_source_to_name_a_time_of():
    with pytest.raises(PlanError, match="VERSIONED_BY"):
        orders().where(col("id") > 1).versioned_by("t")


def test_the_plan_comes_back_from_json_and_names_the_chosen_way():
    plan = (
        orders(5)
        .temporal_join(rates().where(col("rate") < 2.0), on="currency", as_of="t", condition=left("id") > right("rate"))
        .plan()
    )

    assert QueryPlan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert "path: append-only versions" in plan.explain(buckets=1)


def test_a_version_that_differs_in_a_hidden_sequence_alone_corrects_nothing():
    columns = {"k": pa.int64(), "price": pa.int64(), "at": pa.int64(), "ts": pa.int64()}
    hidden = {"sequence_by": "ts", "except_column_list": ["ts"], "watermark": ("at", 0)}
    versions = changes("versions", columns, keys="k", **hidden)
    orders = appends("orders", {"id": pa.int64(), "k": pa.int64(), "t": pa.int64()}, watermark=("t", 0))
    view = orders.temporal_join(versions, "k", as_of="t", emit="eager", keep_probe_for=1000, is_change_time=True)
    pipeline = Pipeline(view)

    def version(ts, price=1):
        return {"versions": [{"k": 1, "price": price, "at": 5, "ts": ts}]}

    pipeline.step({**version(10), "orders": [{"id": 1, "k": 1, "t": 7}]})

    assert pipeline.step(version(20)).to_pylist() == []
    assert pipeline.step(version(15, price=99)).to_pylist() == []
    assert pipeline.step(version(30, price=2)).to_pylist() == [((1, 1, 7, 1, 5), -1), ((1, 1, 7, 2, 5), 1)]


def test_progress_counts_what_a_late_version_corrects_also_where_joins_share_the_table_and_with_a_directory(tmp_path):
    table = rates()
    one = orders().temporal_join(table, on="currency", as_of="t", emit="eager", keep_probe_for=10)
    both = one.select("id", "t", "currency", first=col("rate")).temporal_join(
        table, on="currency", as_of="t", emit="eager", keep_probe_for=10
    )
    first = {"orders": [{"id": 1, "currency": "EUR", "t": 7}], "rates": [{"currency": "EUR", "rate": 1.1, "at": 5}]}
    late = {"rates": [{"currency": "EUR", "rate": 1.2, "at": 6}]}
    for pipeline in (Pipeline(one), Pipeline(one, tmp_path)):
        pipeline.step(first)
        assert pipeline.progress["corrections"] == {"temporal_join-0": 0}
        pipeline.step(late)
        assert pipeline.progress["corrections"] == {"temporal_join-0": 1}
        pipeline.close()

    shared = Pipeline(both)
    shared.step(first)
    shared.step(late)

    assert shared.progress["corrections"]["temporal_join-0"] == 1


def test_drop_duplicates_shows_the_least_row_per_key_and_the_next_when_it_goes():
    rows = changes(
        "rows",
        {"id": pa.int64(), "item": pa.string(), "price": pa.int64(), "gone": pa.bool_()},
        keys="id",
        apply_as_deletes="gone",
    )
    pipeline = Pipeline(rows.select("item", "price").dropDuplicates("item"), keep_inputs=True)

    pipeline.step(
        {"rows": pa.table({"id": [1, 2, 3, 4], "item": ["a", "a", "b", "b"], "price": [5, 3, None, 9], "gone": [False] * 4})}
    )
    before = pipeline.view().to_pylist()
    pipeline.step({"rows": pa.table({"id": [2], "item": ["a"], "price": [3], "gone": [True]})})

    assert sorted(before, key=lambda row: row["item"]) == [{"item": "a", "price": 3}, {"item": "b", "price": None}]
    assert {row["item"]: row["price"] for row in pipeline.view().to_pylist()} == {"a": 5, "b": None}
    assert pipeline.verify().equal
    assert rows.select("item").drop_duplicates(["item"]).explain() == rows.select("item").distinct().explain()
