from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.checkpoint.files import FileEntry, NewFile, check_file, local_path, write_atomic
from zset_join.errors import OptionError, StateError


def test_a_location_may_be_a_path_or_a_file_uri(tmp_path: Path) -> None:
    assert local_path(str(tmp_path)) == tmp_path
    assert local_path(f"file://{tmp_path}") == tmp_path
    assert local_path(f"file:{tmp_path}") == tmp_path


def test_a_location_on_another_file_system_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"'s3a'.*local or mounted"):
        local_path("s3a://bucket/checkpoint")


def test_a_new_file_knows_its_bytes_and_checksum(tmp_path: Path) -> None:
    with NewFile(tmp_path, "log/a/one") as file:
        file.write(b"abc")
        file.write(b"def")

    entry = file.entry(rows=2)

    assert (entry.bytes, entry.rows) == (6, 2)
    assert check_file(tmp_path, entry).read_bytes() == b"abcdef"


def test_a_new_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="bytes-like"), NewFile(tmp_path, "log/one") as file:
        file.write("text")

    assert list((tmp_path / "log").iterdir()) == []


def test_a_file_name_is_never_used_twice(tmp_path: Path) -> None:
    with NewFile(tmp_path, "one"):
        pass

    with pytest.raises(FileExistsError):
        NewFile(tmp_path, "one")


@pytest.mark.parametrize(
    ("left_behind", "complaint"),
    [(None, "is missing"), (b"abcd", "has 4 bytes where 3 were written"), (b"abd", "checksum")],
)
def test_a_listed_file_that_is_not_what_was_listed_is_refused(
    tmp_path: Path, left_behind: bytes | None, complaint: str
) -> None:
    with NewFile(tmp_path, "one") as file:
        file.write(b"abc")
    (tmp_path / "one").unlink()
    (tmp_path / "one").write_bytes(left_behind) if left_behind is not None else None

    with pytest.raises(StateError, match=complaint):
        check_file(tmp_path, file.entry(rows=1))


def test_an_atomic_write_replaces_the_old_content_and_leaves_no_other_name(tmp_path: Path) -> None:
    write_atomic(tmp_path / "record", b"old")
    write_atomic(tmp_path / "record", b"new")

    assert (tmp_path / "record").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_an_entry_survives_json() -> None:
    entry = FileEntry("log/join-0/x", 10, 3, 77)

    assert FileEntry.from_json(entry.to_json()) == entry
