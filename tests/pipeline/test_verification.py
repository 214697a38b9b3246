"""A view is compared with DuckDB's batch query over everything that arrived."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pytest

from zset_join import OptionError, PlanError, ZSet
from zset_join.expressions import col, left, right
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StageOptions

ORDERS = {"id": pa.int64(), "customer": pa.string(), "total": pa.int64(), "price": pa.decimal128(9, 2), "rate": pa.float64()}
CUSTOMERS = {"name": pa.string(), "city": pa.string(), "limit": pa.int32()}


def orders():
    return changes("orders", ORDERS, keys="id")


def customers():
    return changes("customers", CUSTOMERS, keys="name", sequence_by="limit")


def order(id, customer, total, price="1.25", rate=0.5):  # noqa: A002 - the column's name
    return {"id": id, "customer": customer, "total": total, "price": decimal.Decimal(price), "rate": rate}


STEPS = [
    {
        "orders": [order(1, "Ada", 30), order(2, "Bob", 5, "-2.30", -0.0), order(3, None, 7)],
        "customers": [{"name": "Ada", "city": "London", "limit": 3}],
    },
    {
        "orders": [order(1, "Ada", 40, "7.01", float("nan")), order(4, "Ada", 40, "7.00")],
        "customers": [{"name": "Ada", "city": "York", "limit": 2}],
    },
    {"orders": [order(2, "Ada", 1, "0.01", 1e300)], "customers": [{"name": "Bob", "city": None, "limit": 9}]},
]


def stepped(view, **options):
    pipeline = Pipeline(view, keep_inputs=True, **options)
    for rows in STEPS:
        pipeline.step({name: given for name, given in rows.items() if name in pipeline._readings})
    return pipeline


def joined(how):
    return orders().join(customers(), left("customer") == right("name"), how, condition=left("total") > right("limit"))


VIEWS = {
    "using": lambda: orders().join(customers().withColumnRenamed("name", "customer"), "customer", "full"),
    "null_safe": lambda: orders().join(customers(), [("customer", "city")], "left", null_safe=True),
    "sums": lambda: (
        orders()
        .groupBy("customer")
        .agg(F.count(), F.sum("total"), F.avg("total"), F.sum("price"), F.avg("price"), F.avg("rate"))
    ),
    "extremes": lambda: (
        orders().groupBy("customer").agg(F.min("rate"), F.max("price"), F.min_by("id", "total"), F.max_by("id", "total"))
    ),
    "lists": lambda: (
        orders().groupBy("customer").agg(F.collect_list("total"), F.collect_set("total"), F.count_distinct("total", "price"))
    ),
    "filters": lambda: orders().agg(
        F.count_if(col("total") > 5).alias("n"), F.sum("total").filter(col("customer") == "Ada").alias("s")
    ),
    "booleans": lambda: (
        orders().groupBy("customer").agg(F.bool_and(col("total") > 5).alias("e"), F.bool_or(col("total") > 5).alias("s"))
    ),
    "bits": lambda: (
        orders().groupBy("customer").agg(F.bit_and("total"), F.bit_or(col("total") - 20), F.bit_xor("total").alias("x"))
    ),
    "all bits": lambda: orders().agg(
        F.bit_and((col("total") - 20).cast("smallint")).alias("a"), F.bit_xor(col("id").cast("int")).alias("x")
    ),
    "spread": lambda: (
        orders().groupBy("customer").agg(F.stddev("total"), F.var_pop("total"), F.stddev_pop("price"), F.variance("price"))
    ),
    "behind a join": lambda: joined("left").groupBy("city").agg(F.sum("total").alias("t")).where(col("t") > 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_kind_of_view_equals_the_batch_query(name):
    verification = stepped(VIEWS[name]()).verify()

    assert verification.equal, str(verification)
    assert verification.expected_rows > 0


def test_a_wrong_row_is_reported_with_both_weights():
    pipeline = stepped(orders().groupBy("customer").count())
    pipeline._contents[pipeline.plan.name].add(ZSet.of({"customer": ["Ada"], "count": [3]}, [1], schema=pipeline.schema))

    verification = pipeline.verify()

    assert not verification.equal
    assert verification.differences == (({"customer": "Ada", "count": 3}, 1, 2),)
    assert "1 row differs" in str(verification)


def test_rows_of_a_bag_keep_their_copies():
    pipeline = Pipeline(changes("x", {"x": pa.int64()}), keep_inputs=True)
    pipeline.step({"x": ZSet.of({"x": [1, 2]}, [3, 2])})
    pipeline.step({"x": ZSet.of({"x": [1, 2]}, [-1, -2])})

    verification = pipeline.verify()

    assert (verification.equal, verification.expected_rows) == (True, 2)


def test_inputs_come_back_with_the_directory(tmp_path):
    with Pipeline(joined("full"), tmp_path, keep_inputs=True) as pipeline:
        for rows in STEPS:
            pipeline.step(rows)

    with Pipeline(joined("full"), tmp_path, keep_inputs=True) as again:
        verification = again.verify()

    assert verification.equal, str(verification)
    assert verification.epoch == 2


def test_before_the_first_epoch_there_is_nothing_to_compare():
    assert Pipeline(orders().agg(F.count()), keep_inputs=True).verify().equal


def test_without_the_inputs_there_is_nothing_to_compare_with():
    with pytest.raises(OptionError, match="keep_inputs=True"):
        Pipeline(appends("x", {"x": pa.int64()})).verify()


def test_what_duckdb_cannot_hold_is_reported_as_such():
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe")])
    pipeline = Pipeline(changes("t", {"id": pa.int64(), "s": pa.string()}, keys="id").distinct(), keep_inputs=True)
    pipeline.step({"t": pa.table({"id": [1], "s": bad})})

    with pytest.raises(PlanError, match="UTF-8") as refused:
        pipeline.verify()

    assert refused.value.code == "NOT_VERIFIABLE"


@pytest.mark.parametrize("bad", [{"id": None, "ts": 2}, {"id": 1, "ts": None}])
def test_rows_that_were_put_aside_are_not_part_of_what_is_expected(bad: dict[str, int | None]) -> None:
    orders = changes("orders", "id INT, customer STRING, total INT, ts INT", keys="id", sequence_by="ts")
    view = orders.groupBy("customer").agg(F.sum("total").alias("total"))
    with Pipeline(view, keep_inputs=True, options=StageOptions(on_bad_input="quarantine")) as pipeline:
        pipeline.step({"orders": [{"id": 1, "customer": "Ada", "total": 3, "ts": 1}]})
        pipeline.step({"orders": [{"customer": "Ada", "total": 5, **bad}]})

        assert pipeline.dead_letters.num_rows == 1
        assert pipeline.view().to_pylist() == [{"customer": "Ada", "total": 3}]
        assert pipeline.verify().equal
