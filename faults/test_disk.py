"""The disk model: it loses what POSIX lets a disk lose, and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.disk import CrashState, Disk, Recorder, Tree, read_tree, write_tree
from zset_join.storage import local
from zset_join.storage.operations import Operation, observe


class Watched:
    """A directory whose operations a disk model follows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = Disk(root, ["area"])
        with observe(Recorder(self.disk)):
            local.make_directory(root / "area")
            local.sync_directory(root)

    def write(self, name: str, data: bytes, *, sync: bool, sync_directory: bool) -> None:
        with observe(Recorder(self.disk)):
            file = local.LocalFile(self.root / "area" / name)
            file.write(data)
            file.flush()
            file.sync() if sync else None
            file.close()
            local.sync_directory(self.root / "area") if sync_directory else None

    def states(self) -> list[CrashState]:
        return list(self.disk.states(self.disk.operations, Random(1), randomly=20))

    def found(self, name: str) -> set[bytes | None]:
        return {state.tree.get(f"area/{name}") for state in self.states()}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_what_was_synced_with_its_directory_is_there_in_every_state(watched: Watched) -> None:
    watched.write("a", b"whole", sync=True, sync_directory=True)

    assert [state.tree for state in watched.states()] == [{"area": None, "area/a": b"whole"}]


def test_a_name_is_lost_when_its_directory_was_not_synced(watched: Watched) -> None:
    watched.write("a", b"whole", sync=True, sync_directory=False)

    assert watched.found("a") == {None, b"whole"}


def test_bytes_that_were_not_synced_are_lost_or_cut_or_zeroed_though_the_name_is_there(watched: Watched) -> None:
    watched.write("a", b"whole", sync=False, sync_directory=True)

    found = watched.found("a")
    assert {b"", b"whole"} < found
    assert any(data is not None and 0 < len(data) < 5 for data in found)
    assert any(data is not None and b"\0" in data for data in found)


def test_a_later_write_may_be_there_without_an_earlier_one(watched: Watched) -> None:
    with observe(Recorder(watched.disk)):
        file = local.LocalFile(watched.root / "area" / "a")
        file.write(b"one")
        file.flush()
        file.write(b"two")
        file.close()
        local.sync_directory(watched.root / "area")

    assert b"\0\0\0two" in watched.found("a")


def test_a_rename_may_be_there_before_the_bytes(watched: Watched) -> None:
    watched.write("a", b"whole", sync=False, sync_directory=True)
    with observe(Recorder(watched.disk)):
        local.rename(watched.root / "area" / "a", watched.root / "area" / "b")

    assert b"" in watched.found("b")


def test_a_rename_is_one_step(watched: Watched) -> None:
    watched.write("a", b"whole", sync=True, sync_directory=True)
    with observe(Recorder(watched.disk)):
        local.rename(watched.root / "area" / "a", watched.root / "area" / "b")

    assert {tuple(sorted(state.tree)) for state in watched.states()} == {("area", "area/a"), ("area", "area/b")}


def test_a_replaced_file_is_the_old_one_or_the_new_one(watched: Watched) -> None:
    watched.write("a", b"old", sync=True, sync_directory=True)
    with observe(Recorder(watched.disk)):
        local.write_atomic(watched.root / "area" / "a", b"new")
        moment = watched.disk.operations - 1

    found = {state.tree.get("area/a") for state in watched.disk.states(moment, Random(1), randomly=20)}
    assert found == {b"old", b"new"}
    assert watched.found("a") == {b"new"}, "once it has returned, no power cut brings the old file back"


def test_a_directory_whose_own_name_was_not_synced_is_lost_with_all_in_it(watched: Watched) -> None:
    with observe(Recorder(watched.disk)):
        local.make_directory(watched.root / "area" / "below")
        local.write_new(watched.root / "area" / "below" / "a", b"whole")

    assert {"area": None} in [state.tree for state in watched.states()]


def test_with_nothing_lost_the_model_is_the_real_directory(watched: Watched) -> None:
    watched.write("a", b"one", sync=False, sync_directory=False)
    with observe(Recorder(watched.disk)):
        local.write_new(watched.root / "area" / "b", b"two")
        local.write_atomic(watched.root / "area" / "a", b"three")
        local.make_directory(watched.root / "area" / "c")
        local.remove_file(watched.root / "area" / "b")

    assert watched.disk.whole() == read_tree(watched.root, ["area"])


def test_an_operation_outside_the_model_is_refused(watched: Watched) -> None:
    with pytest.raises(ValueError, match="has no effect of 'clone'"):
        watched.disk.record(Operation("clone", str(watched.root / "area" / "a")))


def test_a_tree_that_was_written_is_read_back(tmp_path: Path) -> None:
    tree: Tree = {"area": None, "area/a": b"one", "area/b": None, "area/b/c": b""}

    write_tree(tmp_path, tree)

    assert read_tree(tmp_path, ["area"]) == tree
