"""Stages whose rows are where the next one looks for them run in one task, and nothing is shuffled between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.runners.spark.epoch.epoch_plan import EpochPlan
from zset_join.runners.spark.planning import placed_query
from zset_join.spark import ChangeStream, JoinQuery, View, changes, rescale
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

Run = Callable[..., JoinQuery]
ROWS = pa.schema([("op", pa.string()), ("k", pa.int64()), ("j", pa.int32()), ("v", pa.string())])


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Callable[[str], Source]:
    """Give a function that makes the source of rows op, k, j, v of a name."""
    return lambda name: Source(spark, tmp_path / name, ROWS)


def table(source: Source, name: str, keys: list[str] | None = None) -> ChangeStream:
    """Return the table of k, j and v; by k it is joined without a route, and its k is never NULL."""
    rows = source.stream().withColumnsRenamed({"v": f"{name}_v", "j": f"{name}_j"})
    return changes(rows, name=name, keys=keys or ["k"], apply_as_deletes="op = 'd'", except_column_list=["op"])


@pytest.fixture
def tables(source: Callable[[str], Source]) -> SimpleNamespace:
    """Give three tables by k, one whose k may be NULL, and one where it is called d_k."""
    moving = table(source("moving"), "moving", ["moving_j"])
    other = changes(source("d").stream().toDF("op", "d_k", "d_j", "d_v").drop("op"), name="d", keys=["d_k"])
    return SimpleNamespace(moving=moving, d=other, **{name: table(source(name), name) for name in "abc"})


def fused_stages(view: View) -> list[list[str]]:
    return [[planned.name for planned in one.members] for one in view.placed.fused_stages if not one.last.stage.forwards]


Describe = Callable[[SimpleNamespace], View]
FUSED: dict[str, Describe] = {
    "inner, inner": lambda t: t.a.join(t.b, "k").join(t.c, "k"),
    "full by a key without NULL": lambda t: t.a.join(t.b, "k", "full").join(t.c, "k", "full"),
    "the key column of either side": lambda t: t.a.join(t.b, [("k", "k")]).join(t.d, [("k_right", "d_k")], "left"),
    "NULLs that are dropped": lambda t: t.moving.join(t.b, "k", "left").join(t.c, "k", "left_semi"),
    "NULLs that are values": lambda t: t.moving.join(t.b, "k", "full", null_safe=True).join(t.c, "k", "full", null_safe=True),
    "no NULL behind an inner join": lambda t: t.moving.join(t.b, "k").join(t.c, "k", "full"),
    "an aggregate": lambda t: t.a.join(t.b, "k", "full").groupBy("k").agg(ZF.count()),
    "expressions between": lambda t: t.a.join(t.b, "k").where("a_j > 0").select("k", "b_v").join(t.c, "k").groupBy("k").count(),
    "a new name": lambda t: t.a.join(t.b, "k").withColumnRenamed("k", "l").join(t.c, [("l", "k")], "full"),
    "a computed argument": lambda t: t.a.join(t.b, "k").groupBy("k").agg(ZF.sum(F.col("a_j") * 2)),
    "a view on the right": lambda t: t.c.join(t.a.join(t.b, "k"), "k", "left"),
}  # fmt: skip
APART: dict[str, tuple[Describe, str]] = {
    "another key": (lambda t: t.a.join(t.b, "k").join(t.c, [("a_v", "c_v")]), "its input is in buckets by k, and it needs buckets by a_v"),
    "more columns": (lambda t: t.a.join(t.b, "k").groupBy("k", "a_v").agg(ZF.count()), "its input is in buckets by k, and it needs buckets by k, a_v"),
    "another order": (
        lambda t: t.a.join(t.b, [("k", "k"), ("a_v", "b_v")]).join(t.d, [("a_v", "d_v"), ("k", "d_k")]),
        "its input is in buckets by k, a_v, and it needs buckets by a_v, k",
    ),
    "another type": (
        lambda t: t.a.join(t.b, [("a_j", "k")]).join(t.d, [("a_j", "d_j")]),
        "its input hashes a_j as bigint, and it needs int",
    ),
    "NULL on a preserved side": (lambda t: t.moving.join(t.b, "k", "left").join(t.c, "k", "left"), "k may be NULL"),
    "NULL behind an anti join": (lambda t: t.moving.join(t.b, "k", "left_anti").join(t.c, "k", "full"), "k may be NULL"),
    "a group of NULL": (lambda t: t.moving.join(t.b, "k", "left").groupBy("k").agg(ZF.count()), "k may be NULL"),
    "NULL as a value behind =": (lambda t: t.moving.join(t.b, "k", "left").join(t.c, "k", null_safe=True), "k may be NULL"),
    "a padded key": (
        lambda t: t.a.join(t.b, [("k", "k")], "full", null_safe=True).join(t.d, [("k", "d_k")], null_safe=True),
        "k may be padded",
    ),
    "all rows": (lambda t: t.a.join(t.b, "k").agg(ZF.count()), "it needs all rows in one bucket"),
    "a computed key": (
        lambda t: t.a.join(t.b, "k").withColumn("k", F.col("k") + 1).join(t.c, "k"),
        "its input is in buckets by a column that is not selected, and it needs buckets by k",
    ),
    "expressions on either side": (
        lambda t: t.a.join(t.b, "k").where("a_j > 0").join(t.c.join(t.d, [("k", "d_k")]).where("c_j > 0"), "k"),
        "expressions of Spark are evaluated on other rows of this task already",
    ),
    "a branch of a union": (
        lambda t: t.a.join(t.b, "k").union(t.moving.join(t.c, "k", "left")).groupBy("k").agg(ZF.count()),
        "k may be NULL",
    ),
}  # fmt: skip


@for_each("describe", FUSED)
def test_rows_that_are_in_the_next_stages_bucket_already_stay_there(tables: SimpleNamespace, describe: Describe) -> None:
    view = describe(tables)

    assert len(fused_stages(view)) == 1
    assert "fused: rows of " in view.placed.explanation()


@for_each(("describe", "why"), APART)
def test_rows_that_may_be_in_another_bucket_are_shuffled_and_explain_names_the_reason(
    tables: SimpleNamespace, describe: Describe, why: str
) -> None:
    view = describe(tables)

    assert f"not fused: {why}" in view.placed.explanation()
    assert len(fused_stages(view)) > 1


def test_what_lies_between_two_other_keys_is_a_pass_of_its_own(tables: SimpleNamespace) -> None:
    a, b, c, moving = tables.a, tables.b, tables.c, tables.moving

    view = a.join(b, "k").join(moving, "k").groupBy("moving_j").agg(ZF.count().alias("n")).join(c, [("moving_j", "c_j")])

    assert fused_stages(view) == [["join", "join-1"], ["aggregate-2", "join-3"]]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the list of how many shuffles the job of each epoch has."""
    counted: list[int] = []
    receipts = EpochPlan.receipts

    def observed(self: EpochPlan, batch: DataFrame) -> DataFrame:
        plan = receipts(self, batch)
        executed = str(plan._jdf.queryExecution().executedPlan().toString())
        counted.append(sum(line.strip(" +-:*()0123456789").startswith("Exchange ") for line in executed.splitlines()))
        return plan

    monkeypatch.setattr(EpochPlan, "receipts", observed)
    return counted


def filled(source: Source, *epochs: str) -> Source:
    """Add an epoch per text; its words are op, k, j and v of a row, put together, as in `u1.2.x`."""
    for epoch in epochs:
        words = [word[1:].split(".") for word in epoch.split()]
        ops = [word[0] for word in epoch.split()]
        source.add(*((op, int(k), int(j), v) for op, (k, j, v) in zip(ops, words, strict=True)))
    return source


def verified(query: JoinQuery, view: View, sink: Collected) -> int:
    """Return how many rows the view has, after comparing it with Spark's batch query of all inputs."""
    rows = [(*row, weight) for epoch in sink.epochs for row, weight in epoch]
    report = query.verify(actual_df=view.session.createDataFrame(rows, view.schema.add("_weight", "long")))
    assert report.equal, str(report)
    return report.expected_rows


def test_a_checkpoint_of_unfused_stages_goes_on_with_fused_ones_through_lost_answers_other_buckets_and_hosts(
    spark: SparkSession,
    source: Callable[[str], Source],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: list[int],
) -> None:
    a = filled(source("a"), "u1.1.x u2.1.x u3.1.y u4.2.x")
    b = filled(source("b"), "u1.1.p u2.2.p u6.1.q")
    c = filled(source("c"), "u1.1.k u3.1.k u7.1.l")
    outer = table(a, "a").join(table(b, "b"), "k", "full").join(table(c, "c"), "k", "full").groupBy("k")
    aggregates = [ZF.count().alias("n"), ZF.max("a_v"), ZF.max("b_v"), ZF.max("c_v")]
    view, sink = outer.agg(*aggregates), Collected()
    with monkeypatch.context() as unfused:
        unfused.setattr(placed_query, "fusings_of", lambda _: ())
        run(outer.agg(*aggregates), sink, buckets=2)
    filled(a, "u1.2.y d2.0.x u5.1.z"), filled(b, "d1.0.p u3.1.r u5.1.s"), filled(c, "u2.1.m d7.0.l u6.2.n")

    sink.fails_in = 1
    with pytest.raises(Exception, match="the output failed in epoch 1"):
        run(view, sink, snapshotAfterBytes=1)
    [part.unlink() for part in (tmp_path / "checkpoint/zset/delta").glob("*/*1-*")]
    sink.fails_in = -1
    run(view, sink, snapshotAfterBytes=1)
    rescale(tmp_path / "checkpoint", buckets=3, session=spark, local_state_dir=str(tmp_path / "local"))
    filled(a, "u6.1.w d4.0.x"), filled(b, "u7.1.w d6.0.q"), filled(c, "d3.0.k u1.3.o")
    query = run(view, sink, buckets=3, localStateDir=str(tmp_path / "another host"))

    assert verified(query, view, sink) > 0
    assert fused_stages(view) == [["join", "join-1", "aggregate-2"]]
    assert (exchanges[0], exchanges[-1]) == (3, 1)
