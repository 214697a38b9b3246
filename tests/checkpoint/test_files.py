from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from zset_join.checkpoint.files import CheckpointFiles, FileEntry, NewFile
from zset_join.core.errors import StateError
from zset_join.storage.trusted_files import json_text, read


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles.at(str(tmp_path), "q")


def written(files: CheckpointFiles, name: str = "log/join-0/one", data: bytes = b"abcdef") -> FileEntry:
    with files.create(name) as file:
        file.write(data)
    return file.entry(rows=2)


def test_a_new_file_has_its_bytes_and_comes_back_whole(files: CheckpointFiles) -> None:
    with files.create("log/a/one") as file:
        file.write(b"abc")
        file.write(b"def")

    entry = file.entry(rows=2)

    assert (entry.bytes, entry.rows) == (6, 2)
    assert files.read(entry).to_pybytes() == b"abcdef"
    assert files.view(entry).to_pybytes() == b"abcdef"


def test_a_new_file_that_fails_leaves_nothing(files: CheckpointFiles, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="bytes-like"), files.create("log/one") as file:
        file.write("text")

    assert list((tmp_path / "log").iterdir()) == []


def test_a_file_that_was_closed_before_it_failed_leaves_nothing(files: CheckpointFiles, tmp_path: Path) -> None:
    file = files.create("log/one")
    file.close()

    file.__exit__(ValueError, ValueError("too late"), None)

    assert list((tmp_path / "log").iterdir()) == []


def test_a_file_name_is_never_used_twice(files: CheckpointFiles) -> None:
    written(files, "one")

    with pytest.raises(FileExistsError):
        NewFile(files, "one")


@pytest.mark.parametrize(
    ("left_behind", "complaint"),
    [(None, "is missing"), (b"", "has 0 bytes where 3 were written"), (b"abcd", "has 4 bytes"), (b"abd", "checksum")],
)
def test_a_listed_file_that_is_not_what_was_listed_is_refused(
    files: CheckpointFiles, tmp_path: Path, left_behind: bytes | None, complaint: str
) -> None:
    entry = written(files, "one", b"abc")
    (tmp_path / "one").unlink()
    (tmp_path / "one").write_bytes(left_behind) if left_behind is not None else None

    with pytest.raises(StateError, match=complaint) as refused:
        files.read(entry)

    assert refused.value.code == "DAMAGED_FILE"


def test_every_flipped_bit_is_noticed(files: CheckpointFiles, tmp_path: Path) -> None:
    entry = written(files, "one", b"some bytes")
    flipped = [
        bytes(byte ^ (1 << bit) if at == where else byte for at, byte in enumerate(b"some bytes"))
        for where in range(10)
        for bit in range(8)
    ]

    accepted = [data for data in flipped if _is_accepted(files, tmp_path / "one", data, entry)]

    assert accepted == []


def test_the_file_of_another_bucket_epoch_or_query_is_not_taken_for_this_one(files: CheckpointFiles, tmp_path: Path) -> None:
    names = ["log/join-0/7-a", "log/join-1/7-a", "log/join-0/8-a", "log/route-left-0/7-a"]
    entries = [written(files, name) for name in names]
    strange = CheckpointFiles.at(str(tmp_path), "another query")

    assert len({entry.crc32 for entry in entries}) == 4
    with pytest.raises(StateError, match="checksum"):
        strange.read(entries[0])


def test_files_travel_to_a_worker(files: CheckpointFiles) -> None:
    entry = written(files)

    there = pickle.loads(pickle.dumps(files))

    assert there.read(entry).to_pybytes() == b"abcdef"


def test_a_checked_file_is_named_by_the_path_others_open_it_by(files: CheckpointFiles, tmp_path: Path) -> None:
    entry = written(files, "delta/0/part")

    assert files.check(entry) == str(tmp_path / "delta" / "0" / "part")


def test_an_entry_survives_json() -> None:
    entry = FileEntry("log/join-0/x", 10, 3, 77)

    assert read(FileEntry, json.loads(json_text(entry))) == entry


def _is_accepted(files: CheckpointFiles, path: Path, data: bytes, entry: FileEntry) -> bool:
    path.write_bytes(data)
    try:
        files.read(entry)
    except StateError:
        return False
    return True
