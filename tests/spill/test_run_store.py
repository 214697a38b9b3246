"""A store of runs: what it keeps on disk, how it stays small, and what it refuses to open; and the sorting of its codes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.cold_histories import OWNER, ColdRow, FileShelf, Shelf, as_bag, as_codes, as_rows, remove_codes
from spill.cold_store import ColdStore, cold_rows
from spill.file_pages import FileColdStore
from spill.run_set import runs_to_merge
from spill.write_kernels import ascending, ascending_positions
from zset_join.core.errors import OptionError, StateError


def numbered(codes: Iterable[int], size: int = 50) -> list[ColdRow]:
    """Return one row per code, with content of its own."""
    return [(code, -code, f"{code}:".encode().ljust(size, b".")) for code in codes]


def fill(store: ColdStore, puts: int, rows: int) -> list[ColdRow]:
    """Put rows of new codes several times; return all of them."""
    filled: list[ColdRow] = []
    for put in range(puts):
        filled += numbered(range(put * rows, (put + 1) * rows))
        store.put(as_rows(filled[-rows:]))
    return filled


def refusal(open_store: Callable[[], Any]) -> StateError:
    with pytest.raises(StateError) as refused:
        open_store()
    return refused.value


# ---------------------------------------------------------------- staying the same


def test_merged_rows_are_found_by_pair_when_their_code_fills_many_pages(shelf: Shelf) -> None:
    store = shelf.open()
    rows = [(7, subcode, f"{subcode}".encode() * 100) for subcode in range(4000)]
    for part in range(8):
        store.put(as_rows(rows[part::8]))

    store.tidy()

    wanted = [3, 1000, 1001, 3999]
    found = store.fetch(as_codes([7] * 4), as_codes(wanted))
    assert as_bag([found]) == Counter(rows[subcode] for subcode in wanted)
    assert store.statistics()["pages_read"] <= 8
    shelf.close(store)


# ---------------------------------------------------------------- staying small


def test_rows_are_rewritten_about_as_often_as_there_are_levels(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()

    for put in range(64):
        store.put(as_rows(numbered(range(put * 2000, put * 2000 + 2000), size=8)))
        store.tidy()

    assert store.statistics()["rows_merged"] <= 3 * store.row_count()
    store.close()


@pytest.mark.parametrize(
    ("live", "rows", "merged"),
    [
        ([], [], []),
        ([500], [500], []),
        ([500, 500, 500], [500, 500, 500], []),
        ([500, 900, 10, 3], [500, 900, 10, 3], [0, 1, 2, 3]),
        ([5000, 5000, 5000, 5000, 20], [5000, 5000, 5000, 5000, 20], [0, 1, 2, 3, 4]),
        ([5000, 5000, 5000, 20_000], [5000, 5000, 5000, 20_000], []),
        ([499, 5000], [1000, 5000], [0]),
        ([500, 5000], [1000, 5000], []),
        ([0, 0], [10, 10], [0, 1]),
    ],
)
def test_runs_are_merged_when_four_have_one_size_or_one_has_lost_most(
    live: list[int], rows: list[int], merged: list[int]
) -> None:
    assert runs_to_merge(live, rows, 4) == merged


def test_the_space_of_removed_rows_is_given_back(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=1, rows=10_000)
    full = store.disk_bytes()

    remove_codes(store, as_codes(range(8_000)))
    store.tidy()

    assert store.disk_bytes() < full / 4
    assert sum(path.stat().st_size for path in (tmp_path / "rows").iterdir()) < full / 4
    store.close()


def test_a_cleared_store_leaves_only_its_manifest(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=3, rows=100)

    store.clear()

    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["store.json"]
    store.close()


def test_memory_holds_a_few_bytes_per_row(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()

    store.put(as_rows(numbered(range(20_000), size=80)))

    assert store.resident_bytes() <= 9 * 20_000
    store.close()


def resident_kilobytes(file: Path) -> int:
    """Return how much of a mapped file is in the memory of this process."""
    mappings = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{file}\n")[1:]
    return sum(int(mapping.split("\nRss:")[1].split()[0]) for mapping in mappings)


def test_an_index_that_is_released_leaves_memory_and_forgets_nothing(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    rows = fill(store, puts=1, rows=50_000)
    remove_codes(store, as_codes([5, 49_000]))
    prints = next((tmp_path / "rows").glob("*.prints"))
    before = resident_kilobytes(prints)

    store.release()

    assert (before > 0, resident_kilobytes(prints)) == (True, 0)
    assert store.staying_bytes() == 50_000 // 8 + (1 << 20) // 8  # a bit for removed, and a filter of 16 bits at least
    assert as_bag(store.scan()) == Counter(rows) - Counter(numbered([5, 49_000]))
    store.close()


def test_an_index_larger_than_its_window_leaves_memory_when_it_was_looked_at(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    codes = np.arange(30_000)
    for _ in range(3):
        store.put(cold_rows(codes, pa.repeat(pa.scalar(b"." * 50, pa.large_binary()), len(codes))))
    prints = sorted((tmp_path / "rows").glob("*.prints"))
    store.keep_index = False
    mapped = []

    for window in (store.resident_bytes(), store.resident_bytes() - 1):
        store.index_window = window
        found = sum(len(part) for part in store.fetch_parts(codes[:8_000]))
        mapped.append((found, [resident_kilobytes(path) > 0 for path in prints]))

    assert mapped == [(24_000, [True] * 3), (24_000, [False] * 3)]
    store.close()


def test_a_small_index_that_may_not_stay_lingers_until_it_is_released(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=3, rows=3_000)
    most = store.resident_bytes() - store.staying_bytes()

    kept = store.lingering_bytes()
    store.keep_index = False
    small = store.lingering_bytes()
    store.index_window = most - 1
    large = store.lingering_bytes()

    assert (kept, small, large) == (0, most, 0)
    store.close()


def test_a_fetch_through_windows_of_the_index_finds_the_same_rows(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    rows = fill(store, puts=3, rows=3_000)
    codes = as_codes(range(-10, 9_010))
    store.keep_index, store.index_window = False, 4096

    by_code, by_row = list(store.fetch_parts(codes)), list(store.fetch_parts(codes, -codes))

    assert (as_bag(by_code), as_bag(by_row)) == (Counter(rows), Counter(rows))
    assert min(len(by_code), len(by_row)) > 5
    store.close()


def test_one_portion_of_the_index_is_in_memory_at_a_time(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    for number in range(6):
        store.put(cold_rows(np.arange(number, 180_000, 6), pa.repeat(pa.scalar(b".", pa.large_binary()), 30_000)))
    index_files = [*(tmp_path / "rows").glob("*.prints"), *(tmp_path / "rows").glob("*.directory")]
    store.release()
    store.keep_index, store.index_window = False, store.resident_bytes() * 2 // 5  # two runs, and not three
    codes = np.arange(0, 180_000, 40)

    def runs_in_memory() -> int:
        return len({path.stem for path in index_files if resident_kilobytes(path)})

    found = [(len(part), runs_in_memory()) for part in store.fetch_parts(codes)]
    requested = [
        (int((store.bytes_of(codes) > 0).sum()), runs_in_memory()),
        (len(store.long_among(codes, 1)[0]), runs_in_memory()),
    ]

    assert sum(rows for rows, _ in found) == len(codes)
    assert {runs for _, runs in found} <= {1, 2}
    assert requested == [(len(codes), 0), (len(codes), 0)]
    store.close()


# ---------------------------------------------------------------- reading little


@pytest.mark.parametrize("window", [None, 4096])
def test_some_row_of_each_code_costs_one_run_where_it_is_in_each(tmp_path: Path, window: int | None) -> None:
    store = FileShelf(tmp_path).open()
    for size in (40_000, 30_000, 20_000, 300, 200):  # rows of the codes below; two small runs
        store.put(cold_rows(np.arange(size), pa.repeat(pa.scalar(b"." * 50, pa.large_binary()), size)))
    store.keep_index, store.index_window = window is None, window or store.index_window
    lacking, requested, before = np.arange(-50, 40_050, 50), [], store.statistics()

    def wanted() -> np.ndarray[Any, Any]:
        requested.append(len(lacking))
        return lacking

    for rows in store.fetch_some(wanted):
        lacking = lacking[~np.isin(lacking, rows.codes)]
    read = {name: count - before[name] for name, count in store.statistics().items() if name in ("fetches", "rows_fetched")}

    assert (requested[0], lacking.tolist()) == (802, [-50, 40_000])
    assert set(requested[1:]) <= {2}
    assert read == {"fetches": 1, "rows_fetched": 800}
    assert len(requested) == 4 if window is None else len(requested) >= 4  # three large runs, and the small ones together
    store.close()


def test_absent_and_removed_codes_do_not_reach_the_disk(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=1, rows=2000)
    remove_codes(store, as_codes(range(0, 2000, 2)))
    before = store.statistics()["pages_read"]

    found = store.fetch(as_codes([*range(0, 2000, 2), *range(2000, 4000), *range(-1000, 0)]))

    assert len(found) == 0
    assert store.statistics()["pages_read"] - before <= 20
    store.close()


def test_a_fetch_reads_one_page_for_a_few_rows(tmp_path: Path) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=1, rows=10_000)

    store.fetch(as_codes([17, 5000]))

    assert store.statistics()["bytes_read"] <= 2 * 2048
    store.close()


# ---------------------------------------------------------------- subcodes


def test_a_store_without_subcodes_keeps_none(tmp_path: Path) -> None:
    wide = FileColdStore(tmp_path / "wide", owner=OWNER)
    narrow = FileColdStore(tmp_path / "narrow", owner=OWNER, with_subcodes=False)
    rows = as_rows(numbered(range(10_000)))

    wide.put(rows)
    narrow.put(rows)

    assert wide.disk_bytes() - narrow.disk_bytes() >= 8 * 10_000
    assert as_bag([narrow.fetch(as_codes([17]))]) == Counter([(17, 0, numbered([17])[0][2])])
    wide.close()
    narrow.close()


def test_a_store_without_subcodes_refuses_to_look_for_some(tmp_path: Path) -> None:
    narrow = FileColdStore(tmp_path / "narrow", owner=OWNER, with_subcodes=False)

    with pytest.raises(OptionError) as refused:
        narrow.fetch(as_codes([1]), as_codes([1]))

    assert refused.value.code == "COLD_SUBCODES"
    narrow.close()


# ---------------------------------------------------------------- places


def test_places_from_before_a_merge_are_refused(shelf: Shelf) -> None:
    store = shelf.open()
    fill(store, puts=8, rows=10)
    places = store.fetch(as_codes([1])).places
    store.tidy()

    with pytest.raises(StateError) as refused:
        store.remove(places)

    assert refused.value.code == "COLD_PLACES"
    assert store.row_count() == 80
    shelf.close(store)


@pytest.mark.parametrize("place", [-1, 0, 99, 2 << 36, (1 << 36) + 10])
def test_places_that_never_were_are_refused(tmp_path: Path, place: int) -> None:
    store = FileShelf(tmp_path).open()
    fill(store, puts=1, rows=10)

    with pytest.raises(StateError):
        store.remove(as_codes([place]))

    store.close()


# ---------------------------------------------------------------- opening


def committed(directory: Path) -> Path:
    """Leave a committed store with two runs behind; return its directory."""
    store = FileColdStore(directory, owner=OWNER)
    fill(store, puts=2, rows=100)
    store.commit(3)
    store.close()
    return directory


def test_a_store_closed_without_a_commit_is_refused(shelf: Shelf) -> None:
    store = shelf.open()
    store.put(as_rows(numbered([1])))
    shelf.close(store)

    error = refusal(shelf.open)

    assert error.code == "COLD_STORE_UNCLEAN"
    assert "rebuilt from the checkpoint" in error.message


@pytest.mark.parametrize("owner", [{}, {**OWNER, "query": "another"}, {**OWNER, "bucket": 4}, {**OWNER, "layout": 1}])
def test_the_store_of_another_owner_is_refused(tmp_path: Path, owner: dict[str, Any]) -> None:
    directory = committed(tmp_path / "rows")

    error = refusal(lambda: FileColdStore(directory, owner=owner))

    assert error.code == "COLD_STORE_FOREIGN"
    assert error.facts["differing"] == ["owner"]


@pytest.mark.parametrize("name", ["format", "library", "boot", "pages", "subcodes"])
def test_a_store_of_another_version_boot_or_shape_is_refused(tmp_path: Path, name: str) -> None:
    directory = committed(tmp_path / "rows")
    manifest = json.loads((directory / "store.json").read_text())
    (directory / "store.json").write_text(json.dumps({**manifest, name: "other"}))

    error = refusal(lambda: FileColdStore(directory, owner=OWNER))

    assert (error.code, error.facts["differing"]) == ("COLD_STORE_FOREIGN", [name])


def test_a_manifest_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    directory = committed(tmp_path / "rows")
    (directory / "store.json").write_text('{"clean": tr')

    assert refusal(lambda: FileColdStore(directory, owner=OWNER)).code == "COLD_STORE_UNCLEAN"


@pytest.mark.parametrize("name", ["1.pages", "1.prints", "1.directory", "1.removed"])
def test_a_run_with_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    directory = committed(tmp_path / "rows")
    (directory / name).unlink()

    assert refusal(lambda: FileColdStore(directory, owner=OWNER)).code == "COLD_STORE_DAMAGED"


@pytest.mark.parametrize("name", ["2.pages", "2.prints", "2.directory", "2.removed"])
def test_a_run_with_a_short_file_is_refused(tmp_path: Path, name: str) -> None:
    directory = committed(tmp_path / "rows")
    (directory / name).write_bytes((directory / name).read_bytes()[:-1])

    assert refusal(lambda: FileColdStore(directory, owner=OWNER)).code == "COLD_STORE_DAMAGED"


def test_a_page_with_other_bytes_is_refused_when_it_is_read(tmp_path: Path) -> None:
    directory = committed(tmp_path / "rows")
    content = bytearray((directory / "1.pages").read_bytes())
    content[:8] = bytes(8)
    (directory / "1.pages").write_bytes(content)
    store = FileColdStore(directory, owner=OWNER)

    error = refusal(lambda: store.fetch(as_codes([0])))

    assert (error.code, error.facts["page"]) == ("COLD_STORE_DAMAGED", 0)
    store.close()


def test_a_store_that_is_only_read_stays_clean(tmp_path: Path) -> None:
    directory = committed(tmp_path / "rows")
    store = FileColdStore(directory, owner=OWNER)
    store.fetch(as_codes([1, 2, 3]))
    store.close()

    assert FileColdStore(directory, owner=OWNER).row_count() == 200


def test_a_store_is_cleaned_by_a_commit_after_an_error(tmp_path: Path) -> None:
    store = FileColdStore(tmp_path / "rows", owner=OWNER)
    fill(store, puts=1, rows=10)
    with pytest.raises(StateError):
        store.remove(as_codes([-1]))

    store.commit(0)
    store.close()

    assert FileColdStore(tmp_path / "rows", owner=OWNER).row_count() == 10


# ---------------------------------------------------------------- sorting

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
WORDS = st.one_of(st.sampled_from(ENDS), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(-5, 5))


@given(words=st.lists(WORDS, max_size=60), copies=st.sampled_from([1, 40]))
def test_words_are_sorted_as_by_numpy(words: list[int], copies: int) -> None:
    given_words = np.array(words * copies, np.int64)
    kept = given_words.copy()

    assert ascending(given_words).tolist() == sorted(given_words.tolist())
    assert ascending_positions(given_words).tolist() == np.argsort(kept, kind="stable").tolist()
    assert given_words.tolist() == kept.tolist()


@pytest.mark.parametrize("bits", [1, 8, 11, 12, 32, 33, 63, 64])
@pytest.mark.parametrize("count", [511, 512, 20_000])
def test_many_words_of_so_many_bits_are_sorted(bits: int, count: int) -> None:
    words = np.random.default_rng(bits).integers(-(1 << 63), (1 << 63) - 1, count) >> (64 - bits)

    assert np.array_equal(ascending(words), np.sort(words))
    assert np.array_equal(ascending_positions(words), np.argsort(words, kind="stable"))
    assert np.array_equal(ascending_positions(words[::2]), np.argsort(words[::2], kind="stable"))


def test_a_directory_with_files_but_no_manifest_is_refused(tmp_path: Path) -> None:
    directory = committed(tmp_path / "rows")
    (directory / "store.json").unlink()

    assert refusal(lambda: FileColdStore(directory, owner=OWNER)).code == "COLD_STORE_UNCLEAN"
