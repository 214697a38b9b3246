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
from spill.read_kernels import WINDOW_BYTES, plan_reads
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


# ---------------------------------------------------------------- mapped windows


def planned(begins: list[int], *, spread: int, gap: int = 0) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the ranges (begin, end, whether mapped) for pages of 100 bytes of one file, and where each page will stand."""
    count = len(begins)
    files, range_begins, range_ends, is_dense, places = (np.zeros(count, np.int64) for _ in range(5))
    page_begins = as_codes(begins)
    lines = (files, range_begins, range_ends, is_dense)
    ranges, _ = plan_reads(np.zeros(count, np.int64), page_begins, page_begins + 100, gap, spread, *lines, places)
    found = zip(range_begins[:ranges].tolist(), range_ends[:ranges].tolist(), is_dense[:ranges].tolist(), strict=True)
    return list(found), places.tolist()


def test_many_pages_of_one_window_are_to_be_copied_from_it_without_the_gaps() -> None:
    begins = [0, 100, *range(1000, 7000, 1000)]

    ranges, places = planned(begins, spread=1000, gap=2000)

    assert ranges == [(0, 200, 1), *((begin, begin + 100, 1) for begin in begins[2:])]
    assert places == list(range(0, 800, 100))


def test_a_window_with_few_or_scattered_pages_is_not_mapped() -> None:
    few, scattered = list(range(0, 7000, 1000)), list(range(0, 80_000, 10_000))

    assert planned(few, spread=1000, gap=2000)[0] == [(0, 6100, 0)]
    assert [dense for _, _, dense in planned(scattered, spread=1000)[0]] == [0] * 8
    assert [dense for _, _, dense in planned(scattered, spread=10_000)[0]] == [1] * 8
    assert [dense for _, _, dense in planned(scattered, spread=0)[0]] == [0] * 8


def test_a_range_ends_with_its_window() -> None:
    begins = [*range(WINDOW_BYTES - 800, WINDOW_BYTES, 100), *range(WINDOW_BYTES, WINDOW_BYTES + 800, 100)]

    assert planned(begins, spread=1000)[0] == [
        (WINDOW_BYTES - 800, WINDOW_BYTES, 1),
        (WINDOW_BYTES, WINDOW_BYTES + 800, 1),
    ]


@pytest.mark.parametrize("step", [1, 3, 40, 700])
def test_whichever_way_pages_are_read_the_rows_are_the_same(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(code, 0, b"%d" % code * (code % 9)) for code in range(100_000)]
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    store.put(as_rows(rows))
    wanted = as_codes(range(0, 100_000, step))
    found = []

    for spread in (0, 1 << 12, 1 << 16, 1 << 30):
        monkeypatch.setattr(file_pages, "_SPREAD_BYTES", spread)
        found.append(as_bag([store.fetch(wanted)]))

    assert found == [Counter(rows[::step])] * 4
    store.close()


def test_a_window_leaves_memory_when_it_was_copied(tmp_path: Path) -> None:
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    store.put(as_rows([(code, 0, bytes(100)) for code in range(50_000)]))

    assert len(store.fetch(as_codes(range(0, 50_000, 2)))) == 25_000

    mappings = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{tmp_path}/rows/1.pages\n")[1:]
    assert [mapping.split("\nRss:")[1].split()[0] for mapping in mappings] == ["0"]
    store.close()


@pytest.mark.parametrize("left", [0, 4096, 300_000])
def test_a_mapped_file_that_became_shorter_is_noticed_and_ends_no_process(directory: Path, left: int) -> None:
    store = FileColdStore(directory, owner=OWNER)
    assert len(store.fetch(as_codes(range(3000)))) == 3000
    os.truncate(directory / "1.pages", left)

    with pytest.raises(StateError) as refused:
        store.fetch(as_codes(range(3000)))

    assert refused.value.code == "COLD_STORE_DAMAGED"
    store.close()


@pytest.mark.parametrize("sizes", [[1], [WINDOW_BYTES], [3, WINDOW_BYTES, 2 * WINDOW_BYTES - 3], [WINDOW_BYTES - 1, 2, 5]])
def test_pages_are_written_behind_one_another_whatever_their_sizes(tmp_path: Path, sizes: list[int]) -> None:
    parts = [np.random.default_rng(size).integers(0, 256, size).astype(np.uint8) for size in sizes]
    pages = FilePages(tmp_path)
    writer = pages.write(1)

    for part in parts:
        writer.append(part, as_codes([len(part)]))
    writer.finish()

    assert (tmp_path / "1.pages").read_bytes() == b"".join(part.tobytes() for part in parts)
    assert pages.disk_bytes() == sum(sizes)


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
