from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.snapshot import SnapshotEntry, read_snapshot, write_snapshot
from zset_join.errors import StateError


def files_at(root: Path) -> CheckpointFiles:
    return CheckpointFiles.at(str(root), "q")


def test_tables_come_back_with_types_and_metadata(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([1, None], pa.int16()), "d": pa.array([5, 6], pa.duration("us"))})
    table = table.replace_schema_metadata({b"epoch": b"4"})

    entry = write_snapshot(files_at(tmp_path), "snapshot/join-0", {"left": table}, through_epoch=4, identity="x")

    found = read_snapshot(files_at(tmp_path), entry)["left"]
    assert found.equals(table, check_metadata=True)


def test_an_entry_survives_json(tmp_path: Path) -> None:
    entry = write_snapshot(files_at(tmp_path), "s", {"left": pa.table({"k": [1]})}, through_epoch=4, identity="x")

    assert SnapshotEntry.from_json(entry.to_json()) == entry


def test_a_missing_snapshot_file_is_named(tmp_path: Path) -> None:
    entry = write_snapshot(files_at(tmp_path), "s", {"left": pa.table({"k": [1]})}, through_epoch=4, identity="x")
    (tmp_path / entry.tables["left"].name).unlink()

    with pytest.raises(StateError, match=r"left\.parquet is missing"):
        read_snapshot(files_at(tmp_path), entry)
