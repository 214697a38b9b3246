"""A pipeline answers every epoch with the change of its view; these are the examples to read first."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from zset_join import BadInputError, OptionError, PlanError, StateError, ZSet
from zset_join.expressions import col, left, lit, right
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


def test_an_aggregate_over_upserts_needs_no_trick():
    pipeline = Pipeline(orders().groupBy("customer").agg(F.sum("total").alias("revenue")))
    pipeline.step({"orders": [order(1, "Ada", 30), order(2, "Ada", 5)]})

    delta = pipeline.step({"orders": [order(2, "Bob", 5)]})

    assert changes_of(delta) == [(("Ada", 30), 1), (("Ada", 35), -1), (("Bob", 5), 1)]


def test_a_join_feeds_a_group_in_the_same_epoch():
    view = orders().join(customers(), [("customer", "name")]).groupBy("city").agg(F.count().alias("orders"))
    pipeline = Pipeline(view)

    delta = pipeline.step({"orders": [order(1, "Ada", 30)], "customers": [{"name": "Ada", "city": "London"}]})

    assert delta.to_pylist() == [(("London", 1), 1)]


def test_join_keys_may_be_expressions():
    pipeline = Pipeline(orders().join(customers(), left("total") % 10 == right("name").length(), "inner").select("id", "name"))

    delta = pipeline.step({"orders": [order(1, "x", 33)], "customers": [{"name": "Ada", "city": "London"}]})

    assert delta.to_pylist() == [((1, "Ada"), 1)]


def test_one_table_in_two_joins_needs_no_second_description():
    source = orders()
    pairs = source.join(source, left("customer") == right("customer"), condition=left("id") < right("id"))
    pipeline = Pipeline(pairs.select("id", "id_right"))

    delta = pipeline.step({"orders": [order(1, "Ada", 1), order(2, "Ada", 2), order(3, "Bob", 3)]})

    assert delta.to_pylist() == [((1, 2), 1)]


@pytest.mark.parametrize(
    ("how", "rows"),
    [
        ("inner", []),
        ("left", [((1, None), 1)]),
        ("right", [((None, "London"), 1)]),
        ("full", [((1, None), 1), ((None, "London"), 1)]),
    ],
)
def test_on_false_matches_nothing_and_pads_what_an_outer_join_preserves(how, rows):
    pipeline = Pipeline(orders().join(customers(), lit(False), how).select("id", "city"))

    delta = pipeline.step({"orders": [order(1, "Ada", 1)], "customers": [{"name": "Ada", "city": "London"}]})

    assert changes_of(delta) == rows


def test_a_where_on_upserts_retracts_the_row_that_stops_passing():
    pipeline = Pipeline(orders().where(col("total") > 10).select("id"))
    pipeline.step({"orders": [order(1, "Ada", 30)]})

    delta = pipeline.step({"orders": [order(1, "Ada", 3)]})

    assert delta.to_pylist() == [((1,), -1)]


def test_a_selection_that_leaves_the_key_out_adds_equal_rows_up():
    pipeline = Pipeline(orders().select("customer"))

    delta = pipeline.step({"orders": [order(1, "Ada", 30), order(2, "Ada", 40)]})

    assert delta.to_pylist() == [(("Ada",), 2)]


def test_the_larger_sequence_wins_although_the_column_that_orders_is_not_shown():
    source = changes(
        "prices",
        {"sku": pa.string(), "price": pa.int64(), "v": pa.int64()},
        keys="sku",
        sequence_by="v",
        except_column_list=["v"],
    )
    pipeline = Pipeline(source.select("sku", twice=col("price") * 2))
    pipeline.step({"prices": [{"sku": "a", "price": 5, "v": 7}]})

    late = pipeline.step({"prices": [{"sku": "a", "price": 4, "v": 6}]})

    assert late.to_pylist() == []
    assert pipeline.view().to_pylist() == [{"sku": "a", "twice": 10}]


def test_a_union_adds_rows_up_and_distinct_shows_each_once():
    first, second = appends("first", {"x": pa.int64()}), appends("second", {"y": pa.int64()})
    everything, distinct = Pipeline(first.union(second)), Pipeline(first.union(second).distinct())
    rows = {"first": [{"x": 1}], "second": [{"y": 1}, {"y": 2}]}

    assert changes_of(everything.step(rows)) == [((1,), 2), ((2,), 1)]
    assert changes_of(distinct.step(rows)) == [((1,), 1), ((2,), 1)]


def test_a_global_aggregate_has_its_row_from_the_first_epoch_on():
    pipeline = Pipeline(orders().agg(F.count().alias("orders"), F.sum("total").alias("revenue")))

    assert pipeline.step().to_pylist() == [((0, None), 1)]
    assert pipeline.step().to_pylist() == []


def test_a_row_deletes_its_key_where_the_condition_is_true():
    source = changes(
        "orders", {**ORDERS, "op": pa.string()}, keys="id", apply_as_deletes=col("op") == "d", except_column_list=["op"]
    )
    pipeline = Pipeline(source)
    pipeline.step({"orders": [order(1, "Ada", 30) | {"op": "c"}]})

    delta = pipeline.step({"orders": [{"id": 1, "op": "d"}]})

    assert delta.to_pylist() == [((1, "Ada", 30), -1)]


def test_rows_come_as_dicts_columns_tables_or_zsets():
    pipeline = Pipeline(appends("x", {"x": pa.int64()}).agg(F.sum("x").alias("s")))

    pipeline.step({"x": [{"x": 1}]})
    pipeline.step({"x": {"x": [2]}})
    pipeline.step({"x": pa.table({"x": [4]})})
    pipeline.step({"x": ZSet.of({"x": [8]}, [1])})

    assert pipeline.view().to_pylist() == [{"s": 15}]


def test_an_epoch_that_raises_has_changed_nothing():
    pipeline = Pipeline(appends("x", {"x": pa.int64()}).groupBy("x").count())
    pipeline.step({"x": [{"x": 1}]})

    with pytest.raises(BadInputError):
        pipeline.step({"x": ZSet.of({"x": [1]}, [-1])})

    assert pipeline.step({"x": [{"x": 1}]}).to_pylist() == [((1, 1), -1), ((1, 2), 1)]


def test_a_row_with_weight_three_is_three_times_in_the_view():
    pipeline = Pipeline(changes("x", {"x": pa.int64()}))

    pipeline.step({"x": ZSet.of({"x": [7]}, [3])})

    assert pipeline.view().to_pylist() == [{"x": 7}] * 3
    assert pipeline.contents().to_pylist() == [((7,), 3)]


def test_rows_for_an_unknown_source_are_refused_by_name():
    with pytest.raises(PlanError, match=r'rows for "orderz"; the sources of this pipeline are \[\'orders\'\]'):
        Pipeline(orders()).step({"orderz": []})


def test_a_column_that_is_not_there_is_refused_by_name():
    with pytest.raises(PlanError, match="'city'"):
        Pipeline(orders()).step({"orders": [{"id": 1, "city": "London"}]})


def test_a_view_that_is_not_kept_cannot_be_read():
    with pytest.raises(OptionError, match="keep_view=False"):
        Pipeline(orders(), keep_view=False).view()


def test_a_processing_time_needs_a_zone():
    with pytest.raises(OptionError, match="no time zone"):
        Pipeline(orders()).step(processing_time=datetime.datetime(2026, 1, 1))


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
