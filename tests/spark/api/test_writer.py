"""What `writeStream` accepts, and how it refuses the rest before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.spark import JoinedStream, JoinStreamWriter, appends, changes

COLD_FILES = '  cold_store="files": plain files, the default because an epoch of a join takes less than with "duckdb"'


@pytest.fixture
def joined(orders: Source, customers: Source) -> JoinedStream:
    orders.add((None, 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    return appends(orders.stream(), name="orders").join(
        changes(customers.stream(), name="customers", keys=["customer_id"]), on="customer_id"
    )


@for_each(
    ("build", "complaint"),
    [
        (lambda writer: writer.trigger(), "exactly one of processingTime, once, availableNow"),
        (lambda writer: writer.trigger(once=True, availableNow=True), "exactly one"),
        (lambda writer: writer.trigger(continuous="1 second"), "a join answers epoch by epoch"),
        (lambda writer: writer.trigger(availableNow=False), "must be True"),
        (lambda writer: writer.trigger(processingTime=" "), "expected an interval"),
        (lambda writer: writer.queryName(""), "expected a name"),
        (lambda writer: writer.outputMode("complete"), "outputMode.*the answer is always what changed"),
        (lambda writer: writer.format("parquet"), "format.*to\\(name, ...\\), toDuckDB, toTable or foreachBatch"),
        (lambda writer: writer.partitionBy("a"), "partitionBy.*one directory per epoch"),
        (lambda writer: writer.foreachBatch("print"), "expected a function"),
        (lambda writer: writer.foreachBatch(print, form="rows"), "form='rows' is unknown; use one of weight, row_kind"),
        (lambda writer: writer.to("parquet", path="/tmp/x", form="rows"), "form='rows'"),
        (lambda writer: writer.to("parquet", path="nosuch://bucket/x"), "no installed library reads the file system 'nosuch'"),
        (lambda writer: writer.foreachBatch(print, form="upsert", key="k"), "a key is a list of column names"),
        (lambda writer: writer.foreachBatch(print, form="weight", key=["k"]), 'is for form="upsert"'),
        (lambda writer: writer.to("delta", path="/tmp/x", form="rows"), "form='rows'"),
        (lambda writer: writer.to("delta", path="/tmp/x", form="weight", key=["k"]), "form is for a changelog"),
        (lambda writer: writer.to("delta", path="/tmp/x", key="k"), "a key is a list of column names"),
        (
            lambda writer: writer.to([]),
            "expected the name of an output with its options, or an object with open, last_epoch, write and close",
        ),
        (lambda writer: writer.to("parquet", path="/tmp/x").to("parquet", path="/tmp/x"), "was chosen twice"),
    ],
)
def test_a_refused_call_names_the_alternative(
    joined: JoinedStream, build: Callable[[JoinStreamWriter], Any], complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        build(joined.writeStream)


def test_a_query_without_an_output_a_checkpoint_or_with_a_mistyped_option_does_not_start(
    joined: JoinedStream, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="no output was chosen"):
        joined.writeStream.option("checkpointLocation", str(tmp_path / "cp")).start()

    with pytest.raises(OptionError, match="checkpointLocation is missing"):
        joined.writeStream.foreachBatch(print).start()

    with pytest.raises(OptionError, match="did you mean buckets"):
        joined.writeStream.option("checkpointLocation", "/x").option("bucket", 3).foreachBatch(print).start()


def test_a_start_that_fails_leaves_no_running_query(
    joined: JoinedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("not a changelog")
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "cp")).to("parquet", path=tmp_path / "taken")

    with pytest.raises(SinkError, match="is not a changelog"):
        writer.start()

    assert joined.session.streams.active == []

    context = joined.session.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python-of-somebody-else")
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "cp")).to(Collected())

    with pytest.raises(PlanError, match=r"python-of-somebody-else.*(.|\n)*PYSPARK_PYTHON"):
        writer.start()


def test_explain_reports_where_the_answer_goes_and_refuses_an_option_as_start_does(
    joined: JoinedStream, capsys: pytest.CaptureFixture[str]
) -> None:
    joined.writeStream.to("parquet", path="/data/changes", form="row_kind").explain()

    reported = capsys.readouterr().out
    assert reported.startswith("Output to Parquet changelog /data/changes (row_kind)\nState: all in memory\nJoin ")

    with pytest.raises(OptionError, match="did you mean buckets"):
        joined.writeStream.option("bucket", 3).explain()


@for_each(
    ("options", "reported"),
    [
        (
            {"default_hash_join": "hybrid", "max_hot_bytes": 8_000_000_000, "buckets": 2},
            [
                "State: of joins at most 8,000,000,000 bytes in memory, the rest on local disk",
                "  each bucket: 4,000,000,000 bytes",
                COLD_FILES,
            ],
        ),
        (
            {"default_hash_join": "hybrid", "max_hot_keys": 500},
            ["State: of joins at most 500 keys in memory, the rest on local disk", COLD_FILES],
        ),
        (
            {"default_hash_join": "hybrid", "max_hot_bytes": 64 << 20, "buckets": 1, "cold_store": "duckdb"},
            [
                "State: of joins at most 67,108,864 bytes in memory, the rest on local disk",
                '  cold_store="duckdb": one DuckDB file per bucket and stage, beside the budget at most 32 MB of memory each',
            ],
        ),
        (
            {"default_hash_join": "hybrid", "max_hot_keys": 9, "max_hot_bytes": 7_000, "buckets": 1},
            [
                "State: of joins at most 9 keys and 7,000 bytes in memory, the rest on local disk",
                COLD_FILES,
                (
                    "  what an epoch needs beside its rows, some 50 MB in each of up to 1 Python workers, comes on top: with "
                    "max_hot_bytes=67,108,864 or more it is taken from the budget"
                ),
            ],
        ),
    ],
)
def test_explain_reports_how_much_of_the_state_is_in_memory(
    joined: JoinedStream, capsys: pytest.CaptureFixture[str], options: dict[str, Any], reported: list[str]
) -> None:
    joined.writeStream.options(**options).explain()

    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(reported)] == reported
    assert lines[len(reported)].startswith("Join ")
