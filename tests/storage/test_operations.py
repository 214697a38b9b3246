from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.open_files import open_below
from zset_join.state.rows.host_memory import Region
from zset_join.storage import local
from zset_join.storage.folder import open_folder
from zset_join.storage.operations import Operation, observe, perform


class Log:
    """Notes every operation of its own thread, and does it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._thread = threading.get_ident()

    def __call__(self, operation: Operation, act: Callable[[], Any]) -> Any:
        if threading.get_ident() == self._thread:
            self.operations.append(operation)
        return act()

    @property
    def kinds(self) -> list[str]:
        return [operation.kind for operation in self.operations]


def test_an_operation_is_announced_before_it_happens_and_its_result_comes_back() -> None:
    log = Log()

    with observe(log):
        found = perform("read", "/a", lambda: b"x", data=memoryview(b"y"))

    assert found == b"x"
    assert log.operations == [Operation("read", "/a", None, memoryview(b"y"))]


def test_nobody_watches_after_the_context_whatever_happened_in_it() -> None:
    log = Log()
    with pytest.raises(ZeroDivisionError), observe(log):
        raise ZeroDivisionError

    perform("read", "/a", lambda: None)

    assert log.operations == []


def test_an_observer_within_an_observer_is_called_alone() -> None:
    outer, inner = Log(), Log()

    with observe(outer):
        with observe(inner):
            perform("read", "/a", lambda: None)
        perform("size", "/a", lambda: None)

    assert (outer.kinds, inner.kinds) == (["size"], ["read"])


def test_a_new_file_is_synced_before_its_name_is_linked_and_its_directory_after(tmp_path: Path) -> None:
    log = Log()

    with observe(log):
        local.write_new(tmp_path / "record", b"{}")

    assert log.kinds == ["create", "write", "sync", "close", "link", "remove", "sync_directory"]
    assert log.operations[4].target == str(tmp_path / "record")


def test_a_replaced_file_is_synced_before_it_gets_its_name_and_its_directory_after(tmp_path: Path) -> None:
    log = Log()

    with observe(log):
        local.write_atomic(tmp_path / "record", b"{}")

    assert log.kinds == ["create", "write", "sync", "close", "replace", "sync_directory"]


def test_a_file_that_is_overwritten_ends_with_the_new_bytes_and_a_copy_by_link_keeps_the_old_ones(tmp_path: Path) -> None:
    record, copy, log = tmp_path / "record", tmp_path / "copy", Log()

    with observe(log):
        local.overwrite(record, b"written first")
        local.overwrite(record, b"shorter")
    assert (record.read_bytes(), log.kinds) == (b"shorter", ["open", "write", "close", "open", "write", "truncate", "close"])

    copy.hardlink_to(record)
    local.overwrite(record, b"new")
    assert (record.read_bytes(), copy.read_bytes()) == (b"new", b"shorter")


def test_a_durable_file_waits_for_its_bytes_and_for_the_name_of_every_directory_made(tmp_path: Path) -> None:
    log = Log()
    folder = open_folder(tmp_path / "cp")

    with observe(log):
        file = folder.create("log/join-0/one")
        file.write(b"rows")
        file.close(durable=True)

    synced = [os.path.relpath(operation.path, tmp_path) for operation in log.operations if operation.kind.startswith("sync")]
    assert {".", "cp", "cp/log", "cp/log/join-0", "cp/log/join-0/one"} <= set(synced)
    assert synced[-2:] == ["cp/log/join-0/one", "cp/log/join-0"]


def test_a_directory_somebody_else_made_is_put_on_the_disk_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cp" / "log").mkdir(parents=True)
    log = Log()

    with observe(log):
        open_folder(tmp_path / "cp").create("log/one").close(durable=True)

    assert str(tmp_path / "cp") in [operation.path for operation in log.operations if operation.kind == "sync_directory"]


def test_a_write_that_the_disk_takes_in_pieces_is_whole_in_the_end(tmp_path: Path) -> None:
    def three_bytes_at_a_time(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind != "write" or operation.data is None:
            return act()
        with Path(operation.path).open("ab") as file:
            return file.write(operation.data[:3])

    with observe(three_bytes_at_a_time):
        local.write_atomic(tmp_path / "record", b"ten bytes!")

    assert (tmp_path / "record").read_bytes() == b"ten bytes!"


@pytest.mark.parametrize("failing", ["create", "write", "sync", "close", "link"])
def test_a_failed_operation_leaves_neither_the_file_nor_its_beginnings(tmp_path: Path, failing: str) -> None:
    def fail(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == failing:
            raise OSError(28, "No space left on device")
        return act()

    with pytest.raises(OSError, match="No space left"), observe(fail):
        local.write_new(tmp_path / "record", b"{}")

    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_is_not_leaked_when_closing_fails(tmp_path: Path) -> None:
    def fail(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "close":
            raise OSError(5, "Input/output error")
        return act()

    with pytest.raises(OSError, match="Input/output"), observe(fail):
        local.write_atomic(tmp_path / "record", b"{}")

    assert open_below(tmp_path) == []


def test_without_links_a_name_that_is_taken_is_refused_all_the_same(tmp_path: Path) -> None:
    def no_links(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "link":
            raise PermissionError(1, "Operation not permitted")
        return act()

    with observe(no_links):
        local.write_new(tmp_path / "record", b"first")
        with pytest.raises(FileExistsError):
            local.write_new(tmp_path / "record", b"second")

    assert (tmp_path / "record").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_mapped_state_files_are_opened_grown_and_mapped_in_the_open(tmp_path: Path) -> None:
    log = Log()

    with observe(log):
        region = Region(4096, str(tmp_path / "rows"))
        region.ensure(1 << 20)
        region.close(remove=True)

    assert log.kinds == ["open", "truncate", "allocate", "map", "allocate", "truncate", "remove"]


def test_one_of_two_takes_a_lock(tmp_path: Path) -> None:
    first = local.lock_file(tmp_path / "lock")
    second = local.lock_file(tmp_path / "lock")
    assert first is not None
    first.release()
    third = local.lock_file(tmp_path / "lock")
    assert third is not None
    third.release()

    assert second is None


def test_the_lock_of_a_file_that_was_removed_while_waiting_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def remove_before_locking(operation: Operation, act: Callable[[], Any]) -> Any:
        found = act()
        if operation.kind == "open" and not (tmp_path / "removed").exists():
            (tmp_path / "removed").touch()
            path.unlink()
        return found

    with observe(remove_before_locking):
        lock = local.lock_file(path)

    assert lock is not None
    assert local.lock_file(path) is None
    lock.release()


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")

    local.remove_tree(tmp_path / "tree")
    local.remove_tree(tmp_path / "tree")

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
