"""Another query is compared with one that runs: its files are read at one epoch, which a lease holds, and it waits for nothing."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.test_durable_changes import BY_CITY, LARGE, MORE, ORDERS, PEOPLE, ROWS, folded
from zset_join.checkpoint import clearing
from zset_join.cli import main
from zset_join.core.errors import OptionError, StateError
from zset_join.lookup import ArrowSource
from zset_join.pipeline import Pipeline
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.checkpoint_diff import check_streams, diff_of_checkpoint
from zset_join.runners.local.stopped import evolve_directory
from zset_join.storage.operations import Operation, observe


def _held(directory: Path) -> list[Path]:
    return sorted((directory / "zset" / clearing.LEASES).glob("*"))


def test_a_running_pipeline_is_compared_at_the_epoch_that_is_held_while_epochs_go_on(tmp_path: Path) -> None:
    directory = tmp_path / "dir"
    later: list[int] = []

    def goes_on(pinned: int) -> None:
        for number in range(5):  # five epochs: logs are merged and files of the pinned epoch are due to go
            pipeline.step({"orders": [{"id": 50 + number, "who": "a", "total": 100}]})
            later.append(pinned)
        assert len(_held(directory)) == 1

    with Pipeline(BY_CITY, directory, snapshot_after_bytes=1) as pipeline:
        pipeline.step(ROWS)
        pipeline.step(MORE)
        pipeline.step({})
        expected = pipeline.diff(LARGE)
        found = diff_of_checkpoint(str(directory), LARGE, on_pinned=goes_on)
        now = diff_of_checkpoint(str(directory), LARGE)
        pipeline.step({})

        assert (later, found.epoch, now.epoch) == ([2] * 5, 2, 7)
        assert list(found.lines()) == list(expected.lines())
        assert found.views[pipeline.plan.name].samples() == expected.views[pipeline.plan.name].samples()
        assert _held(directory) == []


def test_files_that_a_lease_held_go_once_it_is_over(tmp_path: Path) -> None:
    directory = tmp_path / "dir"

    def files() -> set[str]:
        return {str(path.relative_to(directory / "zset")) for path in (directory / "zset" / "delta").glob("*/*")}

    with Pipeline(BY_CITY, directory, keep_view=False) as pipeline:
        pipeline.step(ROWS)
        pinned = files()
        lease = directory / "zset" / clearing.LEASES / "reader.json"
        lease.parent.mkdir()
        lease.write_text(json.dumps({"epoch": 0, "until": time.time() + 600, "files": sorted(pinned)}))
        for total in range(3):
            pipeline.step({"orders": [{"id": 0, "who": "a", "total": 100 + total}]})
        kept = files()
        lease.write_text(json.dumps({"epoch": 0, "until": time.time() - 1, "files": sorted(pinned)}))
        pipeline.step({"orders": [{"id": 0, "who": "a", "total": 200}]})

        assert len(pinned) == 1
        assert kept > pinned
        assert not files() & pinned
        assert not lease.exists()


def test_a_lease_that_is_too_short_is_an_error_and_without_an_epoch_none_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "dir"

    def loses(pinned: int) -> None:
        time.sleep(0.05)
        for _ in range(4):
            pipeline.step(ROWS)

    with Pipeline(BY_CITY, directory, snapshot_after_bytes=1) as pipeline:
        assert diff_of_checkpoint(str(directory), LARGE).epoch is None
        for _ in range(3):
            pipeline.step(ROWS)
        for seconds in (0, "10", None, float("inf")):
            with pytest.raises(OptionError, match="OPTION_VALUE"):
                diff_of_checkpoint(str(directory), LARGE, lease_seconds=seconds)  # type: ignore[arg-type]
        with pytest.raises(StateError, match="LEASE_EXPIRED"):
            diff_of_checkpoint(str(directory), LARGE, lease_seconds=0.01, on_pinned=loses)


def test_the_command_names_the_epoch_that_it_compares_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["diff", str(tmp_path / "dir"), "tests.pipeline.test_durable_changes:LARGE"]
    with Pipeline(BY_CITY, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)
        running = main(command)
        printed = capsys.readouterr()
        pipeline.step(MORE)
    stopped = main(command)
    later = capsys.readouterr()

    assert (running, stopped) == (1, 1)
    assert "comparing at epoch 0, held for 600 seconds" in printed.err
    assert printed.out.startswith("after epoch 0: keeps 1 of 2 stages")
    assert "comparing at epoch 1" in later.err
    assert later.out.startswith("after epoch 1:")


def test_a_directory_that_is_only_read_is_compared_once_its_query_has_stopped(tmp_path: Path) -> None:
    def refusing(operation: Operation, act: Callable[[], Any]) -> Any:
        is_below = operation.path.startswith(str(tmp_path / "dir"))
        if is_below and operation.kind not in {"list", "modified", "open", "read", "size"}:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), operation.path)
        return act()

    with Pipeline(BY_CITY, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)
        expected = list(pipeline.diff(LARGE).lines())
        with observe(refusing), pytest.raises(StateError, match=r"STORAGE_FAILED.*the lease"):
            diff_of_checkpoint(str(tmp_path / "dir"), LARGE)
    with observe(refusing):
        assert list(diff_of_checkpoint(str(tmp_path / "dir"), LARGE).lines()) == expected
        with pytest.raises(OptionError, match=r"DIRECTORY.*may write"):
            evolve_directory(tmp_path / "dir", LARGE)


def test_a_query_inside_spark_does_not_begin_to_wait_for_a_processing_time_in_place() -> None:
    before = BY_CITY.plan()
    waiting = ORDERS.join(PEOPLE, on="who", how="full", state_ttl=("10 seconds", None)).plan()
    inside: dict[str, Any] = {"inputs": [{"name": "orders"}, {"name": "people"}]}
    with pytest.raises(
        StateError, match=r"EVOLVE_STREAM.*the stages \['state_ttl-1'\] of the new query wait for a processing time"
    ):
        check_streams(before, waiting, inside)

    check_streams(before, waiting, inside, has_clock=True)
    table = ArrowSource(name="sizes", table=pa.table({"who": ["ann"], "size": [1]}))
    check_streams(before, ORDERS.join(PEOPLE, on="who").lookup_join(table, on="who").plan(), inside)  # no row of it waits
    check_streams(before, waiting, {})
    check_streams(waiting, before, inside)
    check_streams(before, waiting, {"inputs": [{"name": "orders", "baseline": True}, {"name": "people"}]})


def test_states_are_read_that_the_comparison_needs_and_no_others(tmp_path: Path) -> None:
    """The group behind a kept join is built from the join's pairs; groups before the change and the other view are not read."""
    by_who = ORDERS.groupBy("who").agg(F.count().alias("n"))
    before, after = {"cities": BY_CITY, "people": by_who}, {"cities": LARGE, "people": by_who}
    with Pipeline(before, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)
        pipeline.step(MORE)
        expected = pipeline.diff(after)
        with folded() as none:
            same = diff_of_checkpoint(str(tmp_path / "dir"), before)
        with folded() as fed:
            differs = diff_of_checkpoint(str(tmp_path / "dir"), after)

    assert list(differs.lines()) == list(expected.lines())
    assert (same.is_empty, none) == (True, {})
    assert (fed, differs.rebuilt) == ({"join-0-0": 10}, {"aggregate-1": 4})
