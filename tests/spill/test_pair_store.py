"""A store of pairs: what is found, what it costs, and what is noticed when the files are not what they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from property_tests.cold_histories import OWNER, as_codes
from spill import file_pages, pair_store
from spill.cold_store import Int64s
from spill.file_pages import FilePages
from spill.pair_kernels import PAIR_PAGE_BYTES, PAIRS_PER_PAGE
from spill.pair_store import PairStore
from tests.open_files import open_below
from zset_join.core.errors import ResourceError, StateError
from zset_join.storage.operations import Operation, observe

DRAWN = np.random.default_rng(5)
FIRSTS = DRAWN.permutation(1 << 17).astype(np.int64) << 15
SECONDS = DRAWN.integers(0, 1 << 32, 1 << 17)


def pairs_of(found: tuple[Int64s, Int64s]) -> list[tuple[int, int]]:
    """Return what was found, in order."""
    return sorted(zip(*(numbers.tolist() for numbers in found), strict=True))


def filled(directory: Path) -> PairStore:
    """Return a committed store with one run of more than a thousand pages."""
    store = PairStore(directory, owner=OWNER)
    store.put(FIRSTS, SECONDS)
    store.commit(0)
    return store


@pytest.mark.parametrize("step", [1, 7, 1000, 40_000])
@pytest.mark.parametrize("spread", [0, 1 << 16, 1 << 30])
def test_what_was_put_is_found_whichever_way_pages_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, spread: int
) -> None:
    monkeypatch.setattr(FilePages, "_spread", lambda *_: spread)
    store = filled(tmp_path / "pairs")

    found = store.find(np.concatenate([FIRSTS[::step], FIRSTS[::step] + 1]))

    assert pairs_of(found) == pairs_of((FIRSTS[::step], SECONDS[::step]))
    store.close()


def test_a_host_that_maps_no_windows_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "_READS_WITHOUT_WAITING", False)
    store = filled(tmp_path / "pairs")

    assert pairs_of(store.find(FIRSTS)) == pairs_of((FIRSTS, SECONDS))
    store.close()


@pytest.mark.parametrize("count", [1, PAIRS_PER_PAGE - 1, PAIRS_PER_PAGE, PAIRS_PER_PAGE + 1, 70_000])
def test_many_pairs_of_one_number_go_on_from_page_to_page(tmp_path: Path, count: int) -> None:
    store = PairStore(tmp_path / "pairs", owner=OWNER)
    seconds = np.arange(count)
    store.put(np.concatenate([[5], np.full(count, 6), [7]]), np.concatenate([[0], seconds, [0]]))

    assert pairs_of(store.find(as_codes([6]))) == [(6, second) for second in range(count)]
    assert pairs_of(store.find(as_codes([5, 7]))) == [(5, 0), (7, 0)]
    store.close()


def test_equal_pairs_are_one_when_runs_are_merged(tmp_path: Path) -> None:
    store = PairStore(tmp_path / "pairs", owner=OWNER)
    for part in range(store.fanout):
        store.put(as_codes([1, 2]), as_codes([part % 2, 9]))

    store.tidy()

    assert pairs_of(store.find(as_codes([1, 2]))) == [(1, 0), (1, 1), (2, 9)]
    assert store.row_count() == 3
    store.close()


def test_a_pair_takes_ten_bytes_on_disk_and_two_in_memory(tmp_path: Path) -> None:
    store = filled(tmp_path / "pairs")

    files = sum(path.stat().st_size for path in (tmp_path / "pairs").iterdir() if path.name != "store.json")
    index = 2 * len(FIRSTS) + 8 * (len(FIRSTS) // PAIRS_PER_PAGE + 2)
    assert store.disk_bytes() == files == 8 * len(FIRSTS) + index
    assert (store.resident_bytes(), store.staying_bytes()) == (index, 0)
    store.close()


@pytest.mark.parametrize("pairs", [1000, 1 << 17])
def test_of_the_numbers_that_are_not_there_few_reach_the_disk(tmp_path: Path, pairs: int) -> None:
    store = PairStore(tmp_path / "pairs", owner=OWNER)
    store.put(FIRSTS[:pairs], SECONDS[:pairs])
    read: list[str] = []

    def note(operation: Operation, act: Callable[[], Any]) -> Any:
        read.append(operation.kind)
        return act()

    with observe(note):
        found = [pairs_of(store.find(as_codes([first]))) for first in (FIRSTS[:1000] + 1).tolist()]

    assert found == [[]] * 1000
    assert read.count("read") < 60  # one of fifty passes the filter
    store.close()


def test_an_index_that_has_no_room_leaves_memory_on_the_way(tmp_path: Path) -> None:
    store = filled(tmp_path / "pairs")
    store.keep_index, store.index_window = False, 4096

    assert pairs_of(store.find(FIRSTS)) == pairs_of((FIRSTS, SECONDS))

    mappings = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{tmp_path / 'pairs' / '1.index'}\n")[1:]
    assert [mapping.split("\nRss:")[1].split()[0] for mapping in mappings] == ["0"]
    store.close()


def test_one_portion_of_the_index_is_in_memory_at_a_time(tmp_path: Path) -> None:
    store = PairStore(tmp_path / "pairs", owner=OWNER)
    for begin in range(0, 90_000, 30_000):
        store.put(FIRSTS[begin : begin + 30_000], SECONDS[begin : begin + 30_000])
    store.release()
    store.keep_index, store.index_window = False, store.resident_bytes() // 3 + 1
    in_memory: list[int] = []

    def note(operation: Operation, act: Callable[[], Any]) -> Any:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
        mappings = [mapping.split("\nRss:")[1].split()[0] for mapping in smaps.split(".index\n")[1:]]
        in_memory.append(len(mappings) - mappings.count("0"))
        return act()

    with observe(note):
        found = pairs_of(store.find(FIRSTS[:90_000]))

    assert found == pairs_of((FIRSTS[:90_000], SECONDS[:90_000]))
    assert set(in_memory) == {1}
    store.close()


# ---------------------------------------------------------------- what fails


def refusal(act: Callable[[], object]) -> str:
    """Return the code of the error that something raises."""
    with pytest.raises(StateError) as refused:
        act()
    return refused.value.code


@pytest.mark.parametrize(("chunk", "place"), [(1 << 5, 100), (1, PAIR_PAGE_BYTES - 8)])
def test_other_bytes_are_noticed_before_they_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, place: int
) -> None:
    monkeypatch.setattr(pair_store, "_LEAST_CHUNK", chunk)
    monkeypatch.setattr(pair_store, "_MERGED_PAGES", chunk)
    store = PairStore(tmp_path / "pairs", owner=OWNER)
    for part in range(store.fanout):
        store.put(FIRSTS[part::100], SECONDS[part::100])
    with (tmp_path / "pairs" / "2.pages").open("r+b") as pages:
        pages.seek(place)
        pages.write(b"\xff" * 7 + b"\x7f")

    assert refusal(store.tidy) == "COLD_STORE_DAMAGED"
    store.close()


@pytest.mark.parametrize("left", [0, 4096, 500_000])
def test_a_file_that_became_shorter_is_noticed_while_it_is_open(tmp_path: Path, left: int) -> None:
    store = filled(tmp_path / "pairs")
    store.find(FIRSTS)
    os.truncate(tmp_path / "pairs" / "1.pages", left)

    assert refusal(lambda: store.find(FIRSTS)) == "COLD_STORE_DAMAGED"
    store.close()


@pytest.mark.parametrize("name", ["1.pages", "1.index"])
@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_run_without_all_its_files_is_refused(tmp_path: Path, name: str, how: str) -> None:
    filled(tmp_path / "pairs").close()
    file = tmp_path / "pairs" / name
    file.unlink() if how == "missing" else os.truncate(file, file.stat().st_size - 8)

    assert refusal(lambda: PairStore(tmp_path / "pairs", owner=OWNER)) == "COLD_STORE_DAMAGED"


def change(store: PairStore, work: str) -> None:
    """Do one kind of work that writes."""
    if work == "put":
        store.put(as_codes([1, 2]), as_codes([3, 4]))
    elif work == "replace":
        store.replace([(as_codes([1]), as_codes([3])), (as_codes([2]), as_codes([4]))])
    else:
        store.tidy()


def error_of_a_full_disk(store: PairStore, work: str, position: int) -> tuple[str, int]:
    """Fail one operation of some work if it takes room on the disk; return the error and how many operations were to come."""
    left = position

    def fail(operation: Operation, act: Callable[[], Any]) -> Any:
        nonlocal left
        left -= 1
        if left == -1 and operation.kind in ("create", "write", "replace", "map"):
            raise OSError(28, "No space left on device")
        return act()

    try:
        with observe(fail):
            change(store, work)
    except ResourceError as error:
        return error.code, left
    return "", left


@pytest.mark.parametrize("work", ["put", "replace", "tidy"])
def test_a_full_disk_leaves_the_store_as_it_was_and_no_file_behind(tmp_path: Path, work: str) -> None:
    failures, left = 0, -1
    for position in range(200):
        place = tmp_path / f"{position}"
        store = PairStore(place, owner=OWNER)
        for part in range(store.fanout):
            store.put(FIRSTS[part:3000:100], SECONDS[part:3000:100])
        store.commit(0)
        before, files = pairs_of(store.find(FIRSTS[:3000])), sorted(path.name for path in place.iterdir())

        error, left = error_of_a_full_disk(store, work, position)

        if error:
            failures += 1
            assert error == "COLD_STORE_IO"
            assert pairs_of(store.find(FIRSTS[:3000])) == before
            assert sorted(path.name for path in place.iterdir()) == files
        store.close()
        assert open_below(place) == []
        if left >= 0:
            break

    assert left >= 0  # every operation had its turn
    assert failures >= 4


def test_other_bytes_in_a_page_are_noticed(tmp_path: Path) -> None:
    store = filled(tmp_path / "pairs")
    with (tmp_path / "pairs" / "1.pages").open("r+b") as pages:
        pages.seek(3 * PAIR_PAGE_BYTES)
        pages.write(b"\xff" * 8)

    assert refusal(lambda: store.find(FIRSTS)) == "COLD_STORE_DAMAGED"
    store.close()
