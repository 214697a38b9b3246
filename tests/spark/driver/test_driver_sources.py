"""What the driver's chain keeps of sources that are no files, and what a start may not change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.api.test_query import join_of
from tests.spark.conftest import Collected, Source
from zset_join.checkpoint.reading import read_committed, read_record
from zset_join.core.errors import StateError
from zset_join.runners.spark.epoch.batches import offsets_digest
from zset_join.spark import JoinQuery, appends


def _until(query: JoinQuery, sink: Collected, rows: int) -> None:
    """Let a query run until its output has so many rows."""
    deadline = time.monotonic() + 120
    while len(sink.total()) < rows and time.monotonic() < deadline:
        if query.exception() is not None or not query.isActive:
            break
        time.sleep(0.1)
    query.stop()


def test_a_rate_source_goes_on_behind_a_restart_by_the_offsets_of_the_chain(spark: SparkSession, tmp_path: Path) -> None:
    location, sink = str(tmp_path / "checkpoint"), Collected()

    def started() -> JoinQuery:
        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().select("value")
        writer = appends(ticks, name="ticks").where("value % 2 = 0").writeStream
        writer = writer.options(checkpointLocation=location, localStateDir=str(tmp_path / "local"), execution="driver")
        return writer.to(sink).start()

    _until(started(), sink, 5)
    before = len(sink.epochs)
    _until(started(), sink, len(sink.total()) + 5)

    committed = read_committed(location)
    assert committed is not None
    assert committed.last is not None
    records = [read_record(committed.files, epoch) for epoch in range(before - 1, committed.last.epoch + 1)]
    assert [record.offsets for record in records if record] == [
        offsets_digest(location, record.epoch) for record in records if record
    ]
    assert committed.last.epoch + 1 == len(sink.epochs) > before
    values = sorted(row[0] for row in sink.total())
    assert values == list(range(0, 2 * len(values), 2))
    assert set(sink.total().values()) == {1}


def test_a_driver_without_a_place_for_its_checkpoint_is_refused_before_anything_runs(
    orders: Source, customers: Source, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no directory")
    sink: Any = Collected()
    writer = join_of(orders, customers).writeStream.option("checkpointLocation", str(tmp_path / "file" / "checkpoint"))

    with pytest.raises(StateError, match="Give a checkpointLocation where this process may write") as refused:
        writer.option("execution", "driver").to(sink).start()

    assert refused.value.code == "STORAGE_FAILED"
    assert not hasattr(sink, "names")
