"""An arena is rows and long strings in regions, with a header that counts how much of them is in use."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows import side as s
from zset_join.state.rows.row_arena import RowArena
from zset_join.zset.row_layout import RowLayout

LAYOUT = RowLayout(pa.schema({"x": pa.int64(), "text": pa.string()}), sequence_words=1, has_degree=True)


@pytest.fixture
def arena() -> RowArena:
    """Give an empty arena in memory."""
    return RowArena(LAYOUT, directory=None, name="side")


def test_a_new_arena_is_empty(arena: RowArena) -> None:
    assert (arena.live_rows, arena.record_bytes(), arena.heap_bytes()) == (0, 0, 0)
    assert not arena.header.any()


def test_the_view_gives_kernels_every_address(arena: RowArena) -> None:
    view = np.zeros(s.VIEW_WORDS, np.int64)

    arena.write_view(view)

    assert view[s.STRIDE] == LAYOUT.stride
    assert view[s.HEAP] == arena.heap_address
    assert view[s.HEADER] == arena.header.ctypes.data
    assert (view[s.HEAD_BYTES], view[s.SEQUENCE_OFFSET], view[s.SEQUENCE_WORDS], view[s.DEGREE_OFFSET]) == (22, 24, 1, 32)


def test_bytes_are_those_of_records_and_blocks_that_were_ever_in_use_at_once(arena: RowArena) -> None:
    arena.header[s.H_ROWS_END] = 10
    arena.header[s.H_HEAP_END] = 480

    assert (arena.record_bytes(), arena.heap_bytes()) == (10 * LAYOUT.stride, 480)


def test_making_room_takes_nothing_into_use(arena: RowArena) -> None:
    arena.make_room(100_000, 1 << 20)

    assert (arena.record_bytes(), arena.heap_bytes()) == (0, 0)


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
    ("rows_end", "live", "tombstones", "heap_end", "heap_used", "sparse"),
    [
        pytest.param(0, 0, 0, 0, 0, False, id="empty"),
        pytest.param(65_536, 0, 0, 0, 0, False, id="small tables are not worth it"),
        pytest.param(65_537, 0, 0, 0, 0, True, id="all dead"),
        pytest.param(300_000, 150_000, 0, 0, 0, False, id="half dead"),
        pytest.param(300_000, 100_000, 0, 0, 0, True, id="two thirds dead"),
        pytest.param(300_000, 100_000, 50_000, 0, 0, False, id="tombstones are not dead"),
        pytest.param(10, 10, 0, 64 << 20, 28 << 20, False, id="a heap with holes"),
        pytest.param(10, 10, 0, 64 << 20, 27 << 20, True, id="a heap of holes"),
    ],
)
def test_compacting_pays_when_the_dead_outnumber_the_living(
    arena: RowArena, rows_end: int, live: int, tombstones: int, heap_end: int, heap_used: int, sparse: bool
) -> None:
    words = [s.H_ROWS_END, s.H_LIVE_ROWS, s.H_TOMBSTONES, s.H_HEAP_END, s.H_HEAP_USED]
    arena.header[words] = [rows_end, live, tombstones, heap_end, heap_used]

    assert arena.is_sparse() is sparse


def test_where_memory_is_short_fewer_dead_are_enough(arena: RowArena) -> None:
    words = [s.H_ROWS_END, s.H_LIVE_ROWS]
    arena.header[words] = [166_384, 100_000]
    assert not arena.is_sparse(tight=True)

    arena.header[words] = [166_385, 100_000]
    assert arena.is_sparse(tight=True)
    assert not arena.is_sparse()


def test_an_arena_in_files_keeps_its_header(tmp_path: Path) -> None:
    arena = RowArena(LAYOUT, directory=str(tmp_path), name="side")
    arena.header[s.H_LIVE_ROWS] = 7
    arena.close()

    again = RowArena(LAYOUT, directory=str(tmp_path), name="side")

    assert again.live_rows == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["side.header", "side.heap", "side.rows"]


def test_the_header_is_one_page(tmp_path: Path) -> None:
    RowArena(LAYOUT, directory=str(tmp_path), name="side").close()

    assert (tmp_path / "side.header").stat().st_size == s.HEADER_WORDS * 8 == 4096


def test_an_arena_may_move_to_another_directory(tmp_path: Path) -> None:
    (tmp_path / "spare").mkdir()
    arena = RowArena(LAYOUT, directory=str(tmp_path / "spare"), name="side")

    arena.relocate(str(tmp_path))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["side.header", "side.heap", "side.rows", "spare"]
    arena.close(remove=True)
    assert [path.name for path in tmp_path.iterdir()] == ["spare"]
