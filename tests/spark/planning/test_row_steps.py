"""WHERE, SELECT and computed columns behind a join, from two streams of files to the sum of what was emitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import emitted, join_of
from tests.spark.conftest import Collected, Source, weights
from tests.sweeps import for_each
from zset_join.core.errors import PlanError
from zset_join.spark import JoinedStream, JoinQuery

Run = Callable[..., JoinQuery]


@pytest.fixture
def joined(orders: Source, customers: Source) -> JoinedStream:
    """Give a left join with two epochs: inserts, then an update, a move, a delete and a new name."""
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, None, "cap", 1), ("i", 4, 10, "nib", 1))
    customers.add((10, "Ann", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 2, None, None, 2), ("u", 4, 10, "box", 2))
    customers.add((20, "Bob", 1), (10, "Anna", 2))
    return join_of(orders, customers)


def test_a_view_of_every_word_equals_sparks_batch_query_and_emits_nothing_of_what_became_equal(
    joined: JoinedStream, run: Run
) -> None:
    sink = Collected()
    words = (
        joined.where("customer_id = 10 and name like 'Ann%'")
        .filter(F.col("name").isNull() | (F.col("order_id") > 0))
        .select("*", F.length("item").alias("letters"), F.substring("name", 1, 3).alias("who"))
        .select([F.col("item"), F.coalesce("who", F.lit("nobody")).alias("name"), F.col("order_id"), F.col("letters")])
        .selectExpr("order_id + 1 as next", "(order_id + 1) * 2 as more", "letters", "name", "item")
        .withColumn("item", F.concat("item", F.lit("!")))
        .withColumns({"a": F.col("next"), "b": F.concat_ws("-", "letters", "name")})
        .where("more > 3 and a >= 2")
        .withColumnRenamed("next", "what.for")
        .drop("item", "more")
    )

    query = run(words, sink)

    report = query.verify(actual_df=emitted(query, sink))
    assert report.equal, str(report)
    assert sink.names == words.columns == ["what.for", "letters", "name", "a", "b"]
    assert {row[0]: weight for row, weight in sink.epochs[0]} == {2: 1, 5: 1}
    # Order 4 has another item of as many letters, and its customer another name of the same beginning: neither is here.
    assert [(row[0], weight) for row, weight in sink.epochs[1]] == [(2, -1)]


def test_a_view_goes_on_after_a_restart_and_gives_a_lost_answer_again(
    orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    orders.add(("i", 1, 10, "pen", 1)).add(("u", 1, 20, "pen", 2)).add(("i", 2, 20, "ink", 3))
    customers.add((10, "Ann", 1))
    sink = Collected()
    sink.fails_in = 1
    view = join_of(orders, customers).select("order_id", F.coalesce("name", F.lit("?")).alias("name")).where("order_id < 9")
    with pytest.raises(Exception, match="the output failed in epoch 1"):
        run(view, sink)
    lost = list((tmp_path / "checkpoint" / "zset" / "delta").glob("*/*1-*"))
    [part.unlink() for part in lost]

    sink.fails_in = -1
    run(view, sink, localStateDir=str(tmp_path / "another host"))

    assert lost
    assert [weights(epoch) for epoch in sink.epochs] == [
        {(1, "Ann"): 1},
        {(1, "Ann"): -1, (1, "?"): 1},
        {(2, "?"): 1},
    ]


def test_an_error_of_an_expression_stops_the_query_and_nothing_is_committed(joined: JoinedStream, run: Run) -> None:
    sink = Collected()

    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        run(joined.select((F.lit(1) / (F.col("order_id") - 4)).alias("x")), sink)

    assert sink.epochs == []


def test_the_key_of_a_view_is_what_became_of_the_key_of_the_join_and_explain_shows_it_with_the_steps(
    joined: JoinedStream,
) -> None:
    assert joined.output.primary_key == ("order_id",)
    assert joined.where("order_id > 1").output.primary_key == ("order_id",)
    assert joined.select("item", F.col("order_id").alias("id")).output.primary_key == ("id",)
    assert joined.withColumnRenamed("order_id", "id").output.primary_key == ("id",)
    assert joined.drop("order_id").output.primary_key == ()
    assert joined.withColumn("order_id", F.col("order_id") + 1).output.primary_key == ()

    view = joined.where("order_id > 1").select("item", F.upper("name").alias("name"))

    lines = view.placed.explanation(buckets=2).splitlines()

    assert lines[:3] == [
        "key: none; the view may hold equal rows",
        "Select item, upper(name) AS name",
        "└─ Where order_id > 1",
    ]
    assert lines[3] == "   └─ Join left on customer_id = customer_id"
    assert all(line.startswith("      ") for line in lines[4:])


WRONG = {
    "rand": (lambda joined: joined.where(F.rand() > 0.5), "NOT_DETERMINISTIC"),
    "uuid": (lambda joined: joined.withColumn("u", F.expr("uuid()")), "NOT_DETERMINISTIC"),
    "partition": (lambda joined: joined.select(F.spark_partition_id()), "NOT_DETERMINISTIC"),
    "increasing": (lambda joined: joined.select(F.monotonically_increasing_id().alias("m")), "NOT_DETERMINISTIC"),
    "file": (lambda joined: joined.select(F.input_file_name()), "NOT_DETERMINISTIC"),
    "function": (
        lambda joined: joined.select(F.udf(lambda x: x, "long").asNondeterministic()("order_id")),
        "NOT_DETERMINISTIC",
    ),
    "timestamp": (lambda joined: joined.where("current_timestamp() > timestamp'2020-01-01'"), "NOT_DETERMINISTIC"),
    "now": (lambda joined: joined.selectExpr("now() as n"), "NOT_DETERMINISTIC"),
    "today": (lambda joined: joined.withColumn("d", F.current_date()), "NOT_DETERMINISTIC"),
    "unix": (lambda joined: joined.selectExpr("unix_timestamp() as n"), "NOT_DETERMINISTIC"),
    "user": (lambda joined: joined.where("current_user() = name"), "NOT_DETERMINISTIC"),
    "zone": (lambda joined: joined.selectExpr("current_timezone() as z"), "NOT_DETERMINISTIC"),
    "aggregate": (lambda joined: joined.select(F.sum("order_id")), "NOT_PER_ROW"),
    "window": (lambda joined: joined.select(F.row_number().over(Window.orderBy("order_id"))), "NOT_PER_ROW"),
    "generator": (lambda joined: joined.select(F.explode(F.array("order_id"))), "NOT_PER_ROW"),
    "subquery": (lambda joined: joined.where("order_id in (select 1)"), "NOT_PER_ROW"),
    "a user's own": (lambda joined: joined.select(F.udf(lambda x: x, "long")("order_id").alias("x")), "SPARK_ONLY_STEP"),
    "unknown": (lambda joined: joined.where("ordr_id = 1"), "EXPRESSION"),
    "no sql": (lambda joined: joined.where("order_id = = 1"), "EXPRESSION"),
    "of a dataframe": (lambda joined: joined.where(joined.placed.streams[0].dataframe["order_id"] > 1), "EXPRESSION"),
    "twice": (lambda joined: joined.select("item", F.col("name").alias("ITEM")), "OUTPUT_NAMES"),
    "nothing": (lambda joined: joined.select(), "OUTPUT_NAMES"),
    "all dropped": (lambda joined: joined.drop(*joined.columns), "OUTPUT_NAMES"),
    "underscores": (lambda joined: joined.withColumn("__weight", F.lit(1)), "RESERVED_COLUMN"),
    "drop": (lambda joined: joined.drop("no such"), "UNKNOWN_COLUMN"),
    "rename": (lambda joined: joined.withColumnRenamed("no such", "x"), "UNKNOWN_COLUMN"),
}


@for_each(("view", "code"), WRONG)
def test_what_cannot_be_kept_up_to_date_is_refused_when_it_is_written(
    joined: JoinedStream, view: Callable[[JoinedStream], JoinedStream], code: str
) -> None:
    with pytest.raises(PlanError) as caught:
        view(joined)

    assert caught.value.code == code
