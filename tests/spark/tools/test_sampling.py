"""A share of a view: chosen alike on both sides, whole rows, and nothing in it is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, emitted, join_of
from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.core.errors import OptionError
from zset_join.runners.spark.tools.verification import Sample
from zset_join.spark import JoinedStream
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

View = Callable[[JoinedStream], JoinedStream]


VIEWS: dict[str, tuple[View, str, tuple[str, ...]]] = {
    "using": (lambda joined: joined, "full", ("customer_id",)),
    "renamed": (
        lambda joined: joined.where("order_id > 1").withColumnRenamed("customer_id", "who").select("who", "item"), "left", ("who",)
    ),
    "without its join key": (lambda joined: joined.select("item", "order_id"), "left", ("item", "order_id")),
    "left out": (lambda joined: joined.select("item", F.col("order_id") + 1.5), "left", ("item",)),
    "grouped by the key": (
        lambda joined: joined.groupBy("name", "customer_id").count().where("count > 1"), "left", ("name", "customer_id")
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


@for_each(("view", "how", "columns"), VIEWS)
def test_a_sample_goes_by_the_best_key_that_a_view_shows(
    orders: Source, customers: Source, view: View, how: str, columns: tuple[str, ...]
) -> None:
    assert Sample.of(view(join_of(orders, customers, how)).placed, 0.5).columns == columns


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
    assert str(report).startswith(f"equal in a sample of 0.3 by customer_id, name: {report.expected_rows} rows expected")
    assert 0 < report.actual_rows == report.expected_rows < 30
    keys = sorted(row["customer_id"] for row, _, _ in sampled.differences if row["total"] == -1)
    assert sorted((row["customer_id"], row["total"]) for row, _, actual in sampled.differences if not actual) == sorted(
        (key, key if key < 40 else None) for key in keys
    )
    assert sampled.different_rows == 2 * len(keys) == report.expected_rows + report.actual_rows


@for_each("share", [0, 0.0, -0.1, 1.5, float("nan"), True, "0.1"])
def test_a_share_that_is_none_is_refused(orders: Source, customers: Source, share: Any) -> None:
    with pytest.raises(OptionError, match=r"sample=.*expected a fraction above 0 and up to 1, such as 0.01") as refused:
        Sample.of(join_of(orders, customers).placed, share)

    assert refused.value.code == "VERIFY_SAMPLE"


@for_each(
    ("view", "why"),
    [
        (lambda joined: joined.agg(ZF.count()), "one row of all rows"),
        (lambda joined: joined.select((F.col("order_id") + 0.5).alias("half")), "none is the same to the last digit"),
    ],
)
def test_a_view_without_anything_to_sample_by_is_refused(orders: Source, customers: Source, view: View, why: str) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        Sample.of(view(join_of(orders, customers)).placed, 0.5)

    assert refused.value.code == "VERIFY_SAMPLE"
