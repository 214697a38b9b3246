"""Spark's own files of a query, kept beside our part of a checkpoint that Spark cannot write."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.spark.api.test_query import Run, join_of
from tests.spark.conftest import Collected, Source
from tests.spark.tools.test_rescaling import first, moves_and_deletes
from tests.storage.object_store import ObjectStore, install
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.runners.spark.driver.epochs import DriverEpochs
from zset_join.runners.spark.driver.spark_files import SparkFiles

LOCATION = "objects://bucket/cp"
MARK = "scratch-of-zset-join"


def planned(scratch: Path, epoch: int, text: str = "") -> None:
    """Write what Spark writes when it plans an epoch."""
    for name in ("metadata", f"sources/0/{epoch}", f"offsets/{epoch}", f".offsets/{epoch}.crc"):
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text("id" if name == "metadata" else f"{name} {text}")


def held(scratch: Path) -> set[str]:
    return {path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file()} - {MARK}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    install()
    place = tmp_path / "scratch"
    SparkFiles(str(place), LOCATION).restore()
    return place


def test_an_empty_directory_gets_what_was_kept_and_another_one_loses_the_rest(scratch: Path, tmp_path: Path) -> None:
    planned(scratch, 0)
    planned(scratch, 1)
    SparkFiles(str(scratch), LOCATION).keep(0)
    planned(scratch, 2)

    SparkFiles(str(scratch), LOCATION).restore()
    SparkFiles(str(tmp_path / "new"), LOCATION).restore()

    kept = {"metadata", "sources/0/0", "sources/0/1", "offsets/0"}
    assert held(tmp_path / "new") == kept
    assert {name for name in held(scratch) if not name.startswith(".")} == kept
    assert (tmp_path / "new" / "offsets" / "0").read_text() == "offsets/0 "


def test_what_spark_has_removed_goes_and_nothing_is_put_twice(scratch: Path) -> None:
    files = SparkFiles(str(scratch), LOCATION)
    planned(scratch, 0)
    files.keep(0)
    (scratch / "sources" / "0" / "0").unlink()
    planned(scratch, 1)
    ObjectStore.counts.clear()

    files.keep(1)

    assert ObjectStore.counts["put_new"] == 2
    assert set(ObjectStore.objects) == {f"bucket/cp/{name}" for name in ("metadata", "sources/0/1", "offsets/0", "offsets/1")}


def test_another_drivers_plan_of_an_epoch_is_refused_and_stays(scratch: Path, tmp_path: Path) -> None:
    planned(scratch, 0)
    slow = tmp_path / "slow"
    SparkFiles(str(slow), LOCATION).restore()
    planned(slow, 0, "with other rows")
    SparkFiles(str(scratch), LOCATION).keep(0)
    before = dict(ObjectStore.objects)

    with pytest.raises(StateError, match="another driver has planned epoch 0") as refused:
        SparkFiles(str(slow), LOCATION).keep(0)

    assert refused.value.code == "SPARK_FILES_DIFFER"
    assert before == ObjectStore.objects


@pytest.mark.parametrize("has_filled", [False, True])
@pytest.mark.parametrize("has_kept", [False, True])
def test_a_start_that_empties_the_directory_of_a_running_query_removes_nothing_of_the_checkpoint(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, *, has_filled: bool, has_kept: bool
) -> None:
    running = SparkFiles(str(scratch), LOCATION)
    planned(scratch, 0)
    (running if has_kept else SparkFiles(str(scratch), LOCATION)).keep(0)
    before = dict(ObjectStore.objects)
    second = SparkFiles(str(scratch), LOCATION)
    if not has_filled:
        monkeypatch.setattr(SparkFiles, "_stored", lambda _: (_ for _ in ()).throw(OSError("died")))
        with pytest.raises(OSError, match="died"):
            second.restore()
        monkeypatch.undo()
    else:
        second.restore()
    planned(scratch, 1)

    if has_filled and not has_kept:  # what it finds is what the checkpoint has
        running.keep(1)
    else:
        with pytest.raises(StateError, match="another start of this query has taken") as refused:
            running.keep(1)
        assert refused.value.code == "SPARK_FILES_DIFFER"

    assert before.items() <= ObjectStore.objects.items()


def test_settings_of_the_store_are_not_written_into_the_directory(scratch: Path, tmp_path: Path) -> None:
    place = tmp_path / "with settings"
    SparkFiles(str(place), f"{LOCATION}?secret_access_key=hidden").restore()

    SparkFiles(str(place), f"{LOCATION}?secret_access_key=another").restore()

    assert "hidden" not in (place / MARK).read_text()
    with pytest.raises(OptionError, match="files of another query") as refused:
        SparkFiles(str(place), "objects://bucket/another?secret_access_key=hidden").restore()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("is_marked", [False, True])
def test_files_of_another_query_are_never_removed(scratch: Path, tmp_path: Path, is_marked: bool) -> None:
    other = scratch if is_marked else tmp_path / "other"
    planned(other, 0)

    with pytest.raises(OptionError, match="files of another query") as refused:
        SparkFiles(str(other), "objects://bucket/another").restore()

    assert refused.value.code == "SCRATCH_FOREIGN"
    assert "offsets/0" in held(other)


def test_a_classic_query_goes_on_without_the_disk_it_had(
    scratch: Path, orders: Source, customers: Source, run: Run, tmp_path: Path
) -> None:
    sink = Collected()
    places = {"checkpointLocation": LOCATION, "sparkCheckpointLocation": str(scratch)}
    first(orders, customers)
    run(join_of(orders, customers, "full"), sink, execution="driver", **places)
    before = json.dumps(sorted(map(repr, sink.total().items())))
    shutil.rmtree(scratch)
    shutil.rmtree(tmp_path / "local")
    moves_and_deletes(orders, customers)

    run(join_of(orders, customers, "full"), sink, execution="driver", **places)
    with pytest.raises(ZsetJoinError) as refused:
        run(join_of(orders, customers, "full"), sink, execution="executors", **places)

    assert json.dumps(sorted(map(repr, sink.total().items()))) != before
    assert set(sink.total().values()) == {1}
    assert refused.value.code == "SCRATCH_EXECUTORS"


def test_a_store_that_is_down_at_the_end_of_a_run_costs_a_repeated_epoch_and_leaves_nothing_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    epochs = DriverEpochs.__new__(DriverEpochs)
    pipeline, topics, files = Mock(), Mock(), Mock(**{"keep_ended.side_effect": OSError("no route to the store")})
    epochs.__dict__ |= {"lock": threading.RLock(), "_pipeline": pipeline, "topics": topics, "_files": files}
    epochs.__dict__ |= {"settings": Mock(**{"is_served": False, "options.checkpoint_location": LOCATION})}

    epochs.close()

    assert (pipeline.close.call_count, topics.close.call_count) == (1, 1)
    assert "no route to the store" in caplog.text
