"""Aggregates behind a join, from two streams of files to the sum of what was emitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import emitted, join_of, names, upserts
from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.aggregates import FUNCTIONS, AggregateCall
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.expressions import left
from zset_join.query import Aggregated
from zset_join.spark import JoinedStream, JoinQuery, appends
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

Run = Callable[..., JoinQuery]


@pytest.fixture
def joined(orders: Source, customers: Source) -> JoinedStream:
    """Give a left join with three epochs of inserts, updates, moves, deletes, a new name and an empty file."""
    orders.add(*(("i", number, 10 * (number % 4), f"item {number}", 1) for number in range(1, 12)), ("i", 20, None, "cap", 1))
    customers.add((10, "Ann", 1), (20, "Bob", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 2, None, None, 2), ("u", 4, 10, "box", 2), ("u", 20, 10, "cap", 2))
    customers.add((20, "Bob", 2), (10, "Anna", 2), (30, "Cid", 2))
    orders.add()
    customers.add((30, "Cyd", 3))
    return join_of(orders, customers)


def of_every_function(joined: JoinedStream) -> JoinedStream:
    """Return groups by a key that takes the place of a column, which is still there for the functions of both libraries."""
    return joined.where("order_id <> 3").groupBy(F.upper("name").alias("name")).agg(
        ZF.count(), ZF.count("name").alias("named"), ZF.min("item"), ZF.max("name").alias("last"),
        ZF.count_distinct("name", "item"), ZF.collect_list("item"), ZF.sum("order_id").alias("total"), ZF.avg("order_id"),
        ZF.first("item", "order_id"), ZF.last("item", "order_id"), ZF.min_by("order_id", "name"), ZF.max_by("item", "customer_id"),
        ZF.stddev("order_id"), ZF.var_pop("order_id"), ZF.variance("order_id"), F.collect_set("item"), F.max("item"),
        F.sum(F.col("order_id") * 2).alias("twice"), ZF.max(F.upper("item")), F.count_if(F.col("order_id") % 2 == 0).alias("even"),
        ZF.sum("order_id").filter(F.col("item").startswith("item")).alias("items"), ZF.count().filter("order_id > 4").alias("late"),
        F.expr("max(item) filter (where order_id < 9) as earliest"),
        AggregateCall("sum", "order_id", name="odd", where=left("order_id") % 2 == 1),
    )  # fmt: skip


def test_a_view_equals_sparks_batch_query_and_its_groups_are_counted(joined: JoinedStream, run: Run) -> None:
    sink = Collected()
    made = of_every_function(joined)

    query = run(made, sink, buckets=1)

    report = query.verify(actual_df=emitted(query, sink))
    assert report.equal, str(report)
    assert sink.names == made.columns
    assert len(sink.epochs) == 3
    assert report.expected_rows > 0
    progress = query.recentProgress[-1]["join"]
    assert progress["aggregates"]["aggregate-1"]["groups"] == 4  # before the epoch: Anna, Bob, Cid and nobody's
    assert progress["aggregates"]["aggregate-1"]["resident_bytes"] > 0
    assert "aggregate-1.answer" in query.recentProgress[0]["join"]["seconds"]


def test_every_function_has_pysparks_name_and_arguments(joined: JoinedStream) -> None:
    aggregates = {*FUNCTIONS, "count_if", "every", "some", "std", "countDistinct"}
    assert aggregates == {name for name in ZF.__all__ if get_type_hints(getattr(ZF, name)).get("return") is Aggregated}
    for name in sorted(aggregates):
        arguments: tuple[Any, ...] = ("item", "order_id") if name in ("first", "last", "min_by", "max_by") else ("order_id",)
        arguments = (F.col("order_id") > 1,) if name in ("bool_and", "bool_or", "count_if", "every", "some") else arguments
        assert len(joined.agg(getattr(ZF, name)(*arguments)).columns) == 1

    twice, thrice = F.col("order_id") * 2, F.col("order_id") * 3

    view = joined.agg(ZF.sum(twice).alias("a"), ZF.sum(thrice).alias("b"), ZF.max(twice))

    (stage,) = (one.stage for one in view.placed.planned_stages if one.stage.kind == "aggregate")
    assert [call.columns for call in stage.calls] == [("__a0",), ("__a1",), ("__a0",)]

    plain = joined.groupBy(joined["name"]).agg(F.sum("order_id").alias("s"))
    trees = joined.groupBy(ZF.upper("name").alias("loud"), odd=ZF.col("order_id") % 2).agg(
        ZF.sum(joined.order_id + 1), ZF.count()
    )

    assert (plain.columns, plain.node.inputs) == (["name", "s"], (joined.node,))
    assert joined.groupBy("name").agg({"order_id": "sum", "*": "count"}).columns == ["name", "sum(order_id)", "count(1)"]
    assert joined.groupBy("customer_id", "name").count().columns == ["customer_id", "name", "count"]
    assert trees.columns == ["loud", "odd", "sum(order_id + 1)", "count(1)"]
    with pytest.raises(OptionError, match="beside Columns of Spark"):
        joined.groupBy("name").agg(ZF.sum(ZF.col("order_id") + 1), F.count("item"))


def test_the_row_of_all_rows_comes_once_from_one_bucket_also_without_rows(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("i", 2, 30, "ink", 1))
    customers.add((20, "Bob", 1))
    sink = Collected()
    view = upserts(orders).join(names(customers), on="customer_id").agg(ZF.sum("order_id"), ZF.max("item"))
    run(view, sink, buckets=4)

    customers.add((10, "Ann", 1)).add()
    orders.add().add(("d", 1, None, None, 2))
    run(view, sink, localStateDir=str(tmp_path / "another host"))

    empty, one = (None, None), (1, "pen")
    assert sink.epochs == [[(empty, 1)], [], [(empty, -1), (one, 1)], [(one, -1), (empty, 1)]]


@pytest.mark.long
def test_floats_that_spark_adds_in_another_order_are_no_difference(
    spark: SparkSession, tmp_path: Path, customers: Source, run: Run
) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    points = Source(spark, tmp_path / "points", schema)
    points.add(*((number % 3, number / 7 + 1e9 * (number % 2)) for number in range(200)))
    customers.add((0, "Ann", 1), (1, "Bob", 1), (2, "Cid", 1))
    view = appends(points.stream(), name="points").join(names(customers), on=[("id", "customer_id")])
    view = view.groupBy("name").agg(ZF.sum("x").alias("sum"), ZF.stddev("x").alias("spread"))
    sink = Collected()

    query = run(view, sink)

    actual = emitted(query, sink)
    assert query.verify(actual_df=actual).equal
    off = actual.withColumn("sum", F.col("sum") * (1 + 1e-6))
    report = query.verify(actual_df=off)
    assert (report.equal, report.different_rows) == (False, 6)


def test_a_refusal_names_what_works(joined: JoinedStream, tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"median is not a supported aggregate function.*collect_list, collect_set, count, count_distinct"
    ):
        joined.agg(F.median("order_id"))

    with pytest.raises(OptionError, match="expected column names or Columns"):
        joined.groupBy(7)

    writer = joined.agg(ZF.count()).writeStream.option("checkpointLocation", str(tmp_path / "upserts"))

    with pytest.raises((PlanError, SinkError), match="needs a key"):
        writer.foreachBatch(lambda *_: None, form="upsert").start()


def test_groups_on_disk_are_those_in_memory_over_a_restart_and_lost_files(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    view = join_of(orders, customers).groupBy("name").agg(ZF.count().alias("n"), ZF.max("item").alias("last"))
    orders.add(*(("i", number, number % 4, f"item {number} of a text that is long", 1) for number in range(20)))
    customers.add(*((number, f"a name of more than twelve bytes, {number}", 1) for number in range(4)))
    orders.add(("u", 3, 1, "zz", 2), ("d", 7, None, None, 2))
    customers.add()
    sink, options = Collected(), {"default_hash_table": "hybrid", "max_hot_keys": 0, "buckets": 2}
    before = run(view, sink, **options).recentProgress[-1]["join"]
    orders.add(("d", 3, None, None, 3), ("d", 19, None, None, 3))
    customers.add()

    query = run(view, sink, **options, localStateDir=str(tmp_path / "another host"))

    assert query.verify(actual_df=emitted(query, sink)).equal
    assert before["aggregates"]["aggregate-1"]["cold_groups"] + before["aggregates"]["aggregate-1"]["hot_groups"] == 4
    assert before["aggregates"]["aggregate-1"]["spilled_groups"] > 0
    with pytest.raises(OptionError, match="this view has none"):
        run(join_of(orders, customers), sink, **options)


@for_each(
    ("options", "reported"),
    [
        (
            {"default_hash_table": "hybrid", "max_hot_keys": 500, "buckets": 2},
            (
                "State: of groups at most 500 keys in memory, the rest on local disk|  of joins all in memory|  of routes all in memory"
                '|  each bucket: 250 keys|  cold_store="files": plain files, the default because an epoch of a join takes less than with "duckdb"|key: name'
            ),
        ),
        (
            {"default_hash_join": "hybrid", "default_hash_table": "hybrid", "max_hot_keys": 500, "buckets": 2},
            (
                "State: of joins, routes and groups at most 500 keys in memory, the rest on local disk|  each bucket of 3 stages: 83 keys"
                '|  cold_store="files": plain files, the default because an epoch of a join takes less than with "duckdb"|key: name'
            ),
        ),
    ],
)
def test_explain_reports_which_stages_share_the_budget(
    joined: JoinedStream, capsys: pytest.CaptureFixture[str], options: dict[str, Any], reported: str
) -> None:
    joined.groupBy("name").agg(ZF.count()).writeStream.options(**options).explain()

    assert capsys.readouterr().out.splitlines()[: reported.count("|") + 1] == reported.split("|")


def test_explain_shows_what_is_shuffled_and_remembered(joined: JoinedStream) -> None:
    view = joined.groupBy("name").agg(ZF.count().alias("n"), ZF.max("item")).where("n > 1").agg(ZF.sum("n").alias("all"))

    lines = view.placed.explanation(buckets=4).splitlines()

    assert lines[:11] == [
        "key: none; the view may hold equal rows",
        "Aggregate all rows: sum(n) as all",
        "   remembers: one row of sums; in one bucket",
        "   shuffles: one line of sums per group and task",
        "   not fused: it needs all rows in one bucket",
        "└─ Where n > 1",
        "   └─ Aggregate by name: count(1) as n, max(item) as max(item)",
        "         remembers: per group its key and sums, and every distinct value with its copies for max(item); in 4 buckets by group",
        "         shuffles: the changed rows, cut down to name, item",
        "         not fused: its input is in buckets by customer_id, and it needs buckets by name",
        "      └─ Join left on customer_id = customer_id",
    ]
    assert joined.groupBy("name").count().placed.explanation().startswith("key: name\n")


WRONG: dict[str, tuple[Callable[[JoinedStream], Any], str]] = {
    "first": (lambda joined: joined.groupBy("name").agg(F.first("item")), "AGGREGATE_EXPRESSION"),
    "approximate": (lambda joined: joined.groupBy("name").agg(F.approx_count_distinct("item")), "AGGREGATE_EXPRESSION"),
    "median": (lambda joined: joined.agg(F.median("order_id")), "AGGREGATE_EXPRESSION"),
    "try_sum": (lambda joined: joined.agg(F.expr("try_sum(order_id)")), "AGGREGATE_EXPRESSION"),
    "distinct sum": (lambda joined: joined.agg(F.sum_distinct("order_id")), "AGGREGATE_EXPRESSION"),
    "arithmetic": (lambda joined: joined.agg(F.sum("order_id") + 1), "AGGREGATE_EXPRESSION"),
    "no aggregate": (lambda joined: joined.groupBy("name").agg(F.lit(1)), "AGGREGATE_EXPRESSION"),
    "count of two": (lambda joined: joined.agg(F.expr("count(item, name)")), "AGGREGATE_EXPRESSION"),
    "function": (lambda joined: joined.agg(F.max(F.udf(lambda x: x, "long")("order_id"))), "AGGREGATE_EXPRESSION"),
    "unknown": (lambda joined: joined.agg(F.sum("no such")), "EXPRESSION"),
    "unknown name": (lambda joined: joined.agg(ZF.sum("nosuch")), "EXPRESSION"),
    "unknown key": (lambda joined: joined.groupBy("nosuch"), "EXPRESSION"),
    "random": (lambda joined: joined.agg(ZF.sum(F.rand())), "NOT_DETERMINISTIC"),
    "random key": (lambda joined: joined.groupBy(F.rand()), "NOT_DETERMINISTIC"),
    "window": (lambda joined: joined.agg(ZF.sum(F.sum("order_id"))), "NOT_PER_ROW"),
    "type": (lambda joined: joined.agg(ZF.sum("item")), "AGGREGATE_TYPE"),
    "unnamed": (lambda joined: joined.agg(ZF.sum("order_id").filter("true")), "AGGREGATE_NAME"),
    "key twice": (lambda joined: joined.groupBy("name", "name"), "DUPLICATE_KEY_COLUMN"),
    "name twice": (lambda joined: joined.agg(ZF.count(), ZF.count()), "OUTPUT_NAMES"),
    "underscores": (lambda joined: joined.agg(ZF.count().alias("__n")), "RESERVED_COLUMN"),
}


@for_each(("view", "code"), WRONG)
def test_what_cannot_be_kept_up_to_date_is_refused_when_it_is_written(
    joined: JoinedStream, view: Callable[[JoinedStream], Any], code: str
) -> None:
    with pytest.raises(PlanError) as caught:
        view(joined)

    assert caught.value.code == code


@for_each("given", [(), (7,), ("sum",)])
def test_agg_takes_aggregates_only(joined: JoinedStream, given: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError):
        joined.agg(*given)
