"""A region is memory with an address that grows without copying, anonymous or mapped from a file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from zset_join.state.rows.region import Region

HUGE = 1 << 21


def put(region: Region, offset: int, content: bytes) -> None:
    """Write into a region."""
    ctypes.memmove(region.address + offset, content, len(content))


def resident_bytes() -> int:
    """Return the resident size of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def get(region: Region, offset: int, length: int) -> bytes:
    """Read from a region."""
    return ctypes.string_at(region.address + offset, length)


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("capacity", [1, 4096, 5000, 3 * HUGE])
def test_a_new_region_holds_what_was_requested_and_is_zero(capacity: int, grows: bool) -> None:
    region = Region(capacity, grows=grows)

    assert region.capacity >= capacity
    assert get(region, 0, capacity) == bytes(capacity)
    region.close()


def test_growing_keeps_what_was_written_and_adds_zeros(tmp_path: Path) -> None:
    region = Region(4096, str(tmp_path / "rows"))
    put(region, 4090, b"edge..")

    grown = region.ensure(10_000)

    assert grown
    assert region.capacity >= 10_000
    assert get(region, 4090, 20) == b"edge.." + bytes(14)


def test_room_that_is_there_needs_no_growing() -> None:
    region = Region(4096)

    assert region.ensure(4096) is False


def test_a_growing_region_doubles_at_least_so_that_growing_is_seldom(tmp_path: Path) -> None:
    region = Region(1 << 20, str(tmp_path / "rows"))

    region.ensure((1 << 20) + 1)

    assert region.capacity >= 2 << 20


def test_an_anonymous_region_has_address_space_to_grow_into_that_takes_no_memory() -> None:
    before = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    region = Region(4096)
    address = region.address

    region.ensure(1 << 30)
    put(region, 1 << 29, b"far")

    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) - before
    assert region.address == address
    assert resident * mmap.PAGESIZE < 64 << 20
    region.close()


def test_what_is_written_takes_whole_pages_which_are_large_behind_the_first_2_mb(tmp_path: Path) -> None:
    reserved, in_file = Region(4096), Region(4 * HUGE, str(tmp_path / "rows"))

    assert [reserved.tail_bytes(used) for used in (0, 1, 4096, HUGE - 1)] == [0, 4095, 0, 1]
    assert [reserved.tail_bytes(used) for used in (HUGE, HUGE + 1, 3 * HUGE - 5)] == [0, HUGE - 1, 5]
    assert in_file.tail_bytes(HUGE + 1) == 4095
    reserved.close()


@pytest.mark.parametrize("written", [100, HUGE // 2, HUGE + 100, 3 * HUGE + HUGE // 2])
def test_a_region_takes_what_is_written_and_its_tail_at_most(written: int) -> None:
    region = Region(4096)
    before = resident_bytes()

    ctypes.memset(region.address, 1, written)

    assert resident_bytes() - before < written + region.tail_bytes(written) + HUGE // 4  # of the test's own
    region.close()


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


def test_a_file_is_there_again_when_it_is_opened_again(tmp_path: Path) -> None:
    region = Region(4096, str(tmp_path / "rows"))
    put(region, 100, b"still here")
    region.close()

    again = Region(16, str(tmp_path / "rows"))

    assert get(again, 100, 10) == b"still here"


def test_a_file_that_has_grown_is_opened_at_its_size(tmp_path: Path) -> None:
    region = Region(4096, str(tmp_path / "rows"))
    region.ensure(1 << 22)
    put(region, 1 << 21, b"far")
    region.close()

    again = Region(4096, str(tmp_path / "rows"))

    assert again.capacity >= 1 << 22
    assert get(again, 1 << 21, 3) == b"far"


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


def test_memory_cannot_be_moved_to_a_directory(tmp_path: Path) -> None:
    region = Region(4096)

    region.relocate(str(tmp_path))

    assert list(tmp_path.iterdir()) == []


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


def test_releasing_less_than_a_page_does_nothing() -> None:
    region = Region(2 * mmap.PAGESIZE)
    put(region, 0, b"x" * 2 * mmap.PAGESIZE)

    region.release(1, mmap.PAGESIZE)
    region.release(2 * mmap.PAGESIZE)

    assert get(region, 0, 2 * mmap.PAGESIZE) == b"x" * 2 * mmap.PAGESIZE


@pytest.mark.parametrize(("remove", "left"), [(False, ["rows"]), (True, [])])
def test_closing_leaves_the_file_unless_it_is_to_be_removed(remove: bool, left: list[str], tmp_path: Path) -> None:
    region = Region(4096, str(tmp_path / "rows"))

    region.close(remove=remove)

    assert [path.name for path in tmp_path.iterdir()] == left
    assert region.address == 0


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
        "zset_join.state.rows.region.populate", lambda address, size: requested.append((address - region.address, size))
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
