"""verify() of joins that look something up."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.expressions import col, left, right
from zset_join.lookup import ArrowSource
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes

ORDERS = {"o": pa.int64(), "who": pa.int32()}
PRICES = {"who": pa.int64(), "price": pa.int64()}
EPOCHS = (
    {"orders": [{"o": 1, "who": 7}, {"o": 9, "who": None}], "prices": [{"who": 7, "price": 3}, {"who": 8, "price": 1}]},
    {"prices": [{"who": 7, "price": 4}]},
    {"orders": [{"o": 2, "who": 7}, {"o": 3, "who": 5}, {"o": 2, "who": 7}], "prices": [{"who": 7, "price": 5}]},
)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("snapshot", ["current", "previous"])
@pytest.mark.parametrize("keys", ["who", None])
def test_a_join_by_processing_time_equals_the_batch_query_over_its_epochs(how, snapshot, keys):
    prices = changes("prices", PRICES, keys=keys) if keys else appends("prices", PRICES)
    view = appends("orders", ORDERS).temporal_join(
        prices, on="who", how=how, as_of=PROCESSING_TIME, snapshot=snapshot, condition=left("o") <= right("price")
    )
    with Pipeline(view, keep_inputs=True) as pipeline:
        for rows in EPOCHS:
            pipeline.step(rows)
        found = pipeline.verify()
    assert found.equal, str(found)
    assert found.expected_rows > 0


def test_what_only_the_state_has_is_not_verified():
    view = changes("orders", ORDERS, keys="o").temporal_join(
        changes("prices", PRICES, keys="who"), on="who", as_of=PROCESSING_TIME
    )
    with Pipeline(view, keep_inputs=True) as pipeline:
        pipeline.step({"orders": [{"o": 1, "who": 7}]})
        with pytest.raises(PlanError, match="only in the state"):
            pipeline.verify()


def test_external_rows_are_not_verified():
    table = ArrowSource(name="people", table=pa.table({"id": [7], "name": ["Ada"]}))
    view = appends("orders", ORDERS).lookup_join(table, on=[("who", "id")])
    with Pipeline(view, keep_inputs=True) as pipeline:
        pipeline.step({"orders": [{"o": 1, "who": 7}]})
        with pytest.raises(PlanError, match="known to the journal alone"):
            pipeline.verify()


RATES = {"who": pa.int64(), "price": pa.int64(), "at": pa.timestamp("us", tz="UTC")}


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, second=second, tzinfo=dt.UTC)


@pytest.mark.parametrize("snapshot", ["current", "previous"])
@pytest.mark.parametrize("made", ["upserts", "dedup", "filtered"])
def test_a_row_meets_the_version_that_holds_at_the_processing_time(snapshot, made):
    rates = changes("rates", RATES, keys="who", watermark=("at", "1 second"))
    if made != "upserts":
        rates = appends("rates", RATES, watermark=("at", "1 second")).dedup(keys="who", order_by="at", keep="last")
    rates = rates.where(col("price") != 5) if made == "filtered" else rates
    view = appends("orders", ORDERS).temporal_join(rates, on="who", how="left", as_of=PROCESSING_TIME, snapshot=snapshot)
    epochs = (
        (5, [1], [(7, 3, 4), (7, 9, 8)]),  # the version of 8 is of the future
        (6, [2], [(7, 4, 3)]),  # late: older than the one that holds
        (9, [3], []),
        (10, [4], [(7, 5, 10)]),
        (11, [5], []),
    )
    met = []
    with Pipeline(view, keep_inputs=True) as pipeline:
        for second, orders, versions in epochs:
            rows = [{"who": who, "price": price, "at": at(when)} for who, price, when in versions]
            change = pipeline.step({"orders": [{"o": o, "who": 7} for o in orders], "rates": rows}, processing_time=at(second))
            met += [row[2] for row, _ in change.to_pylist()]
        found = pipeline.verify()
    assert found.equal, str(found)
    last = [5, 5] if made != "filtered" else [None, None]
    assert met == ([3, 3, 9, *last] if snapshot == "current" else [None, 3, 3, 9, last[0]])
