"""A pipeline answers every epoch with the change of its view; these are the examples to read first."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from zset_join import OptionError, PlanError, StateError, ZSet
from zset_join.expressions import col, lit
from zset_join.pipeline import FunctionSink, Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

ORDERS = {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}
CUSTOMERS = {"name": pa.string(), "city": pa.string()}


def orders():
    return changes("orders", ORDERS, keys="id")


def customers():
    return changes("customers", CUSTOMERS, keys="name")


def order(id, customer, total):  # noqa: A002 - the column's name
    return {"id": id, "customer": customer, "total": total}


def changes_of(delta):
    return sorted(delta.to_pylist(), key=repr)


def test_an_upsert_retracts_the_row_it_replaces():
    pipeline = Pipeline(orders())
    pipeline.step({"orders": [order(1, "Ada", 30)]})

    delta = pipeline.step({"orders": [order(1, "Ada", 40)]})

    assert delta.to_pylist() == [((1, "Ada", 30), -1), ((1, "Ada", 40), 1)]


def test_a_join_feeds_a_group_in_the_same_epoch():
    view = orders().join(customers(), [("customer", "name")]).groupBy("city").agg(F.count().alias("orders"))
    pipeline = Pipeline(view)

    delta = pipeline.step({"orders": [order(1, "Ada", 30)], "customers": [{"name": "Ada", "city": "London"}]})

    assert delta.to_pylist() == [(("London", 1), 1)]


def test_on_false_matches_nothing_and_pads_what_an_outer_join_preserves():
    pipeline = Pipeline(orders().join(customers(), lit(False), "full").select("id", "city"))

    delta = pipeline.step({"orders": [order(1, "Ada", 1)], "customers": [{"name": "Ada", "city": "London"}]})

    assert changes_of(delta) == [((1, None), 1), ((None, "London"), 1)]


def test_a_global_aggregate_has_its_row_from_the_first_epoch_on():
    pipeline = Pipeline(orders().agg(F.count().alias("orders"), F.sum("total").alias("revenue")))

    assert pipeline.step().to_pylist() == [((0, None), 1)]
    assert pipeline.step().to_pylist() == []


def test_rows_come_as_dicts_columns_tables_or_zsets():
    pipeline = Pipeline(appends("x", {"x": pa.int64()}).agg(F.sum("x").alias("s")))

    pipeline.step({"x": [{"x": 1}]})
    pipeline.step({"x": {"x": [2]}})
    pipeline.step({"x": pa.table({"x": [4]})})
    pipeline.step({"x": ZSet.of({"x": [8]}, [1])})

    assert pipeline.view().to_pylist() == [{"s": 15}]


def test_rows_for_an_unknown_source_are_refused_by_name():
    with pytest.raises(PlanError, match=r'rows for "orderz"; the sources of this pipeline are \[\'orders\'\]'):
        Pipeline(orders()).step({"orderz": []})


def test_a_column_that_is_not_there_is_refused_by_name():
    with pytest.raises(PlanError, match="'city'"):
        Pipeline(orders()).step({"orders": [{"id": 1, "city": "London"}]})


def test_a_view_that_is_not_kept_cannot_be_read():
    with pytest.raises(OptionError, match="keep_view=False"):
        Pipeline(orders(), keep_view=False).view()


def test_the_explanation_names_stages_sources_and_what_is_remembered():
    view = orders().where(col("total") > 10).join(customers(), [("customer", "name")], "left")

    explanation = Pipeline(view).explanation()

    assert 'reads "orders": Where total > 10' in explanation
    assert "Join left on customer = name" in explanation
    assert 'Source "customers" upsert keys=[name] columns=[name, city]' in explanation


@pytest.mark.parametrize(
    "given",
    [2**63, -(2**63) - 1, 1.5, True, "now", datetime.datetime(2026, 1, 1)],
)
def test_a_processing_time_that_is_none_is_refused(given):
    with Pipeline(appends("rows", {"k": pa.int64()})) as pipeline, pytest.raises(OptionError) as refused:
        pipeline.step(processing_time=given)
    assert refused.value.code == "PROCESSING_TIME"


def test_a_table_with_two_columns_of_one_name_is_refused():
    with Pipeline(appends("rows", {"k": pa.int64()})) as pipeline, pytest.raises(PlanError) as refused:
        pipeline.step({"rows": pa.table([[1], [2]], names=["k", "k"])})
    assert refused.value.code == "DUPLICATE_COLUMN"


def test_an_epoch_that_runs_out_of_memory_shows_whether_it_was_taken():
    changes_of = []

    def fails(epoch, _delta):
        if epoch not in changes_of:
            changes_of.append(epoch)
            raise MemoryError

    with Pipeline(appends("rows", {"k": pa.int64()}), outputs=[FunctionSink(fails)]) as pipeline:
        with pytest.raises(StateError, match="The epoch was applied") as refused:
            pipeline.step({"rows": [{"k": 1}]})
        assert (refused.value.code, pipeline.epoch) == ("OUT_OF_MEMORY", 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1}], r"given list, expected a dict from source to rows, such as \{\"orders\": \[\.\.\.\]\}"),
        ({"orders": {"id": [1]}}, r"a dict without \['total'\]; give all of its columns \['id', 'total'\]"),
    ],
)
def test_rows_in_a_wrong_shape_name_the_right_one(rows, message) -> None:
    pipeline = Pipeline(changes("orders", "id INT, total INT", keys="id"))

    with pytest.raises(PlanError, match=message) as refused:
        pipeline.step(rows)
    assert refused.value.code == "DELTA_TYPES"
    assert pipeline.epoch == 0
