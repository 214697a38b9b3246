"""Memory that was freed and that allocators keep for later: when it is worth giving back.

An epoch takes and frees many times what it leaves. glibc and Arrow keep that, up to the most there was at one time, and it
counts for the resident size of the process. Giving it back costs some milliseconds, and as much again when it is taken anew.

Limits: Linux with glibc; elsewhere only what Arrow keeps is given back.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pyarrow as pa

__all__ = ["UnusedMemory", "resident_bytes"]

_STATM = Path("/proc/self/statm")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def resident_bytes() -> int:
    """Return the resident size of this process, 0 where the host does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


class UnusedMemory:
    """Watch how much the resident size of this process exceeds what is known to be held, between two epochs."""

    def __init__(self) -> None:
        self._least = 0

    def give_back(self, most_bytes: int, held_bytes: int = 0) -> bool:
        """Give unused memory back if what nobody holds has grown by more than `most_bytes` since it was least; say whether.

        It may have grown for another reason: then this is in vain, once for each such growth.

        Args:
            most_bytes: that allocators may keep.
            held_bytes: what the caller is known to hold now.
        """
        found = resident_bytes() - held_bytes
        if found <= self._least + most_bytes:
            self._least = min(self._least, found)
            return False
        pa.default_memory_pool().release_unused()
        if _trim is not None:
            _trim(0)
        self._least = resident_bytes() - held_bytes
        return True
