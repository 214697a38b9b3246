"""Open addressing: what was inserted is found, what was removed leaves no trace, and order survives growing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from zset_join.kernels.rows.slots import (
    find_key,
    find_key_slot,
    find_row_slot,
    home_in_part,
    home_of,
    insert_slot,
    likely_row,
    prefetch_slot,
    rehash,
    remove_slot,
    replace_slot,
    slot_number,
)
from zset_join.zset.row_layout import RowLayout

BITS = 4
INVERSE = pow(0x9E3779B1, -1, 1 << 32)  # of what hashes are multiplied by


def hash_at(home: int, number: int = 0) -> int:
    """Return a hash with a home in sixteen slots; another one for another number."""
    return ((home << 28) + number) * INVERSE % (1 << 32)


LAST_HOME = hash_at(15)


class Table:
    """Sixteen slots (or more), filled by the kernels."""

    def __init__(self, *entries: tuple[int, int], bits: int = BITS) -> None:
        self.bits = bits
        self.words: npt.NDArray[np.int64] = np.zeros(1 << bits, np.int64)
        self.address = int(self.words.ctypes.data)
        for code, number in entries:
            insert_slot(self.address, bits, code, number)

    def find(self, code: int, number: int) -> int:
        """Return the position of a row number under a hash, -1 if it is absent."""
        return int(find_row_slot(self.address, self.bits, code, number))

    def remove(self, code: int, number: int) -> None:
        """Remove a row number under a hash."""
        remove_slot(self.address, self.bits, self.find(code, number))

    def numbers(self) -> list[int]:
        """Return the row number of every slot, 0 where it is empty."""
        return (self.words & 0xFFFFFFFF).tolist()


def test_a_hash_lies_at_its_home_or_behind() -> None:
    table = Table((hash_at(5), 1), (hash_at(5, 1), 2), (hash_at(9), 3))

    assert [table.numbers()[position] for position in (5, 6, 9)] == [1, 2, 3]


@pytest.mark.parametrize("bits", [12, 17])
@pytest.mark.parametrize("share", [1, 16, 1000])
def test_hashes_of_a_part_of_all_have_homes_all_over_the_table(share: int, bits: int) -> None:
    """Cold rows arrive in the order of their hashes, part by part."""
    hashes = np.random.default_rng(share).integers(0, (1 << 32) // share, 5 << (bits - 3))
    homes = np.array([home_of(int(code), bits) for code in hashes])

    per_home = np.bincount(homes, minlength=1 << bits)

    assert len(np.unique(homes)) > 0.7 * len(hashes)
    assert np.bincount(homes >> (bits - 4)).max() < 1.2 * len(hashes) / 16
    assert per_home.max() < 20


@pytest.mark.parametrize("part_bits", [0, 1, 5])
@pytest.mark.parametrize("bits", [4, 10])
def test_the_home_in_a_part_is_the_home_among_the_slots_of_that_part(part_bits: int, bits: int) -> None:
    for code in np.random.default_rng(bits).integers(0, 1 << 32, 1000).tolist():
        part = home_of(code, part_bits) if part_bits else 0

        assert home_of(code, part_bits + bits) == (part << bits) + home_in_part(code, part_bits, bits)


def test_a_table_is_a_circle() -> None:
    table = Table((LAST_HOME, 1), (LAST_HOME, 2), (hash_at(0), 3))

    assert [table.numbers()[position] for position in (15, 0, 1)] == [1, 2, 3]
    assert [table.find(LAST_HOME, 2), table.find(hash_at(0), 3)] == [0, 1]


def test_a_row_that_is_not_there_is_not_found() -> None:
    table = Table((hash_at(5), 1))

    assert (table.find(hash_at(5), 2), table.find(hash_at(6), 1)) == (-1, -1)


def test_the_largest_hash_and_row_number_fit_a_slot() -> None:
    table = Table((2**32 - 1, 2**32 - 2))

    position = table.find(2**32 - 1, 2**32 - 2)

    assert (position, slot_number(table.address, position)) == (home_of(2**32 - 1, BITS), 2**32 - 2)


@pytest.mark.parametrize(
    ("entries", "removed", "expected"),
    [
        pytest.param([(5, 1), (5, 2), (5, 3)], (5, 1), {5: 2, 6: 3}, id="followers of the same home move up"),
        pytest.param([(5, 1), (6, 2), (7, 3)], (5, 1), {6: 2, 7: 3}, id="those that are at home stay"),
        pytest.param([(5, 1), (5, 2), (6, 3)], (5, 1), {5: 2, 6: 3}, id="those that were pushed go home"),
        pytest.param([(5, 1), (7, 3), (5, 2)], (5, 1), {5: 2, 7: 3}, id="a hole further on is no obstacle"),
        pytest.param([(15, 1), (15, 2), (0, 3)], (15, 1), {15: 2, 0: 3}, id="around the end"),
        pytest.param([(15, 1), (15, 2), (15, 3)], (15, 2), {15: 1, 0: 3}, id="in the middle, around the end"),
        pytest.param([(14, 1), (0, 2)], (14, 1), {0: 2}, id="with nobody behind"),
    ],
)
def test_removing_shifts_followers_back(
    entries: list[tuple[int, int]], removed: tuple[int, int], expected: dict[int, int]
) -> None:
    table = Table(*[(hash_at(home), number) for home, number in entries])

    table.remove(hash_at(removed[0]), removed[1])

    assert {position: number for position, number in enumerate(table.numbers()) if number} == expected


def random_life(bits: int, steps: int) -> tuple[Table, dict[int, int]]:
    """Insert and remove at random up to 5/8 full; return the table and what should be in it (row number -> hash)."""
    generator = np.random.default_rng(bits)
    table, held = Table(bits=bits), dict[int, int]()
    for number in range(1, steps):
        if held and (len(held) * 8 >= 5 << bits or generator.integers(0, 3) == 0):
            gone = int(generator.choice(list(held)))
            table.remove(held.pop(gone), gone)
        else:
            held[number] = int(generator.integers(0, 1 << 32)) if number % 3 else hash_at(int(generator.integers(14, 16)))
            insert_slot(table.address, bits, held[number], number)
    return table, held


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_after_a_long_life_exactly_what_was_not_removed_is_found(bits: int) -> None:
    table, held = random_life(bits, 2_000)

    assert sorted(number for number in table.numbers() if number) == sorted(held)
    assert min(table.find(code, number) for number, code in held.items()) >= 0


def test_another_row_of_the_key_can_take_a_slot() -> None:
    table = Table((hash_at(5), 1), (hash_at(5), 2))

    replace_slot(table.address, table.find(hash_at(5), 1), 2**32 - 2)

    assert table.find(hash_at(5), 2**32 - 2) == 5
    assert table.find(hash_at(5), 2) == 6


@pytest.mark.parametrize("bits", [5, 8])
def test_growing_keeps_every_slot_and_the_order_of_equal_hashes(bits: int) -> None:
    small = Table(*[(hash_at(7), number) for number in range(1, 6)], (LAST_HOME, 6), (LAST_HOME, 7))
    large = Table(bits=bits)

    rehash(small.address, BITS, large.address, bits, 0, 3)
    rehash(small.address, BITS, large.address, bits, 3, 1 << BITS)

    found = [large.find(hash_at(7), number) for number in range(1, 6)]
    assert found == list(range(found[0], found[0] + 5))
    assert min(large.find(LAST_HOME, 6), large.find(LAST_HOME, 7)) >= 0
    assert np.count_nonzero(large.words) == 7


def test_a_likely_row_is_a_guess_by_hash_alone() -> None:
    table = Table((hash_at(5), 1), (hash_at(5), 2), (hash_at(5, 1), 3))
    prefetch_slot(table.address, BITS, hash_at(5))

    assert likely_row(table.address, BITS, hash_at(5)) == 1
    assert likely_row(table.address, BITS, hash_at(5, 1)) == 3
    assert likely_row(table.address, BITS, hash_at(9)) == 0


def test_a_key_is_found_among_rows_of_the_same_hash_by_its_value() -> None:
    layout = RowLayout(pa.schema({"k": pa.string()}))
    rows = pa.RecordBatch.from_pydict({"k": ["apple", "a long key that does not fit a slot", None]})
    target: Any = np.zeros(3 * layout.stride, np.uint8)
    records = layout.encode(rows, [], target, int(target.ctypes.data))
    columns = layout.columns(["k"])
    code = hash_at(0, 7)
    table = Table((code, 1), (code, 2))

    def found(row: int) -> tuple[int, int]:
        key = records.address + row * layout.stride
        arguments = (table.address, BITS, code, key, 0, columns.address, records.address, layout.stride, 0, columns.address)
        return int(find_key(*arguments)), int(find_key_slot(*arguments))

    assert [found(0), found(1), found(2)] == [(1, 0), (2, 1), (0, -1)]
