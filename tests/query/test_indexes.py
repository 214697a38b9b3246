"""One copy of a table for all joins that look up in it: how it is named, found, kept and brought back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import col, lit
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes, versioned

ORDERS = {"id": pa.int64(), "sold_in": pa.string(), "paid_in": pa.string(), "t": pa.int64()}
RATES = {"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()}


ONE_SOURCE = appends("orders", ORDERS, watermark=("t", 0))


def orders():
    return ONE_SOURCE


def rates():
    return versioned("rates", RATES, keys="currency", version_by="at", delay=0).create_index("currency", name="by_currency")


def both_rates(emit="on_watermark"):
    """An order with the rates of two currencies, in a chain, beside those of big orders."""
    table = rates()
    sold = orders().temporal_join(table, on=[("sold_in", "currency")], as_of="t").select("id", "paid_in", "t", sold=col("rate"))
    paid = sold.temporal_join(table, on=[("paid_in", "currency")], how="left", as_of="t", emit=emit)
    beside = orders().where(col("id") > 1).temporal_join(table, on=[("paid_in", "currency")], as_of="t")
    shown = [paid.select("id", "sold", paid=col("rate")), beside.select("id", sold=lit(0.0), paid=col("rate"))]
    return shown[0].union(shown[1])


EPOCHS = [
    {
        "orders": [
            {"id": 1, "sold_in": "EUR", "paid_in": "USD", "t": 7},
            {"id": 2, "sold_in": "USD", "paid_in": "EUR", "t": 8},
        ],
        "rates": [{"currency": "EUR", "rate": 1.0, "at": 5}, {"currency": "USD", "rate": 1.1, "at": 5}],
    },
    {"rates": [{"currency": "EUR", "rate": 1.5, "at": 8}, {"currency": "USD", "rate": 1.2, "at": 9}]},
    {"orders": [{"id": 3, "sold_in": "EUR", "paid_in": "USD", "t": 9}]},
]


def test_joins_beside_each_other_and_in_a_chain_keep_one_copy_of_the_versions():
    pipeline = Pipeline(both_rates(), keep_inputs=True)
    for rows in EPOCHS:
        pipeline.step(rows)

    kept = {name: stage["right_rows"] for name, stage in pipeline.statistics().items() if name.startswith("temporal")}
    assert kept == {"temporal_join-0": 2, "temporal_join-1": 2, "temporal_join-2": 2}  # of all three, the newest rates
    assert [index.readers for index in pipeline.plan.shared] == [(0, 1, 2)]
    assert len(pipeline.plan.states) == 1
    assert pipeline.verify().equal
    assert pipeline.view().num_rows == 5


def test_a_shared_table_lasts_in_a_directory_and_is_logged_once(tmp_path):
    alone = Pipeline(both_rates("eager"))
    expected = [alone.step(rows).to_pylist() for rows in EPOCHS]

    answers = []
    for rows in EPOCHS:
        with Pipeline(both_rates("eager"), tmp_path / "state", snapshot_after_bytes=1) as pipeline:
            answers.append(pipeline.step(rows).to_pylist())

    assert answers == expected
    assert sorted({path.name for path in (tmp_path / "state" / "zset" / "log").iterdir()}) == ["shared_table-0-0", "view-0"]


def test_a_shared_table_is_saved_and_loaded(tmp_path):
    one, other = Pipeline(both_rates()), Pipeline(both_rates())
    one.step(EPOCHS[0])
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")

    assert [other.step(rows).to_pylist() for rows in EPOCHS[1:]] == [one.step(rows).to_pylist() for rows in EPOCHS[1:]]


def test_explain_and_describe_name_the_index():
    view = both_rates()
    table = rates()
    joined = orders().temporal_join(table, on=[("sold_in", "currency")], as_of="t")

    reported = view.plan().explain(buckets=1)
    assert reported.count("looks up in index by_currency (currency): one copy, shared with stage") == 3
    assert str(table.describe()) == "versioned: every row is a version of currency, from at on\nindex by_currency (currency)"
    assert str(joined.describe()).endswith("looks up in index by_currency")
    assert "looks up in index by_currency (currency)" in joined.plan().explain(buckets=1)
    assert table.where(col("rate") > 1).describe().indexes == ()


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (lambda table: orders().temporal_join(table, on=[("paid_in", "currency")], as_of=PROCESSING_TIME), "latest rows"),
        (
            lambda table: orders().temporal_join(
                table, on=[("paid_in", "currency")], as_of="t", emit="eager", keep_probe_for=5
            ),
            "for corrections longer or shorter",
        ),
        (
            lambda table: appends("refunds", ORDERS, watermark=("t", 0)).temporal_join(
                table, on=[("paid_in", "currency")], as_of="t"
            ),
            "the watermarks of other sources",
        ),
    ],
)
def test_a_second_copy_is_kept_where_it_would_show_and_explain_names_the_reason(second, reason):
    table = rates()
    first = orders().temporal_join(table, on=[("sold_in", "currency")], as_of="t").select("id", "rate")
    plan = first.union(second(table).select("id", "rate")).plan()

    assert plan.shared == ()
    (line,) = [line for line in plan.explain(buckets=1).splitlines() if "second copy of its right side" in line]
    assert reason in line
    assert line.endswith(", unlike stage 0")


def test_joins_by_processing_time_go_by_a_part_of_their_key_and_share_it():
    prices = changes("prices", {"item": pa.string(), "shop": pa.string(), "price": pa.int64()}, keys=["item", "shop"])
    prices = prices.create_index("item")
    sales = appends("sales", {"id": pa.int64(), "item": pa.string(), "shop": pa.string()})
    exact = sales.temporal_join(prices, on=["item", "shop"], how="left", as_of=PROCESSING_TIME)
    anywhere = sales.temporal_join(prices, on=[("item", "item")], as_of=PROCESSING_TIME, index="prices_by_item")
    pipeline = Pipeline(exact.select("id", "price").union(anywhere.select("id", "price")))

    answer = pipeline.step(
        {
            "sales": [{"id": 1, "item": "nail", "shop": "a"}, {"id": 2, "item": "nail", "shop": "c"}],
            "prices": [{"item": "nail", "shop": "a", "price": 3}, {"item": "nail", "shop": "b", "price": 4}],
        }
    )

    assert sorted(answer.to_pylist(), key=repr) == [((1, 3), 2), ((1, 4), 1), ((2, 3), 1), ((2, 4), 1), ((2, None), 1)]
    assert [(index.name, index.columns) for index in pipeline.plan.shared] == [("prices_by_item", ("item",))]
    assert "shop" in exact.columns
    assert exact.columns.count("item") == 1
    assert pipeline.statistics()["process_time_join-0"]["right_rows"] == 2


def test_an_index_that_cannot_be_is_refused():
    with pytest.raises(PlanError, match="name one or more of its columns") as columns:
        rates().create_index("amount")
    with pytest.raises(OptionError, match="has an index by_currency already") as name:
        rates().create_index("currency", name="by_currency")

    assert (columns.value.code, name.value.code) == ("INDEX_COLUMNS", "INDEX_NAME")


def test_an_index_that_does_not_fit_a_join_is_refused_by_name():
    table = rates().create_index("rate", name="by_rate")

    with pytest.raises(OptionError, match="by_currency") as unknown:
        orders().temporal_join(table, on=[("sold_in", "currency")], as_of="t", index="by_city")
    with pytest.raises(PlanError, match="looks up by the primary key of the versions") as other:
        orders().temporal_join(table, on=[("sold_in", "currency")], as_of="t", index="by_rate")

    assert (unknown.value.code, other.value.code) == ("NO_SUCH_INDEX", "INDEX_COLUMNS")
