"""Pages in plain files: what is read, what it costs, and what is noticed when the files are not what they were."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from property_tests.cold_histories import OWNER, as_bag, as_codes, as_rows
from spill import file_pages
from spill.file_pages import FileColdStore, FilePages
from zset_join.errors import StateError
from zset_join.storage.operations import Operation, observe

ROWS = [(code, 0, f"row {code}".encode().ljust(200)) for code in range(3000)]
WANTED = [1, 2, 700, 701, 1500, 2999]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Give the directory of a committed store with one run of many pages."""
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    store.put(as_rows(ROWS))
    store.commit(0)
    store.close()
    return tmp_path / "rows"


def fetched(directory: Path) -> Counter[tuple[int, int, bytes]]:
    """Return the wanted rows, from a store that is opened for it."""
    store = FileColdStore(directory, owner=OWNER)
    found = as_bag([store.fetch(as_codes(WANTED))])
    store.close()
    return found


def test_pages_that_the_host_does_not_have_in_memory_are_read_too(directory: Path) -> None:
    descriptor = os.open(directory / "1.pages", os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)

    assert fetched(directory) == Counter(ROWS[code] for code in WANTED)


def test_a_host_that_cannot_read_without_waiting_reads_the_same(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "_READS_WITHOUT_WAITING", False)

    assert fetched(directory) == Counter(ROWS[code] for code in WANTED)


def test_a_fetch_is_one_file_operation_per_run(directory: Path) -> None:
    seen: list[str] = []

    def note(operation: Operation, act: Any) -> Any:
        seen.append(operation.kind)
        return act()

    store = FileColdStore(directory, owner=OWNER)
    with observe(note):
        store.fetch(as_codes(WANTED))

    assert seen == ["open", "read"]
    store.close()


def test_neighbouring_pages_are_read_together(directory: Path) -> None:
    store = FileColdStore(directory, owner=OWNER)
    size = store.statistics()["disk_bytes"] - store.resident_bytes()

    store.fetch(as_codes(range(3000)))

    assert store.statistics()["bytes_read"] == size
    store.close()


def test_a_file_that_became_shorter_while_it_was_open_is_noticed(directory: Path) -> None:
    store = FileColdStore(directory, owner=OWNER)
    os.truncate(directory / "1.pages", 100)

    with pytest.raises(StateError) as refused:
        store.fetch(as_codes([2999]))

    assert refused.value.code == "COLD_STORE_DAMAGED"
    assert "could not be read" in refused.value.message
    store.close()


def test_without_waiting_a_shorter_file_is_noticed_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "_READS_WITHOUT_WAITING", False)
    store = FileColdStore(directory, owner=OWNER)
    os.truncate(directory / "1.pages", 100)

    with pytest.raises(StateError, match="damaged"):
        store.fetch(as_codes([2999]))

    store.close()


def open_files() -> set[str]:
    """Return the descriptors of this process that are open."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_closed_store_holds_no_file_open(directory: Path) -> None:
    before = open_files()

    fetched(directory)

    assert open_files() == before


def test_a_dropped_run_gives_its_bytes_back(tmp_path: Path) -> None:
    pages = FilePages(tmp_path)
    writer = pages.write(4)
    writer.append(np.zeros(100, np.uint8), as_codes([40, 100]))
    writer.finish()

    assert pages.disk_bytes() == 100
    pages.drop(4)
    assert (pages.disk_bytes(), list(tmp_path.iterdir())) == (0, [])


def test_a_discarded_run_leaves_no_file(tmp_path: Path) -> None:
    writer = FilePages(tmp_path).write(4)
    writer.append(np.zeros(100, np.uint8), as_codes([100]))

    writer.discard()

    assert list(tmp_path.iterdir()) == []
