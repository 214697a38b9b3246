"""Joins by time inside Spark: what is versioned, and what an answer is passed on to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.spark import appends, changes
from zset_join.spark import functions as F  # noqa: N812 - as PySpark users write it

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64())])
NAMES = pa.schema([("currency", pa.string()), ("name", pa.string())])


def test_corrections_of_an_eager_join_go_on_through_a_join_and_a_group_in_their_bucket(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    names = Source(spark, tmp_path / "n", NAMES)
    orders.add((1, "EUR", 7), (2, "USD", 7)).add().add((3, "EUR", 9))
    rates.add(("EUR", 5, 1)).add(("EUR", 6, 2), ("USD", 6, 3)).add()
    names.add(("EUR", "euro")).add().add(("USD", "dollar"))
    versions = appends(rates.stream(), name="rates", watermark=("at", 0)).dedup("currency", order_by="at desc")
    left = appends(orders.stream(), name="orders", watermark=("t", 0))
    priced = left.temporal_join(versions, on="currency", emit="eager", keep_probe_for=100)
    named = priced.join(changes(names.stream(), name="names", keys=["currency"]), on="currency", how="left")
    view = named.groupBy("currency").agg(F.sum("rate").alias("total"), F.max("name").alias("name"))
    sink = Collected()

    run(view, sink, buckets=2)

    assert sink.total() == {("EUR", 4, "euro"): 1, ("USD", 3, "dollar"): 1}
    assert any(weight < 0 for epoch in sink.epochs[1:] for _, weight in epoch)


def test_a_filter_behind_a_dedup_of_versions_ends_the_version_before(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    rates.add(("EUR", 1, 4), ("EUR", 5, 9), ("USD", 2, 3)).add(("EUR", 30, 1))
    orders.add((1, "EUR", 3), (2, "EUR", 7), (3, "USD", 9)).add((4, "USD", 20))
    newest = appends(rates.stream(), name="rates", watermark=("at", 0)).dedup("currency", order_by="at desc")
    left = appends(orders.stream(), name="orders", watermark=("t", 0))
    sink = Collected()

    run(left.temporal_join(newest.where("rate < 5"), on="currency", how="left").select("id", "rate"), sink)

    assert sink.total() == {(1, 4): 1, (2, None): 1, (3, 3): 1, (4, 3): 1}


def test_left_rows_that_change_are_kept_and_a_change_behind_a_bound_is_refused_or_counted(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    orders.add((1, "EUR", 10), (2, "EUR", 100)).add((3, "EUR", 101)).add((1, "EUR", 20)).add((4, "EUR", 102))
    rates.add(("EUR", 1, 5), ("EUR", 100, 6)).add(("EUR", 101, 7)).add().add()
    versions = appends(rates.stream(), name="rates", watermark=("at", 0)).dedup("currency", order_by="at desc")
    left = changes(orders.stream(), name="orders", keys=["id"], watermark=("t", 0))
    sinks = [Collected(), Collected(), Collected()]

    def ran(number: int, **words: Any) -> Any:
        joined = left.temporal_join(versions, on="currency", emit="eager", **words).select("id", "rate", "t")
        return run(joined, sinks[number], checkpointLocation=str(tmp_path / f"checkpoint {number}"))

    ran(0)
    bounded = ran(1, keep_probe_for=9, late="side_output")
    with pytest.raises(Exception, match="LATE_CORRECTION"):
        ran(2, keep_probe_for=9)

    times = [{row[0]: row[2] for row, weight in sink.total().items() if weight == 1} for sink in sinks]
    assert times == [{1: 20, 2: 100, 3: 101, 4: 102}, {1: 10, 2: 100, 3: 101, 4: 102}, {1: 10, 2: 100, 3: 101}]
    progress = [one["join"] for one in bounded.recentProgress if "late_changes" in (one["join"] or {})]
    counted = [(one["late_changes"], one["late_changes_total"]) for one in progress]
    assert counted == [({"orders": 2}, {"orders": 2}), ({}, {"orders": 2})]
