"""A slot table finds row numbers by hash, and grows before it is full."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows.slots import find_row_slot, insert_slot
from zset_join.state.rows.slot_table import SlotTable

COUNT, BITS = 3, 4
HASHES = np.random.default_rng(5).integers(0, 1 << 32, 3_000).tolist()


def new_table(directory: Path | None = None, header: Any = None) -> SlotTable:
    """Return a table whose count and size are in words 3 and 4 of a header."""
    words = np.zeros(8, np.int64) if header is None else header
    return SlotTable(words, COUNT, BITS, directory=None if directory is None else str(directory), name="side.join")


def put(table: SlotTable, hashes: list[int], *, first: int = 1) -> None:
    """Insert row numbers under hashes, as kernels do."""
    table.make_room(len(hashes))
    for number, code in enumerate(hashes, first):
        insert_slot(table.address, table.bits, code, number)
    table._header[COUNT] += len(hashes)


def slots(table: SlotTable) -> list[int]:
    """Return all slots, 0 where one is empty."""
    words: Any = (ctypes.c_int64 * (1 << table.bits)).from_address(table.address)
    return list(words)


def entries(table: SlotTable) -> list[tuple[int, int]]:
    """Return (hash, row number) of all used slots, in the order of the table."""
    return [((slot >> 32) & 0xFFFFFFFF, slot & 0xFFFFFFFF) for slot in slots(table) if slot]


def test_a_new_table_has_512_empty_slots() -> None:
    table = new_table()

    assert (table.count, table.bits, table.table_bytes()) == (0, 9, 4096)
    assert slots(table) == [0] * 512


@pytest.mark.parametrize(("keys", "bits"), [(0, 9), (320, 9), (321, 10), (640, 10), (641, 11), (5_000, 13)])
def test_a_table_doubles_before_it_is_more_than_five_eighths_full(keys: int, bits: int) -> None:
    table = new_table()

    table.make_room(keys)

    assert table.bits == bits


def test_growing_loses_nothing() -> None:
    table = new_table()
    put(table, HASHES[:300])

    put(table, HASHES[300:], first=301)

    assert sorted(entries(table)) == sorted((code, number) for number, code in enumerate(HASHES, 1))
    assert table.count == 3_000


def test_a_key_takes_between_13_and_26_bytes_once_there_are_some() -> None:
    table = new_table()
    put(table, HASHES)

    assert 12.8 <= table.table_bytes() / 3_000 <= 25.6


def test_equal_hashes_keep_their_order_when_the_table_grows() -> None:
    table = new_table()
    put(table, [7 << 20] * 300)

    put(table, HASHES[:300], first=301)

    assert [number for code, number in entries(table) if code == 7 << 20] == list(range(1, 301))


@pytest.mark.parametrize("directory", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize(("keys", "bits"), [(0, 9), (300, 9), (700, 11)])
def test_a_table_shrinks_to_what_its_keys_take(keys: int, bits: int, directory: bool, tmp_path: Path) -> None:
    table = new_table(tmp_path if directory else None)
    hashes = [*HASHES[: keys // 2], *range((1 << 32) - keys // 2, 1 << 32)]  # half of them continue behind the last home
    table.make_room(3_000)
    put(table, hashes)

    table.shrink()

    found = [find_row_slot(table.address, table.bits, code, number) for number, code in enumerate(hashes, 1)]
    assert table.bits == bits
    assert min(found, default=0) >= 0
    assert len(entries(table)) == len(hashes)
    assert [path.name for path in tmp_path.iterdir()] == [f"side.join.slots{bits}"][: int(directory)]


def test_a_table_keeps_room_for_keys_that_are_about_to_come() -> None:
    table = new_table()
    table.make_room(3_000)
    put(table, HASHES[:100])

    table.shrink(1_000)

    assert table.bits == 11
    assert not table.make_room(1_000)


def test_a_table_of_many_pieces_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.state.rows.slot_table._SLOTS_AT_ONCE", 512)
    table = new_table()
    put(table, HASHES)

    table.make_room(30_000)

    assert sorted(entries(table)) == sorted((code, number) for number, code in enumerate(HASHES, 1))


def test_more_slots_than_hashes_are_refused() -> None:
    with pytest.raises(ResourceError, match="more buckets") as caught:
        new_table().make_room(1 << 32)

    assert caught.value.code == "ROW_LIMIT"


def test_a_table_in_a_file_is_reopened_at_its_size(tmp_path: Path) -> None:
    header = np.zeros(8, np.int64)
    table = new_table(tmp_path, header)
    put(table, HASHES)
    before = entries(table)
    table.close()

    again = new_table(tmp_path, header)

    assert entries(again) == before
    assert [path.name for path in tmp_path.iterdir()] == ["side.join.slots13"]


def test_a_table_moves_with_its_directory_and_grows_there(tmp_path: Path) -> None:
    (tmp_path / "spare").mkdir()
    table = new_table(tmp_path / "spare")

    table.relocate(str(tmp_path))
    put(table, HASHES[:400])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["side.join.slots10", "spare"]
    assert list((tmp_path / "spare").iterdir()) == []


@pytest.mark.parametrize(("remove", "left"), [(False, ["side.join.slots9"]), (True, [])])
def test_closing_leaves_the_file_unless_it_is_to_be_removed(remove: bool, left: list[str], tmp_path: Path) -> None:
    new_table(tmp_path).close(remove=remove)

    assert [path.name for path in tmp_path.iterdir()] == left
