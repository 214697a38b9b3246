"""Open addressing: what was inserted is found, what was removed leaves no trace, and homes are all over the table."""

from __future__ import annotations

import numpy as np
import pytest

from zset_join.kernels.rows.slots import find_row_slot, home_in_part, home_of, insert_slot, remove_slot

INVERSE = pow(0x9E3779B1, -1, 1 << 32)  # of what hashes are multiplied by


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


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_after_a_long_life_exactly_what_was_not_removed_is_found(bits: int) -> None:
    random, held = np.random.default_rng(bits), dict[int, int]()
    words = np.zeros(1 << bits, np.int64)
    table = int(words.ctypes.data)
    for number in range(1, 2_000):
        if held and (len(held) * 8 >= 5 << bits or random.integers(0, 3) == 0):
            gone = int(random.choice(list(held)))
            remove_slot(table, bits, find_row_slot(table, bits, held.pop(gone), gone))
        else:  # every third one has its home in the last two sixteenths, so that the table is a circle
            code = int(random.integers(0, 1 << 32))
            held[number] = code if number % 3 else ((14 + code % 2) << 28) * INVERSE % (1 << 32)
            insert_slot(table, bits, held[number], number)

    assert sorted(number for number in (words & 0xFFFFFFFF).tolist() if number) == sorted(held)
    assert min(find_row_slot(table, bits, code, number) for number, code in held.items()) >= 0
