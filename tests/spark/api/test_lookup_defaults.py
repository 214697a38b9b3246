"""Lookup joins inside Spark with tables of Spark's own: DataFrames, computed keys, constants, defaults of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join.core.errors import OptionError, ResourceError
from zset_join.lookup import ArrowSource, DataFrameSource, FunctionSource, Lookup
from zset_join.runners.spark.api.writer import check_connections, job_defaults
from zset_join.spark import appends, changes

Run = Callable[..., Any]
ORDERS = pa.schema([("o", pa.int64()), ("code", pa.string())])
TABLE = pa.schema({"code": pa.string(), "kind": pa.int64(), "name": pa.string()})
ROWS = pa.table({"code": ["A", "A", "B"], "kind": [1, 2, 1], "name": ["one", "two", "three"]}, schema=TABLE)


def test_a_dataframe_is_read_once_per_epoch_and_keys_may_be_expressions(
    spark: SparkSession, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = Source(spark, tmp_path / "orders", ORDERS)
    orders.add((1, "a"), (2, "b"), (3, None)).add((1, "b"), (4, "a"))
    read: list[int] = []

    def table() -> Any:
        read.append(len(read))
        return spark.createDataFrame([("A", f"a{len(read)}"), ("B", f"b{len(read)}")], "code string, name string")

    source = DataFrameSource(
        name="codes", schema=pa.schema({"code": pa.string(), "name": pa.string()}), dataframe=table, max_rows=2
    )
    stream = changes(orders.stream(), name="orders", keys=["o"])
    view = stream.lookup_join(source, on=[(F.upper("code"), "code")], how="left", columns=["name"]).select("o", "name")
    sink = Collected()

    query = run(view, sink, buckets=3, **{"lookup.error-attempts": 2})

    query.explain()
    assert "a call that fails is made up to 2 times; of the job: error-attempts=2" in capsys.readouterr().out
    assert read == [0, 1]
    assert sorted(sink.epochs[0], key=repr) == [((1, "a1"), 1), ((2, "b1"), 1), ((3, None), 1)]
    assert sink.total() == {(1, "b2"): 1, (2, "b1"): 1, (3, None): 1, (4, "a2"): 1}


def test_a_dataframe_that_is_too_large_is_refused_by_name(tmp_path: Path) -> None:
    source = DataFrameSource(name="codes", schema=TABLE, max_rows=2)

    with pytest.raises(ResourceError, match='"codes" has more than max_rows=2 rows in epoch 3'):
        source.keep(None, "s", 3, ROWS)


def test_defaults_of_the_session_yield_to_the_writer_and_both_to_the_join_as_explain_reports(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set("spark.zset_join.lookup.timeout", "180s")
    spark.conf.set("spark.zset_join.lookup.capacity", "7")
    try:
        job = job_defaults(spark, {"lookup.capacity": 9, "buckets": 2})
    finally:
        spark.conf.unset("spark.zset_join.lookup.timeout")
        spark.conf.unset("spark.zset_join.lookup.capacity")

    assert job == Lookup(timeout="180s", capacity=9)
    assert Lookup(timeout="1s").over(job) == Lookup(timeout="1s", capacity=9)
    assert job_defaults(spark, {"buckets": 2}) is None
    with pytest.raises(OptionError, match=r"lookup option 'colour' .* is unknown"):
        job_defaults(spark, {"lookup.colour": "red"})

    source = FunctionSource(name="codes", schema=TABLE, function=lambda _keys: ROWS)
    orders = appends(Source(spark, tmp_path / "orders", ORDERS).stream(), name="orders")
    view = orders.lookup_join(source, on="code", hint=Lookup(cache="partial"))

    view.writeStream.option("lookup.cache", "none").option("lookup.batch-keys", 7).explain()
    reported = capsys.readouterr().out

    assert "cache of 1,000,000 rows for 60 s" in reported
    assert "7 keys per call, at most 16 connections" in reported
    assert "of the job: batch-keys=7" in reported
    view.explain()
    assert "of the job" not in capsys.readouterr().out


def test_more_tasks_than_connections_are_refused_by_the_options_name() -> None:
    check_connections(16, processes=16, source="codes")

    with pytest.raises(OptionError, match="Set max_connections=17 or more, or buckets=16 or fewer"):
        check_connections(16, processes=17, source="codes")


def test_a_selection_reads_only_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    orders = Source(spark, tmp_path / "orders", ORDERS)
    orders.add((1, "a"))
    view = appends(orders.stream(), name="orders").lookup_join(ArrowSource(name="codes", table=ROWS), on="code", how="left")

    fewer = view.where("kind = 1").select("o", F.col("kind").alias("k"))

    assert fewer.placed.planned_stages[0].stage.table.schema.names == ["code", "kind"]
    assert fewer.columns == ["o", "k"]
    assert view.placed.planned_stages[0].stage.table.schema.names == ["code", "kind", "name"]
    assert view.withColumn("x", F.lit(1)).placed.planned_stages[0].stage.table.schema.names == ["code", "kind", "name"]
