"""Stages behind a temporal join, refusals before it runs, and the treatment of bad rows."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, PlanError
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - the name PySpark users know it by
from zset_join.stages.stage import StageOptions

ORDERS = {"id": pa.int64(), "currency": pa.string(), "t": pa.int64()}
RATES = {"currency": pa.string(), "rate": pa.int64(), "at": pa.int64()}
ONE = appends("orders", ORDERS, watermark=("t", 0))
NAMES = changes("names", {"currency": pa.string(), "name": pa.string()}, keys="currency")
TARIFFS = versioned(
    "tariffs", {"rate": pa.int64(), "tariff": pa.string(), "since": pa.int64()}, keys="rate", version_by="since", delay=0
)


def rates():
    return versioned("rates", RATES, keys="currency", version_by="at", delay=0)


def eager():
    return ONE.temporal_join(rates(), on="currency", how="left", as_of="t", emit="eager", keep_probe_for=100)


BEHIND = {
    "a join, then a group": lambda view: view.join(NAMES, on="currency").groupBy("currency", "rate").agg(F.count().alias("n")),
    "another temporal join": lambda view: view.temporal_join(
        TARIFFS, on="rate", how="left", as_of="t", emit="eager", keep_probe_for=100
    ),
    "an as-of join": lambda view: view.join_asof(
        appends("quotes", {"currency": pa.string(), "bid": pa.int64(), "q": pa.int64()}),
        on="currency",
        left_time="t",
        right_time="q",
        how="left",
    ),
    "a dedup": lambda view: view.dedup(keys="currency", order_by="t"),
}
EPOCHS = [
    {
        "orders": [{"id": 1, "currency": "EUR", "t": 7}, {"id": 2, "currency": "USD", "t": 7}],
        "rates": [{"currency": "EUR", "rate": 1, "at": 5}],
        "names": [{"currency": "EUR", "name": "euro"}],
        "tariffs": [{"rate": 1, "tariff": "low", "since": 1}, {"rate": 2, "tariff": "high", "since": 1}],
        "quotes": [{"currency": "EUR", "bid": 10, "q": 6}],
    },
    {"rates": [{"currency": "EUR", "rate": 2, "at": 6}, {"currency": "USD", "rate": 3, "at": 6}]},
    {"orders": [{"id": 3, "currency": "EUR", "t": 9}], "names": [{"currency": "EUR", "name": "Euro"}]},
]


@pytest.mark.parametrize("behind", BEHIND)
def test_corrections_of_an_eager_join_flow_on_into(behind):
    pipeline = Pipeline(BEHIND[behind](eager()), keep_inputs=True)
    answers = [pipeline.step({name: rows for name, rows in epoch.items() if name in pipeline.sources}) for epoch in EPOCHS]

    assert any((answer.weights < 0).any() for answer in answers[1:])
    assert pipeline.verify().equal, str(pipeline.verify())


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: ONE.temporal_join(rates(), on="currency", as_of="t", how="right"), "TEMPORAL_HOW"),
        (lambda: ONE.temporal_join(rates(), on="currency", as_of="t", how="full"), "TEMPORAL_HOW"),
        (lambda: ONE.temporal_join(rates(), on="currency", as_of=PROCESSING_TIME, how="full"), "TEMPORAL_JOIN_TYPE"),
        (lambda: ONE.temporal_join(rates(), on=[("id", "rate")], as_of="t"), "TEMPORAL_KEY"),
        (lambda: appends("bare", ORDERS).temporal_join(rates(), on="currency", as_of="t"), "TEMPORAL_WATERMARK"),
        (
            lambda: ONE.temporal_join(versioned("still", RATES, keys="currency", version_by="at"), on="currency", as_of="t"),
            "TEMPORAL_WATERMARK",
        ),
        (
            lambda: changes("keyed", ORDERS, keys="id", watermark=("t", 0)).temporal_join(rates(), on="currency", as_of="t"),
            "TEMPORAL_LEFT_CHANGES",
        ),
        (lambda: ONE.temporal_join(NAMES, on="currency", as_of="t"), "NOT_VERSIONED"),
    ],
)
def test_what_the_rules_of_temporal_joins_forbid_is_refused_when_it_is_written(made, code):
    with pytest.raises(PlanError) as refused:
        made().plan()

    assert refused.value.code == code


def test_by_processing_time_a_part_of_the_primary_key_is_allowed_and_all_matches_are_emitted():
    prices = changes("prices", {"item": pa.string(), "shop": pa.string(), "price": pa.int64()}, keys=["item", "shop"])
    sales = appends("sales", {"id": pa.int64(), "item": pa.string()})
    pipeline = Pipeline(sales.temporal_join(prices, on="item", as_of=PROCESSING_TIME))

    answer = pipeline.step(
        {
            "sales": [{"id": 1, "item": "nail"}],
            "prices": [{"item": "nail", "shop": shop, "price": price} for shop, price in (("a", 3), ("b", 4))],
        }
    )

    assert sorted(answer.to_pylist()) == [(("nail", 1, "a", 3), 1), (("nail", 1, "b", 4), 1)]


def test_deletes_that_carry_the_time_of_their_row_are_warned_of_unless_it_is_the_time_of_the_change():
    changed = changes("rates", RATES, keys="currency", watermark=("at", 0))

    with pytest.warns(UserWarning, match="comes late or ends the wrong version"):
        ONE.temporal_join(changed, on="currency", as_of="t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ONE.temporal_join(changed, on="currency", as_of="t", is_change_time=True)
        ONE.temporal_join(rates(), on="currency", as_of="t")


GOOD = {"orders": [{"id": 1, "currency": "EUR", "t": 7}], "rates": [{"currency": "EUR", "rate": 1, "at": 5}]}
BAD = {
    "an order without time": ("orders", {"id": 9, "currency": "EUR", "t": None}, "NULL_TIME"),
    "a version without time": ("rates", {"currency": "EUR", "rate": 9, "at": None}, "NULL_TIME"),
    "a version without key": ("rates", {"currency": None, "rate": 9, "at": 5}, "NULL_KEY"),
    "an order far in the future": ("orders", {"id": 9, "currency": "EUR", "t": 9_000}, "TIME_JUMP"),
    "a version far in the future": ("rates", {"currency": "EUR", "rate": 9, "at": 9_000}, "TIME_JUMP"),
}


@pytest.mark.parametrize("bad", BAD)
def test_rows_that_are_no_good_stop_the_epoch_or_are_put_aside_and_the_others_are_applied(bad):
    source, row, code = BAD[bad]
    view = ONE.temporal_join(rates(), on="currency", as_of="t", max_watermark_jump=1_000)
    strict, lenient = Pipeline(view), Pipeline(view, options=StageOptions(on_bad_input="quarantine"))
    for pipeline in (strict, lenient):
        pipeline.step(GOOD)
    more = {"orders": [{"id": 2, "currency": "EUR", "t": 8}], "rates": [{"currency": "EUR", "rate": 2, "at": 8}]}

    with pytest.raises(BadInputError, match=code):
        strict.step({**more, source: [*more[source], row]})
    answer = lenient.step({**more, source: [*more[source], row]})

    letters = lenient.dead_letters.to_pylist()
    assert [(letter["source"], letter["code"]) for letter in letters] == [(source, code)]
    assert strict.step(more).to_pylist() == answer.to_pylist()
    assert lenient.statistics()["source orders"]["watermark_us"] == 8
    assert lenient.statistics()["source rates"]["watermark_us"] == 8


def test_a_time_out_of_the_range_of_the_type_it_is_compared_in_is_bad_input():
    seconds = appends("orders", {**ORDERS, "t": pa.timestamp("s")}, watermark=("t", "0 seconds"))
    nanoseconds = {**RATES, "at": pa.timestamp("ns")}
    table = versioned("rates", nanoseconds, keys="currency", version_by="at", delay="0 seconds")
    pipeline = Pipeline(
        seconds.temporal_join(table, on="currency", as_of="t", emit="once"),
        options=StageOptions(on_bad_input="quarantine"),
    )

    answer = pipeline.step({"orders": pa.table({"id": [1], "currency": ["EUR"], "t": pa.array([1 << 40], pa.timestamp("s"))})})

    assert answer.to_pylist() == []
    assert [letter["code"] for letter in pipeline.dead_letters.to_pylist()] == ["NULL_TIME"]


def test_a_version_without_its_primary_key_column_is_refused_by_name():
    pipeline = Pipeline(ONE.temporal_join(rates(), on="currency", as_of="t"))

    with pytest.raises(PlanError, match="currency"):
        pipeline.step({"rates": pa.table({"rate": [1], "at": [5]})})
