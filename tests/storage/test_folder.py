"""What holds for every folder, whatever the file system."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.object_store import ObjectStore, install
from zset_join.core.errors import OptionError
from zset_join.storage.folder import Folder, folder_below, is_local, local_path, open_folder

PLACES = {
    "local": "{directory}/made/on the way",
    "file URI": "file://{directory}/made",
    "memory": "memory://{unique}/cp",
    "object store": "objects://{unique}/cp",
    "shows parts": "fsspec+file://{directory}/made",
}


@pytest.fixture(params=PLACES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    install()
    return open_folder(PLACES[request.param].format(directory=tmp_path, unique=uuid.uuid4().hex))


def written(folder: Folder, name: str, data: bytes) -> None:
    file = folder.create(name)
    file.write(data)
    file.close(durable=True)


def content(folder: Folder, name: str) -> bytes | None:
    found = folder.read(name)
    return None if found is None else found.to_pybytes()


def test_a_new_file_comes_back_whole(folder: Folder) -> None:
    file = folder.create("log/join-0/one")
    file.write(b"abc")
    file.write(memoryview(b"def"))
    file.close(durable=True)

    viewed = folder.view("log/join-0/one")

    assert content(folder, "log/join-0/one") == b"abcdef"
    assert viewed is not None
    assert viewed.to_pybytes() == b"abcdef"
    assert folder.size("log/join-0/one") == 6


def test_a_file_larger_than_what_is_kept_in_memory_comes_back_whole(folder: Folder) -> None:
    data = bytes(range(256)) * (1 << 16)
    file = folder.create("large")
    file.write(b"first")
    file.write(data)
    file.write(data[:100_000])
    file.close(durable=False)

    assert content(folder, "large") == b"first" + data + data[:100_000]


def test_an_empty_file_is_a_file(folder: Folder) -> None:
    written(folder, "empty", b"")
    viewed = folder.view("empty")

    assert content(folder, "empty") == b""
    assert folder.size("empty") == 0
    assert viewed is not None
    assert viewed.size == 0


def test_a_file_that_was_given_up_is_not_there(folder: Folder) -> None:
    file = folder.create("log/one")
    file.write(b"x" * 20_000_000)
    file.discard()

    assert folder.read("log/one") is None
    assert list(folder.names("log")) == []


def test_what_is_not_there_is_none(folder: Folder) -> None:
    assert folder.read("no/such") is None
    assert folder.view("no/such") is None
    assert folder.size("no/such") is None
    assert list(folder.names("no")) == []
    folder.remove("no/such")
    folder.sync_names("no")


def test_put_replaces(folder: Folder) -> None:
    folder.put("beat", b"1")
    folder.put("beat", b"2")

    assert content(folder, "beat") == b"2"
    assert list(folder.names("")) != []


def test_put_new_refuses_a_name_that_is_taken_and_leaves_it_alone(folder: Folder) -> None:
    folder.put_new("commits/1.json", b"first")

    with pytest.raises(FileExistsError):
        folder.put_new("commits/1.json", b"second")

    assert content(folder, "commits/1.json") == b"first"
    assert list(folder.names("commits")) == ["commits/1.json"]


def test_names_are_those_of_all_files_below(folder: Folder) -> None:
    written(folder, "log/join-0/a", b"1")
    written(folder, "log/join-1/b", b"1")
    written(folder, "logs/c", b"1")

    assert sorted(folder.names("log")) == ["log/join-0/a", "log/join-1/b"]


def test_a_moved_file_has_its_new_name_only(folder: Folder) -> None:
    written(folder, "epoch=1/_part", b"rows")

    folder.move("epoch=1/_part", "epoch=1/part")

    assert content(folder, "epoch=1/part") == b"rows"
    assert sorted(folder.names("epoch=1")) == ["epoch=1/part"]


def test_a_removed_file_is_gone(folder: Folder) -> None:
    written(folder, "log/a", b"1")

    folder.remove("log/a")

    assert folder.read("log/a") is None


def test_a_folder_can_be_opened_again_by_its_location(folder: Folder) -> None:
    written(folder, "log/a", b"1")

    again = open_folder(folder.location)

    assert content(again, "log/a") == b"1"


def test_what_writers_left_unfinished_is_not_listed_and_can_be_removed(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    folder.put_new("commits/1.json", b"{}")
    (tmp_path / "commits" / ".2.json.abc").write_bytes(b"{")

    listed = list(folder.names("commits"))
    folder.remove_unfinished("", "commits", "owners")

    assert listed == ["commits/1.json"]
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["1.json"]


def test_a_small_object_is_one_request() -> None:
    install()
    folder = open_folder("objects://bucket/cp")

    folder.put_new("commits/1.json", b"{}")
    written(folder, "log/a", b"1")

    assert dict(ObjectStore.counts) == {"put_new": 1, "put": 1}


def test_the_settings_of_a_uri_stay_with_the_location_and_out_of_names() -> None:
    folder = folder_below("memory://cp/a/?region=x", "zset")

    assert folder.location == "memory://cp/a/zset?region=x"
    assert folder.uri("log/1") == "memory://cp/a/zset/log/1"


def test_a_location_may_be_a_path_or_a_file_uri(tmp_path: Path) -> None:
    assert local_path(str(tmp_path)) == tmp_path
    assert local_path(f"file://{tmp_path}") == tmp_path
    assert local_path(f"file:{tmp_path}") == tmp_path


def test_a_location_that_must_be_local_and_is_not_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"'s3a'.*local or mounted"):
        local_path("s3a://bucket/checkpoint")


def test_an_unknown_file_system_is_refused_with_the_cure() -> None:
    with pytest.raises(OptionError, match="Install the fsspec package") as refused:
        open_folder("nosuch://bucket/checkpoint")

    assert refused.value.code == "FILE_SYSTEM"
    assert not is_local("nosuch://bucket/checkpoint")


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: folder.create("log/a/1").close(durable=True),
        lambda folder: folder.put("log/a/1", b""),
        lambda folder: folder.put_new("log/a/1", b""),
    ],
    ids=["create", "put", "put_new"],
)
def test_a_local_folder_that_was_removed_is_made_again(make: Callable[[Folder], None], tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "folder")
    folder.put("log/a/0", b"")
    shutil.rmtree(tmp_path / "folder")
    folder.put("log/b/0", b"")

    make(folder)

    assert (tmp_path / "folder" / "log" / "a" / "1").exists()
