"""A full disk is reported as a full disk, by every part that meets it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from tests.spark.api.test_query import Run, join_of
from tests.spark.conftest import Collected, Source
from tests.sweeps import some_of
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.core.errors import SinkError, StateError
from zset_join.runners.spark.epoch.failures import disk_failure
from zset_join.storage.operations import Operation, observe

FULL = OSError(errno.ENOSPC, "No space left on device", "/data/cp/zset/log/1")


def test_errors_of_the_driver_and_of_a_worker_are_reported_in_the_same_words() -> None:
    worker = PySparkRuntimeError(f"Job aborted\n  File x\nOSError: {FULL}\nmore")

    reported = [disk_failure(error, "/data/cp") for error in (FULL, worker)]

    assert [error.code for error in reported if error is not None] == ["STORAGE_FAILED"] * 2
    assert all("[Errno 28] No space left on device" in str(error) for error in reported)


@pytest.mark.parametrize("error", [OSError("the output failed"), FileNotFoundError(2, "gone"), ValueError("x"), SinkError("y")])
def test_other_failures_stay_what_they_are(error: Exception) -> None:
    assert disk_failure(error, "/data/cp") is None


@pytest.mark.parametrize("execution", some_of(["executors", "driver"], short=["executors"]))
def test_a_full_disk_in_the_checkpoint_stops_the_query_with_a_code_and_it_goes_on(
    orders: Source, customers: Source, run: Run, monkeypatch: pytest.MonkeyPatch, execution: str
) -> None:
    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()

    def full(_operation: Operation, act: Callable[[], Any]) -> Any:
        raise FULL

    def commit(self: Checkpoint, record: Any) -> Any:
        with observe(full):
            return original(self, record)

    original = Checkpoint.commit
    monkeypatch.setattr(Checkpoint, "commit", commit)
    with pytest.raises(StateError, match="Make room") as refused:
        run(join_of(orders, customers), sink, execution=execution)
    monkeypatch.undo()
    assert not sink.epochs
    run(join_of(orders, customers), sink, execution=execution)

    assert refused.value.code == "STORAGE_FAILED"
    assert len(sink.epochs) == 1


def test_a_checkpoint_that_cannot_be_made_is_reported_before_spark_tries(
    orders: Source, customers: Source, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    writer = join_of(orders, customers).writeStream.option("checkpointLocation", str(tmp_path / "file" / "cp"))

    with pytest.raises(StateError, match="cannot be made") as refused:
        writer.to(Collected()).start()

    assert refused.value.code == "STORAGE_FAILED"
