"""Epochs of a directory that were prepared and are closed late: others have taken their place, or the pipeline has ended."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from zset_join.pipeline import Pipeline, changes


def test_a_prepared_epoch_is_closed_behind_the_one_that_took_its_place_or_the_pipeline(tmp_path: Path) -> None:
    counts = changes("x", {"id": pa.int64(), "k": pa.int64()}, keys="id").groupBy("k").count()
    pipeline = Pipeline(counts, tmp_path)
    with pipeline.prepare({"x": [{"id": 1, "k": 7}]}):
        pipeline.step({"x": [{"id": 2, "k": 8}]})
    early, late = (pipeline.prepare({"x": [{"id": id_, "k": 8}]}) for id_ in (3, 4))
    early.close()
    pipeline.commit(late)
    left = pipeline.prepare({"x": [{"id": 5, "k": 9}]})
    pipeline.close()
    left.close()

    assert pipeline.view().to_pylist() == [{"k": 8, "count": 2}]
    with Pipeline(counts, tmp_path) as again:
        assert again.view().to_pylist() == [{"k": 8, "count": 2}]
