"""Loads and stores at raw addresses: what is written is what is read, and nothing beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from zset_join.kernels.machine.memory import (
    copy_bytes,
    equal_bytes,
    high_multiply,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    prefetch,
    shift_right,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    zero_bytes,
)

PATTERN = bytes(range(0xF0, 0x100)) + bytes(range(16))


@njit
def load_each(address: int) -> tuple[int, int, int, int]:
    return load_u8(address), load_u16(address), load_u32(address), load_u64(address)


@njit
def store_each(address: int, value: int) -> None:
    store_u8(address, value)
    store_u16(address + 8, value)
    store_u32(address + 16, value)
    store_u64(address + 24, value)


@njit
def compute(value: int, by: int) -> tuple[int, int]:
    prefetch(value)
    return shift_right(value, by), high_multiply(value, by)


def buffer(content: bytes) -> npt.NDArray[np.uint8]:
    """Return memory with some content."""
    return np.frombuffer(content, np.uint8).copy()


def address(array: npt.NDArray[Any], offset: int = 0) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data) + offset


@pytest.mark.parametrize("offset", [0, 1, 7, 13])
def test_narrow_words_are_read_without_sign_from_any_address(offset: int) -> None:
    memory = buffer(PATTERN)

    found = load_each(address(memory, offset))

    piece = PATTERN[offset : offset + 8]
    assert found[:3] == tuple(int.from_bytes(piece[:width], "little") for width in (1, 2, 4))
    assert found[3] == int.from_bytes(piece, "little", signed=True)


@pytest.mark.parametrize("value", [0, 1, -1, 0x0123456789ABCDEF, -(2**63)])
def test_a_store_writes_its_width_and_not_a_byte_more(value: int) -> None:
    memory = buffer(b"\xaa" * 32)

    store_each(address(memory), value)

    low = (value & (2**64 - 1)).to_bytes(8, "little")
    expected = b"".join(low[:width] + b"\xaa" * (8 - width) for width in (1, 2, 4, 8))
    assert memory.tobytes() == expected


@pytest.mark.parametrize(("value", "by"), [(-1, 60), (-(2**63), 63), (2**62, 1), (12345, 0)])
def test_shifting_right_brings_in_zeros(value: int, by: int) -> None:
    assert compute(value, by)[0] == (value & (2**64 - 1)) >> by


@pytest.mark.parametrize(("left", "right"), [(3, 5), (-1, -1), (-(2**63), 2), (0x9E3779B97F4A7C15 - 2**64, 0x1F83D9ABFB41BD6B)])
def test_a_multiplication_folds_its_high_half_onto_its_low_one(left: int, right: int) -> None:
    product = (left & (2**64 - 1)) * (right & (2**64 - 1))

    assert compute(left, right)[1] & (2**64 - 1) == (product >> 64) ^ (product & (2**64 - 1))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 23])
def test_copying_zeroing_and_comparing_stop_where_they_should(length: int) -> None:
    source, target = buffer(PATTERN), buffer(b"\xaa" * 32)

    copy_bytes(address(target, 3), address(source, 1), length)
    copied = target.tobytes()
    equal = equal_bytes(address(target, 3), address(source, 1), length)
    zero_bytes(address(target, 3), length)

    assert copied == b"\xaa" * 3 + PATTERN[1 : 1 + length] + b"\xaa" * (29 - length)
    assert equal
    assert target.tobytes() == b"\xaa" * 3 + bytes(length) + b"\xaa" * (29 - length)


@pytest.mark.parametrize("place", [0, 6, 7, 8, 14])
def test_one_byte_makes_a_difference_wherever_it_is(place: int) -> None:
    one, other = buffer(PATTERN), buffer(PATTERN)
    other[place] ^= 1

    assert not equal_bytes(address(one), address(other), 15)
    assert equal_bytes(address(one), address(other), place)
