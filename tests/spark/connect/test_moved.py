"""A checkpoint that a client of Spark Connect began moves to executors, which either kind of session continues, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.connect.conftest import Client
from tests.spark.connect.test_served import ORDERS, filled, lines, read, streams, write
from zset_join.core.errors import StateError
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.spark import move


def run(spark: SparkSession, place: Path, **options: Any) -> None:
    """Run the query until it has answered what there is; its checkpoint and its output are in the place."""
    from zset_join.spark import changes

    rows = read(spark, place / "orders", ORDERS).where(F.col("total") > 3).withColumn("twice", F.col("total") * 2)
    rows = rows.selectExpr("op", "id", "cust", "twice + 0 AS twice", "t")
    orders = changes(rows, name="orders", keys="id", sequence_by="t", apply_as_deletes="op = 'd'")
    writer = orders.join(streams(spark, place)[1], on="cust", how="left").select("id", "twice", "name").writeStream
    writer = writer.options(checkpointLocation=str(place / "cp"), localStateDir=str(place / "local"), **options)
    writer.trigger(availableNow=True).to("parquet", path=str(place / "out")).start().awaitTermination()


def _served(spark: SparkSession, place: Path) -> None:
    run(spark, place, execution="driver")


def _on_executors(spark: SparkSession, place: Path) -> None:
    run(spark, place, execution="executors")


def _refusal(spark: SparkSession, place: Path) -> str:
    with pytest.raises(StateError) as refused:
        _served(spark, place)
    return refused.value.code


def test_a_checkpoint_of_a_client_moves_to_executors_and_back(client: Client, spark: SparkSession, tmp_path: Path) -> None:
    location, modes = str(tmp_path / "cp"), []
    filled(tmp_path)

    client(_served, tmp_path)
    modes.append(stored_mode(location))
    found = [lines(tmp_path / "out")]
    for execution in ("executors", "driver"):
        move(location, execution=execution)
        modes.append(stored_mode(location))
        number = len(modes) + 8
        write(tmp_path / "orders", {"op": "u", "id": number, "cust": "a", "total": number, "t": number})
        if execution == "executors":
            assert client(_refusal, tmp_path) == "EXECUTION_CHANGED"
            client(_on_executors, tmp_path)
            found.append(lines(tmp_path / "out"))
            write(tmp_path / "orders", {"op": "u", "id": 20, "cust": "b", "total": 20, "t": 20})
            run(spark, tmp_path, execution="executors")
        else:
            client(_served, tmp_path)
        found.append(lines(tmp_path / "out"))

    both = {(3, 8, "ann"): 1, (1, 12, "ben"): 1}
    assert modes == ["driver", "executors", "driver"]
    on_executors = {**both, (10, 20, "ann"): 1}
    by_both = {**on_executors, (20, 40, "ben"): 1}
    assert found == [both, on_executors, by_both, {**by_both, (11, 22, "ann"): 1}]
