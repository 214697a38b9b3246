"""A stage that waits for a time runs at that time, even without input; with a directory the wait survives."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from zset_join.expressions import col
from zset_join.pipeline import Pipeline, appends, versioned
from zset_join.zset.protocol import NextDue

COLUMNS = {"id": pa.int64(), "k": pa.string(), "t": pa.int64()}
RATES = versioned("rates", {"k": pa.string(), "rate": pa.int64(), "at": pa.int64()}, keys="k", version_by="at", delay=0)
ORDERS = appends("orders", COLUMNS, watermark=("t", 4)).where(col("id") > 0)
VIEW = ORDERS.temporal_join(RATES, on="k", as_of="t").select("id", "rate")
PASSES_TIME = {"orders": [{"id": 0, "k": "a", "t": 10}]}  # filtered: nothing reaches the stage but the time


def begun(pipeline):
    orders = [{"id": number, "k": "a", "t": time} for number, time in ((1, 5), (2, 7), (3, 6))]
    pipeline.step({"orders": orders, "rates": [{"k": "a", "rate": 8, "at": 1}, {"k": "b", "rate": 9, "at": 100}]})


@pytest.mark.parametrize("lasts", [False, True])
def test_rows_wait_through_epochs_and_restarts_and_are_released_by_time_alone(tmp_path, lasts):
    pipeline = Pipeline(VIEW, tmp_path if lasts else None)
    begun(pipeline)
    for _ in range(2):
        if lasts:
            pipeline.close()
            pipeline = Pipeline(VIEW, tmp_path, snapshot_after_bytes=0)
        assert pipeline.step({}).to_pylist() == []
        assert pipeline.next_due() == NextDue(watermark_us=5)

    assert sorted(pipeline.step(PASSES_TIME).to_pylist()) == [((1, 8), 1), ((3, 8), 1)]
    pipeline.close()


def as_bytes(delta):
    return delta.rows.serialize().to_pybytes() + delta.weights.tobytes()


def test_an_epoch_that_only_time_opened_is_answered_again_byte_for_byte_and_folded_once(tmp_path):
    place, twin = tmp_path / "a", tmp_path / "b"
    with Pipeline(VIEW, place) as pipeline:
        begun(pipeline)
    shutil.copytree(place, twin)

    answers = []
    for directory, given in ((place, PASSES_TIME), (twin, PASSES_TIME), (place, {})):
        with Pipeline(VIEW, directory) as again:
            answers.append(again.step(given, epoch=1))
    with Pipeline(VIEW, place) as again:
        last = again.step({"orders": [{"id": 0, "k": "a", "t": 20}]})

    assert sorted(answers[0].to_pylist()) == [((1, 8), 1), ((3, 8), 1)]
    assert len(set(map(as_bytes, answers))) == 1
    assert last.to_pylist() == [((2, 8), 1)]
