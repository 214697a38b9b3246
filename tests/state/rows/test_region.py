"""What state lies in: regions that grow without copying, arenas of rows and long strings, tables of slots."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.slots import find_row_slot, insert_slot
from zset_join.state.rows.host_memory import Region, resident_bytes
from zset_join.state.rows.row_tables import RowArena, SlotTable
from zset_join.zset.row_layout import RowLayout

HUGE = 1 << 21
LAYOUT = RowLayout(pa.schema({"x": pa.int64(), "text": pa.string()}), sequence_words=1, has_degree=True)
COUNT, BITS = 3, 4  # the words of a header that a table uses
HASHES = np.random.default_rng(5).integers(0, 1 << 32, 3_000).tolist()


def put(region: Region, offset: int, content: bytes) -> None:
    ctypes.memmove(region.address + offset, content, len(content))


def get(region: Region, offset: int, length: int) -> bytes:
    return ctypes.string_at(region.address + offset, length)


def test_an_anonymous_region_has_address_space_to_grow_into_that_takes_no_memory() -> None:
    before, region = resident_bytes(), Region(4096)
    address = region.address

    region.ensure(1 << 30)
    put(region, 1 << 29, b"far")

    assert region.address == address
    assert resident_bytes() - before < 64 << 20
    region.close()


def test_what_is_written_takes_whole_pages_which_are_large_behind_the_first_2_mb(tmp_path: Path) -> None:
    reserved, in_file = Region(4096), Region(4 * HUGE, str(tmp_path / "rows"))

    assert [reserved.tail_bytes(used) for used in (0, 1, 4096, HUGE - 1)] == [0, 4095, 0, 1]
    assert [reserved.tail_bytes(used) for used in (HUGE, HUGE + 1, 3 * HUGE - 5)] == [0, HUGE - 1, 5]
    assert in_file.tail_bytes(HUGE + 1) == 4095
    reserved.close()


def test_where_the_host_refuses_the_reserve_a_region_starts_small_and_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    made = mmap.mmap

    def refusing(descriptor: int, length: int, **options: Any) -> mmap.mmap:
        if length > 1 << 33:
            raise OSError("cannot allocate memory")
        return made(descriptor, length, **options)

    monkeypatch.setattr(mmap, "mmap", refusing)
    region = Region(4096)
    put(region, 0, b"kept")

    region.ensure(1 << 20)

    assert get(region, 0, 4) == b"kept"
    assert region.capacity >= 1 << 20


def test_only_its_owner_may_read_a_file(tmp_path: Path) -> None:
    Region(4096, str(tmp_path / "rows"))

    assert (tmp_path / "rows").stat().st_mode & 0o077 == 0


def test_a_region_may_move_to_another_directory_while_it_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "spare").mkdir()
    region = Region(4096, str(tmp_path / "spare" / "rows"))
    put(region, 0, b"before")

    region.relocate(str(tmp_path))
    put(region, 0, b"after.")
    region.close()

    assert (tmp_path / "rows").read_bytes()[:6] == b"after."
    assert list((tmp_path / "spare").iterdir()) == []


@pytest.mark.parametrize("in_file", [False, True])
def test_released_bytes_take_no_memory_and_the_others_stay(in_file: bool, tmp_path: Path) -> None:
    region = Region(4 * HUGE, str(tmp_path / "rows") if in_file else None)
    put(region, 0, b"x" * (3 * HUGE))
    before = resident_bytes()

    region.release(HUGE + 1, 3 * HUGE - 1)

    assert before - resident_bytes() >= 2 * HUGE - 2 * mmap.PAGESIZE - (64 << 10)
    assert get(region, 0, HUGE + 1) == b"x" * (HUGE + 1)
    assert get(region, 3 * HUGE - 1, 2) == b"x\0"
    assert region.is_current()


def test_a_full_disk_is_an_error_before_anybody_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region(4096, str(tmp_path / "rows"))
    put(region, 0, b"x" * 4096)

    def refuse(descriptor: int, begin: int, length: int) -> None:
        os.ftruncate(descriptor, begin + length)  # as where half of the blocks were present
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="No space left"):
            region.ensure(1 << 20)

    assert region.is_current()
    assert region.capacity == 4096
    assert get(region, 0, 4096) == b"x" * 4096
    assert region.ensure(1 << 20)
    assert (tmp_path / "rows").stat().st_blocks * 512 >= 1 << 20
    region.close()


def test_many_pages_of_a_file_are_requested_at_once_and_those_that_are_there_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "zset_join.state.rows.host_memory.populate", lambda address, size: requested.append((address - region.address, size))
    )
    region = Region(4096, str(tmp_path / "rows"))
    assert requested == []

    for size in (2 << 20, (2 << 20) + 4096, 5 << 20):
        region.ensure(size)
        put(region, size - 4, b"last")
    region.release(3 << 20)
    region.ensure(5 << 20)
    assert requested == [
        (4096, (2 << 20) - 4096),
        ((2 << 20) + 4096, (3 << 20) - 4096),
        (3 << 20, 2 << 20),
    ]
    region.close()

    region = Region(4096, str(tmp_path / "rows"))
    region.ensure(5 << 20)
    assert len(requested) == 3
    assert get(region, (2 << 20) - 4, 4) == b"last"
    region.close()


# ---------------------------------------------------------------- arenas


@pytest.fixture
def arena() -> RowArena:
    """Give an empty arena in memory."""
    return RowArena(LAYOUT, directory=None, name="side")


def test_more_rows_than_32_bits_count_are_refused(arena: RowArena) -> None:
    with pytest.raises(ResourceError, match="more buckets") as caught:
        arena.make_room(2**32 - 1, 0)

    assert caught.value.code == "ROW_LIMIT"


def test_memory_behind_the_last_record_and_the_last_block_is_given_back(arena: RowArena) -> None:
    view = np.zeros(s.VIEW_WORDS, np.int64)
    arena.make_room(10_000, 1 << 18)
    arena.write_view(view)
    arena.header[[s.H_ROWS_END, s.H_HEAP_END]] = 5_000, 1 << 17
    parts = [(int(view[s.ROWS]), arena.record_bytes()), (int(view[s.HEAP]), arena.heap_bytes())]
    for address, used in parts:
        ctypes.memset(address, 7, 2 * used)

    arena.give_back()

    for address, used in parts:
        assert ctypes.string_at(address, used) == b"\x07" * used
        behind = -(-(address + used) // mmap.PAGESIZE) * mmap.PAGESIZE
        assert not any(ctypes.string_at(behind, mmap.PAGESIZE))


@pytest.mark.parametrize(
    ("rows_end", "live", "tombstones", "heap", "sparse", "sparse_if_tight"),
    [
        pytest.param(65_536, 0, 0, (0, 0), False, True, id="small tables are not worth it"),
        pytest.param(65_537, 0, 0, (0, 0), True, True, id="all dead"),
        pytest.param(166_384, 100_000, 0, (0, 0), False, False, id="few dead"),
        pytest.param(166_385, 100_000, 0, (0, 0), False, True, id="fewer are enough where memory is short"),
        pytest.param(300_000, 150_000, 0, (0, 0), False, True, id="half dead"),
        pytest.param(300_000, 100_000, 0, (0, 0), True, True, id="two thirds dead"),
        pytest.param(300_000, 100_000, 50_000, (0, 0), False, True, id="tombstones are not dead"),
        pytest.param(10, 10, 0, (64 << 20, 28 << 20), False, True, id="a heap with holes"),
        pytest.param(10, 10, 0, (64 << 20, 27 << 20), True, True, id="a heap of holes"),
    ],
)
def test_compacting_pays_when_the_dead_outnumber_the_living(
    arena: RowArena, rows_end: int, live: int, tombstones: int, heap: tuple[int, int], sparse: bool, sparse_if_tight: bool
) -> None:
    words = [s.H_ROWS_END, s.H_LIVE_ROWS, s.H_TOMBSTONES, s.H_HEAP_END, s.H_HEAP_USED]
    arena.header[words] = [rows_end, live, tombstones, *heap]

    assert (arena.is_sparse(), arena.is_sparse(tight=True)) == (sparse, sparse_if_tight)


# ---------------------------------------------------------------- tables


def new_table(directory: Path | None = None) -> SlotTable:
    """Return a table whose count and size are in words of a header."""
    return SlotTable(np.zeros(8, np.int64), COUNT, BITS, directory=None if directory is None else str(directory), name="join")


def fill(table: SlotTable, hashes: list[int]) -> None:
    """Insert the row numbers 1, 2, ... under hashes, as kernels do."""
    table.make_room(len(hashes))
    for number, code in enumerate(hashes, 1):
        insert_slot(table.address, table.bits, code, number)
    table._header[COUNT] += len(hashes)


def entries(table: SlotTable) -> list[tuple[int, int]]:
    """Return (hash, row number) of all used slots, in the order of the table."""
    words: Any = (ctypes.c_int64 * (1 << table.bits)).from_address(table.address)
    return [((slot >> 32) & 0xFFFFFFFF, slot & 0xFFFFFFFF) for slot in words if slot]


@pytest.mark.parametrize(("keys", "bits"), [(0, 9), (320, 9), (321, 10), (640, 10), (641, 11), (5_000, 13)])
def test_a_table_doubles_before_it_is_more_than_five_eighths_full(keys: int, bits: int) -> None:
    table = new_table()

    table.make_room(keys)

    assert table.bits == bits


@pytest.mark.parametrize("directory", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize(("keys", "bits"), [(0, 9), (300, 9), (700, 11)])
def test_a_table_shrinks_to_what_its_keys_take(keys: int, bits: int, directory: bool, tmp_path: Path) -> None:
    table = new_table(tmp_path if directory else None)
    hashes = [*HASHES[: keys // 2], *range((1 << 32) - keys // 2, 1 << 32)]  # half of them continue behind the last home
    table.make_room(3_000)
    fill(table, hashes)

    table.shrink()

    found = [find_row_slot(table.address, table.bits, code, number) for number, code in enumerate(hashes, 1)]
    assert table.bits == bits
    assert min(found, default=0) >= 0
    assert len(entries(table)) == len(hashes)
    assert [path.name for path in tmp_path.iterdir()] == [f"join.slots{bits}"][: int(directory)]


def test_a_table_keeps_room_for_keys_that_are_about_to_come() -> None:
    table = new_table()
    table.make_room(3_000)
    fill(table, HASHES[:100])

    table.shrink(1_000)

    assert table.bits == 11
    assert not table.make_room(1_000)


def test_a_table_of_many_pieces_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.rows.row_tables._SLOTS_AT_ONCE", 512)
    table = new_table()
    fill(table, HASHES)

    table.make_room(30_000)

    assert sorted(entries(table)) == sorted((code, number) for number, code in enumerate(HASHES, 1))


def test_more_slots_than_hashes_are_refused() -> None:
    with pytest.raises(ResourceError, match="more buckets") as caught:
        new_table().make_room(1 << 32)

    assert caught.value.code == "ROW_LIMIT"
