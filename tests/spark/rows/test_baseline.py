"""A view that starts from a snapshot of its tables, with and without a stream that overlaps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import CUSTOMERS, ORDERS, Collected, Source, upserts, weights
from tests.sweeps import for_each
from zset_join.core.errors import BadInputError, PlanError, StateError, ZsetJoinError
from zset_join.runners.spark.rows.baseline import resolve_baselines
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, appends, changes

Run = Callable[..., JoinQuery]


def table(spark: SparkSession, schema: pa.Schema, *rows: tuple[Any, ...]) -> DataFrame:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return spark.createDataFrame(pa.table([pa.array(list(column)) for column in columns], names=schema.names).cast(schema))


def names(customers: Source, baseline: DataFrame | None = None) -> ChangeStream:
    return changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", baseline=baseline)


def join_of(left: ChangeStream, right: ChangeStream, how: str = "full") -> JoinedStream:
    return left.join(right, on="customer_id", how=how)


def emitted(spark: SparkSession, query: JoinQuery, sink: Collected) -> DataFrame:
    rows = [(*row, weight) for epoch in sink.epochs for row, weight in epoch]
    return spark.createDataFrame(rows, spark_schema(query.schema).add("_weight", "long"))


def test_a_view_starts_from_its_baselines_before_any_stream_has_a_row(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    old_orders = table(spark, ORDERS, ("", 1, 10, "pen", 5), ("", 2, 20, "ink", 5), ("", 3, None, "cap", 5)).drop("op")
    old_names = table(spark, CUSTOMERS, (10, "Ann", 5), (30, "Cid", 5))
    sink = Collected()

    query = run(join_of(upserts(orders, old_orders), names(customers, old_names)), sink)

    assert len(sink.epochs) == 1
    assert query.recentProgress[0]["join"]["rows_in"] == {"orders": 3, "customers": 2}
    report = query.verify(old_orders, old_names, actual_df=emitted(spark, query, sink))
    assert report.equal, str(report)
    assert report.expected_rows == 4


def test_a_stream_that_overlaps_its_baseline_counts_every_change_once(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    old_orders = table(spark, ORDERS, ("", 1, 10, "pen", 5), ("", 2, 20, "ink", 5), ("", 4, 10, "nib", 9)).drop("op")
    old_names = table(spark, CUSTOMERS, (10, "Ann", 7), (20, "Bob", 3))
    # in epoch 0: what the baseline has already, what is older, and what is newer
    orders.add(("i", 1, 30, "pin", 4), ("u", 1, 10, "pen", 5), ("u", 2, 10, "ink", 6), ("d", 4, None, None, 8))
    customers.add((10, "An", 6), (20, "Bo", 2))
    orders.add(("d", 1, None, None, 3), ("i", 5, 20, "box", 6), ("d", 4, None, None, 10))
    customers.add((10, "Ann", 7), (20, "Bobby", 8))
    sink = Collected()

    query = run(join_of(upserts(orders, old_orders), names(customers, old_names)), sink)

    now_orders = table(spark, ORDERS, ("", 1, 10, "pen", 5), ("", 2, 10, "ink", 6), ("", 5, 20, "box", 6))
    now_names = table(spark, CUSTOMERS, (10, "Ann", 7), (20, "Bobby", 8))
    report = query.verify(now_orders, now_names, actual_df=emitted(spark, query, sink))
    assert report.equal, str(report)
    assert len(sink.epochs) == 2


@pytest.mark.long
def test_a_baseline_without_a_sequence_comes_before_every_row_of_its_stream(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    customers.add((1990, "Anna", 1)).add((1990, "Annette", 1))
    orders.add(("i", 1, 1990, "pen", 1))
    old_names = spark.range(10, 2000, 10, 7).selectExpr("id customer_id", "'old' name", "1L ts")
    people = changes(customers.stream(), name="people", keys=["customer_id"], baseline=old_names)
    sink = Collected()

    run(upserts(orders).join(people, on="customer_id", how="inner"), sink)

    assert [weights(epoch) for epoch in sink.epochs] == [
        {(1990, 1, "pen", "Anna", 1): 1},
        {(1990, 1, "pen", "Anna", 1): -1, (1990, 1, "pen", "Annette", 1): 1},
    ]


def test_a_baseline_is_applied_once_however_often_the_query_starts(
    spark: SparkSession, orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    """One with bad rows applies nothing and is read again; then an answer that was lost comes from what was committed."""
    orders.add(("i", 1, 10, "pen", 1))
    sink = Collected()

    def start(*rows: tuple[Any, ...]) -> JoinQuery:
        return run(join_of(upserts(orders), names(customers, table(spark, CUSTOMERS, *rows) if rows else None), "left"), sink)

    with pytest.raises(BadInputError, match=r'"customers".*epoch 0'):
        start((None, "nobody", 5), (10, "Ann", 5))
    with pytest.raises(StateError, match='starts from a baseline of "customers"'):
        start()
    sink.fails_in = 0
    with pytest.raises(Exception, match="the output failed in epoch 0"):
        start((10, "Ann", 5))
    [path.unlink() for path in (tmp_path / "checkpoint" / "zset" / "delta").rglob("*.arrows")]
    sink.fails_in = -1
    orders.add(("i", 2, 20, "ink", 1))
    start((10, "somebody else", 9), (20, "nobody", 9))
    customers.add((10, "Anna", 6))
    query = start()

    assert sink.epochs[0] == [((10, 1, "pen", "Ann", 5), 1)]
    assert sink.total() == {(10, 1, "pen", "Anna", 6): 1, (20, 2, "ink", None, None): 1}
    assert query.verify(actual_df=emitted(spark, query, sink)).equal


def test_appends_are_cut_where_their_baseline_ends_and_a_row_of_unknown_place_is_bad_input(
    spark: SparkSession, orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("", 1, 10, "pen", 3), ("", 2, 10, "ink", 4), ("", 3, 10, "cap", 5), ("", 4, 10, "nib", None))
    customers.add((10, "Ann", 1))
    clicks = appends(
        orders.stream().drop("op"),
        name="clicks",
        baseline=table(spark, ORDERS, ("", 1, 10, "pen", 3), ("", 2, 10, "ink", 4)).drop("op"),
        after_baseline=F.col("ts") > 4,
    )
    sink = Collected()
    view = clicks.join(appends(customers.stream(), name="customers"), on="customer_id")

    query = run(view, sink, onBadInput="quarantine")

    assert sorted((row[2], weight) for row, weight in sink.total().items()) == [("cap", 1), ("ink", 1), ("pen", 1)]
    assert query.verify(actual_df=emitted(spark, query, sink)).equal
    (row,) = pq.read_table(tmp_path / "checkpoint" / "quarantine").to_pylist()
    assert (row["code"], row["clicks"]["order_id"]) == ("NULL_AFTER_BASELINE", 4)


@pytest.mark.long
def test_a_baseline_without_the_weight_column_has_one_copy_of_every_row(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    orders.add(("", 1, 10, "pen", -1), ("", 2, 10, "ink", 2))
    customers.add((10, "Ann", 1))
    ledger = changes(
        orders.stream().drop("op"),
        name="ledger",
        weight_column="ts",
        baseline=table(spark, ORDERS, ("", 1, 10, "pen", 0), ("", 2, 10, "ink", 0)).drop("op", "ts"),
        after_baseline="true",
    )
    sink = Collected()

    run(ledger.join(appends(customers.stream(), name="customers"), on="customer_id"), sink)

    assert sink.total() == {(10, 2, "ink", "Ann", 1): 3}


@pytest.mark.long
def test_a_baseline_with_an_operation_column_is_read_like_its_stream(
    spark: SparkSession, orders: Source, customers: Source, run: Run
) -> None:
    feed = table(spark, ORDERS, ("i", 1, 10, "pen", 1), ("i", 2, 10, "ink", 1), ("d", 1, None, None, 2))
    sink = Collected()

    run(join_of(upserts(orders, feed), names(customers), "left"), sink)

    assert sink.total() == {(10, 2, "ink", None, None): 1}


def test_what_is_no_baseline_is_refused_and_a_narrower_number_in_one_is_widened(spark: SparkSession, customers: Source) -> None:
    narrow = spark.sql("select smallint(10) customer_id, 'Ann' name, int(1) ts")

    stream = names(customers, narrow)

    assert stream.stream.baseline is not None
    assert [kind for _, kind in stream.stream.baseline.dtypes[:3]] == ["bigint", "string", "bigint"]

    with pytest.raises(PlanError, match="the baseline streams; expected a batch DataFrame"):
        names(customers, customers.stream())

    with pytest.raises(PlanError, match=r'stream in append mode with a baseline needs after_baseline.*after_baseline="true"'):
        appends(customers.stream(), name="clicks", baseline=table(spark, CUSTOMERS))


@for_each(
    ("arguments", "complaint"),
    [
        ({"baseline": "t.parquet"}, "the baseline is a str; expected a batch DataFrame"),
        ({"baseline": "select 1 customer_id"}, r"the baseline lacks the columns \['name', 'ts'\]"),
        ({"baseline": "select 1 customer_id, 'a' name, '5' ts"}, r'"ts" of the baseline has type string, in the stream bigint'),
        ({"baseline": "select 1 customer_id, 'a' name, uuid() ts"}, "not deterministic"),
        ({"after_baseline": "ts > 3"}, "no baseline is given"),
        ({"baseline": "select 1 customer_id, 'a' name, 1 ts", "after_baseline": "nope > 3"}, "resolve after_baseline"),
    ],
)
def test_an_unusable_baseline_is_refused_with_a_way_out(
    spark: SparkSession, customers: Source, arguments: dict[str, Any], complaint: str
) -> None:
    reported = arguments.get("baseline", "")
    given = arguments | ({"baseline": spark.sql(reported)} if reported.startswith("select") else {})

    with pytest.raises(ZsetJoinError, match=complaint):
        changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", **given)


def test_a_baseline_is_known_by_the_name_of_its_stream_in_a_draft_for_the_other_mode_too() -> None:
    a, again, b, based = ({"name": name, "operation": []} for name in ("a", "a_2", "b", "b"))
    stored, given = {"inputs": [a, again, {**based, "baseline": True}]}, {"inputs": [a, b]}
    united = {"inputs": [{**a, "baseline": True}]}

    assert resolve_baselines(given, stored, is_loaded=True) == {"inputs": [a, {**b, "baseline": True}]}
    assert resolve_baselines(united, stored, is_loaded=True, is_draft=True) == united
    with pytest.raises(StateError, match="BASELINE_TOO_LATE"):
        resolve_baselines(united, stored, is_loaded=True)
