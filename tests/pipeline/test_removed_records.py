"""A directory whose newest commit record is gone is refused: what it was closed behind, or an output, has a newer epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults.sinks import SINKS
from zset_join.checkpoint.owner import epoch_at_end
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import StateError
from zset_join.pipeline import Pipeline, changes
from zset_join.tools.savepoint import backup, restore

VIEW = changes("s", {"k": pa.int64(), "v": pa.string()}, keys="k")


def opened(place: Path, *sinks: Any) -> Pipeline[Any]:
    return Pipeline(VIEW, place / "d", outputs=sinks)


def ran(place: Path, *sinks: Any, epochs: int = 3) -> Path:
    """Run epochs, remove the newest commit record, and return the file that the owner left."""
    with opened(place, *sinks) as pipeline:
        for number in range(epochs):
            pipeline.step({"s": [{"k": 1, "v": str(number)}]})
    max((place / "d" / "zset" / "commits").glob("*.json")).unlink()
    (over,) = (place / "d" / "zset" / "owners").glob("*.over")
    return over


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_closed_directory_without_its_newest_record_is_refused_until_its_user_goes_back(epochs: int, tmp_path: Path) -> None:
    over = ran(tmp_path, epochs=epochs)

    for _ in range(2):
        with pytest.raises(StateError, match=f"{over} an empty file") as refused:
            opened(tmp_path)
        assert (refused.value.code, refused.value.facts["epoch"]) == ("COMMIT_RECORD_MISSING", epochs - 1)
    over.write_bytes(b"")
    with opened(tmp_path) as pipeline:
        assert pipeline.epoch == epochs - 1
        pipeline.step({"s": [{"k": 1, "v": "again"}]})
        assert pipeline.view().to_pylist() == [{"k": 1, "v": "again"}]
    opened(tmp_path).close()


@pytest.mark.parametrize("kind", SINKS)
def test_a_crashed_directory_without_its_newest_record_is_refused_where_an_output_has_its_epoch(
    kind: str, tmp_path: Path
) -> None:
    over = ran(tmp_path, SINKS[kind].make(tmp_path))
    over.unlink()

    with pytest.raises(StateError, match="ends behind epoch 2") as refused:
        opened(tmp_path, SINKS[kind].make(tmp_path))

    assert refused.value.code == "COMMIT_RECORD_MISSING"
    over.write_bytes(b"")
    with opened(tmp_path, SINKS[kind].make(tmp_path)) as pipeline:
        pipeline.step({"s": [{"k": 1, "v": "2"}]})
        pipeline.step({"s": [{"k": 1, "v": "3"}]})


def test_a_record_that_is_removed_after_a_backup_is_missed_and_the_restored_directory_is_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as pipeline:
        pipeline.step({"s": [{"k": 1, "v": "a"}]})
    backup(tmp_path / "d", tmp_path / "saved")
    max((tmp_path / "d" / "zset" / "commits").glob("*.json")).unlink()

    with pytest.raises(StateError, match="COMMIT_RECORD_MISSING"):
        opened(tmp_path)
    restore(tmp_path / "saved", replace=True)
    with opened(tmp_path) as pipeline:
        assert pipeline.view().to_pylist() == [{"k": 1, "v": "a"}]


def test_what_an_owner_leaves_counts_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as pipeline:
        pipeline.step({"s": [{"k": 1, "v": "a"}]})
    (over,) = (tmp_path / "d" / "zset" / "owners").glob("*.over")
    whole, folder = over.read_bytes(), checkpoint_folder(str(tmp_path / "d"))
    assert epoch_at_end(folder) == (0, str(over))

    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in [*flipped, *(whole[:length] for length in range(len(whole))), whole + b"\0"]:
        over.write_bytes(damaged)
        assert epoch_at_end(folder)[0] is None, damaged
