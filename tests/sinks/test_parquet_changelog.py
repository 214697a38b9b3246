"""The changelog as Parquet files, one directory per epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from zset_join.errors import SinkError
from zset_join.relation import Relation
from zset_join.sinks.parquet_changelog import (
    ParquetChangelogSink,
    commit_epoch,
    committed_epochs,
    read_changelog,
    write_part,
)
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
OUTPUT = Relation(name="answer", schema=SCHEMA, primary_key=("k",), mode="changelog")
OLD = ZSet.of({"k": [1], "v": ["old"]}, schema=SCHEMA)
NEW = ZSet.of({"k": [1], "v": ["new"]}, schema=SCHEMA)


def opened(directory: Path, form: Any = "weight") -> ParquetChangelogSink:
    sink = ParquetChangelogSink(directory, form)
    sink.open(OUTPUT, "query")
    return sink


def lines(directory: Path, up_to_epoch: int | None = None) -> list[tuple[Any, ...]]:
    return [tuple(line.values()) for line in read_changelog(directory, up_to_epoch).to_pylist()]


def test_the_changelog_holds_every_delta_in_order(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")

    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    assert lines(tmp_path / "log") == [(1, "old", 1), (1, "old", -1), (1, "new", 1)]


def test_reading_can_stop_at_an_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")
    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    assert lines(tmp_path / "log", up_to_epoch=0) == [(1, "old", 1)]


def test_an_update_that_comes_in_two_chunks_is_one_update(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log", "row_kind")

    sink.write(0, [-OLD, NEW])

    assert lines(tmp_path / "log") == [(1, "old", "-U"), (1, "new", "+U")]


def test_the_manifest_names_epoch_files_rows_and_retractions(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [-OLD, NEW])

    manifest = json.loads((tmp_path / "log" / "epoch=00000000" / "_manifest.json").read_text())

    file = manifest["files"][0]
    assert (manifest["epoch"], manifest["rows"], manifest["retractions"], len(manifest["files"])) == (0, 2, 1, 1)
    assert (tmp_path / "log" / "epoch=00000000" / file["name"]).stat().st_size == file["bytes"]


def test_an_empty_changelog_reads_as_no_lines_with_the_right_columns(tmp_path: Path) -> None:
    opened(tmp_path / "log")

    assert read_changelog(tmp_path / "log").schema.names == ["k", "v", "_weight"]


def test_any_reader_of_parquet_sees_committed_epochs_only(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    write_part(tmp_path / "log", 1, "dead", 0, [NEW])

    seen = ds.dataset(tmp_path / "log", format="parquet", partitioning="hive").to_table()

    assert seen.select(["k", "v", "_weight"]).to_pylist() == [{"k": 1, "v": "old", "_weight": 1}]


def test_a_directory_without_a_manifest_is_not_an_epoch(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    (tmp_path / "log" / "epoch=00000001").mkdir()

    assert committed_epochs(tmp_path / "log") == [0]


def test_a_directory_without_a_manifest_gives_way_to_the_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")
    (tmp_path / "log" / "epoch=00000000").mkdir()
    (tmp_path / "log" / "epoch=00000000" / "half.parquet").write_bytes(b"PAR1")

    sink.write(0, [OLD])

    assert lines(tmp_path / "log") == [(1, "old", 1)]


def test_parts_of_several_tasks_become_one_epoch(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    parts = [write_part(tmp_path / "log", 0, "a0", 0, [OLD]), write_part(tmp_path / "log", 0, "a1", 1, [NEW])]

    progress = commit_epoch(tmp_path / "log", 0, parts)

    assert (progress.rows, lines(tmp_path / "log")) == (2, [(1, "old", 1), (1, "new", 1)])


def test_a_speculative_twin_of_a_part_is_left_out(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    kept = write_part(tmp_path / "log", 0, "first", 0, [OLD])
    write_part(tmp_path / "log", 0, "twin", 0, [OLD])

    commit_epoch(tmp_path / "log", 0, [kept])

    assert lines(tmp_path / "log") == [(1, "old", 1)]


def test_committing_an_epoch_twice_changes_nothing(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    commit_epoch(tmp_path / "log", 0, [write_part(tmp_path / "log", 0, "first", 0, [OLD])])

    again = commit_epoch(tmp_path / "log", 0, [write_part(tmp_path / "log", 0, "replay", 0, [OLD])])

    assert (again.replayed, lines(tmp_path / "log")) == (True, [(1, "old", 1)])


def test_an_epoch_with_a_missing_part_stays_absent(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    part = write_part(tmp_path / "log", 0, "first", 0, [OLD])
    next((tmp_path / "log" / "_staging").rglob(part.name)).unlink()

    with pytest.raises(SinkError, match="is missing") as caught:
        commit_epoch(tmp_path / "log", 0, [part])

    assert (caught.value.code, committed_epochs(tmp_path / "log")) == ("SINK_PART", [])


def test_committing_past_a_hole_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])

    with pytest.raises(SinkError, match="ends with epoch 0 and was given epoch 2"):
        commit_epoch(tmp_path / "log", 2, [])


def test_opening_clears_what_was_never_committed(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    write_part(tmp_path / "log", 0, "dead", 0, [OLD])

    opened(tmp_path / "log")

    assert not (tmp_path / "log" / "_staging").exists()


def test_a_damaged_file_is_noticed_by_its_size(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    file = next((tmp_path / "log" / "epoch=00000000").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(SinkError, match=f"{file.name}.* of epoch 0 should have"):
        read_changelog(tmp_path / "log")


def test_a_missing_epoch_is_noticed(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")
    sink.write(0, [OLD])
    sink.write(1, [NEW])
    (tmp_path / "log" / "epoch=00000000").rename(tmp_path / "elsewhere")

    with pytest.raises(SinkError, match="missing"):
        read_changelog(tmp_path / "log")


def test_another_form_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "log")

    with pytest.raises(SinkError, match="made with form='weight'"):
        opened(tmp_path / "log", "row_kind")


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(SinkError, match="is no changelog; choose an empty one"):
        opened(tmp_path)


def test_a_part_outside_a_changelog_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"ParquetChangelogSink\.open makes it"):
        write_part(tmp_path, 0, "first", 0, [OLD])
