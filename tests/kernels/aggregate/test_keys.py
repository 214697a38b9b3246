"""Strings as key words: the same order in a delta, in the state and between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from zset_join.kernels.aggregate.keys import (
    TEXT_WORDS,
    compare_keys,
    fill_text_keys,
    first_not_below,
    free_key,
    own_key,
    text_bytes_needed,
)
from zset_join.kernels.rows.heap import block_bytes
from zset_join.kernels.rows.side import H_HEAP_END, H_HEAP_USED, HEADER_WORDS

WORDS = ["", "\0", "12345678", "12345678\0", "123456789", "12345679", "a string of many bytes, A", "a string of many bytes, B"]


def keys_of(words: list[str | None], kind: pa.DataType = pa.string(), offset: int = 0) -> tuple[np.ndarray, pa.Array]:  # type: ignore[type-arg]
    """Return the key words of some strings, and the array they point into."""
    array = pa.array([None] * offset + words, kind).slice(offset)
    keys = np.zeros((len(array), TEXT_WORDS), np.int64)
    validity, offsets, values = array.buffers()
    width = 8 if kind == pa.large_string() else 4
    places = (offsets.address, width, values.address if values else 0, validity.address if validity else 0)
    fill_text_keys(*places, array.offset, len(array), int(keys.ctypes.data), TEXT_WORDS)
    return keys, array


class Heap:
    """A heap of one page, with its header."""

    def __init__(self) -> None:
        self.bytes = np.zeros(4096, np.uint8)
        self.words = np.zeros(HEADER_WORDS, np.int64)
        self.address, self.header = int(self.bytes.ctypes.data), int(self.words.ctypes.data)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_strings_of_a_delta_are_in_the_order_of_their_bytes(kind: pa.DataType) -> None:
    keys, array = keys_of(WORDS, kind, offset=3)
    ordered = sorted(range(len(WORDS)), key=lambda at: WORDS[at].encode())
    address = int(keys.ctypes.data)

    orders = [compare_keys(address + a * 24, 0, address + b * 24, 0, 3, 1) for a, b in pairwise(ordered)]

    assert orders == [-1] * (len(WORDS) - 1), array


def test_the_words_of_a_null_are_those_of_nothing() -> None:
    keys, array = keys_of([None, "x"])

    assert keys[0, 1:].tolist() == [0, 0], array


def test_a_stored_key_equals_the_one_it_was_made_from() -> None:
    keys, array = keys_of(WORDS)
    heap, stored = Heap(), np.zeros_like(keys)
    source, target = int(keys.ctypes.data), int(stored.ctypes.data)

    for at in range(len(WORDS)):
        own_key(target + at * 24, source + at * 24, 0, 3, 1, heap.address, heap.header)

    found = [first_not_below(target, 1 + at, 24, heap.address, source + at * 24, 0, 3, 1) for at in (0, 2, 6)]
    same = [compare_keys(target + at * 24, heap.address, source + at * 24, 0, 3, 1) for at in range(len(WORDS))]
    assert same == [0] * len(WORDS), array
    assert found == [0, 2, 6]


def test_only_bytes_beyond_the_prefix_take_heap_and_they_are_given_back() -> None:
    keys, array = keys_of(["12345678", "123456789"])
    heap, stored = Heap(), np.zeros(3, np.int64)
    source, target = int(keys.ctypes.data), int(stored.ctypes.data)

    needed = [text_bytes_needed(source + at * 24, 3, 1) for at in (0, 1)]
    own_key(target, source + 24, 0, 3, 1, heap.address, heap.header)
    used = int(heap.words[H_HEAP_USED])
    free_key(target, 3, 1, heap.address, heap.header)

    assert needed == [0, block_bytes(9)], array
    assert (used, int(heap.words[H_HEAP_USED]), int(heap.words[H_HEAP_END])) == (block_bytes(9), 0, block_bytes(9))
