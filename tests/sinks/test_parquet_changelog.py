"""The changelog as Parquet files, one directory per epoch."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.parquet_changelog import (
    ParquetChangelogSink,
    are_staged,
    commit_epoch,
    committed_epochs,
    committed_files,
    read_changelog,
    write_part,
)
from zset_join.storage.operations import Operation, observe
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
    return [tuple(line.values())[:-1] for line in read_changelog(directory, up_to_epoch).to_pylist()]


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

    manifest = json.loads((tmp_path / "log" / "epoch=00000000" / "_manifest.json").read_text())["body"]

    file = manifest["files"][0]
    assert (manifest["epoch"], manifest["rows"], manifest["retractions"], len(manifest["files"])) == (0, 2, 1, 1)
    assert (tmp_path / "log" / "epoch=00000000" / file["name"]).stat().st_size == file["bytes"]


def test_an_empty_changelog_reads_as_no_lines_with_the_right_columns(tmp_path: Path) -> None:
    opened(tmp_path / "log")

    assert read_changelog(tmp_path / "log").schema.names == ["k", "v", "_weight", "epoch"]


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
    next((tmp_path / "log" / "_staging").glob(f"*{part.name}")).unlink()

    with pytest.raises(SinkError, match="is missing") as caught:
        commit_epoch(tmp_path / "log", 0, [part])

    assert (caught.value.code, committed_epochs(tmp_path / "log")) == ("SINK_PART", [])


def test_committing_past_a_hole_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])

    with pytest.raises(SinkError, match="ends with epoch 0 and was given epoch 2"):
        commit_epoch(tmp_path / "log", 2, [])


def test_opening_clears_what_was_staged_for_epochs_that_are_there(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    write_part(tmp_path / "log", 0, "zombie", 0, [OLD])
    (tmp_path / "log" / "_staging" / "commit-half-made").mkdir()

    opened(tmp_path / "log")

    assert list((tmp_path / "log" / "_staging").iterdir()) == []


def test_a_driver_that_comes_back_late_cannot_publish_what_was_cleared(tmp_path: Path) -> None:
    slow = opened(tmp_path / "log")

    def clear_before_the_rename(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "rename" and (operation.target or "").endswith("epoch=00000000"):
            opened(tmp_path / "log")
        return act()

    with pytest.raises(SinkError, match="could not be written"), observe(clear_before_the_rename):
        slow.write(0, [OLD])

    assert committed_epochs(tmp_path / "log") == []


def test_what_was_staged_for_the_next_epoch_can_be_committed_after_a_restart(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    part = write_part(tmp_path / "log", 0, "first", 0, [OLD])

    opened(tmp_path / "log")

    assert are_staged(tmp_path / "log", 0, [part])
    assert commit_epoch(tmp_path / "log", 0, [part]).rows == 1


def test_a_commit_clears_what_other_attempts_staged(tmp_path: Path) -> None:
    opened(tmp_path / "log")
    kept = write_part(tmp_path / "log", 0, "first", 0, [OLD])
    twin = write_part(tmp_path / "log", 0, "twin", 0, [OLD])

    commit_epoch(tmp_path / "log", 0, [kept])

    assert not are_staged(tmp_path / "log", 0, [twin])


def test_a_damaged_file_is_noticed_by_its_size(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    file = next((tmp_path / "log" / "epoch=00000000").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(SinkError, match=f"{file.name}.* of epoch 0 should have"):
        read_changelog(tmp_path / "log")


def flipped(path: Path, position: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "position", "code", "words"),
    [
        ("epoch=00000000/*.parquet", 40, "SINK_PART", "epoch 0 does not have the checksum"),
        ("epoch=00000000/_manifest.json", 60, "SINK_PART", r"_manifest\.json.* of epoch 0 cannot be used"),
        ("_changelog.json", 60, "SINK_HEADER", "changelog"),
    ],
)
def test_a_damaged_bit_is_noticed(tmp_path: Path, name: str, position: int, code: str, words: str) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    flipped(next((tmp_path / "log").glob(name)), position)

    with pytest.raises(SinkError, match=words) as caught:
        read_changelog(tmp_path / "log")

    assert caught.value.code == code


def test_an_epoch_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")
    sink.write(0, [OLD])
    sink.write(1, [NEW])
    (tmp_path / "log" / "epoch=00000000").rename(tmp_path / "kept")
    (tmp_path / "log" / "epoch=00000001").rename(tmp_path / "log" / "epoch=00000000")
    (tmp_path / "kept").rename(tmp_path / "log" / "epoch=00000001")

    with pytest.raises(SinkError, match="of epoch 0 cannot be used: its checksum"):
        read_changelog(tmp_path / "log")


def test_an_epoch_of_another_query_is_noticed(tmp_path: Path) -> None:
    opened(tmp_path / "log").write(0, [OLD])
    other = ParquetChangelogSink(tmp_path / "other")
    other.open(OUTPUT, "another query")
    other.write(0, [NEW])
    shutil.rmtree(tmp_path / "log" / "epoch=00000000")
    (tmp_path / "other" / "epoch=00000000").rename(tmp_path / "log" / "epoch=00000000")

    with pytest.raises(SinkError, match='belongs to query "another query"'):
        read_changelog(tmp_path / "log")


def test_the_committed_files_are_what_other_readers_should_open(tmp_path: Path) -> None:
    sink = opened(tmp_path / "log")
    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    listed = committed_files(tmp_path / "log", up_to_epoch=0)

    assert pq.read_table(listed).select(["k", "v", "_weight"]).to_pylist() == [{"k": 1, "v": "old", "_weight": 1}]


def test_a_crash_while_the_changelog_was_made_leaves_nothing_that_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "._changelog.json.0123").write_bytes(b"half")

    opened(tmp_path / "log").write(0, [OLD])

    assert lines(tmp_path / "log") == [(1, "old", 1)]


def test_two_drivers_that_commit_one_epoch_leave_it_once(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "log"), opened(tmp_path / "log")
    first.write(0, [OLD])

    progress = second.write(0, [OLD])

    assert (progress.replayed, lines(tmp_path / "log")) == (True, [(1, "old", 1)])


# -- object stores -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[str]:
    """Return a location in an object store without rename."""
    location = f"memory://changelog-{uuid.uuid4().hex}"
    yield location
    fsspec.filesystem("memory").rm(location, recursive=True)


def test_a_changelog_may_lie_in_an_object_store(store: str) -> None:
    sink = ParquetChangelogSink(f"{store}/log")
    sink.open(OUTPUT, "query")
    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    assert read_changelog(f"{store}/log").select(["v", "_weight"]).to_pylist() == [
        {"v": "old", "_weight": 1},
        {"v": "old", "_weight": -1},
        {"v": "new", "_weight": 1},
    ]


def test_an_epoch_without_a_manifest_does_not_exist_in_an_object_store(store: str) -> None:
    sink = ParquetChangelogSink(f"{store}/log")
    sink.open(OUTPUT, "query")

    write_part(f"{store}/log", 0, "dead", 0, [OLD])

    assert (committed_epochs(f"{store}/log"), committed_files(f"{store}/log")) == ([], [])


def test_a_commit_in_an_object_store_removes_what_other_attempts_wrote(store: str) -> None:
    sink = ParquetChangelogSink(f"{store}/log")
    sink.open(OUTPUT, "query")
    write_part(f"{store}/log", 0, "dead", 0, [OLD])

    sink.write(0, [OLD])

    found = [path for path in fsspec.filesystem("memory").find(f"{store}/log") if path.endswith(".parquet")]
    assert [f"memory:/{path}" for path in found] == committed_files(f"{store}/log")


def test_two_drivers_that_commit_one_epoch_to_an_object_store_leave_it_once(store: str) -> None:
    first, second = ParquetChangelogSink(f"{store}/log"), ParquetChangelogSink(f"{store}/log")
    first.open(OUTPUT, "query")
    second.open(OUTPUT, "query")
    first.write(0, [OLD])

    progress = second.write(0, [OLD])

    assert (progress.replayed, read_changelog(f"{store}/log").num_rows) == (True, 1)


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

    with pytest.raises(SinkError, match="is not a changelog; choose an empty one"):
        opened(tmp_path)


def test_a_part_outside_a_changelog_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"ParquetChangelogSink\.open makes it"):
        write_part(tmp_path, 0, "first", 0, [OLD])


# -- names and types that readers would not see -----------------------------------------------------------------------


def test_the_lines_have_their_epoch(tmp_path: Path) -> None:
    sink = ParquetChangelogSink(tmp_path / "log")
    sink.open(OUTPUT, "query")
    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    assert read_changelog(tmp_path / "log").column("epoch").to_pylist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["epoch", "EPOCH"])
def test_a_column_that_the_directories_would_hide_is_refused(tmp_path: Path, name: str) -> None:
    output = Relation(name="answer", schema=pa.schema({name: pa.int64()}), mode="changelog")

    with pytest.raises(SinkError, match="would show their number in its place") as refused:
        ParquetChangelogSink(tmp_path / "log").open(output, "query")

    assert refused.value.code == "SINK_COLUMNS"


def test_a_duration_is_refused_by_name(tmp_path: Path) -> None:
    output = Relation(name="answer", schema=pa.schema({"waits": pa.list_(pa.duration("us"))}), mode="changelog")

    with pytest.raises(SinkError, match=r'column "waits".*whole number of microseconds') as refused:
        ParquetChangelogSink(tmp_path / "log").open(output, "query")

    assert refused.value.code == "SINK_TYPE"
