"""A pipeline that runs over sources takes every row exactly once, whatever stops it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.pipeline import Pipeline, View, appends, run
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit

SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64()})


class Numbers:
    """A source of the rows ("a", 0), ("b", 1), ("a", 2) ... whose position is how many it gave."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.at = 0
        self.is_open = False

    def open(self, position: Any) -> None:
        self.at, self.is_open = position or 0, True

    def poll(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        assert wait_seconds >= 0
        numbers = range(self.at, min(self.end, self.at + most_rows))
        self.at += len(numbers)
        return pa.table({"k": ["ab"[n % 2] for n in numbers], "n": list(numbers)}, schema=SCHEMA), self.at

    def close(self) -> None:
        self.is_open = False


def counts() -> View:
    return appends("numbers", SCHEMA).groupBy("k").agg(F.count().alias("rows"), F.sum("n").alias("sum"))


def shown(pipeline: Pipeline) -> dict[str, tuple[int, int]]:
    return {row["k"]: (row["rows"], row["sum"]) for row in pipeline.view().to_pylist()}


def test_available_now_takes_what_is_there_in_bounded_epochs_and_ends() -> None:
    pipeline, source = Pipeline(counts()), Numbers(10)

    epochs = run(pipeline, {"numbers": source}, available_now=True, most_rows=4, trigger_seconds=0)

    assert epochs == 3
    assert shown(pipeline) == {"a": (5, 20), "b": (5, 25)}
    assert not source.is_open


def test_a_run_goes_on_where_the_last_committed_epoch_ended(tmp_path: Path) -> None:
    with Pipeline(counts(), tmp_path / "state") as pipeline:
        run(pipeline, {"numbers": Numbers(7)}, available_now=True, most_rows=3, trigger_seconds=0)

    with Pipeline(counts(), tmp_path / "state") as again:
        assert again.positions == {"numbers": 7}
        run(again, {"numbers": Numbers(10)}, available_now=True, trigger_seconds=0)
        assert shown(again) == {"a": (5, 20), "b": (5, 25)}


def test_rows_of_an_epoch_that_failed_come_again(tmp_path: Path) -> None:

    class Failing(Pipeline):
        def _prepared(self, *args: Any, **options: Any) -> Any:
            if self.epoch == 1:
                raise KeyboardInterrupt
            return super()._prepared(*args, **options)

    with Failing(counts(), tmp_path / "state") as pipeline, pytest.raises(KeyboardInterrupt):
        run(pipeline, {"numbers": Numbers(6)}, available_now=True, most_rows=3, trigger_seconds=0)

    with Pipeline(counts(), tmp_path / "state") as again:
        run(again, {"numbers": Numbers(6)}, available_now=True, most_rows=3, trigger_seconds=0)
        assert shown(again) == {"a": (3, 6), "b": (3, 9)}


def test_a_run_stops_on_request() -> None:
    pipeline = Pipeline(counts())

    run(pipeline, {"numbers": Numbers(100)}, most_rows=1, trigger_seconds=0, stop=lambda: pipeline.epoch == 3)

    assert pipeline.epoch == 3


def test_a_source_that_the_pipeline_does_not_have_is_refused() -> None:
    with pytest.raises(PlanError, match="the pipeline has"):
        run(Pipeline(counts()), {"letters": Numbers(1)})
