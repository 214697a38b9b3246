"""Queries that a client of Spark Connect starts with `execution="executors"`: they run on the server as beside it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.connect.conftest import Client, ClientProcess, Server
from tests.spark.connect.test_served import filled, lines, streams, write
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import ZsetJoinError
from zset_join.lookup import ArrowSource
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.spark import writeStream

WAIT_SECONDS = 60
ZONE = "America/New_York"
SIZES = ArrowSource(name="sizes", table=pa.table({"name": ["ben"], "size": ["big"]}))


def _joined(spark: SparkSession, place: Path) -> Any:
    orders, names = streams(spark, place)
    joined = orders.where(F.col("total") > 3).join(names, on="cust", how="left")
    hour = ZF.expr("hour(timestamp_seconds(total * 3600))")
    return joined.withColumn("twice", F.col("total") * 2).withColumn("hour", hour).select("id", "twice", "name", "hour")


def _writer(spark: SparkSession, place: Path) -> Any:
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    writer = _joined(spark, place).writeStream.options(checkpointLocation=str(place / "cp"), execution="executors")
    return writer.to("parquet", path=str(place / "out")).toDuckDB(str(place / "view.duckdb"), "v")


def _run(spark: SparkSession, place: Path) -> dict[str, Any]:
    query = _writer(spark, place).trigger(availableNow=True).start()
    query.awaitTermination()
    return {"progress": query._runner.progress.of_epoch(0), "buckets": query._runner.settings.buckets}


def _started(spark: SparkSession, place: Path) -> None:
    _writer(spark, place).start().processAllAvailable()


def _kill_in_epoch(place: Path, epoch: int) -> None:
    """Kill the process that runs the epochs, once it has taken the checkpoint for an epoch that is not committed."""
    ends = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < ends:
        seen = owner_seen(checkpoint_folder(str(place / "cp")))
        if (place / "cp" / "offsets" / str(epoch)).exists() and seen is not None and Path(f"/proc/{seen[0].pid}").exists():
            os.kill(seen[0].pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    assert not (place / "cp" / "commits" / str(epoch)).exists()


def _questions(spark: SparkSession, place: Path) -> dict[str, Any]:
    """Return what a query that runs answers, and one that does not."""
    found: dict[str, Any] = {}
    query = _writer(spark, place).start()
    try:
        query.processAllAvailable()
        found["running"] = query.verify().equal
        found["row"] = len(query.explain_row({"id": 3}).events)
        found["settings"] = spark.conf.get("spark.sql.adaptive.enabled")
    finally:
        query.stop()
    with _writer(spark, place).attach() as stored:
        wrong = spark.read.parquet(str(place / "out" / "epoch=*")).where("id <> 3")
        found["stored"] = [stored.verify().equal, stored.verify(actual_df=wrong).different_rows]
        found["rows"] = stored.view_rows("", {"id": 3})[1]
        found["letters"] = stored.dead_letters().num_rows
    return found


def test_executors_run_a_query_of_a_client_and_go_on_where_their_process_was_killed(
    client: Client, connect_server: Server, tmp_path: Path
) -> None:
    filled(tmp_path)
    both = {(3, 8, "ann", 23): 1, (1, 12, "ben", 1): 1}

    reported = client(_run, tmp_path)

    assert lines(tmp_path / "out") == both
    assert (reported["buckets"], reported["progress"]["rows_in"]) == (2, {"orders": 3, "names": 2})
    assert stored_mode(str(tmp_path / "cp")) == "executors"

    client(_started, tmp_path)
    write(tmp_path / "orders", {"op": "u", "id": 7, "cust": "a", "total": 9, "t": 9})
    _kill_in_epoch(tmp_path, 2)
    other = ClientProcess(connect_server.url)
    try:
        answers = other(_questions, tmp_path)
    finally:
        other.close()

    assert lines(tmp_path / "out") == {**both, (7, 18, "ann", 4): 1}
    expected = {"running": True, "row": 1, "settings": "true", "stored": [True, 1], "rows": 1, "letters": 0}
    assert answers == expected


def _times(spark: SparkSession, place: Path, times: int) -> Any:
    return _products(spark, place, times)[0]


def _products(spark: SparkSession, place: Path, *times: int) -> list[Any]:
    orders, names = streams(spark, place)
    joined = orders.join(names, on="cust", how="left")
    return [joined.select("id", (F.col("total") * one).alias("product"), "name") for one in times]


def _changed(spark: SparkSession, place: Path) -> list[Any]:
    """Change a running query, continue it, and go back; return the rows after each step."""
    options = {"checkpointLocation": str(place / "cp"), "execution": "executors"}
    query = _times(spark, place, 2).writeStream.options(**options).to("parquet", path=str(place / "out")).start()
    found: list[Any] = []
    try:
        query.processAllAvailable()
        with pytest.raises(ZsetJoinError, match="NOTHING_TO_UNDO"):
            query.undo()
        sized = _times(spark, place, 2).lookup_join(SIZES, on="name", how="left").select("id", "product", "name")
        with pytest.raises(ZsetJoinError, match="EVOLVE_OUTPUT"):  # several rows of an order, in an output by its key
            query.evolve(sized, as_now=True)
        query.evolve(_times(spark, place, 3))
        found.append(dict(lines(place / "out")))
        write(place / "orders", {"op": "u", "id": 8, "cust": "nobody", "total": 5, "t": 10})
        query.processAllAvailable()
        found.append(dict(lines(place / "out")))
        query.undo()
        found.append(dict(lines(place / "out")))
    finally:
        query.stop()
    return found


def _resumed(spark: SparkSession, place: Path) -> None:
    options = {"checkpointLocation": str(place / "cp"), "execution": "executors"}
    writer = _times(spark, place, 2).writeStream.options(**options).to("parquet", path=str(place / "out"))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_running_query_on_executors_is_changed_and_undone_from_its_client(client: Client, tmp_path: Path) -> None:
    filled(tmp_path)
    three = {(1, 18, "ben"): 1, (3, 12, "ann"): 1}
    two = {(1, 12, "ben"): 1, (3, 8, "ann"): 1, (8, 10, None): 1}

    assert client(_changed, tmp_path) == [three, {**three, (8, 15, None): 1}, two]  # at once, without a batch
    write(tmp_path / "orders", {"op": "u", "id": 9, "cust": "nobody", "total": 5, "t": 10})
    client(_resumed, tmp_path)
    assert lines(tmp_path / "out") == {**two, (9, 10, None): 1}


def _several(spark: SparkSession, place: Path) -> list[bool]:
    """Run two views, then three in the same query; return whether each time all were equal to their batch queries."""
    options = {"checkpointLocation": str(place / "cp"), "execution": "executors"}
    views = dict(zip(("times_2", "times_3", "times_4"), _products(spark, place, 2, 3, 4), strict=True))
    two = {name: views[name] for name in ("times_2", "times_3")}
    writer = writeStream(two).options(**options)
    for name in two:
        writer = writer.view(name).to("parquet", path=str(place / name))
    query, found = writer.start(), []
    try:
        query.processAllAvailable()
        found.append(query.verify().equal)
        query.evolve(writeStream(views).view("times_4").to("parquet", path=str(place / "times_4")))
        write(place / "orders", {"op": "u", "id": 8, "cust": "nobody", "total": 5, "t": 10})
        query.processAllAvailable()
        found.append(query.verify().equal)
    finally:
        query.stop()
    return found


def test_several_views_of_a_client_run_on_executors(client: Client, tmp_path: Path) -> None:
    filled(tmp_path)

    assert client(_several, tmp_path) == [True, True]
    assert lines(tmp_path / "times_4") == {(1, 24, "ben"): 1, (3, 16, "ann"): 1, (8, 20, None): 1}
