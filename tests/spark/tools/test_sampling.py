"""A share of a view: chosen alike on both sides, whole rows, and nothing in it is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, emitted, join_of, names, upserts
from tests.spark.conftest import Collected, Source, view_of
from tests.sweeps import for_each, some_of
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.rows.layout import WEIGHT
from zset_join.runners.spark.tools.sampling import sample_of
from zset_join.spark import ChangeStream, JoinedStream, changes
from zset_join.spark import View as AnyView
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.stages import JoinStage

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
    return view_of(joined.placed, {"orders": left, "customers": right}).withColumnRenamed(WEIGHT, "expected")


@pytest.mark.parametrize(
    ("how", "joined_by"),
    some_of(
        {
            "inner": ("inner", pairs_of),
            "left": ("left", join_of),
            "right": ("right", pairs_of),
            "full": ("full", join_of),
            "full of pairs": ("full", pairs_of),
            "anti": ("anti", join_of),
        },
        short=("full of pairs",),
    ),
)
def test_a_sample_of_the_inputs_has_all_rows_of_the_sample_of_the_view(
    orders: Source, customers: Source, tables: tuple[DataFrame, DataFrame], how: str, joined_by: Any
) -> None:
    joined = joined_by(orders, customers, how)
    sample = sample_of(joined.placed, 0.5)

    whole = rows_of(joined, *tables)
    wanted = sample.of_output(whole)
    found = rows_of(
        joined, *(sample.of_input(table, name) for name, table in zip(("orders", "customers"), tables, strict=True))
    )
    marked = [rows.withColumn("of", F.lit(name)) for name, rows in (("whole", whole), ("wanted", wanted), ("found", found))]
    rows = [tuple(row) for row in reduce(DataFrame.unionAll, marked).collect()]

    of = {name: sorted(repr(row[:-1]) for row in rows if row[-1] == name) for name in ("whole", "wanted", "found")}
    assert set(sample.by_input) == {"orders", "customers"}
    assert of["found"] == of["wanted"]
    assert 0 < len(of["found"]) < len(of["whole"])


VIEWS: dict[str, tuple[View, str, tuple[str, ...]]] = {
    "using": (lambda joined: joined, "full", ("customer_id",)),
    "renamed": (
        lambda joined: joined.where("order_id > 1").withColumnRenamed("customer_id", "who").select("who", "item"), "left", ("who",)
    ),
    "the key of a stream": (lambda joined: joined.select("item", "order_id"), "left", ("order_id",)),
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


@for_each(("view", "how", "columns"), VIEWS)
def test_a_sample_goes_by_the_best_key_that_a_view_shows(
    orders: Source, customers: Source, view: View, how: str, columns: tuple[str, ...]
) -> None:
    assert sample_of(view(join_of(orders, customers, how)).placed, 0.5).columns == columns


def cards(customers: Source) -> ChangeStream:
    """Return the third table of a chain: a card per customer."""
    rows = customers.stream().select("customer_id", F.col("name").alias("card"))
    return changes(rows, name="cards", keys=["customer_id"])


def of_two(orders: Source, customers: Source, how: str = "inner", **aliases: str) -> JoinedStream:
    """Return the join of orders and customers, under other names where it is present twice."""
    return upserts(orders).alias(aliases.get("a", "orders")).join(
        names(customers).alias(aliases.get("b", "customers")), on="customer_id", how=how
    )  # fmt: skip


CHAINS: dict[str, tuple[Callable[[Source, Source], AnyView], tuple[str, ...], set[str]]] = {
    "one key": (
        lambda o, c: of_two(o, c, "left").where("item <> 'x'").join(cards(c), on="customer_id", how="full"),
        ("customer_id",),
        {"orders", "customers", "cards"},
    ),
    "a key that a side brings": (
        lambda o, c: of_two(o, c).select("order_id", "name").join(cards(c), on=[("name", "card")], how="left"),
        ("name",),
        {"customers", "cards"},
    ),
    "of the first join": (
        lambda o, c: of_two(o, c).join(cards(c), on=[("name", "card")], how="left_anti").select("customer_id"),
        ("customer_id",),
        {"orders", "customers"},
    ),
    "a padded side": (
        lambda o, c: cards(c).join(of_two(o, c, "left").select("order_id", "name"), on=[("card", "name")], how="left"),
        ("card",),
        {"cards"},
    ),
    "through an aggregate": (
        lambda o, c: of_two(o, c, "left").groupBy("item").count().join(cards(c), on=[("item", "card")], how="right"),
        ("card",),
        {"orders", "cards"},
    ),
    "a union": (
        lambda o, c: of_two(o, c).select("customer_id", "item").union(
            of_two(o, c, "semi", a="o2", b="c2").select("customer_id", "item")
        ).groupBy("customer_id").count().join(cards(c), on="customer_id"),
        ("customer_id",),
        {"orders", "customers", "o2", "c2", "cards"},
    ),
    "the nearest row": (
        lambda o, c: of_two(o, c).select("name", "order_id").join_asof(
            of_two(o, c, a="o2", b="c2").select("customer_id", F.col("name").alias("other"), F.col("order_id").alias("at")),
            on=[("name", "other")],
            left_time="order_id",
            right_time="at",
            op=">",
        ),
        ("name",),
        {"customers", "c2"},
    ),
    "no key is shown": (
        lambda o, c: of_two(o, c).join(cards(c), on="customer_id").select(F.upper("name").alias("label")), ("label",), set()
    ),
}  # fmt: skip


@pytest.mark.long
def test_a_sample_of_a_chain_filters_every_stream_that_its_key_reaches(
    orders: Source, customers: Source, tables: tuple[DataFrame, DataFrame], spark: SparkSession
) -> None:
    """What is found in a share of the streams is the sample of the whole view, of every chain."""
    more = spark.createDataFrame([(n, f"item {n}" if n % 4 else f"name {n % 5}", 1) for n in range(25)], tables[1].schema)
    more = more.toDF("customer_id", "card", "__weight")
    by_name = {"orders": tables[0], "o2": tables[0], "customers": tables[1], "c2": tables[1], "cards": more}
    marked: list[DataFrame] = []

    for chain, (described, columns, streams) in CHAINS.items():
        view = described(orders, customers)
        sample = sample_of(view.placed, 0.5)
        assert (sample.columns, set(sample.by_input)) == (columns, streams), chain
        filtered = {name: sample.of_input(table, name) for name, table in by_name.items()}
        whole, found = (view_of(view.placed, given).withColumnRenamed(WEIGHT, "expected") for given in (by_name, filtered))
        for kind, rows in (("whole", whole), ("wanted", sample.of_output(whole)), ("found", sample.of_output(found))):
            marked.append(rows.select(F.lit(f"{chain}: {kind}"), F.to_json(F.struct(*rows.columns))))

    found_rows = sorted(tuple(row) for row in reduce(DataFrame.unionAll, marked).collect())
    of = {kind: [text for other, text in found_rows if other == kind] for kind, _ in found_rows}
    for chain in CHAINS:
        assert of.get(f"{chain}: found") == of.get(f"{chain}: wanted"), chain
    sizes = {kind: sum(len(of.get(f"{chain}: {kind}", ())) for chain in CHAINS) for kind in ("found", "whole")}
    assert 0 < sizes["found"] < sizes["whole"]


@dataclass(frozen=True)
class Placed:
    """A query of which nothing is known but its stages."""

    planned_stages: tuple[PlannedStage, ...]

    @property
    def output(self) -> Relation:
        return self.planned_stages[-1].after


@for_each(("column", "filtered"), [("item", {"orders"}), ("customer_id", {"customers"})])
def test_a_stream_is_filtered_where_all_its_readers_have_the_same_condition(
    orders: Source, customers: Source, column: str, filtered: set[str]
) -> None:
    own, others = upserts(orders), names(customers)
    view = own.join(others, on="customer_id").join(own.alias("again"), on="item", how="left").select(column)
    stages = [
        replace(one, streams={side: own.stream if stream.name == "again" else stream for side, stream in one.streams.items()})
        for one in view.placed.planned_stages
    ]

    assert set(sample_of(Placed(tuple(stages)), 0.5).by_input) == filtered


def test_a_key_that_only_the_join_sees_is_none_to_sample_by(orders: Source, customers: Source) -> None:
    left, right = upserts(orders), names(customers)
    stage = JoinStage(
        left=left.stream.relation(("customer_id", "item")),
        right=right.stream.relation(("customer_id", "name")),
        hidden=((), ("name",)),
    )
    placed = Placed((PlannedStage(number=0, stage=stage, streams={0: left.stream, 1: right.stream}),))

    sample = sample_of(placed, 0.5)

    assert sample.columns == ("customer_id", "item")
    assert set(sample.by_input) == {"orders", "customers"}


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
    assert set(report.sampled_streams) == {"orders", "customers"}
    assert str(report).startswith(f"equal in a sample of 0.3 by customer_id: {report.expected_rows} rows expected")
    assert 0 < report.actual_rows == report.expected_rows < 30
    keys = sorted(row["customer_id"] for row, _, _ in sampled.differences if row["total"] == -1)
    assert sorted((row["customer_id"], row["total"]) for row, _, actual in sampled.differences if not actual) == sorted(
        (key, key if key < 40 else None) for key in keys
    )
    assert sampled.different_rows == 2 * len(keys) == report.expected_rows + report.actual_rows


@for_each("share", [0, 0.0, -0.1, 1.5, float("nan"), True, "0.1"])
def test_a_share_that_is_none_is_refused(orders: Source, customers: Source, share: Any) -> None:
    with pytest.raises(OptionError, match=r"sample=.*expected a fraction above 0 and up to 1, such as 0.01") as refused:
        sample_of(join_of(orders, customers).placed, share)

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
        sample_of(view(join_of(orders, customers)).placed, 0.5)

    assert refused.value.code == "VERIFY_SAMPLE"
