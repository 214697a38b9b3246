"""A growable piece of memory with an address: anonymous, or mapped from a file.

Growing never copies: the kernel moves page tables. The address may change, so nobody keeps it across `ensure`. New bytes are
zero. Pages that are never touched take no memory, whatever the capacity.

The owner closes it; an anonymous region is gone then, a mapped file stays.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

__all__ = ["Region"]

_HUGE_FROM_BYTES = 1 << 22

if sys.byteorder != "little":  # pragma: no cover - no such host is supported
    raise ImportError("zset_join keeps its state little-endian and runs on little-endian hosts only")


class Region:
    """Own `capacity` bytes.

    Args:
        capacity: bytes to start with, at least one page.
        path: file to map; created when it is not there, else opened as it is (and then `capacity` is its size at least).
    """

    def __init__(self, capacity: int, path: str | None = None) -> None:
        capacity = max(_round_up(capacity), mmap.PAGESIZE)
        self.path = path
        if path is None:
            self._map = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size < capacity:
                    os.ftruncate(descriptor, capacity)
                self._map = mmap.mmap(descriptor, max(size, capacity))
            finally:
                os.close(descriptor)
        self._moved()

    def _moved(self) -> None:
        self.capacity = len(self._map)
        anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(anchor)
        del anchor
        if self.path is None and self.capacity >= _HUGE_FROM_BYTES:
            self._map.madvise(mmap.MADV_HUGEPAGE)

    def ensure(self, size: int) -> bool:
        """Make room for `size` bytes, at least doubling; say whether the address may have changed."""
        if size <= self.capacity:
            return False
        self._map.resize(_round_up(max(size, 2 * self.capacity)))
        self._moved()
        return True

    def relocate(self, directory: str) -> None:
        """Move the file to another directory of the same file system; the mapping stays."""
        if self.path is not None:
            target = os.path.join(directory, os.path.basename(self.path))
            os.rename(self.path, target)
            self.path = target

    def close(self, *, remove: bool = False) -> None:
        """Unmap; with `remove`, delete the file too."""
        self._map.close()
        self.address = 0
        if remove and self.path is not None:
            os.unlink(self.path)


def _round_up(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
