"""Filters of small runs: 16 to 32 bits per row of which one is set for each code.

The law: a code that a run has passes its filter; of the others, one in 16 to 32 does. (The filter of a large run would miss the
cache as often as its index does, so that has none.)

Remembers 2 to 4 bytes per row, in memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, shift_right

__all__ = ["FILTERED_ROWS", "filter_of", "passes", "seen_before", "shift_of"]

FILTERED_ROWS = 1 << 16
"""How many rows a run may have for a filter."""
_ODD = -0x61C8864680B583EB


def filter_of(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint8]:
    """Return the filter of some codes, as bytes: 2^k bits, 16 to 32 for each code.

    >>> bits = filter_of([np.arange(100)])
    >>> len(bits), passes(bits.ctypes.data, shift_of(bits), 7)
    (256, True)
    """
    rows = sum(map(len, parts))
    bits = np.zeros((1 << (16 * rows - 1).bit_length()) // 8, np.uint8)
    for codes in parts:
        _set_bits(codes, shift_of(bits), bits)
    return bits


def shift_of(bits: npt.NDArray[np.uint8]) -> int:
    """Return by how much a mixed code is shifted to be the number of its bit."""
    return 65 - (8 * len(bits)).bit_length()


@kernel
def _set_bits(codes: Any, shift: int, bits: Any) -> None:
    for row in range(len(codes)):
        bit = shift_right(codes[row] * _ODD, shift)
        bits[bit >> 3] |= 1 << (bit & 7)


@kernel
def seen_before(codes: Any, shift: int, bits: Any, seen: Any) -> None:
    """Mark which codes may be among those that were given before, with these bits, and add them."""
    for row in range(len(codes)):
        bit = shift_right(codes[row] * _ODD, shift)
        seen[row] = (bits[bit >> 3] >> (bit & 7)) & 1
        bits[bit >> 3] |= 1 << (bit & 7)


@kernel
def passes(bits: int, shift: int, code: int) -> bool:
    """Return whether a run with a filter at this address (0: it has none) may have a code."""
    if bits == 0:
        return True
    bit = shift_right(code * _ODD, shift)
    return bool((load_u8(bits + (bit >> 3)) >> (bit & 7)) & 1 == 1)
