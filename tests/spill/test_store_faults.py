"""A store whose process is killed, or whose disk is full, reports it; it never shows half of what was done to it.

Every file operation of a piece of work is failed once, in turn. Stores in a DuckDB file do part of their input and output where
it cannot be observed; for them the process is killed at moments of its own work, and the size of its files is limited.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.processes import Outcome, Send, forked
from property_tests.cold_histories import OWNER, ColdRow, DuckDBShelf, as_bag, as_codes, as_rows, remove_codes
from spill.cold_store import ColdStore
from spill.file_pages import FileColdStore
from zset_join.core.errors import ResourceError, StateError
from zset_join.storage.operations import Operation, observe

Act = Callable[[], Any]

FIRST: list[ColdRow] = [(code, 0, b"first".ljust(900)) for code in range(60)]
SECOND: list[ColdRow] = [(code, 1, b"second".ljust(900)) for code in range(30, 90)]
KEPT = Counter(FIRST)
AFTER = Counter(FIRST[10:]) + Counter(SECOND)


def work(store: ColdStore) -> None:
    """Do everything that writes, and commit it."""
    store.put(as_rows(SECOND))
    remove_codes(store, as_codes(range(10)))
    store.put(as_rows([(1000, 0, b"x"), (1001, 0, b"x")]))
    store.put(as_rows([(1002, 0, b"x")]))
    store.tidy()
    remove_codes(store, as_codes([1000, 1001, 1002]))
    store.commit(1)


def begun(directory: Path) -> FileColdStore:
    store = FileColdStore(directory, owner=OWNER)
    store.fanout = 4
    store.put(as_rows(FIRST))
    store.commit(0)
    return store


def count_operations(directory: Path) -> int:
    """Return how many file operations the work does."""
    seen: list[str] = []

    def note(operation: Operation, act: Act) -> Any:
        seen.append(operation.kind)
        return act()

    store = begun(directory)
    with observe(note):
        work(store)
    store.close()
    return len(seen)


class FailAt:
    def __init__(self, position: int, fail: Callable[[Operation, Act], Any]) -> None:
        self.position = position
        self.fail = fail

    def __call__(self, operation: Operation, act: Act) -> Any:
        self.position -= 1
        return self.fail(operation, act) if self.position == -1 else act()


def die_before(operation: Operation, act: Act) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse_space(operation: Operation, act: Act) -> Any:
    """Refuse the operation as a full disk does; a write gets half of its bytes to the disk first."""
    if operation.kind == "write" and operation.data is not None and len(operation.data) > 1:
        with Path(operation.path).open("ab") as file:
            file.write(operation.data[: len(operation.data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)


def reopened(directory: Path) -> Counter[ColdRow] | str:
    """Return the rows a new process would find, or the code of its refusal."""
    try:
        store = FileColdStore(directory, owner=OWNER)
    except StateError as error:
        return error.code
    rows = as_bag(store.scan())
    store.close()
    return rows


def after_dying(directory: Path, position: int) -> Counter[ColdRow] | str:
    """Kill a child before one operation of the work, which is after the one before it; return what is found afterwards."""

    def child(send: Send) -> None:
        with observe(FailAt(position, die_before)):
            work(store)

    store = begun(directory)
    ended = forked(child)
    store.close()
    assert ended.signal == signal.SIGKILL
    return reopened(directory)


def test_a_store_whose_process_was_killed_is_whole_or_refused(tmp_path: Path) -> None:
    operations = count_operations(tmp_path / "counted")

    found = [after_dying(tmp_path / f"{position}", position) for position in range(operations)]

    assert operations > 20
    assert [rows for rows in found if rows not in (KEPT, AFTER, "COLD_STORE_UNCLEAN")] == []
    assert "COLD_STORE_UNCLEAN" in found
    assert found[0] == KEPT


def outcome_of_a_full_disk(directory: Path, position: int) -> tuple[str, Counter[ColdRow] | str]:
    """Fail one operation of the work for lack of space; return the error and what a new process finds."""
    store = begun(directory)
    error = ""
    try:
        with observe(FailAt(position, refuse_space)):
            work(store)
    except ResourceError as refused:
        error = refused.code
    store.close()
    return error, reopened(directory)


def test_a_full_disk_is_an_error_and_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    operations = count_operations(tmp_path / "counted")

    outcomes = [outcome_of_a_full_disk(tmp_path / f"{position}", position) for position in range(operations)]

    assert [(error, rows) for error, rows in outcomes if error not in ("COLD_STORE_IO", "")] == []
    assert [rows for _, rows in outcomes if rows not in (KEPT, AFTER, "COLD_STORE_UNCLEAN")] == []
    assert [rows for error, rows in outcomes if error == "" and rows != AFTER] == []


def rows_after_a_failed_put(directory: Path, position: int) -> tuple[bool, Counter[ColdRow], list[str]]:
    """Fail one operation of a put; return whether it failed, the rows of the store, and the files that are left of it."""
    store = begun(directory)
    failed = False
    try:
        with observe(FailAt(position, refuse_space)):
            store.put(as_rows(SECOND))
    except ResourceError:
        failed = True
    rows = as_bag(store.scan())
    left = sorted(path.name for path in directory.iterdir() if path.name.startswith("2."))
    store.put(as_rows([(5000, 0, b"more")]))
    store.commit(1)
    store.close()
    assert reopened(directory) == rows + Counter([(5000, 0, b"more")])
    return failed, rows, left


def test_a_put_that_fails_leaves_the_store_as_it_was_and_no_file_behind(tmp_path: Path) -> None:
    outcomes = [rows_after_a_failed_put(tmp_path / f"{position}", position) for position in range(8)]

    assert {failed for failed, _, _ in outcomes} == {True}
    assert [rows for _, rows, _ in outcomes if rows != KEPT] == []
    assert [left for _, _, left in outcomes if left] == []


def fail_writes(operation: Operation, act: Act) -> Any:
    """Refuse every write of a page, and nothing else."""
    return refuse_space(operation, act) if operation.path.endswith(".pages") and operation.kind == "write" else act()


def test_the_message_of_a_full_disk_names_the_directory_and_what_to_do(tmp_path: Path) -> None:
    store = begun(tmp_path / "rows")

    with pytest.raises(ResourceError) as refused, observe(fail_writes):
        store.put(as_rows(SECOND))

    assert str(tmp_path / "rows") in refused.value.message
    assert "raise the memory budget" in refused.value.message
    store.close()


def test_a_read_error_names_the_store(tmp_path: Path) -> None:
    store = begun(tmp_path / "rows")

    with pytest.raises(ResourceError, match="could not be read") as refused, observe(refuse_space):
        store.fetch(as_codes([1]))

    assert refused.value.facts["path"] == str(tmp_path / "rows")

    assert len(store.fetch(as_codes([1]))) == 1
    store.close()


# ---------------------------------------------------------------- DuckDB


def die_now(store: ColdStore, send: Send) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def duckdb_after(directory: Path, last_act: Callable[[ColdStore, Send], None]) -> tuple[Outcome, Counter[ColdRow] | str]:
    """Work on a store in a DuckDB file in a child; return how it ended and what a new process finds."""
    directory.mkdir()

    def child(send: Send) -> None:
        store = DuckDBShelf(directory).open()
        store.put(as_rows(FIRST))
        store.commit(0)
        last_act(store, send)

    ended = forked(child)
    shelf = DuckDBShelf(directory)
    try:
        store = shelf.open()
    except StateError as error:
        return ended, error.code
    rows = as_bag(store.scan())
    shelf.close(store)
    return ended, rows


def test_a_duckdb_store_whose_process_dies_after_a_put_is_refused(tmp_path: Path) -> None:
    def last_act(store: ColdStore, send: Send) -> None:
        store.put(as_rows(SECOND))
        die_now(store, send)

    ended, found = duckdb_after(tmp_path / "a", last_act)

    assert (ended.signal, found) == (signal.SIGKILL, "COLD_STORE_UNCLEAN")


def test_a_duckdb_store_whose_process_dies_in_a_put_is_refused(tmp_path: Path) -> None:
    def last_act(store: ColdStore, send: Send) -> None:
        with observe(FailAt(12, die_before)):
            store.put(as_rows(SECOND))

    ended, found = duckdb_after(tmp_path / "a", last_act)

    assert (ended.signal, found) == (signal.SIGKILL, "COLD_STORE_UNCLEAN")


def test_a_duckdb_store_on_a_full_disk_is_as_before_and_reports_it(tmp_path: Path) -> None:
    def last_act(store: ColdStore, send: Send) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            store.put(as_rows((code, 2, os.urandom(30_000)) for code in range(3000)))
            store.commit(1)
        except ResourceError as error:
            send({"code": error.code, "same": as_bag(store.scan()) == KEPT})
        die_now(store, send)

    ended, found = duckdb_after(tmp_path / "a", last_act)

    assert [message["code"] for message in ended.messages] == ["COLD_STORE_IO"]
    assert found == "COLD_STORE_UNCLEAN"


def test_a_merge_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    store = begun(tmp_path / "rows")
    for code in range(200, 203):
        store.put(as_rows([(code, 0, b"y")]))
    before = as_bag(store.scan())

    with pytest.raises(ResourceError) as refused, observe(fail_writes):
        store.tidy()

    assert refused.value.code == "COLD_STORE_IO"
    assert as_bag(store.scan()) == before
    store.tidy()
    assert (as_bag(store.scan()), store.statistics()["runs"]) == (before, 1)
    store.close()
