"""A start that is refused leaves every file of the directory as it was, and the program before it goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_query_id
from zset_join.errors import SinkError, ZsetJoinError
from zset_join.pipeline import Pipeline, appends
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.pipeline.outputs import FunctionSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink

COLUMNS = {"k": pa.int64(), "v": pa.int64()}


def view(**more):
    return appends("rows", {**COLUMNS, **more}).groupBy("k").agg(F.sum("v").alias("v"))


def latest(**more):
    rows = appends("rows", {**COLUMNS, **more})
    return rows.join(appends("names", {"id": pa.int64(), "name": pa.string()}), [("k", "id")])


class Refusing(FunctionSink):
    """An output that refuses when it is opened, or when it is asked for its last epoch."""

    def __init__(self, where):
        super().__init__(print)
        self.where = where

    def open(self, output, query_id):
        if self.where == "open":
            raise SinkError("the columns are others", code="SINK_SCHEMA")
        super().open(output, query_id)

    def last_epoch(self):
        if self.where == "last_epoch":
            raise SinkError("the output is away", code="SINK_OPEN")
        return super().last_epoch()

    def write(self, epoch, chunks, *, link=None):  # noqa: ARG002 - as the protocol has it
        raise OSError("the output is full")


def files_below(directory: Path):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def start_with_a_damaged_answer(directory: Path):
    damaged = max((directory / "zset" / "delta").rglob("*.arrows"))  # that of the last epoch
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    try:
        Pipeline(latest(more=pa.string()), directory)
    finally:
        damaged.write_bytes(whole)


REFUSALS = {
    "QUERY_CHANGED": lambda at: Pipeline(view(), at),
    "SINK_SCHEMA": lambda at: Pipeline(latest(more=pa.string()), at, outputs=[Refusing("open")]),
    "SINK_OPEN": lambda at: Pipeline(latest(more=pa.string()), at, outputs=[Refusing("last_epoch")]),
    "the output is full": lambda at: Pipeline(latest(more=pa.string()), at, outputs=[Refusing("write")]),
    "SINK_SCHEMA of a second output": lambda at: Pipeline(
        latest(more=pa.string()), at, outputs=[FunctionSink(print), Refusing("open")]
    ),
    "FORM": lambda at: Pipeline(latest(more=pa.string()), at, outputs=[FunctionSink(print, form="weights")]),
    "SINK_EPOCH_GAP": lambda at: Pipeline(
        latest(more=pa.string()), at, outputs=[ParquetChangelogSink(at.with_name("new output"), "weight")]
    ),
    "DAMAGED_FILE": start_with_a_damaged_answer,
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_start_leaves_every_file_as_it_was_and_the_program_before_it_goes_on(refusal, tmp_path):
    place = tmp_path / "d"
    with Pipeline(latest(), place) as pipeline:
        for number in range(3):
            pipeline.step({"rows": [{"k": 1, "v": number}], "names": [{"id": 1, "name": "Ann"}]})
        held = sorted(pipeline.contents().to_pylist())
    before = files_below(place)

    with pytest.raises((ZsetJoinError, OSError)) as refused:
        REFUSALS[refusal](place)

    assert refusal.startswith(getattr(refused.value, "code", str(refused.value)))
    assert files_below(place) == before
    with Pipeline(latest(), place) as again:
        assert sorted(again.contents().to_pylist()) == held
        assert again.step({"rows": [{"k": 1, "v": 9}]}).weights.sum() == 3
    with Pipeline(latest(more=pa.string()), place) as wider:
        assert wider.epoch == 4


def test_a_start_beside_a_running_one_is_refused_and_changes_no_file(tmp_path):
    with Pipeline(view(), tmp_path) as pipeline:
        pipeline.step({"rows": [{"k": 1, "v": 1}]})
        before = files_below(tmp_path)

        with pytest.raises(ZsetJoinError) as refused:
            Pipeline(view(), tmp_path)

        assert refused.value.code == "CHECKPOINT_IN_USE"
        assert files_below(tmp_path) == before


def test_a_first_start_that_is_refused_lets_another_query_begin_under_the_name_its_outputs_know(tmp_path):
    first = ParquetChangelogSink(tmp_path / "out", "weight")
    with pytest.raises(SinkError):
        Pipeline(view(), tmp_path / "d", outputs=[first, Refusing("open")])

    seen = []
    with Pipeline(view(), tmp_path / "d", outputs=[first, FunctionSink(lambda epoch, _delta: seen.append(epoch))]) as pipeline:
        pipeline.step({"rows": [{"k": 1, "v": 1}]})

    assert seen == [0]
    assert stored_query_id(str(tmp_path / "d")) is not None


def test_a_claim_on_trial_that_is_released_leaves_the_one_before_as_it_was(tmp_path):
    folder = checkpoint_folder(str(tmp_path))
    Ownership.claim(folder, "q").release()
    before = files_below(tmp_path)

    Ownership.claim(folder, "q", on_trial=True).release()

    assert files_below(tmp_path) == before
