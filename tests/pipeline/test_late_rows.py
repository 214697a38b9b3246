"""Late rows, versions and corrections of a pipeline: dead letters under either policy, in memory and in a directory."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from zset_join import ZSet
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, appends, changes, versioned
from zset_join.stages.stage import StageOptions

ORDERS = {"id": pa.int64(), "currency": pa.string(), "t": pa.int64()}
RATES = {"currency": pa.string(), "rate": pa.int64(), "at": pa.int64()}
BOUGHT = appends("orders", ORDERS, watermark=("t", 0))


def rates():
    return versioned("rates", RATES, keys="currency", version_by="at", delay=0)


def order(number, currency, time):
    return {"id": number, "currency": currency, "t": time}


def rate(currency, number, at):
    return {"currency": currency, "rate": number, "at": at}


def letters(pipeline):
    found = pipeline.dead_letters.to_pylist()
    return sorted((line["source"], line["code"], next(iter(json.loads(line["row"]).values()))) for line in found)


def run(view, directory, policy):
    pipeline = Pipeline(view, directory, options=StageOptions(on_bad_input=policy))
    pipeline.step({"orders": [order(1, "EUR", 10)], "rates": [rate("EUR", 1, 2), rate("EUR", 2, 9), rate("USD", 3, 10)]})
    return pipeline


@pytest.mark.parametrize("policy", ["error", "quarantine"])
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize(("late", "listed"), [(None, [2, 3]), ("drop", []), ("join", [2])])
def test_late_rows_are_among_the_dead_letters_under_any_policy(policy, lasts, late, listed, tmp_path):
    view = BOUGHT.temporal_join(rates(), on="currency", as_of="t", how="left", late=late)
    with run(view, tmp_path if lasts else None, policy) as pipeline:
        answer = pipeline.step(
            {"orders": [order(2, "EUR", 5), order(3, "GBP", 5)], "rates": [rate("EUR", 7, 1), rate("GBP", 8, 20)]}
        )

        late_rows = [("orders", "LATE_ROW", number) for number in listed]
        assert letters(pipeline) == [*late_rows, ("rates", "LATE_VERSION", "EUR")]
        assert [row for row, _ in answer.to_pylist()] == ([("GBP", 3, 5, None, None)] if late == "join" else [])


def test_a_late_row_of_a_key_without_versions_is_answered_in_eager_mode_too():
    view = BOUGHT.temporal_join(rates(), on="currency", as_of="t", how="left", emit="eager")
    pipeline = run(view, None, "error")

    answer = pipeline.step({"orders": [order(2, "GBP", 5), order(3, "EUR", 5)]})

    assert [row[1] for row, _ in answer.to_pylist()] == [2]
    assert letters(pipeline) == [("orders", "LATE_ROW", 3)]


def test_a_late_row_before_a_delete_that_was_forgotten_is_set_aside():
    table = changes("rates", RATES, keys="currency", watermark=("at", 0))
    view = BOUGHT.temporal_join(table, on="currency", as_of="t", how="left", late="join", is_change_time=True)
    pipeline = Pipeline(view, options=StageOptions(tombstone_retention_seconds=1))
    pipeline.step({"orders": [order(1, "EUR", 10)], "rates": [rate("EUR", 1, 2), rate("USD", 3, 10)]}, processing_time=0)
    rows = {"currency": ["EUR"], "rate": [0], "at": [6]}
    pipeline.step({"rates": ZSet.of(rows, [-1], schema=pipeline.plan.sources[1].relation.schema)}, processing_time=1)
    pipeline.step({"rates": [rate("USD", 3, 11)], "orders": [order(5, "USD", 11)]}, processing_time=10**7)
    pipeline.step({"rates": [rate("USD", 3, 12)], "orders": [order(5, "USD", 12)]}, processing_time=10**8)

    answer = pipeline.step({"orders": [order(2, "EUR", 5), order(3, "EUR", 7)]}, processing_time=10**8)

    assert letters(pipeline) == [("orders", "LATE_ROW", 2)]
    assert [row[1] for row, _ in answer.to_pylist()] == [3]


def test_a_retraction_of_what_is_past_is_a_dead_letter_and_joins_that_share_versions_list_it_once():
    table = changes("rates", {**RATES, "w": pa.int64()}, weight_column="w", watermark=("at", 0)).dedup(
        keys="currency", order_by="at", keep="last"
    )
    one = BOUGHT.temporal_join(table, on="currency", as_of="t").select("id", "rate")
    other = BOUGHT.where(col("id") > 100).temporal_join(table, on="currency", as_of="t").select("id", "rate")
    pipeline = Pipeline(one.unionAll(other))
    first = [{**rate("EUR", 1, 2), "w": 1}, {**rate("EUR", 2, 9), "w": 1}, {**rate("USD", 3, 10), "w": 1}]
    pipeline.step({"orders": [order(1, "EUR", 10)], "rates": first})

    with pytest.warns(UserWarning, match='1 of "rates"'):
        pipeline.step({"rates": [{**rate("EUR", 2, 9), "w": -1}]})

    assert letters(pipeline) == [("rates", "LATE_CORRECTION", "EUR")]


def test_forgotten_deletes_outlast_a_snapshot_and_a_regrouping():
    from zset_join.stages.stage import _summed

    times = [{b"f": json.dumps({"time": time}).encode()} for time in (-(1 << 63), 7, -(1 << 63))]

    assert json.loads(_summed(times)[b"f"]) == {"time": 7}
