"""Reading many ranges of files at once, by the system calls themselves.

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
def plan_reads(
    page_files: Any, page_begins: Any, page_ends: Any, gap_bytes: int, files: Any, begins: Any, ends: Any, places: Any
) -> tuple[int, int]:
    """Turn pages into ranges of bytes, neighbours in one; return how many ranges, and their bytes.

    Args:
        page_files: file of each page, ascending.
        page_begins: where each page begins, below one file ascending.
        page_ends: where each page ends.
        gap_bytes: pages at most so far apart are read together with what is between them.
        files: get the file of each range.
        begins: get the first byte of each range.
        ends: get the end of each range.
        places: get where each page stands once the ranges lie behind one another.
    """
    ranges = 0
    total = 0
    for index in range(len(page_files)):
        begin, end = page_begins[index], page_ends[index]
        last = ranges - 1
        if ranges > 0 and page_files[index] == files[last] and begin - ends[last] <= gap_bytes:
            places[index] = total + begin - ends[last]
            total += end - ends[last]
            ends[last] = end
        else:
            files[ranges], begins[ranges], ends[ranges] = page_files[index], begin, end
            places[index] = total
            total += end - begin
            ranges += 1
    return ranges, total


@kernel
def read_ranges(descriptors: Any, files: Any, begins: Any, ends: Any, target: int) -> int:
    """Read ranges of files behind one another; return -1, or the range that could not be read."""
    place = target
    for index in range(len(begins)):
        done = begins[index]
        while done < ends[index]:
            size = _pread(descriptors[files[index]], place, ends[index] - done, done)
            if size <= 0:
                return index
            done += size
            place += size
    return -1


@kernel
def read_ranges_cached(descriptors: Any, files: Any, begins: Any, ends: Any, target: int, vector: Any, late: Any) -> int:
    """Read ranges as `read_ranges` does: first those the host has in memory, while the disk fetches all others at once.

    Args:
        descriptors: of the files.
        files: file of each range.
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
        if _preadv2(descriptors[files[index]], vector_place, 1, begins[index], _NO_WAIT) != size:
            _advise(descriptors[files[index]], begins[index], size, _WILL_NEED)
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
            size = _pread(descriptors[files[index]], into, ends[index] - done, done)
            if size <= 0:
                return index
            done += size
            into += size
    return -1
