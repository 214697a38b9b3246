"""Every output of a pipeline gets every epoch once, in order."""

from __future__ import annotations

import shutil

import duckdb
import pyarrow as pa
import pytest

from zset_join import ResourceError, SinkError
from zset_join.pipeline import FunctionSink, Pipeline, appends, changes
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink, read_changelog

X = {"x": pa.int64()}


def counts():
    return appends("x", X).groupBy("x").count()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_every_output_has_every_epoch_once_after_one_of_them_failed(tmp_path, failing, monkeypatch):
    seen = []

    def outputs():
        view, log = DuckDBViewSink(tmp_path / "v.duckdb", "v"), ParquetChangelogSink(tmp_path / "log")
        return [FunctionSink(lambda epoch, _: seen.append(epoch)), view, log]

    def away(*_, **__):
        raise OSError("away")

    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline:
        pipeline.step({"x": [{"x": 1}]})
        monkeypatch.setattr(pipeline._outputs._opened[failing][1].sink, "write", away)
        for _ in range(2):
            with pytest.raises(OSError, match="away"):
                pipeline.step({"x": [{"x": 2}]})
            assert pipeline.epoch == 2
    seen_before = [0] if failing == 0 else [0, 1]
    assert seen == seen_before
    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline:
        pipeline.step({"x": [{"x": 3}]})

    with duckdb.connect(str(tmp_path / "v.duckdb"), read_only=True) as connection:
        assert connection.sql("SELECT x, count FROM v ORDER BY x").fetchall() == [(1, 1), (2, 1), (3, 1)]
    assert read_changelog(tmp_path / "log").sort_by("epoch").column("epoch").to_pylist() == [0, 1, 2]
    assert seen == [*seen_before, 1, 2]  # a function does not remember over a start what it was given


def test_an_output_that_has_epochs_is_refused_in_memory(tmp_path):
    class Used(FunctionSink):
        def last_epoch(self):
            return 3

    with pytest.raises(SinkError, match="has epochs up to 3"):
        Pipeline(counts(), outputs=[Used(print)])


def test_several_outputs_get_the_same_epochs_and_those_of_a_restored_directory_are_distinguished(tmp_path):
    def outputs():
        return [DuckDBViewSink(tmp_path / "v.duckdb", "v"), ParquetChangelogSink(tmp_path / "log")]

    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline:
        pipeline.step({"x": [{"x": 1}]})
    shutil.copytree(tmp_path / "p", tmp_path / "older")
    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline:
        pipeline.step({"x": [{"x": 2}]})
    shutil.rmtree(tmp_path / "p")
    shutil.copytree(tmp_path / "older", tmp_path / "p")

    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline, pytest.raises(SinkError) as refused:
        pipeline.step({"x": [{"x": 3}]})
    shutil.rmtree(tmp_path / "p")
    shutil.copytree(tmp_path / "older", tmp_path / "p")
    with Pipeline(counts(), tmp_path / "p", outputs=outputs()) as pipeline:
        pipeline.step({"x": [{"x": 2}]})  # what was read before: the epoch is present already
        pipeline.step({"x": [{"x": 2}]})

    assert refused.value.code == "SINK_OTHER_CHAIN"
    with duckdb.connect(str(tmp_path / "v.duckdb"), read_only=True) as connection:
        assert connection.sql("SELECT x, count FROM v ORDER BY x").fetchall() == [(1, 1), (2, 2)]
    assert read_changelog(tmp_path / "log").column("epoch").to_pylist() == [0, 1, 2, 2]


def test_a_function_that_requests_it_gets_the_digest_of_the_epoch(tmp_path):
    seen = []

    def write(epoch, delta, chain):
        seen.append((epoch, chain))

    with Pipeline(counts(), tmp_path / "p", outputs=[FunctionSink(write)]) as pipeline:
        pipeline.step({"x": [{"x": 1}]})
        pipeline.step({"x": []})

    assert [epoch for epoch, _ in seen] == [0, 1]
    assert len({digest for _, digest in seen}) == 2


def test_ctrl_c_while_duckdb_runs_is_a_keyboard_interrupt_and_the_output_gets_the_epoch_with_the_next_step():
    taken = []

    def write(epoch, delta):
        taken.append(epoch)
        if len(taken) == 1:
            raise RuntimeError("Query interrupted")  # as DuckDB raises it where Ctrl-C ends a query

    with Pipeline(counts(), outputs=[FunctionSink(write)]) as pipeline:
        with pytest.raises(KeyboardInterrupt):
            pipeline.step({"x": [{"x": 1}]})
        pipeline.step({"x": [{"x": 2}]})

    assert taken == [0, 0, 1]


def test_a_row_of_more_copies_than_memory_holds_is_read_with_its_weight(tmp_path):
    view = changes("s", {"k": pa.int64(), "w": pa.int64()}, weight_column="w")
    sink = DuckDBViewSink(tmp_path / "v.duckdb", "v")
    with Pipeline(view, outputs=[sink]) as pipeline:
        pipeline.step({"s": [{"k": 1, "w": 10**12}, {"k": 2, "w": 2}]})
        for read in (pipeline.view, sink.read):
            with pytest.raises(ResourceError, match=r"Read contents\(\)") as refused:
                read()
            assert refused.value.code == "TOO_MANY_ROWS"
        assert pipeline.contents().to_pylist() == [((1,), 10**12), ((2,), 2)]
