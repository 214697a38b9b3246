"""Queries that a client of Spark Connect starts with `execution="executors"`: they run on the server as beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.connect.conftest import Client
from tests.spark.connect.test_served import filled, lines, streams


def _joined(spark: SparkSession, place: Path) -> Any:
    orders, names = streams(spark, place)
    joined = orders.where(F.col("total") > 3).join(names, on="cust", how="left")
    return joined.select("id", (F.col("total") * 2).alias("twice"), "name")


def _run(spark: SparkSession, place: Path) -> dict[str, Any]:
    writer = _joined(spark, place).writeStream.options(checkpointLocation=str(place / "cp"), execution="executors")
    writer = writer.trigger(availableNow=True).toParquet(str(place / "out")).toDuckDB(str(place / "view.duckdb"), "v")
    query = writer.start()
    query.awaitTermination()
    return {"progress": query._runner.progress.of_epoch(0), "buckets": query._runner.settings.buckets}


def test_slice(client: Client, tmp_path: Path) -> None:
    filled(tmp_path)

    reported = client(_run, tmp_path)
    print(reported)

    assert lines(tmp_path / "out") == {(3, 8, "ann"): 1, (1, 12, "ben"): 1}
