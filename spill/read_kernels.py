"""Reading many ranges of a file at once, by the system calls themselves.

A call from Python costs more than a small read, so the loop over the ranges is compiled. Nothing here knows pages or rows.

Limits: Linux for `read_ranges_cached` (`preadv2` with RWF_NOWAIT); any POSIX system for the rest.
"""

from __future__ import annotations

from typing import Any

from numba import types

from zset_join.kernels.compiled import kernel

__all__ = ["plan_reads", "read_ranges", "read_ranges_cached"]

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_preadv2 = types.ExternalFunction("preadv2", types.int64(types.int32, types.int64, types.int32, types.int64, types.int32))
_advise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_WILL_NEED = 3
_NO_WAIT = 8


@kernel
def plan_reads(page_ends: Any, pages: Any, gap_bytes: int, begins: Any, ends: Any, places: Any) -> tuple[int, int]:
    """Turn pages into ranges of bytes, neighbours in one; return how many ranges, and their bytes.

    Args:
        page_ends: where each page of the run ends.
        pages: numbers, ascending.
        gap_bytes: pages at most so far apart are read together with what is between them.
        begins: get the first byte of each range.
        ends: get the end of each range.
        places: get where each page stands once the ranges lie behind one another.
    """
    ranges = 0
    total = 0
    for index in range(len(pages)):
        page = pages[index]
        begin, end = 0 if page == 0 else page_ends[page - 1], page_ends[page]
        if ranges > 0 and begin - ends[ranges - 1] <= gap_bytes:
            places[index] = total + begin - ends[ranges - 1]
            total += end - ends[ranges - 1]
            ends[ranges - 1] = end
        else:
            begins[ranges], ends[ranges] = begin, end
            places[index] = total
            total += end - begin
            ranges += 1
    return ranges, total


@kernel
def read_ranges(descriptor: int, begins: Any, ends: Any, target: int) -> int:
    """Read ranges of a file behind one another; return -1, or the range that could not be read."""
    place = target
    for index in range(len(begins)):
        done = begins[index]
        while done < ends[index]:
            size = _pread(descriptor, place, ends[index] - done, done)
            if size <= 0:
                return index
            done += size
            place += size
    return -1


@kernel
def read_ranges_cached(descriptor: int, begins: Any, ends: Any, target: int, vector: Any, late: Any) -> int:
    """Read ranges as `read_ranges` does: first those the host has in memory, while the disk fetches all others at once.

    Args:
        descriptor: of the file.
        begins: first byte of each range.
        ends: end of each range.
        target: where to.
        vector: two words of scratch.
        late: as many words of scratch as there are ranges.
    """
    place = target
    waiting = 0
    vector_place = vector.ctypes.data
    for index in range(len(begins)):
        size = ends[index] - begins[index]
        vector[0], vector[1] = place, size
        if _preadv2(descriptor, vector_place, 1, begins[index], _NO_WAIT) != size:
            _advise(descriptor, begins[index], size, _WILL_NEED)
            late[waiting] = index
            waiting += 1
        place += size
    place = target
    previous = 0
    for position in range(waiting):
        index = late[position]
        for passed in range(previous, index):
            place += ends[passed] - begins[passed]
        previous = index
        done = begins[index]
        into = place
        while done < ends[index]:
            size = _pread(descriptor, into, ends[index] - done, done)
            if size <= 0:
                return index
            done += size
            into += size
    return -1
