"""Reading many ranges of files at once, by the system calls themselves.

A call from Python costs more than a small read, so the loop over the ranges is compiled. Nothing here knows rows.

A read of 1 KB costs 0.9 µs, of which copying is the least. So where many pages of one window of 2 MB are wanted, the window is
mapped into the process, copied from, and let go again, before the next one: one call for all of them, and never more than a
window and its neighbourhood in the resident size. Only windows that the host has in memory are read this way, and mapping
them (MADV_POPULATE_READ) reports what a look at them would die of: a file that was cut off, a disk that fails.

Limits: Linux for `read_ranges_cached` (`preadv2` with RWF_NOWAIT; windows: 5.14 and newer); any POSIX system for the rest.
"""

from __future__ import annotations

from typing import Any

from numba import types

from zset_join.kernels.compiled import kernel
from zset_join.kernels.memory import copy_bytes, prefetch

__all__ = ["WINDOW_BYTES", "plan_reads", "read_ranges", "read_ranges_cached"]

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_preadv2 = types.ExternalFunction("preadv2", types.int64(types.int32, types.int64, types.int32, types.int64, types.int32))
_advise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_map_advise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))
_WILL_NEED = 3
_NO_WAIT = 8
_NOT_NEEDED = 4
_POPULATE_READ = 22
_WINDOW_BITS = 21
WINDOW_BYTES = 1 << _WINDOW_BITS
_LEAST_PAGES = 8
_AHEAD_BYTES = 1536
_ALIGNED = -65536  # a multiple of every host's page


@kernel
def plan_reads(
    page_files: Any,
    page_begins: Any,
    page_ends: Any,
    gap_bytes: int,
    spread_bytes: int,
    files: Any,
    begins: Any,
    ends: Any,
    is_dense: Any,
    places: Any,
) -> tuple[int, int]:
    """Turn pages into ranges of bytes, neighbours in one; return how many ranges, and their bytes.

    Ranges that are to be copied out of a mapped window are marked, and end with it.

    Args:
        page_files: file of each page, ascending.
        page_begins: where each page begins, below one file ascending.
        page_ends: where each page ends.
        gap_bytes: pages at most so far apart are read together with what is between them, save in mapped windows.
        spread_bytes: a window is mapped that has a wanted page in so many bytes; 0 for none.
        files: get the file of each range.
        begins: get the first byte of each range.
        ends: get the end of each range.
        is_dense: gets, per range, 1 if its window is to be mapped.
        places: get where each page stands once the ranges lie behind one another.
    """
    ranges = 0
    total = 0
    first = 0
    while first < len(page_files):
        file, behind = page_files[first], _window_end(page_files, page_begins, first)
        spread = page_ends[behind - 1] - page_begins[first]
        dense = 1 if behind - first >= _LEAST_PAGES and spread <= spread_bytes * (behind - first) else 0
        gap = 0 if dense == 1 else gap_bytes
        for page in range(first, behind):
            begin, end = page_begins[page], page_ends[page]
            last = ranges - 1
            follows = page > first or dense == 0
            if follows and ranges > 0 and file == files[last] and dense == is_dense[last] and begin - ends[last] <= gap:
                places[page] = total + begin - ends[last]
                total += end - ends[last]
                ends[last] = end
            else:
                files[ranges], begins[ranges], ends[ranges], is_dense[ranges] = file, begin, end, dense
                places[page] = total
                total += end - begin
                ranges += 1
        first = behind
    return ranges, total


@kernel
def _window_end(files: Any, begins: Any, first: int) -> int:
    """Return the first piece that begins in another file or window than a given one."""
    behind = first + 1
    window = begins[first] >> _WINDOW_BITS
    while behind < len(files) and files[behind] == files[first] and begins[behind] >> _WINDOW_BITS == window:
        behind += 1
    return behind


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
def read_ranges_cached(
    descriptors: Any,
    mappings: Any,
    files: Any,
    begins: Any,
    ends: Any,
    is_dense: Any,
    target: int,
    vector: Any,
    late: Any,
) -> int:
    """Read ranges as `read_ranges` does: first those the host has in memory, while the disk fetches all others at once.

    Args:
        descriptors: of the files.
        mappings: address of each file, mapped.
        files: file of each range.
        begins: first byte of each range.
        ends: end of each range.
        is_dense: as `plan_reads` left it.
        target: where to.
        vector: two words of scratch.
        late: as many words of scratch as there are ranges.
    """
    place = target
    waiting = 0
    vector_place = vector.ctypes.data
    first = 0
    while first < len(begins):
        descriptor, behind = descriptors[files[first]], first + 1
        if is_dense[first] == 1:
            behind = _window_end(files, begins, first)
            if _copy_window(descriptor, mappings[files[first]], begins, ends, first, behind, place, vector):
                for index in range(first, behind):
                    place += ends[index] - begins[index]
                first = behind
                continue
        for index in range(first, behind):
            size = ends[index] - begins[index]
            vector[0], vector[1] = place, size
            if _preadv2(descriptor, vector_place, 1, begins[index], _NO_WAIT) != size:
                _advise(descriptor, begins[index], size, _WILL_NEED)
                late[waiting] = index
                waiting += 1
            place += size
        first = behind
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


@kernel
def _copy_window(
    descriptor: int, mapping: int, begins: Any, ends: Any, first: int, behind: int, target: int, vector: Any
) -> bool:
    """Copy ranges of one window out of a mapped file, if the host has the first and the last byte in memory; say whether.

    Args:
        descriptor: of the file.
        mapping: its address.
        begins: first byte of each range.
        ends: end of each range.
        first: range of the window.
        behind: the range behind its last one.
        target: where to; not beyond the ranges.
        vector: two words of scratch.
    """
    vector[0], vector[1] = target, 1
    for place in (begins[first], ends[behind - 1] - 1):
        if _preadv2(descriptor, vector.ctypes.data, 1, place, _NO_WAIT) != 1:
            return False
    address = mapping + (begins[first] & _ALIGNED)
    size = mapping + ends[behind - 1] - address
    if _map_advise(address, size, _POPULATE_READ) != 0:
        return False
    place = target
    for index in range(first, behind):
        if index + 1 < behind:  # the next range is asked for before it comes, so that its delay overlaps
            for ahead in range(begins[index + 1], min(ends[index + 1], begins[index + 1] + _AHEAD_BYTES), 64):
                prefetch(mapping + ahead)
        copy_bytes(place, mapping + begins[index], ends[index] - begins[index])
        place += ends[index] - begins[index]
    _map_advise(address, size, _NOT_NEEDED)
    return True
