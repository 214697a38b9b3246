"""Buckets go back to the executor that has their state, where there is more than one: see `test_faults_of_executors` for two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Follower, Source
from zset_join.runners.spark.worker import locality as locality_module
from zset_join.runners.spark.worker.locality import Locality
from zset_join.spark import JoinQuery, appends, changes

Run = Callable[..., JoinQuery]


@pytest.fixture
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality_module, "_LEAST_EXECUTORS", 1)


@pytest.fixture
def pinned(spark: SparkSession) -> Iterator[Callable[..., DataFrame]]:
    """Give a function that binds rows sent to two buckets to an anchor."""
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    made: list[Locality] = []

    def pin() -> DataFrame:
        locality = Locality(2)
        made.append(locality)
        locality.begin(spark)
        rows = spark.range(10).select((F.col("id") % 2).cast("int").alias("bucket"), "id")
        return locality.pin(rows.repartitionById(2, F.col("bucket")))

    yield pin
    for locality in made:
        locality.close()
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)


def plan_of(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def test_pinned_rows_are_the_same_in_the_same_partitions_and_take_no_shuffle_of_their_own(
    pinned: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Join" not in plan_of(pinned())

    monkeypatch.setattr(locality_module, "_LEAST_EXECUTORS", 1)
    rows = pinned().select("bucket", "id", F.spark_partition_id().alias("partition")).collect()

    assert sorted(row.id for row in rows) == list(range(10))
    assert all(row.partition == row.bucket for row in rows)

    plan = plan_of(pinned())

    assert "ShuffledHashJoin" in plan
    assert plan.partition("InMemoryRelation")[0].count("Exchange") == 1


@pytest.mark.usefixtures("one_is_enough")
def test_a_pinned_query_answers_as_any_other_and_state_that_is_elsewhere_is_a_miss(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1)).add(("u", 1, 20, "pen", 2)).add(("d", 2, None, None, 3))
    customers.add((10, "Ann", 1), (20, "Bob", 1))
    upserts = changes(
        orders.stream(), name="orders", keys=["order_id"], apply_as_deletes="op = 'd'", except_column_list=["op", "ts"]
    )
    sink = Collected()

    joined = upserts.join(appends(customers.stream(), name="customers"), on="customer_id")
    query = run(joined, sink)
    orders.add(("i", 3, 10, "ink", 1))
    elsewhere = run(joined, Follower(3), localStateDir=str(tmp_path / "another host"))

    assert sink.total() == {(20, 1, "pen", "Bob", 1): 1}
    reported = [progress["join"]["locality"] for progress in query.recentProgress]
    assert [(entry["misses"], entry["hits"] > 0) for entry in reported] == [(0, False), (0, True), (0, True)]
    missed = elsewhere.recentProgress[0]["join"]["locality"]
    assert (missed["hits"], missed["misses"] > 0, missed["executors"]) == (0, True, 1)


@pytest.mark.usefixtures("one_is_enough")
def test_an_anchor_that_somebody_has_dropped_is_made_again(spark: SparkSession, pinned: Callable[..., DataFrame]) -> None:
    locality = Locality(2)
    locality.begin(spark)
    spark.catalog.clearCache()

    locality.begin(spark)

    rows = spark.range(10).select((F.col("id") % 2).cast("int").alias("bucket"), "id")
    assert "InMemoryRelation" in plan_of(locality.pin(rows.repartitionById(2, F.col("bucket"))))
    locality.close()


def test_an_anchor_is_made_again_when_half_of_the_places_are_empty() -> None:
    locality = Locality(8)

    locality.learn(["a", "b"] * 4)

    assert [locality._is_lopsided(executors) for executors in (2, 3, 4, 5)] == [False, False, True, True]


def test_more_executors_than_buckets_leave_no_place_empty() -> None:
    locality = Locality(2)

    locality.learn(["a", "b"])

    assert not locality._is_lopsided(100)
