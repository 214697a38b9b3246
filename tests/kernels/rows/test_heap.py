"""Blocks for long strings: sizes come in classes, and a block that was given back is used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.heap import allocate_block, block_bytes, class_bytes, free_block


class Heap:
    """A heap of 64 KiB with its header."""

    def __init__(self) -> None:
        self._memory: npt.NDArray[np.uint8] = np.zeros(1 << 16, np.uint8)
        self._header: npt.NDArray[np.int64] = np.zeros(s.HEADER_WORDS, np.int64)
        self.where = (int(self._memory.ctypes.data), int(self._header.ctypes.data))

    def take(self, length: int) -> int:
        return int(allocate_block(*self.where, length))

    def give(self, offset: int, length: int) -> None:
        free_block(*self.where, offset, length)

    @property
    def end_and_used(self) -> list[Any]:
        return self._header[[s.H_HEAP_END, s.H_HEAP_USED]].tolist()


@pytest.mark.parametrize(
    ("length", "size"),
    [
        (13, 16),
        (16, 16),
        (17, 32),
        (255, 256),
        (256, 256),
        (257, 320),
        (320, 320),
        (321, 384),
        (513, 640),
        (1024, 1024),
        (1025, 1280),
    ],
)
def test_sizes_are_rounded_up_to_a_class(length: int, size: int) -> None:
    assert block_bytes(length) == size


def test_every_class_has_blocks_of_one_size() -> None:
    sizes = [class_bytes(size_class) for size_class in range(1, 100)]

    assert [block_bytes(size) for size in sizes] == sizes
    assert sorted(set(sizes)) == sizes


def test_a_block_that_was_given_back_is_in_the_list_of_its_size() -> None:
    heap = Heap()

    for length in (13, 256, 257, 1025, 5000):
        heap.give(heap.take(length), length)

    lists = np.flatnonzero(heap._header[s.H_FREE_BLOCKS :]).tolist()
    assert [class_bytes(size_class) for size_class in lists] == [block_bytes(length) for length in (13, 256, 257, 1025, 5000)]


def test_at_most_a_quarter_of_a_large_block_is_lost() -> None:
    losses = [block_bytes(length) / length for length in range(257, 20_000, 7)]

    assert max(losses) <= 1.25


def test_a_string_of_two_gigabytes_still_has_a_class() -> None:
    largest = 2**31 - 1

    assert largest <= block_bytes(largest) <= 1.25 * largest


def test_new_blocks_are_behind_each_other() -> None:
    heap = Heap()

    assert [heap.take(20), heap.take(300), heap.take(13)] == [0, 32, 352]
    assert heap.end_and_used == [368, 368]


def test_a_block_that_was_given_back_is_the_next_of_its_class() -> None:
    heap = Heap()
    first, second = heap.take(20), heap.take(25)
    heap.give(first, 20)
    heap.give(second, 25)

    assert [heap.take(30), heap.take(17), heap.take(30)] == [second, first, 64]


def test_a_block_is_not_given_to_another_class() -> None:
    heap = Heap()
    heap.give(heap.take(20), 20)

    assert heap.take(13) == 32


def test_used_bytes_fall_when_a_block_is_given_back_and_the_end_stays() -> None:
    heap = Heap()
    offset = heap.take(1_000)
    heap.take(13)

    heap.give(offset, 1_000)

    assert heap.end_and_used == [1_040, 16]


def test_a_thousand_blocks_that_come_and_go_need_the_room_of_one_thousand() -> None:
    heap = Heap()
    lengths = [13 + number % 50 for number in range(1_000)]
    first = [heap.take(length) for length in lengths]
    end, used = heap.end_and_used

    returned = [heap.give(offset, length) for offset, length in zip(first, lengths, strict=True)]
    again = [heap.take(length) for length in lengths]

    assert len(returned) == 1_000
    assert sorted(again) == sorted(first)
    assert heap.end_and_used == [end, used]
