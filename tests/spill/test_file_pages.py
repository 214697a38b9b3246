"""Pages in plain files: what is read, what it costs, and what is noticed when the files are not what they were."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from property_tests.cold_histories import OWNER, as_bag, as_codes, as_rows
from spill import file_pages
from spill.file_pages import FileColdStore, FilePages
from spill.page_kernels import LEAST_PAGES, WINDOW_BYTES, WINDOW_WORDS, find_windows, measured_spread, plan_reads, take_rows
from spill.run_kernels import RUN_WORDS
from tests.open_files import open_below
from zset_join.core.errors import StateError
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


def not_there(*_: object) -> int:
    """Represent a kernel that calls what the host does not have."""
    raise AssertionError("this kernel cannot be linked on the host")


def test_a_host_that_cannot_read_without_waiting_reads_the_same(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "_READS_WITHOUT_WAITING", False)
    monkeypatch.setattr(file_pages, "find_windows", not_there)
    monkeypatch.setattr(file_pages, "read_ranges_cached", not_there)
    store = FileColdStore(directory, owner=OWNER)

    assert as_bag([store.fetch(as_codes(range(3000)))]) == Counter(ROWS)
    store.close()


def test_a_fetch_is_one_file_operation_per_run(directory: Path) -> None:
    seen: list[str] = []

    def note(operation: Operation, act: Any) -> Any:
        seen.append(operation.kind)
        return act()

    store = FileColdStore(directory, owner=OWNER)
    with observe(note):
        store.fetch(as_codes(WANTED[:3]))

    assert seen == ["open", "read"]
    store.close()


def test_a_file_that_became_shorter_while_it_was_open_is_noticed(directory: Path) -> None:
    store = FileColdStore(directory, owner=OWNER)
    os.truncate(directory / "1.pages", 100)

    with pytest.raises(StateError) as refused:
        store.fetch(as_codes([2999]))

    assert refused.value.code == "COLD_STORE_DAMAGED"
    assert "could not be read" in refused.value.message
    store.close()


# ---------------------------------------------------------------- mapped windows


@pytest.fixture
def file() -> Iterator[tuple[int, mmap.mmap]]:
    """Give a file of two windows on a disk, of which the host has all pages in memory: descriptor and mapping."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="zset_join-") as held:  # reads of tmpfs cannot refuse to wait
        held.write(bytes(2 * WINDOW_BYTES))
        held.flush()
        with mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            yield held.fileno(), mapping


def planned(
    file: tuple[int, mmap.mmap], begins: list[int], *, spread: int, gap: int = 0
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], list[int]]:
    """Return the ranges and windows for pages of 100 bytes, addresses as positions in the file, and the position of each page."""
    count = len(begins)
    files, range_begins, range_ends, places = (np.zeros(count, np.int64) for _ in range(4))
    windows = np.zeros((count, WINDOW_WORDS), np.int64)
    page_begins, zeros = as_codes(begins), np.zeros(count, np.int64)
    pages = (zeros, page_begins, page_begins + 100)
    base = int(np.frombuffer(file[1], np.uint8).ctypes.data)
    mappings, sizes = as_codes([base]), as_codes([len(file[1])])
    windows = windows[: find_windows(*pages, as_codes([spread]), as_codes([file[0]]), mappings, sizes, windows)]
    ranges, size, mapped_bytes = plan_reads(*pages, gap, mappings, windows, files, range_begins, range_ends, places)
    windows[:, [2, 4]] -= base
    for _, _, opened, opened_size, closed, closed_size in windows.tolist():
        assert 0 <= closed <= opened
        assert opened + opened_size <= closed + closed_size <= len(file[1])
    places[places >= 0] -= base
    found = list(zip(range_begins[:ranges].tolist(), range_ends[:ranges].tolist(), strict=True))
    assert size == sum(end - begin for begin, end in found)
    assert mapped_bytes == 100 * sum(window[1] - window[0] for window in windows.tolist())
    return found, [tuple(window) for window in windows[:, :4].tolist()], places.tolist()


def test_many_pages_of_one_window_are_looked_at_there(file: tuple[int, mmap.mmap]) -> None:
    begins = [5000, 5100, *range(6000, 12_000, 1000)]

    ranges, windows, places = planned(file, begins, spread=1000, gap=2000)

    assert (ranges, windows, places) == ([], [(0, 8, 0, 11_100)], begins)


def test_a_window_with_few_or_scattered_pages_is_not_mapped(file: tuple[int, mmap.mmap]) -> None:
    few, scattered = list(range(0, 3000, 1000)), list(range(0, 80_000, 10_000))

    assert planned(file, few, spread=1000, gap=2000) == ([(0, 2100)], [], [-1 - begin for begin in few])
    assert planned(file, scattered, spread=1000)[2] == [-1 - 100 * page for page in range(8)]
    assert planned(file, scattered, spread=10_000)[2] == scattered


def test_a_window_ends_at_a_multiple_of_its_size(file: tuple[int, mmap.mmap]) -> None:
    begins = [*range(WINDOW_BYTES - 850, WINDOW_BYTES, 100), *range(WINDOW_BYTES + 50, WINDOW_BYTES + 850, 100)]

    ranges, windows, places = planned(file, begins, spread=1000)

    assert (ranges, places) == ([], begins)
    assert windows == [(0, 9, WINDOW_BYTES - (1 << 16), (1 << 16) + 50), (9, 17, WINDOW_BYTES, 850)]


@pytest.mark.parametrize("step", [1, 3, 40, 700])
def test_whichever_way_pages_are_read_the_rows_are_the_same(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(code, 0, b"%d" % code * (code % 9)) for code in range(100_000)]
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    store.put(as_rows(rows))
    wanted = as_codes(range(0, 100_000, step))
    found = []

    for spread in (0, 1 << 12, 1 << 16, 1 << 30):
        monkeypatch.setattr(FilePages, "_spread", lambda *_, spread=spread: spread)
        found.append(as_bag([store.fetch(wanted)]))

    assert found == [Counter(rows[::step])] * 4
    store.close()


def test_what_a_window_costs_is_measured_once_where_a_file_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    monkeypatch.setattr(file_pages, "measured_spread", lambda *_: measured.append(1) or 1 << 16)
    store = FileColdStore(tmp_path / "rows", owner=OWNER)

    store.put(as_rows([(code, 0, bytes(100)) for code in range(1000)]))
    store.fetch(as_codes(range(1000)))
    assert not measured
    store.put(as_rows([(code, 0, bytes(100)) for code in range(30_000)]))
    for _ in range(2):
        assert len(store.fetch(as_codes(range(30_000)))) == 31_000

    assert measured == [1]
    store.close()


def test_measuring_a_window_leaves_nothing_in_memory_and_dies_of_no_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "three_windows"
    path.write_bytes(bytes(3 * WINDOW_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapping:
        mapped = np.frombuffer(mapping, np.uint8)
        for size in (len(mapping), 5000, 0):
            os.truncate(path, size)

            assert 1 << 15 <= measured_spread(descriptor, int(mapped.ctypes.data), len(mapping)) <= WINDOW_BYTES // LEAST_PAGES
            assert resident_of_mappings(path) == ["0"]
        del mapped
    os.close(descriptor)


def resident_of_mappings(path: Path) -> list[str]:
    """Return the resident KB of each mapping of a file in this process."""
    mappings = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{path}\n")[1:]
    return [mapping.split("\nRss:")[1].split()[0] for mapping in mappings]


@pytest.mark.parametrize(("begin", "end"), [(0, 50_000), (100, 400), (15_000, 22_000), (49_000, 50_000)])
def test_a_window_leaves_memory_when_it_was_looked_at_and_what_the_host_mapped_around_it(
    tmp_path: Path, begin: int, end: int
) -> None:
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    store.put(as_rows([(code, 0, bytes(100)) for code in range(50_000)]))

    assert len(store.fetch(as_codes(range(begin, end, 2)))) == (end - begin) // 2

    assert resident_of_mappings(tmp_path / "rows" / "1.pages") == ["0"]
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


def test_other_bytes_in_a_mapped_page_are_noticed_and_no_window_stays(directory: Path) -> None:
    store = FileColdStore(directory, owner=OWNER)
    with (directory / "1.pages").open("r+b") as pages:
        pages.seek(100_000)
        pages.write(b"\xff" * 2_000)

    with pytest.raises(StateError, match=r"page \d+ of run 1 .* damaged") as refused:
        store.fetch(as_codes(range(3000)))

    assert refused.value.code == "COLD_STORE_DAMAGED"
    assert resident_of_mappings(directory / "1.pages") == ["0"]
    store.close()


def test_rows_that_overlap_in_a_damaged_page_are_noticed(tmp_path: Path) -> None:
    store = FileColdStore(tmp_path / "rows", owner=OWNER, with_subcodes=False)
    store.put(as_rows([(code, 0, bytes(64)) for code in range(11)]))  # one page
    ends = np.where(np.arange(11) % 2, 0, 11 * 64).astype("<u4")
    with (tmp_path / "rows" / "1.pages").open("r+b") as pages:
        pages.seek(8 + 8 * 11)
        pages.write(ends.tobytes())

    with pytest.raises(StateError, match="damaged"):
        store.fetch(as_codes(range(0, 11, 2)))

    store.close()


def test_a_window_that_cannot_be_read_is_reported_and_none_is_looked_into() -> None:
    nowhere = as_codes([[0, 1, 1 << 16, 1 << 16, 1 << 16, 1 << 16]])  # no process has this address
    one, none = as_codes([0]), as_codes([])
    found, content = np.zeros((5, 2), np.int64), np.zeros(8, np.uint8)
    run = np.zeros((1, RUN_WORDS), np.int64)

    taken = take_rows(as_codes([1 << 16]), nowhere, one, one, one, run, False, one, none, False, found, content)

    assert taken == -1


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


def test_a_closed_store_holds_no_file_open(directory: Path) -> None:
    store = FileColdStore(directory, owner=OWNER)
    store.fetch(as_codes(range(3000)))  # reads and maps
    assert str(directory / "1.pages") in open_below(directory)

    store.close()

    assert open_below(directory) == []


def test_a_dropped_run_gives_its_bytes_back(tmp_path: Path) -> None:
    pages = FilePages(tmp_path)
    writer = pages.write(4)
    writer.append(np.zeros(100, np.uint8), as_codes([40, 100]))
    writer.finish()

    assert pages.disk_bytes() == 100
    pages.drop(4)
    assert (pages.disk_bytes(), list(tmp_path.iterdir())) == (0, [])
