"""The same operator in Spark's executors: through a restart with another number of buckets, verified and explained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from tests.spark.conftest import run as run
from tests.toy_operator.repeated import repeated
from zset_join.spark import appends, rescale

CLICKS = pa.schema([("id", pa.int64()), ("page", pa.string())])


def test_it_runs_in_tasks_survives_other_buckets_and_a_lost_host_and_is_verified_and_explained(
    spark: SparkSession, run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clicks = Source(spark, tmp_path / "clicks", CLICKS).add((1, "a"), (2, "b"), (3, None)).add((4, "a"))
    sink, location = Collected(), str(tmp_path / "checkpoint")
    view = lambda: repeated(appends(clicks.stream(), name="clicks"), "page", times=2)  # noqa: E731 - a query per run
    query = run(view(), sink, buckets=2)
    (event,) = query.explain_row({"id": 1}).events
    run(view(), sink, snapshotAfterBytes=1)
    rescale(location, buckets=3, local_state_dir=str(tmp_path / "local"))
    shutil.rmtree(tmp_path / "local")
    clicks.add((5, None))

    query = run(view(), sink, snapshotAfterBytes=1)

    shown = {(1, "a"): 1, (4, "a"): 1, (3, None): 1, (5, None): 1}
    assert sink.total() == shown
    emitted = spark.createDataFrame([(*row, 1) for row in shown], "id long, page string, _weight long")
    table = spark.read.parquet(str(clicks.directory))
    assert query.verify(tables={"clicks": table}, actual_df=emitted).equal
    assert not query.verify(tables={"clicks": table.where("id < 5")}, actual_df=emitted).equal
    assert [change.row for change in event.changes] == [{"id": 4, "page": "a"}]
    view().explain()
    assert "Repeated by page" in capsys.readouterr().out
