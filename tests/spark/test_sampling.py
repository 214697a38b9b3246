"""A share of a view: chosen alike on both sides, whole rows, and nothing in it is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from tests.spark.test_query import Run, emitted, join_of, names, upserts
from zset_join.errors import OptionError
from zset_join.spark import JoinedStream
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.spark.batch_view import batch_view
from zset_join.spark.layout import WEIGHT
from zset_join.spark.sampling import sample_of
from zset_join.spark.verification import batch_join

View = Callable[[JoinedStream], JoinedStream]


def pairs_of(orders: Source, customers: Source, how: str) -> JoinedStream:
    """Return a join whose key columns have two names."""
    return upserts(orders).join(names(customers), on=[("customer_id", "customer_id")], how=how)


@pytest.fixture
def tables(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Give forty orders, some of nobody, and customers with and without orders."""
    orders = [(n, n % 13 if n % 5 else None, f"item {n % 3}", 1) for n in range(40)]
    customers = [(n, f"name {n % 4}", 1) for n in range(6, 20)]
    return (
        spark.createDataFrame(orders, "order_id long, customer_id long, item string, __weight long"),
        spark.createDataFrame(customers, "customer_id long, name string, __weight long"),
    )


def rows_of(joined: JoinedStream, left: DataFrame, right: DataFrame) -> DataFrame:
    """Return what Spark makes of two tables, with numbered columns."""
    rows = batch_view(batch_join(joined, left, right).toDF(*joined.before_steps.schema.names, WEIGHT), joined.steps)
    return rows.toDF(*(f"c{at}" for at in range(len(joined.columns))), "expected")


@pytest.mark.parametrize(
    ("how", "joined_by"),
    [("inner", pairs_of), ("left", join_of), ("right", pairs_of), ("full", join_of), ("full", pairs_of), ("anti", join_of)],
)
def test_a_sample_of_the_inputs_has_all_rows_of_the_sample_of_the_view(
    orders: Source, customers: Source, tables: tuple[DataFrame, DataFrame], how: str, joined_by: Any
) -> None:
    joined = joined_by(orders, customers, how)
    sample = sample_of(joined, 0.5)

    whole = rows_of(joined, *tables)
    wanted = sample.of_output(whole)
    found = rows_of(joined, *(sample.of_input(table, side) for side, table in enumerate(tables)))
    marked = [rows.withColumn("of", F.lit(name)) for name, rows in (("whole", whole), ("wanted", wanted), ("found", found))]
    rows = [tuple(row) for row in reduce(DataFrame.unionAll, marked).collect()]

    of = {name: sorted(repr(row[:-1]) for row in rows if row[-1] == name) for name in ("whole", "wanted", "found")}
    assert sample.by_input
    assert of["found"] == of["wanted"]
    assert 0 < len(of["found"]) < len(of["whole"])


VIEWS: dict[str, tuple[View, str, tuple[str, ...]]] = {
    "using": (lambda joined: joined, "full", ("customer_id",)),
    "renamed": (
        lambda joined: joined.where("order_id > 1").withColumnRenamed("customer_id", "who").select("who", "item"), "left", ("who",)
    ),
    "left out": (lambda joined: joined.select("item", F.col("order_id") + 1.5), "left", ("item",)),
    "grouped by the key": (
        lambda joined: joined.groupBy("name", "customer_id").count().where("count > 1"), "left", ("customer_id",)
    ),
    "grouped by another column": (
        lambda joined: joined.groupBy("name").agg(ZF.avg("order_id").alias("mean")).select("mean", F.col("name").alias("n")),
        "left",
        ("n",),
    ),
    "groups of groups": (
        lambda joined: joined.groupBy("customer_id").count().groupBy("count").agg(ZF.count("customer_id")), "left", ("count",)
    ),
    "distinct": (lambda joined: joined.select("name", "item").distinct(), "left", ("name", "item")),
    "without its group key": (
        lambda joined: joined.groupBy("name").agg(ZF.count().alias("n"), ZF.avg("order_id").alias("mean")).drop("name"),
        "left",
        ("n",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("view", "how", "columns"), VIEWS.values(), ids=VIEWS.keys())
def test_a_sample_goes_by_the_best_key_that_a_view_shows(
    orders: Source, customers: Source, view: View, how: str, columns: tuple[str, ...]
) -> None:
    assert sample_of(view(join_of(orders, customers, how)), 0.5).columns == columns


def test_every_wrong_row_of_the_sample_is_found(orders: Source, customers: Source, run: Run) -> None:
    orders.add(*(("i", n, n, f"item {n}", 1) for n in range(40)))
    customers.add(*((n, f"name {n}", 1) for n in range(5, 45)))
    sink = Collected()
    query = run(join_of(orders, customers, "full").groupBy("customer_id", "name").agg(ZF.sum("order_id").alias("total")), sink)
    right = emitted(query, sink)
    wrong = right.withColumn("total", F.lit(-1).cast("long"))

    report = query.verify(actual_df=right, sample=0.3)
    sampled = query.verify(actual_df=wrong, most_differences=1_000, sample=0.3)

    assert report.equal
    assert str(report).startswith(f"equal in a sample of 0.3 by customer_id: {report.expected_rows} rows expected")
    assert 0 < report.actual_rows == report.expected_rows < 30
    keys = sorted(row["customer_id"] for row, _, _ in sampled.differences if row["total"] == -1)
    assert sorted((row["customer_id"], row["total"]) for row, _, actual in sampled.differences if not actual) == sorted(
        (key, key if key < 40 else None) for key in keys
    )
    assert sampled.different_rows == 2 * len(keys) == report.expected_rows + report.actual_rows


@pytest.mark.parametrize("share", [0, 0.0, -0.1, 1.5, float("nan"), True, "0.1"])
def test_a_share_that_is_none_is_refused(orders: Source, customers: Source, share: Any) -> None:
    with pytest.raises(OptionError, match=r"sample=.*expected a fraction above 0 and up to 1, such as 0.01") as refused:
        sample_of(join_of(orders, customers), share)

    assert refused.value.code == "VERIFY_SAMPLE"


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (lambda joined: joined.agg(ZF.count()), "one row of all rows"),
        (lambda joined: joined.select((F.col("order_id") + 0.5).alias("half")), "none is the same to the last digit"),
    ],
    ids=["all rows", "only floats"],
)
def test_a_view_without_anything_to_sample_by_is_refused(orders: Source, customers: Source, view: View, why: str) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        sample_of(view(join_of(orders, customers)), 0.5)

    assert refused.value.code == "VERIFY_SAMPLE"
