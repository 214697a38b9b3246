"""The epoch view and the changes it points to are runs of words."""

from __future__ import annotations

import numpy as np

from zset_join.kernels.rows import epoch as e


def test_a_change_fills_six_words_of_one_cache_line() -> None:
    changes = np.zeros((2, e.CHANGE_WORDS), np.int64)

    e.put_change(int(changes.ctypes.data), 1, 1001, 7, 2, 5, 99, 1)

    assert changes.tolist() == [[0] * 8, [1001, 7, 2, 5, 99, 1, 0, 0]]
    assert changes[0].nbytes == 64


def test_a_word_of_a_change_is_read_by_its_address_in_the_first_one() -> None:
    changes = np.arange(24, dtype=np.int64).reshape(3, 8)

    assert [e.of_change(int(changes.ctypes.data) + 8 * 3, change) for change in range(3)] == [3, 11, 19]


def test_each_side_has_words_of_its_own() -> None:
    view = np.zeros(e.EPOCH_WORDS, np.int64)
    address = int(view.ctypes.data)

    view[-2 * e.SIDE_WORDS + e.S_HEAD] = 5
    view[-e.SIDE_WORDS + e.S_OUT_CHANGE] = 6

    assert [e.side_word(address, side, e.S_HEAD) for side in (0, 1)] == [5, 0]
    assert e.side_word(address, 1, e.S_OUT_CHANGE) == 6
