"""Memory of the host: growable regions with an address, and when freed memory is worth giving back.

`UnusedMemory`: memory that was freed and that allocators keep for later: when it is worth giving back.

An epoch takes and frees many times what it leaves. glibc and Arrow keep that, up to the most there was at one time, and it
counts for the resident size of the process. Giving it back costs some milliseconds, and as much again when it is taken again.

Its size is an estimate: the resident size of the process, less what all who watch it hold, less what it was
when the first of them began; and not more than the allocator reports as free. The same sum includes pages that are not full (of
2 MB, where the host has such), and of files that are mapped: only what was looked at of them is in memory.

Limits: Linux with glibc (2.33 for reporting); elsewhere only what Arrow keeps is given back, and nothing is reported.

`Region`: a growable piece of memory with an address: anonymous, or mapped from a file.

Growing never copies. An anonymous region reserves address space at the start and requests huge pages behind its first 2 MiB,
so large tables cost few TLB misses and its address stays; beyond the reserve, or where the host refuses it, the kernel moves
page tables and the address may change, so nobody keeps it across `ensure`. New bytes are zero. Pages that are never touched
take no memory, whatever the capacity.

Bytes of a file have blocks before anybody stores to them, so a full disk is an error of `ensure`: a store to a page without a
block would end the process (SIGBUS).

The owner closes it; an anonymous region is gone then, a mapped file stays.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.storage.local import remove_file, rename
from zset_join.storage.operations import perform
from zset_join.storage.trusted_files import refuse_foreign

__all__ = ["CAN_REPORT", "Region", "UnusedMemory", "populate", "release", "resident_bytes"]

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


_HUGE_PAGE = 1 << 21
_RESERVE_BYTES = 1 << 34
_POPULATED_BYTES = 1 << 20
"""Of a file, room for so many bytes at once gets its pages at once: a tenth of the cost of a fault for each of them."""
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; mmap names it only from Python 3.13 on
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

if sys.byteorder != "little":
    raise ImportError("zset_join keeps its state little-endian and runs on little-endian hosts only")


class Region:
    """Own `capacity` bytes."""

    def __init__(self, capacity: int, path: str | None = None, *, grows: bool = True) -> None:
        capacity = max(_round_up(capacity), mmap.PAGESIZE)
        self.path = path
        self._shift = 0
        self._inode = (0, 0)
        self._backed = 0  # of a file: so many of the first bytes have blocks, as far as is known
        self._populated = 0  # of a file: the pages of so many of the first bytes are not requested again
        if path is None:
            self._map = _map_anonymous(capacity, grows=grows)
        else:
            self._map, self._inode, self._populated = _map_file(path, capacity)
        self._moved()
        if path is not None:
            self._populate(self.capacity)

    def _moved(self) -> None:
        anchor = ctypes.c_char.from_buffer(self._map)
        start = ctypes.addressof(anchor)
        del anchor
        size = len(self._map)
        shift = -start % _HUGE_PAGE if self.path is None and size >= 2 * _HUGE_PAGE else 0
        self._shift = shift
        self.address = start + shift
        self.capacity = size - shift
        self._huge_from = size
        if shift or (self.path is None and size >= 2 * _HUGE_PAGE):
            first = shift if size < _RESERVE_BYTES else shift + _HUGE_PAGE
            self._map.madvise(mmap.MADV_HUGEPAGE, first)
            self._huge_from = first - shift

    def ensure(self, size: int) -> bool:
        """Make room for `size` bytes, at least doubling; return whether the address may have changed."""
        is_large_enough = size <= self.capacity
        grown = self.capacity if is_large_enough else _round_up(max(size, 2 * self.capacity) + _HUGE_PAGE)
        if self.path is not None and size > self._backed:
            self._back(self.path, min(_round_up(size + size // 8), grown))
        if not is_large_enough:
            if self.path is None:
                self._map.resize(grown)
            else:
                perform("truncate", self.path, lambda: self._map.resize(grown))
            self._moved()
        if self.path is not None:
            self._populate(size)
        return not is_large_enough

    def _back(self, path: str, end: int) -> None:
        """Let the bytes of the file up to `end` have blocks."""
        perform("allocate", path, lambda: _allocate(path, self._backed, end, len(self._map)))
        self._backed = end

    def _populate(self, end: int) -> None:
        """Let the bytes of the file up to `end` have pages where that are many; faults give the others theirs one by one."""
        begin, end = self._populated, min(_round_up(end), self.capacity)
        if end - begin >= _POPULATED_BYTES:
            populate(self.address + begin, end - begin)
        self._populated = max(begin, end)

    def tail_bytes(self, used: int) -> int:
        """Return the bytes that the first `used` bytes may use beyond their end: the rest of the last, possibly huge, page."""
        is_huge = self._huge_from < used
        return -used % (_HUGE_PAGE if is_huge else mmap.PAGESIZE)

    def release(self, begin: int, end: int | None = None) -> None:
        """Give the memory of some bytes back (default: all from `begin` on); what they hold is arbitrary afterwards."""
        # A file keeps its size, and its blocks only where its file system cannot take them out.
        begin = _round_up(begin)
        size = (self.capacity if end is None else min(end, self.capacity)) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size <= 0:
            return
        if self.path is not None:
            try:
                self._map.madvise(mmap.MADV_REMOVE, self._shift + begin, size)
                self._backed = min(self._backed, begin)
                self._populated = min(self._populated, begin)
                return
            except OSError:
                pass  # A file system without holes: the pages leave this process, and the bytes stay in the file.
        self._map.madvise(mmap.MADV_DONTNEED, self._shift + begin, size)

    def is_current(self) -> bool:
        """Return whether the file is still the one that was mapped, at its size; another process may have replaced it."""
        # A replaced file has another inode: that of a mapped one is not given away.
        path = self.path
        if path is None:
            return True
        try:
            status = perform("size", path, lambda: os.stat(path))  # noqa: PTH116 - once per file and epoch
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino, status.st_size) == (*self._inode, len(self._map))

    def relocate(self, directory: str) -> None:
        """Move the file to another directory of the same file system; the mapping stays."""
        if self.path is not None:
            moved = str(Path(directory) / Path(self.path).name)
            rename(self.path, moved)
            self.path = moved

    def close(self, *, remove: bool = False) -> None:
        """Unmap; with `remove`, delete the file too."""
        self._map.close()
        self.address = 0
        if remove and self.path is not None:
            remove_file(self.path)


def _map_file(path: str, capacity: int) -> tuple[mmap.mmap, tuple[int, int], int]:
    """Map a file of at least `capacity` bytes; return the mapping, the device and inode, and the size it had."""
    descriptor = perform("open", path, lambda: _opened(path, os.O_CREAT))
    try:
        status = os.fstat(descriptor)
        refuse_foreign(path, status)
        size = status.st_size
        if size < capacity:
            perform("truncate", path, lambda: os.ftruncate(descriptor, capacity))
            perform("allocate", path, lambda: _give_blocks(descriptor, 0, capacity))
        mapped = perform("map", path, lambda: mmap.mmap(descriptor, max(size, capacity)))
        return mapped, (status.st_dev, status.st_ino), size
    finally:
        os.close(descriptor)


def _opened(path: str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StateError(
            f"{path} is a symbolic link; state is kept in files of its own, and nothing is written through links. Remove the "
            "link; local state is a cache and is rebuilt from the checkpoint.",
            code="FOREIGN_FILE",
            path=path,
        ) from error


def _allocate(path: str, begin: int, end: int, size: int) -> None:
    """Give bytes of a file blocks; where that fails it has `size` bytes afterwards, as before."""
    descriptor = _opened(path)
    try:
        _give_blocks(descriptor, begin, end)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def _give_blocks(descriptor: int, begin: int, end: int) -> None:
    try:
        os.posix_fallocate(descriptor, begin, end - begin)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot report it
            raise


def _map_anonymous(capacity: int, *, grows: bool) -> mmap.mmap:
    if grows and capacity < _RESERVE_BYTES:
        try:
            return mmap.mmap(-1, _RESERVE_BYTES, flags=_PRIVATE | _NO_RESERVE)
        except OSError:
            # A host that counts reserved address space as memory: start small and let the region move.
            return mmap.mmap(-1, capacity, flags=_PRIVATE)
    return mmap.mmap(-1, capacity + (_HUGE_PAGE if capacity >= _HUGE_PAGE else 0), flags=_PRIVATE)


def _round_up(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
