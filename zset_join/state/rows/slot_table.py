"""A hash table of row numbers that grows.

The table holds no keys: a slot is a 32-bit hash and a row number, and the row itself is compared. It doubles when it is 5/8
full, in one forward pass (among twice as many slots a home is twice as far, so the order stays). Kernels in
`zset_join.kernels.rows.slots`.

Bytes: 12.8 to 25.6 per key, also while it doubles: what was moved is given back.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zset_join.core.errors import ResourceError
from zset_join.kernels.rows.slots import rehash
from zset_join.state.rows.region import Region

__all__ = ["SlotTable"]

_FIRST_BITS = 9
_MAX_BITS = 32
_SLOTS_AT_ONCE = 1 << 18


class SlotTable:
    def __init__(
        self, header: npt.NDArray[np.int64], count_word: int, bits_word: int, *, directory: str | None, name: str
    ) -> None:
        self._header = header
        self._count_word = count_word
        self._bits_word = bits_word
        self._directory = directory
        self._name = name
        if header[bits_word] == 0:
            header[bits_word] = _FIRST_BITS
        self._slots = self._region(int(header[bits_word]))

    def _region(self, bits: int) -> Region:
        path = None
        if self._directory is not None:
            path = str(Path(self._directory) / f"{self._name}.slots{bits}")
        return Region(8 << bits, path, grows=False)

    @property
    def address(self) -> int:
        """Return where the slots start; moves when the table grows."""
        return self._slots.address

    @property
    def bits(self) -> int:
        return int(self._header[self._bits_word])

    @property
    def count(self) -> int:
        return int(self._header[self._count_word])

    def make_room(self, keys: int) -> bool:
        """Make room for so many more keys; return whether the slots moved. Cost: amortised O(1) per key."""
        header = self._header
        if _fits(header.item(self._count_word) + keys, header.item(self._bits_word)):
            return False
        bits = _bits_for(self.count + keys)
        if bits > _MAX_BITS:
            raise ResourceError(
                f"one bucket would hold {self.count + keys} keys on one side, more than a table takes; start the query again "
                'with more buckets (option "buckets").',
                code="ROW_LIMIT",
                keys=self.count + keys,
            )
        self._resize(bits)
        return True

    def shrink(self, keys: int = 0) -> None:
        """Make the table as small as its keys and so many more allow. Cost: one pass, where it is too large."""
        bits = _bits_for(self.count + keys)
        if bits < self.bits:
            self._resize(bits)

    def copy(self, other: SlotTable) -> None:
        if other.bits != self.bits:
            copied = self._region(other.bits)
            self._slots.close(remove=self._directory is not None)
            self._slots = copied
        ctypes.memmove(self._slots.address, other.address, 8 << other.bits)
        self._header[[self._count_word, self._bits_word]] = other.count, other.bits

    def _resize(self, bits: int) -> None:
        """Move to a table of another size, giving back the slots that were moved."""
        resized, old_bits = self._region(bits), self.bits
        for begin in range(0, 1 << old_bits, _SLOTS_AT_ONCE):
            end = begin + _SLOTS_AT_ONCE
            rehash(self._slots.address, old_bits, resized.address, bits, begin, end)
            self._slots.release(8 * begin, 8 * end)
        self._slots.close(remove=self._directory is not None)
        self._slots = resized
        self._header[self._bits_word] = bits

    def table_bytes(self, keys: int = 0) -> int:
        """Return the bytes of all slots, as they are or as they will be with so many more keys."""
        return 8 << max(self.bits, _bits_for(self.count + keys))

    def is_current(self) -> bool:
        """Return whether the mapped file is still the table; a grown one has a file of its own."""
        return self._slots.is_current()

    def relocate(self, directory: str) -> None:
        """Move the file to another directory of the same file system; the mapping stays."""
        self._slots.relocate(directory)
        self._directory = directory

    def close(self, *, remove: bool = False) -> None:
        self._slots.close(remove=remove)


def _bits_for(keys: int) -> int:
    """Return the binary logarithm of the number of slots that so many keys take."""
    bits = _FIRST_BITS
    while not _fits(keys, bits):
        bits += 1
    return bits


def _fits(keys: int, bits: int) -> bool:
    return keys * 8 <= 5 << bits
