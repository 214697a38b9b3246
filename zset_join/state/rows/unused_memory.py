"""Memory that was freed and that allocators keep for later: when it is worth giving back.

An epoch takes and frees many times what it leaves. glibc and Arrow keep that, up to the most there was at one time, and it
counts for the resident size of the process. Giving it back costs some milliseconds, and as much again when it is taken again.

Its size is an estimate: the resident size of the process, less what all who watch it hold, less what it was
when the first of them began; and not more than the allocator reports as free. The same sum includes pages that are not full (of
2 MB, where the host has such), and of files that are mapped: only what was looked at of them is in memory.

Limits: Linux with glibc (2.33 for reporting); elsewhere only what Arrow keeps is given back, and nothing is reported.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import pyarrow as pa

__all__ = ["CAN_REPORT", "UnusedMemory", "populate", "release", "resident_bytes"]

_POPULATE_WRITE = 23  # of Linux 5.14 and later; mmap does not name it
_STATM = Path("/proc/self/statm")
_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)
_report = getattr(_libc, "mallinfo2", None)
_advise = getattr(_libc, "madvise", None)
CAN_REPORT = _report is not None
"""Whether the allocator of this host reports how much it keeps free."""
_ARROW_KEEPS_BYTES = 4 << 20  # when it last gave back what is free
_MALLOC_INFO = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


def resident_bytes() -> int:
    """Return the resident size of this process, 0 where the host does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def release(array: npt.NDArray[Any]) -> None:
    """Give the memory of a contiguous array back to the host; the array stays, and what it holds is arbitrary afterwards."""
    begin = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if _advise is not None and size > 0:
        _advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def populate(address: int, size: int) -> None:
    """Let the pages of a mapped file be in memory and writable; a host that cannot does it page by page, on their first use."""
    if _advise is not None:
        _advise(ctypes.c_void_p(address), ctypes.c_size_t(size), _POPULATE_WRITE)


class _MallocInfo(ctypes.Structure):
    """Report of glibc about its heaps, in bytes or pieces."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC_INFO]


if _report is not None:
    _report.restype = _MallocInfo


def _forget(watcher: int, *known: dict[int, Any]) -> None:
    for values in known:
        values.pop(watcher, None)


def _free_bytes() -> int:
    """Return the bytes that glibc keeps free, resident or not, and what Arrow keeps at most; 0 where it is not reported."""
    if _report is None:
        return 0
    pool = pa.default_memory_pool()
    from_arrow: int = min(_ARROW_KEEPS_BYTES, (pool.max_memory() or 0) - pool.bytes_allocated())
    return int(_report().fordblks) + from_arrow


class UnusedMemory:
    """Watch how much the resident size of this process exceeds what all who watch it are known to hold, between two epochs."""

    _held: ClassVar[dict[int, int]] = {}
    _unsure: ClassVar[dict[int, tuple[int, int]]] = {}
    _budgets: ClassVar[dict[int, int]] = {}
    _found: ClassVar[int] = 0

    def __init__(self, budget_bytes: int = 0) -> None:
        if not self._held:
            UnusedMemory._found = resident_bytes()
        self._held[id(self)] = 0
        self._unsure[id(self)] = 0, 0
        self._budgets[id(self)] = budget_bytes
        self._least = self._remembered = 0
        self.close = weakref.finalize(self, _forget, id(self), self._held, self._unsure, self._budgets)

    def shared_budgets(self) -> tuple[int, int]:
        """Return how many watch in this process with the same budget, and their budgets together."""
        own = self._budgets.get(id(self), 0)
        count = max(1, list(self._budgets.values()).count(own))
        return count, count * own

    def give_back(self, most_bytes: int, held_bytes: int = 0) -> bool:
        """Give unused memory back if it has grown by more than `most_bytes` since it was least; return whether."""
        # It may have grown for another reason: then this is in vain, once for each such growth.
        self._note(held_bytes)
        unused = self._held_by_nobody()
        if unused <= self._least + most_bytes:
            self._least = min(self._least, unused)
            return False
        self.give_back_columns()
        if _trim is not None:
            _trim(0)
        self._least = self._held_by_nobody()
        return True

    def remember(self) -> None:
        """Remember how little nobody held, when an epoch begins; what it holds meanwhile is not known."""
        self._remembered = self._least

    def recall(self) -> None:
        """Go on from what was remembered, when the epoch is over; else what it held would be taken for what is always there."""
        self._least = min(self._least, self._remembered)

    @staticmethod
    def give_back_columns() -> None:
        """Give back what Arrow keeps of columns that are gone."""
        pa.default_memory_pool().release_unused()

    def correction(self, held_bytes: int, *, less_bytes: int = 0, more_bytes: int = 0) -> int:
        """Return how many bytes more, or less, are in memory than the caller is known to hold, about; 0 if unknown."""
        # `less_bytes` of what it holds may be absent (mapped files nobody looked at), `more_bytes` present beyond it. The
        # result is what the process has beyond what all hold and what it had when the first of them began. The process may have
        # grown or shrunk for another reason: so it is not more than what allocators report as free and what may come on top,
        # and not less than what may be missing. What is more counts for all who watch in equal parts, what is less by what each
        # may miss.
        self._note(held_bytes)
        if self.close.alive:
            self._unsure[id(self)] = less_bytes, more_bytes
        if not self._found:
            return 0
        less, more = map(sum, zip((0, _free_bytes()), *list(self._unsure.values()), strict=True))
        beyond = self._held_by_nobody() - self._found
        if beyond < 0:
            return -(min(-beyond, less) * less_bytes // max(less, 1))
        return min(beyond, more) // max(1, len(self._held))

    def _note(self, held_bytes: int) -> None:
        if self.close.alive:
            self._held[id(self)] = held_bytes

    def _held_by_nobody(self) -> int:
        return resident_bytes() - sum(list(self._held.values()))
