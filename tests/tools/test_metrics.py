"""What the newest epoch did, for Prometheus."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.record import CommitRecord
from zset_join.cli import main
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.tools.metrics import METRICS, _of_record, measured

HOSTILE = 'orders"\\\n[bold]'
LINE = re.compile(r'zset_join_\w+\{query="[^"]+"(,\w+="(\\.|[^"\\\n])*")*\} \S+')


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    orders = changes(
        HOSTILE, {"id": pa.int64(), "c": pa.string(), "at": pa.timestamp("us")}, keys="id", watermark=("at", "1 second")
    )
    with Pipeline(orders.groupBy("c").agg(F.count().alias("n")), tmp_path / "p") as pipeline:
        pipeline.step({HOSTILE: [{"id": 1, "c": "x", "at": datetime.datetime(2026, 1, 1)}]})
        pipeline.step({HOSTILE: [{"id": 1, "c": "y", "at": datetime.datetime(2026, 1, 2)}]})
    return tmp_path / "p"


def test_every_line_is_one_that_prometheus_reads_and_shows_what_the_epoch_did(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(directory)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert all(LINE.fullmatch(line) for line in lines if not line.startswith("#"))
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named)) > 10
    found = measured(directory)
    assert found.epoch == 1
    assert found.by("zset_join_epoch_rows_in", "source") == {HOSTILE: 1}
    assert found.by("zset_join_epoch_retractions", "view") == {"": 1}
    assert found.by("zset_join_stage_log_bytes", "stage")["aggregate-1"] > 0


def test_the_lag_of_a_watermark_is_measured_from_the_processing_time() -> None:
    record = CommitRecord(query_id="q", epoch=3, processing_time_us=25_000_000, watermarks={"a": 19_000_000, "stage:x": 1})

    lags = [(labels, value) for name, labels, value in _of_record(record) if name.endswith("lag_seconds")]
    assert lags == [({"source": "a"}, 6.0)]


def test_the_names_that_spark_writes_are_read_too() -> None:
    progress = {
        "rows_in": {"a": 2, "b": 3},
        "delta_rows": 4,
        "retractions": 1,
        "quarantined": {"a": 1, "b": 1},
        "state": {"left_rows": 9, "left_bytes": 90},
        "stages": {"latest-1": {"latest_bytes": 7}},
        "seconds": {"total": 1.5, "stages": {"latest-1": 0.5}},
    }
    record = CommitRecord(query_id="q", epoch=0, processing_time_us=None, progress=progress)
    found = {(name, *labels.values()): value for name, labels, value in _of_record(record)}

    assert found["zset_join_epoch_rows_in", "b"] == 3
    assert found["zset_join_epoch_answer_rows", ""] == 4
    assert found["zset_join_epoch_rejected_rows",] == 2
    assert found["zset_join_stage_state_bytes", "first join", "left"] == 90
    assert found["zset_join_stage_state_bytes", "latest-1", "latest"] == 7
    assert found["zset_join_epoch_seconds", "total"] == 1.5
    assert found["zset_join_stage_seconds", "latest-1"] == 0.5


def test_the_dashboard_uses_metrics_that_exist() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/grafana-dashboard.json").read_text(encoding="utf-8")

    requested = {
        one
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
        for one in re.findall(r"zset_join_\w+", target["expr"])
    }
    assert len(requested) > 8
    assert requested <= set(METRICS)


def test_the_page_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/watch-a-query.md").read_text(encoding="utf-8")

    assert [name for name in METRICS if f"`{name}`" not in page] == []


def test_a_place_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(tmp_path)]) == 1
    assert "NO_CHECKPOINT" in capsys.readouterr().err
