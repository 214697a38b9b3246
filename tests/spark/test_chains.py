"""Joins of joins, from several streams of files to the sum of what was emitted, in one query."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source, weights
from tests.sweeps import for_each, some_of
from zset_join.checkpoint.reading import stages_of
from zset_join.core.errors import OptionError, PlanError
from zset_join.spark import ChangeStream, JoinedStream, JoinQuery, View, appends, changes, rescale
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.tools.reports import RowHistory

Run = Callable[..., JoinQuery]
TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")
ROWS = pa.schema([("op", pa.string()), ("id", pa.int64()), ("k", pa.int64()), ("v", pa.string()), ("ts", pa.int64())])


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Callable[[str], Source]:
    """Give a function that makes the source of rows op, id, k, v, ts of a name."""
    return lambda name: Source(spark, tmp_path / name, ROWS)


def upserts(source: Source, name: str, **more: Any) -> ChangeStream:
    """Return the table of id, k and v; an update may move k, so that its rows are routed."""
    rows = source.stream().withColumnsRenamed({"id": f"{name}_id", "v": f"{name}_v"})
    return changes(
        rows, name=name, keys=[f"{name}_id"], sequence_by="ts", apply_as_deletes="op = 'd'", except_column_list=["op", "ts"], **more
    )  # fmt: skip


def copies(source: Source, name: str) -> ChangeStream:
    """Return the bag of k and v, with weights."""
    rows = source.stream().select("k", F.col("v").alias(f"{name}_v"), F.when(F.col("op") == "d", -1).otherwise(1).alias("w"))
    return changes(rows, name=name, weight_column="w")


def histories(seed: int, epochs: int) -> Iterator[list[list[tuple[Any, ...]]]]:
    """Yield, per epoch, the changes of two tables with keys and of one bag, all over few join keys."""
    chance = random.Random(seed)
    bag: list[tuple[Any, ...]] = []

    def key() -> int | None:
        return chance.choice((1, 2, 3, 4, None))

    for epoch in range(epochs):
        tables = [
            [(chance.choice("iuud"), chance.randrange(8), key(), chance.choice("xy"), epoch) for _ in range(6)]
            for _ in range(2)
        ]
        gone = chance.sample(bag, len(bag) // 3)
        come = [(chance.choice((1, 2, 3, None)), chance.choice("xy")) for _ in range(4)]
        for row in gone:
            bag.remove(row)
        bag += come
        rows = [("i", None, *row, 0) for row in come] + [("d", None, *row, 0) for row in gone]
        chance.shuffle(rows)
        yield [*tables, rows]


def filled(source: Callable[[str], Source], *, seed: int, epochs: int) -> tuple[Source, Source, Source]:
    """Return two tables and a bag, called a, b and c, with a history of changes."""
    a, b, c = (source(name) for name in "abc")
    for one, other, bag in histories(seed, epochs):
        a.add(*one), b.add(*other), c.add(*bag)
    return a, b, c


def emitted(view: View, sink: Collected) -> DataFrame:
    rows = [(*row, weight) for epoch in sink.epochs for row, weight in epoch]
    return view.session.createDataFrame(rows, view.schema.add("_weight", "long"))


def verified(query: JoinQuery, view: View, sink: Collected) -> int:
    """Return how many rows the view has, after comparing it with Spark's batch query of all inputs."""
    report = query.verify(actual_df=emitted(view, sink))
    assert report.equal, str(report)
    return report.expected_rows


def check_emitted(history: RowHistory, sink: Collected, since: int = 0) -> None:
    """Compare the reported changes with what the query emitted, epoch by epoch."""
    ((name, value),) = history.question.items()
    at = sink.names.index(name)
    reported = {
        event.epoch: weights((tuple(row.values()), weight) for row, weight in event.emitted) for event in history.events
    }
    for epoch, rows in enumerate(sink.epochs[since:], start=since):
        assert reported.get(epoch, {}) == weights((row, weight) for row, weight in rows if row[at] == value), epoch


def as_text(view: View, how: str) -> View:
    """Return the rows of a view as one column of text, so that views of other columns may be united with it."""
    shown = [F.coalesce(F.col(name).cast("string"), F.lit("-")) for name in view.columns]
    return view.select(F.lit(how).alias("how"), F.concat_ws(",", *shown).alias("row"))


@pytest.mark.parametrize("first", some_of(TYPES, short=("full",)))
def test_a_join_of_every_type_behind_this_one_equals_sparks_batch_query(
    source: Callable[[str], Source], run: Run, first: str
) -> None:
    a, b, c = filled(source, seed=8, epochs=2)  # leaves rows of every pair of types
    both = upserts(a, "a"), upserts(b, "b"), copies(c, "c")

    def chain(how: str) -> View:
        left_, right_, third = (stream.alias(f"{stream.name}_{how}") for stream in both)
        return as_text(left_.join(right_, on="k", how=first).join(third, on="k", how=how), how)

    view = reduce(View.union, map(chain, TYPES))
    sink = Collected()

    query = run(view, sink, buckets=2)

    assert verified(query, view, sink) > 0
    assert {how for how, _ in sink.total()} == set(TYPES)
    assert len(sink.epochs) == 2


def test_what_is_behind_a_union_sees_the_rows_of_all_branches(
    source: Callable[[str], Source], run: Run, tmp_path: Path
) -> None:
    a, b, c = filled(source, seed=21, epochs=3)
    matched = upserts(a, "a").join(upserts(b, "b"), on="k").select("k", "a_v")
    lonely = (
        upserts(b, "b").alias("b2").join(upserts(a, "a").alias("a2"), on="k", how="left_anti").groupBy("k").agg(ZF.max("b_v"))
    )
    united = matched.union(lonely).where("k <> 4")
    counted = united.groupBy("k").agg(ZF.count().alias("n")).join(copies(c, "c"), on="k", how="full")
    plain = copies(c, "c").alias("c2").join(upserts(b, "b").alias("b3"), on="k", how="right")
    view = counted.select("k", "n", "c_v").union(plain.select("k", F.lit(0).cast("long"), F.col("b_v")))
    sink = Collected()

    sink.fails_in = 1
    with pytest.raises(Exception, match="the output failed in epoch 1"):
        run(view, sink, buckets=2)
    [part.unlink() for part in (tmp_path / "checkpoint/zset/delta").glob("*/*1-*")]
    sink.fails_in = -1
    query = run(view, sink)

    assert verified(query, view, sink) > 0
    assert view.output.primary_key == ()
    history = query.explain_row({"k": 1})
    check_emitted(history, sink)
    assert {change.stream for event in history.events for change in event.changes} == {"b", "b2", "c", "b3"}


def test_an_aggregate_is_joined_and_survives_a_killed_worker_a_lost_answer_and_a_lost_host(
    source: Callable[[str], Source], run: Run, tmp_path: Path
) -> None:
    a, b, c = filled(source, seed=5, epochs=4)
    killed, sink = tmp_path / "killed", Collected()

    def dying(number: int) -> int:
        if (tmp_path / "checkpoint/zset/commits" / f"{0:020d}.json").exists() and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    dies = F.udf(dying, "long", useArrow=False)
    totals = upserts(a, "a").join(upserts(b, "b"), on="k", how="left").groupBy("k").agg(ZF.count().alias("n"), ZF.max("b_v"))
    others = copies(c, "c").withColumn("k", dies("k"))
    view = totals.where("n > 0").join(others, on="k", how="full", null_safe=True)
    view = view.groupBy("c_v").agg(ZF.count().alias("pairs"), F.sum("n").alias("sum"))
    with pytest.raises(Exception, match="worker"):
        run(view, sink, buckets=2, snapshotAfterBytes=1)
    sink.fails_in = 2
    with pytest.raises(Exception, match="the output failed in epoch 2"):
        run(view, sink, snapshotAfterBytes=1)
    [part.unlink() for part in (tmp_path / "checkpoint/zset/delta").glob("*/*2-*")]
    sink.fails_in = -1

    query = run(view, sink, snapshotAfterBytes=1, localStateDir=str(tmp_path / "another host"))

    assert killed.exists()
    assert verified(query, view, sink) > 0
    history = query.explain_row({"c_v": "x"})
    assert not history.is_complete
    assert {path.name[:-2] for path in (tmp_path / "checkpoint/zset/log").iterdir()} == {
        "join", "route-left", "route-right", "aggregate-1", "join-2", "aggregate-3",
    }  # fmt: skip


def test_bad_rows_of_any_stream_of_a_chain_are_put_aside_in_one_table(
    spark: SparkSession, source: Callable[[str], Source], run: Run, tmp_path: Path
) -> None:
    a, b, c = (source(name) for name in "abc")
    a.add(("i", 1, 1, "x", 1), ("i", None, 1, "x", 1))
    b.add(("i", 1, 1, "y", 1))
    c.add(("i", 1, 1, "z", 1), ("d", 9, 9, "z", 1))
    view = upserts(a, "a").join(upserts(b, "b"), on="k").join(copies(c, "c"), on="k")
    sink = Collected()

    query = run(view, sink, onBadInput="quarantine", buckets=2)

    assert sink.total() == {(1, 1, "x", 1, "y", "z"): 1}
    assert query.lastProgress["join"]["quarantined"] == {"a": 1, "b": 0, "c": 1}
    assert query.lastProgress["numInputRows"] == 5  # every source is read once
    table = spark.read.parquet(str(tmp_path / "checkpoint/quarantine"))
    assert sorted(tuple(row) for row in table.select("stream", "code", "a.a_id", "c.k").collect()) == [
        ("a", "NULL_PRIMARY_KEY", None, None),
        ("c", "ABSENT_ROW", None, 9),
    ]


def test_a_chain_starts_from_baselines_and_gets_another_number_of_buckets(
    spark: SparkSession, source: Callable[[str], Source], run: Run, tmp_path: Path
) -> None:
    a, b, c = (source(name) for name in "abc")
    a.add(("i", 1, 1, "x", 1)), b.add(("i", 2, 1, "y", 1)), c.add(("u", 3, 2, "new", 5))
    at_first = spark.createDataFrame([(3, 1, "old", 1), (4, None, "none", 1)], "c_id long, k long, c_v string, ts long")

    def view() -> JoinedStream:
        both = upserts(a, "a").join(upserts(b, "b"), on="k", how="full")
        return both.join(upserts(c, "c", baseline=at_first), on="k", how="right")

    sink = Collected()
    run(view(), sink, buckets=2)
    assert sink.total() == {(2, None, None, None, None, 3, "new"): 1, (None, None, None, None, None, 4, "none"): 1}

    rescale(tmp_path / "checkpoint", buckets=3, session=spark, local_state_dir=str(tmp_path / "local"))
    a.add(("u", 1, 2, "x", 2)), c.add(("u", 4, 2, "some", 6))
    query = run(view(), sink, buckets=3)

    assert sink.total() == {(2, 1, "x", None, None, 3, "new"): 1, (2, 1, "x", None, None, 4, "some"): 1}
    assert query.verify(actual_df=emitted(view(), sink)).equal


def test_columns_that_nothing_reads_are_not_stored(source: Callable[[str], Source], run: Run, tmp_path: Path) -> None:
    a, b, _ = filled(source, seed=4, epochs=3)
    both = upserts(a, "a").join(upserts(b, "b"), on="k", how="full")
    view = both.groupBy("k").agg(ZF.count().alias("n"), ZF.max("b_v"))
    sink = Collected()

    query = run(view, sink, buckets=2, keepState="needed")

    assert verified(query, view, sink) > 0
    stored = stages_of(str(tmp_path / "checkpoint"))
    assert [{"a_v", "b_v"} & {*one.relation.schema.names} for one in stored["join"].inputs] == [set(), {"b_v"}]
    assert 'not kept of "a", since nothing reads them: a_v' in query._runner.explanation()


@pytest.fixture
def streams(source: Callable[[str], Source]) -> list[ChangeStream]:
    """Give three streams with a key each."""
    return [upserts(source(name), name) for name in "abc"]


def test_the_key_of_a_chain_follows_from_the_keys_of_its_inputs_and_explain_prints_what_every_stage_keeps(
    streams: list[ChangeStream],
) -> None:
    a, b, c = streams
    by_key = b.join(a, on=[("b_id", "a_id")], how="full").drop("k_right")

    assert a.join(b, on="k").join(c, on="k").output.primary_key == ("a_id", "b_id", "c_id")
    assert a.join(b, on="k", how="left").join(c, on="k", how="left_anti").output.primary_key == ("a_id", "b_id")
    assert a.join(b, on="k").join(c, on=[("a_id", "c_id")], how="left").output.primary_key == ("a_id", "b_id")
    assert a.join(b, on="k").groupBy("b_id").count().join(c, on=[("b_id", "c_id")]).output.primary_key == ("b_id",)
    assert by_key.join(c, on=[("b_id", "c_id")], how="full").output.primary_key == ("b_id", "a_id", "c_id")
    assert a.join(b, on="k").select("k").join(c, on="k").output.primary_key == ()
    assert a.join(b, on="k").join(c.join(a.alias("d"), on="k"), on="k", how="full").output.primary_key == ()

    a, b, c = streams

    lines = a.join(b, on="k").where("a_v = 'x'").join(c, on="k", how="left").placed.explanation(buckets=4).splitlines()

    assert lines[:6] == [
        "Join left on k = k",
        '  remembers: all live rows of "a_inner_b", live rows with a complete key of "c"; in 4 buckets by join key',
        '  shuffles: changes of "c" by primary key, then by join key',
        '  fused: rows of "a_inner_b" are already in the bucket of their key',
        "├─ key: a_id, b_id",
        "│  Where a_v = 'x'",
    ]
    assert "│  └─ Join inner on k = k" in lines
    assert lines[-1] == '   └─ Input "c" upsert keys=[c_id] sequence_by=[__sequence_0] columns=[c_id, k, c_v]'


def copies_of(stream: ChangeStream) -> ChangeStream:
    """Return another stream of the same name."""
    return appends(stream.stream.dataframe.select("k"), name=stream.name)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "two streams of one name": (lambda a, b, _: a.join(b, on="k").join(copies_of(b), on="k"), "Give each its own"),
    "alias of nothing": (lambda a, *_: a.alias(""), "name=''"),
    "unknown key": (lambda a, b, c: a.join(b, on="k").join(c, on=[("x", "k")]), r"\"x\", which \"a_inner_b\" does not have"),
    "no key": (lambda a, b, c: a.join(b, on="k").join(c), "names no key column"),
    "dataframe": (lambda a, b, c: a.join(b, on="k").join(c.stream.dataframe, on="k"), "got DataFrame"),
    "union of a dataframe": (lambda a, b, c: a.join(b, on="k").union(c.stream.dataframe), "union expects another view"),
    "union of other columns": (lambda a, b, c: a.join(b, on="k").union(c.join(b.alias("d"), on="k").select("k")), "go"),
    "names": (lambda a, b, c: a.join(b, on=[("k", "k")]).join(c, on=[("k", "k")]), "would have the columns"),
}


@for_each(("make", "complaint"), WRONG)
def test_a_chain_that_cannot_run_is_refused_when_it_is_written(
    streams: list[ChangeStream], make: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        make(*streams)


def test_a_limit_for_one_append_only_join_is_refused_where_there_are_two(source: Callable[[str], Source], run: Run) -> None:
    a, b, c, d = (appends(source(name).stream().select("k", F.col("v").alias(name)), name=name) for name in "abcd")
    view = a.join(b, on="k").join(c.join(d, on="k"), on="k")

    with pytest.raises(OptionError, match="Set join_max_buffered_bytes=0"):
        run(view, Collected())
    with pytest.raises(OptionError, match="which all of them share"):
        run(a.join(b, on="k").join(c, on="k"), Collected(), join_buffer_policy="spill", join_max_buffered_bytes=10_000)
