"""Files that wait for the disk together: before a name that counts, at the same time, and gone where one of them fails."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from tests.storage.test_operations import Log
from zset_join.storage import local
from zset_join.storage.folder import open_folder
from zset_join.storage.local import LocalFile, synced_together
from zset_join.storage.operations import observe


def write(folder: str, *names: str) -> None:
    for name in names:
        file = open_folder(folder).create(name)
        file.write(b"rows")
        file.close(durable=True)


def commit(folder: str, *names: str) -> None:
    with synced_together():
        write(folder, *names)
        open_folder(folder).put_new("record", b"record")


def test_the_name_that_counts_is_given_after_all_that_waits(tmp_path: Path) -> None:
    log = Log()
    with synced_together():
        write(str(tmp_path), "a/1", "b/1")
        with observe(log):
            open_folder(str(tmp_path)).put_new("c/1", b"record")

    linked = log.kinds.index("link")
    waited = [f"{one.kind} {Path(one.path).relative_to(tmp_path)}" for one in log.operations[:linked]]
    assert {"sync a/1", "sync_directory a", "sync b/1", "sync_directory b"} <= set(waited)
    assert log.kinds[:linked].count("sync") == 3
    assert "sync" not in log.kinds[linked:]


def test_files_wait_for_the_disk_at_the_same_time_where_it_is_slow(tmp_path: Path) -> None:
    write(str(tmp_path), "before")
    every = threading.Barrier(4)

    def wait(_descriptor: int) -> None:
        every.wait(20)
        time.sleep(0.01)

    with mock.patch.object(local, "_is_worth_it", True), mock.patch.object(os, "fsync", wait):
        with synced_together():
            write(str(tmp_path), "a", "b")
        assert local._is_worth_it


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    with synced_together():
        before = opened()
        write(str(tmp_path), *(f"{number}" for number in range(100)))
        after = opened()
        open_folder(str(tmp_path)).put_new("record", b"record")

    assert after - before < 50
    assert len(local.list_directory(tmp_path)) == 101


def test_no_thread_waits_where_the_disk_is_fast(tmp_path: Path) -> None:
    threads = set[int]()

    def note(_descriptor: int) -> None:
        threads.add(threading.get_ident())

    with mock.patch.object(local, "_WORTH_SECONDS", 60.0), mock.patch.object(os, "fsync", note):
        for name in ("a", "b"):
            threads.clear()
            with synced_together():
                write(str(tmp_path), f"{name}1", f"{name}2")

    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("threaded", [True, False])
def test_files_of_which_one_cannot_be_synced_are_removed_and_nothing_is_named(tmp_path: Path, threaded: bool) -> None:
    sync, ended = LocalFile.sync, list[str]()

    def fail(self: LocalFile) -> None:
        if self.path.endswith("bad"):
            raise OSError("the disk fails")
        time.sleep(0.01)
        sync(self)
        ended.append(self.path)

    write(str(tmp_path), "before")
    with (
        mock.patch.object(local, "_is_worth_it", threaded),
        mock.patch.object(LocalFile, "sync", fail),
        pytest.raises(OSError, match="the disk fails"),
    ):
        commit(str(tmp_path), "good", "bad", "other")

    assert len(ended) == (3 if threaded else 1)
    assert local.list_directory(tmp_path) == ["before"]


def test_files_are_removed_where_their_step_fails_and_the_next_ones_wait_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        commit(str(tmp_path), "a", "a")
    log = Log()
    with observe(log):
        write(str(tmp_path), "b")

    assert local.list_directory(tmp_path) == ["b"]
    assert [kind for kind in log.kinds if kind.startswith("sync")] == ["sync", "sync_directory"]


def test_a_process_that_was_forked_has_threads_of_its_own(tmp_path: Path) -> None:
    with mock.patch.object(local, "_is_worth_it", True), synced_together():
        write(str(tmp_path), "a", "b")
    process = os.fork()
    if not process:
        with mock.patch.object(local, "_is_worth_it", True), synced_together():
            write(str(tmp_path), "c", "d")
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(process, 9)
        os.waitpid(process, 0)

    assert ended == (process, 0)
    assert local.list_directory(tmp_path) == ["a", "b", "c", "d"]


def test_what_no_thread_takes_at_the_end_of_the_interpreter_is_synced_all_the_same(tmp_path: Path) -> None:
    ended, log = ThreadPoolExecutor(1), list[int]()
    ended.shutdown()
    write(str(tmp_path), "before")
    with (
        mock.patch.object(local, "_is_worth_it", True),
        mock.patch.object(local, "_pool", ended),
        mock.patch.object(os, "fsync", log.append),
        synced_together(),
    ):
        write(str(tmp_path), "a", "b")

    assert len(log) == 4
