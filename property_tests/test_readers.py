"""A reader beside the writer sees all views of a pipeline after the same epoch, at every moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest

from property_tests.bank import bank_epoch, bank_views, expected_views, total_after
from property_tests.laws import LawBrokenError
from zset_join.core.errors import OptionError
from zset_join.pipeline import Pipeline
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.snapshots import Snapshot
from zset_join.sinks.duckdb_view import DuckDBViewSink

VIEWS = ("total", "by_account", "by_branch")
SUMS = "SELECT (SELECT coalesce(sum(amount), 0) FROM total), (SELECT coalesce(sum(amount), 0) FROM by_account)"
LONG = [pytest.mark.long, pytest.mark.timeout(0)]
TOTALS = {total_after(epoch) for epoch in range(200_000)} | {0}


def check(snapshot: Snapshot) -> None:
    """Compare all views of a snapshot with the total after its epoch."""
    found = [sum(table["amount"].to_pylist()) for table in snapshot.tables().values()]
    if found != [total_after(snapshot.epoch)] * 3:
        raise LawBrokenError(f"after epoch {snapshot.epoch} the views sum to {found}, expected {total_after(snapshot.epoch)}")


def beside(pipeline: Pipeline[Any], read: Callable[[], None], times: int, seen: set[Any]) -> int:
    """Read in a thread while this one steps, at least `times` times, over ten epochs, until four answers were `seen`.

    A busy machine may give all reads the same answer; after 100 times as many reads, the test fails on it.
    Return the number of epochs.
    """
    pipeline.step(bank_epoch(0))
    errors: list[Exception] = []

    def reads() -> None:
        try:
            for number in count(1):
                read()
                if number >= times and pipeline.epoch > 10 and (len(seen) > 3 or number >= 100 * times):
                    break
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    reader = threading.Thread(target=reads)
    reader.start()
    for epoch in count(1):
        pipeline.step(bank_epoch(epoch))
        if not reader.is_alive():
            break
    reader.join()
    if errors:
        raise errors[0]
    return epoch + 1


@pytest.mark.parametrize("times", [500, pytest.param(100_000, marks=LONG)])
def test_the_views_of_a_snapshot_are_of_one_epoch_while_the_writer_steps(times: int) -> None:
    pipeline = Pipeline(bank_views())
    seen = set[int | None]()

    def read() -> None:
        snapshot = pipeline.snapshot()
        check(snapshot)
        seen.add(snapshot.epoch)

    epochs = beside(pipeline, read, times, seen)

    assert len(seen) > 3
    assert {name: set(map(tuple, (row.values() for row in table.to_pylist()))) for name, table in
            pipeline.snapshot().tables().items()} == expected_views(range(epochs))  # fmt: skip


def test_a_reader_in_the_middle_of_an_epoch_sees_the_one_before(tmp_path: Path) -> None:
    """Look at every moment at which one view has taken an epoch and another has not."""
    pipeline = Pipeline(bank_views(), tmp_path / "p")
    seen, add = [], Contents.add

    def adding(contents: Contents, delta: Any) -> None:
        add(contents, delta)
        check(pipeline.snapshot())
        seen.append(pipeline.snapshot().epoch)

    with mock.patch.object(Contents, "add", adding):
        for epoch in range(3):
            pipeline.step(bank_epoch(epoch))
    pipeline.close()

    assert seen == [None] * 3 + [0] * 3 + [1] * 3
    with Pipeline(bank_views(), tmp_path / "p") as again:
        check(again.snapshot())
        assert again.snapshot().epoch == 2


def test_a_snapshot_that_is_held_stays_as_it_was(tmp_path: Path) -> None:
    """Hold one of every epoch, over many epochs and a consolidation, a saved state, and read them all at the end."""
    with mock.patch("zset_join.runners.local.contents._LEAST_ROWS", 8):
        pipeline = Pipeline(bank_views())
        held = [pipeline.snapshot()]
        for epoch in range(40):
            pipeline.step(bank_epoch(epoch))
            held.append(pipeline.snapshot())
            if epoch % 7 == 3:
                pipeline.view("by_account")

    for snapshot in held:
        check(snapshot)
    pipeline.save(tmp_path / "saved")
    other = Pipeline(bank_views())
    other.load(tmp_path / "saved")
    assert other.snapshot().epoch == 39
    check(other.snapshot())
    with pytest.raises(OptionError, match="keep_view=False"):
        Pipeline(bank_views(), keep_view=False).snapshot()


@pytest.mark.parametrize("times", [300, pytest.param(100_000, marks=LONG)])
def test_two_views_of_a_duckdb_file_are_read_at_one_epoch_by_another_connection(tmp_path: Path, times: int) -> None:
    file = tmp_path / "bank.duckdb"
    outputs = {name: DuckDBViewSink(file, name, hold_seconds=None) for name in VIEWS}
    with Pipeline(bank_views(), tmp_path / "p", outputs=outputs) as pipeline, duckdb.connect(str(file)) as connection:
        seen = set()

        def read() -> None:
            totals = connection.execute(SUMS).fetchall()
            if totals[0][0] != totals[0][1] or totals[0][0] not in TOTALS:
                raise LawBrokenError(f"two views of one query sum to {totals}")
            seen.add(totals[0][0])

        epochs = beside(pipeline, read, times, seen)

    assert epochs > 10
    assert len(seen) > 3


READER = """
import sys, time, duckdb
path, times, sums = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen, reads, until = set(), 0, time.monotonic() + 60
while reads < times or (len(seen) < 2 and time.monotonic() < until):
    reads += 1
    while True:
        try:
            with duckdb.connect(path, read_only=True) as connection:
                one, other = connection.execute(sums).fetchone()
            break
        except duckdb.IOException:
            time.sleep(0.001)
    assert one == other, (one, other)
    seen.add(one)
    time.sleep(0.001)
print(len(seen))
"""


@pytest.mark.parametrize("times", [25, pytest.param(5_000, marks=LONG)])
def test_two_views_of_a_duckdb_file_are_read_at_one_epoch_by_another_process(tmp_path: Path, times: int) -> None:
    file = tmp_path / "bank.duckdb"
    outputs = {name: DuckDBViewSink(file, name, hold_seconds=0) for name in VIEWS}
    with Pipeline(bank_views(), tmp_path / "p", outputs=outputs) as pipeline:
        pipeline.step(bank_epoch(0))
        with subprocess.Popen(
            [sys.executable, "-c", READER, file, str(times), SUMS], stdout=subprocess.PIPE, text=True
        ) as reader:
            for epoch in count(1):
                pipeline.step(bank_epoch(epoch))
                if reader.poll() is not None:
                    break
            assert reader.stdout is not None
            reported = reader.stdout.read()

    assert reader.returncode == 0
    assert int(reported) > 1
