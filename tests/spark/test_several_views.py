"""Several views of one query on executors: stages that they share run once, and an epoch is one of all views or of none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Collected, Source
from tests.spark.test_chains import ROWS, histories, upserts
from zset_join.runners.spark.epoch.epoch_plan import EpochPlan
from zset_join.spark import View, writeStream
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

pytestmark = pytest.mark.spark


@pytest.fixture
def sources(spark: SparkSession, tmp_path: Path) -> tuple[Source, Source]:
    """Give two tables with keys, of four epochs."""
    found = Source(spark, tmp_path / "a", ROWS), Source(spark, tmp_path / "b", ROWS)
    for one, other, _ in histories(5, 4):
        found[0].add(*one), found[1].add(*other)
    return found


@pytest.fixture
def views(sources: tuple[Source, Source]) -> Mapping[str, View]:
    """Give views over one join: its rows, a part of them, groups of it by two keys, and groups joined with groups."""
    a, b = (upserts(source, name) for source, name in zip(sources, "ab", strict=True))
    joined = a.join(b, on="k", how="left")
    by_value = joined.groupBy("b_v").agg(ZF.count().alias("n"))
    by_other = joined.groupBy("a_v").agg(ZF.max("b_id").alias("most"), ZF.count().alias("m"))
    met = by_value.join(by_other, on=[("b_v", "a_v")], how="full")
    return {"joined": joined, "some": joined.where("a_id > 3").union(joined.where("b_v = 'x'")), "groups": by_value, "met": met}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Give a writer of views on executors, each to a table of its name."""

    def writer(views: Mapping[str, View], *to: str, **options: Any) -> Any:
        found = writeStream(views).options(checkpointLocation=str(tmp_path / "cp"), execution="executors", buckets=2, **options)
        for name in to or views:
            found = found.view(name).toDuckDB(str(tmp_path / "out.duckdb"), name)
        return found

    return writer


def run(writer: Any) -> Any:
    (query := writer.trigger(availableNow=True).start()).awaitTermination()
    return query


def test_views_are_equal_to_their_batch_queries_and_a_shared_stage_runs_once(
    sources: tuple[Source, Source], views: Mapping[str, View], written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    receipts = EpochPlan.receipts

    def noted(self: EpochPlan, shuffled: DataFrame) -> DataFrame:
        found = receipts(self, shuffled)
        plans.append(found._jdf.queryExecution().executedPlan().toString())
        return found

    monkeypatch.setattr(EpochPlan, "receipts", noted)
    query = run(written(views))

    report = query.verify()
    assert (report.equal, len(report.outputs)) == (True, 4)
    assert query.explain_row({"b_v": "x"}, view="groups").events
    assert [one.stage.kind for one in query._runner.query.planned_stages].count("join") == 2
    assert plans[0].count("MapInArrow") == len(query._runner.query.fused_stages)

    sources[0].add(("d", 1, None, None, 9), ("u", 2, 3, "y", 9))
    again = run(written(views))
    assert (again.verify().equal, again.lastProgress["join"]["epoch"]) == (True, 4)


def test_an_output_that_fails_behind_another_one_is_given_the_committed_answer(
    views: Mapping[str, View], written: Any, tmp_path: Path
) -> None:
    collected = Collected()
    collected.fails_in = 1
    query = written(views).view("met").to(collected).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="failed in epoch 1"):
        query.awaitTermination()
    for part in (tmp_path / "cp" / "zset" / "delta").rglob("*.*"):
        part.unlink()  # parts are not synced to the disk
    collected.fails_in = -1

    assert run(written(views).view("met").to(collected)).verify().equal
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as connection:
        assert collected.total() == dict.fromkeys(connection.table("met").fetchall(), 1)


def test_views_come_and_go_while_the_query_runs(
    sources: tuple[Source, Source], views: Mapping[str, View], written: Any
) -> None:
    some = {name: views[name] for name in ("joined", "groups")}
    query = written(some).start()
    query.processAllAvailable()

    def checked(change: Any) -> None:
        sources[0].add(("u", 2, 3, "y", 9), ("u", 5, None, "x", 9), ("d", 1, None, None, 9))
        query.processAllAvailable()
        assert query.verify().equal, change

    grown = {**some, "met": views["met"]}
    assert query.diff(grown).views["met"].status == "added"
    query.evolve(written(grown, "met"))
    checked("a view comes")
    query.evolve(writeStream({name: grown[name] for name in ("groups", "met")}))
    checked("a view goes")
    query.undo()
    checked("it comes back, without an output")
    query.stop()
