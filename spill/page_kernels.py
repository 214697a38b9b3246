"""Taking rows out of the pages of runs (`run_kernels` has their format): all living ones, or those that are wanted.

Pages that were read are in memory. Those of a window (`read_kernels`) are in a file that is mapped while its rows are taken,
and are requested two pages ahead, as far as codes and ends of their rows go; then the rows that were found, so that copying
finds them in the cache.

`close_window`, `find_windows`: reading many ranges of files at once, by the system calls themselves.

A call from Python costs more than a small read, so the loop over the ranges is compiled. Rows are opaque here.

A read of 1 KB costs 0.9 µs, of which copying is the least, and a page has 1 KB of which a look-up needs 300 bytes. So where
several pages of one window of 2 MB are wanted, the window is mapped into the process, looked into, and unmapped again, before
the next one: one call for all of them, and never more than a window and its neighbourhood in the resident size. What that costs
is
measured: 4 to 6 µs where the host keeps the window in one piece, ten times that where it keeps it in pages of 4 KB. Only
windows that the host has in memory are looked at this way, and mapping them (MADV_POPULATE_READ) reports what a look at them
would die of: a file that was cut off, a disk that fails.

Limits: Linux for `read_ranges_cached` and windows (`preadv2` with RWF_NOWAIT; windows: 5.14 and newer); any POSIX system for
the rest.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numba import types

from spill.run_kernels import (
    HEAD_BYTES,
    ROW_BITS,
    RUN_DIRECTORY,
    RUN_NUMBER,
    RUN_REMOVED,
    is_removed,
    page_bytes,
    page_row,
)
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u32, load_u64, prefetch

__all__ = [
    "LEAST_PAGES",
    "POPULATE_READ",
    "WINDOW_BYTES",
    "WINDOW_WORDS",
    "close_window",
    "find_windows",
    "list_rows",
    "measured_spread",
    "open_window",
    "plan_reads",
    "read_ranges",
    "read_ranges_cached",
    "take_rows",
]

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_preadv2 = types.ExternalFunction("preadv2", types.int64(types.int32, types.int64, types.int32, types.int64, types.int32))
_advise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_map_advise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))
_WILL_NEED = 3
_NO_WAIT = 8
_NOT_NEEDED = 4
POPULATE_READ = 22
_WINDOW_BITS = 21
WINDOW_BYTES = 1 << _WINDOW_BITS
WINDOW_WORDS = 6
LEAST_PAGES = 4
"""How many pages of a window must be wanted for it to be mapped."""
_MEASURED_READS = 16
_MEASURED_BYTES = 1 << 10
_LEAST_SPREAD_BYTES = 1 << 15
_MOST_SPREAD_BYTES = WINDOW_BYTES // LEAST_PAGES
_NEVER = 1 << 62
_ALIGNED = -65536  # a multiple of every host's page


def measured_spread(descriptor: int, address: int, size: int) -> int:
    """Return the bytes of a window a page must be wanted in, so that mapping it costs no more than reading its pages."""
    # The first window of a mapped file is mapped and unmapped, and some of its pages are read, three times; what fails here
    # fails again where the error is raised. Cost: about 50 µs, or a read of the window where the host does not have it in
    # memory.
    begins = np.arange(0, WINDOW_BYTES, WINDOW_BYTES // _MEASURED_READS)
    descriptors, files, scratch = np.array([descriptor]), np.zeros(len(begins), np.int64), np.empty(2, np.int64)
    content, late = np.empty(len(begins) * _MEASURED_BYTES, np.uint8), np.empty(len(begins), np.int64)
    reading = mapping = _NEVER
    for _ in range(3):
        begun = time.perf_counter_ns()
        read_ranges_cached(descriptors, files, begins, begins + _MEASURED_BYTES, int(content.ctypes.data), scratch, late)
        read = time.perf_counter_ns()
        open_window(address, WINDOW_BYTES)
        close_window(address, min(size, 2 * WINDOW_BYTES))
        reading, mapping = min(reading, read - begun), min(mapping, time.perf_counter_ns() - read)
    measured = WINDOW_BYTES // _MEASURED_READS * reading // max(1, mapping)
    return max(_LEAST_SPREAD_BYTES, min(_MOST_SPREAD_BYTES, measured))


@kernel
def find_windows(
    page_files: Any,
    page_begins: Any,
    page_ends: Any,
    spreads: Any,
    descriptors: Any,
    mappings: Any,
    sizes: Any,
    windows: Any,
) -> int:
    """Find the windows that have many of the wanted pages, and that the host has in memory; return how many."""
    # Pages ascend by file and place. A window of a file is taken if it has a wanted page in `spreads[file]` bytes. `mappings`
    # are addresses (0: not mapped). `windows` gets per window the first page and the one behind the last, and address and bytes
    # to open and to close: a host that maps a page maps others around it too.
    count = 0
    first = 0
    vector = np.empty(3, np.int64)
    while first < len(page_files):
        file, behind = page_files[first], _window_end(page_files, page_begins, first)
        begin, end = page_begins[first], page_ends[behind - 1]
        is_dense = behind - first >= LEAST_PAGES and end - begin <= spreads[file] * (behind - first) and mappings[file] != 0
        if is_dense and _is_in_memory(descriptors[file], begin, end, vector):
            address = mappings[file] + (begin & _ALIGNED)
            windows[count, 0], windows[count, 1] = first, behind
            behind_window = mappings[file] + end
            windows[count, 2], windows[count, 3] = address, behind_window - address
            around = max(mappings[file], address >> _WINDOW_BITS << _WINDOW_BITS)
            behind_around = min(mappings[file] + sizes[file], ((behind_window - 1 >> _WINDOW_BITS) + 1) << _WINDOW_BITS)
            windows[count, 4], windows[count, 5] = around, behind_around - around
            count += 1
        first = behind
    return count


@kernel
def plan_reads(
    page_files: Any,
    page_begins: Any,
    page_ends: Any,
    gap_bytes: int,
    mappings: Any,
    windows: Any,
    files: Any,
    begins: Any,
    ends: Any,
    places: Any,
) -> tuple[int, int, int]:
    """Turn the pages outside windows into ranges of bytes, neighbours in one."""
    # The result is how many ranges there are, their bytes, and the bytes of pages in windows. `places` gets of each page its
    # address in a window, or -1 - its position once the ranges are behind one another. What is between near pages (`gap_bytes`)
    # is read too.
    ranges = 0
    total = 0
    mapped = 0
    window = 0
    for page in range(len(page_files)):
        file, begin, end = page_files[page], page_begins[page], page_ends[page]
        while window < len(windows) and windows[window, 1] <= page:
            window += 1
        last = ranges - 1
        if window < len(windows) and windows[window, 0] <= page:
            places[page] = mappings[file] + begin
            mapped += end - begin
        elif ranges > 0 and file == files[last] and begin - ends[last] <= gap_bytes:
            places[page] = -1 - (total + begin - ends[last])
            total += end - ends[last]
            ends[last] = end
        else:
            files[ranges], begins[ranges], ends[ranges] = file, begin, end
            places[page] = -1 - total
            total += end - begin
            ranges += 1
    return ranges, total, mapped


@kernel
def _is_in_memory(descriptor: int, begin: int, end: int, vector: Any) -> bool:
    """Return whether the host has the first and the last byte of a range of a file in memory; `vector` is scratch."""
    address = vector.ctypes.data
    vector[0], vector[1] = address + 16, 1
    return bool(
        _preadv2(descriptor, address, 1, begin, _NO_WAIT) == 1 and _preadv2(descriptor, address, 1, end - 1, _NO_WAIT) == 1
    )


@kernel
def open_window(address: int, size: int) -> bool:
    """Bring a window of a mapped file into this process; False if it cannot be read."""
    return bool(_map_advise(address, size, POPULATE_READ) == 0)


@kernel
def close_window(address: int, size: int) -> None:
    """Let a window of a mapped file, and what is mapped around it, leave this process; the host keeps it as it likes."""
    _map_advise(address, size, _NOT_NEEDED)


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
def read_ranges_cached(descriptors: Any, files: Any, begins: Any, ends: Any, target: int, vector: Any, late: Any) -> int:
    """Read ranges as `read_ranges` does: first those the host has in memory, while the disk fetches all others at once."""
    # `vector` is two words of scratch, `late` one per range.
    place = target
    waiting = 0
    vector_place = vector.ctypes.data
    for index in range(len(begins)):
        descriptor, size = descriptors[files[index]], ends[index] - begins[index]
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
            size = _pread(descriptors[files[index]], into, ends[index] - done, done)
            if size <= 0:
                return index
            done += size
            into += size
    return -1


_PAGES_AHEAD = 2
_MOST_AHEAD = 512


@kernel
def _row_at_or_behind(code_place: int, rows: int, code: int) -> int:
    """Return the first row of a page whose code is not below a code."""
    low, high = 0, rows
    while low < high:
        middle = (low + high) >> 1
        if load_u64(code_place + 8 * middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _start_of_rows(rows: int, wide: bool) -> int:
    """Return where the first row begins in a page of so many."""
    return HEAD_BYTES + (20 if wide else 12) * rows


@kernel
def _is_whole(address: int, size: int, page: int, rows: int, wide: bool) -> bool:
    """Return whether a page of so many bytes is the one that was written."""
    start = _start_of_rows(rows, wide)
    if size < start or load_u32(address) != rows or load_u32(address + 4) != (page & 0xFFFFFFFF):
        return False
    return bool(load_u32(address + start - 4) == size - start)


@kernel
def list_rows(addresses: Any, run: Any, pages: Any, wide: bool, found: Any) -> int:
    """List the living rows of some pages of a run; return how many, or -1 - position of a page that is damaged."""
    # `run` is a line of `RUN_WORDS`; `found` has five lines: code, subcode, address, length, place.
    count = 0
    first_place = run[RUN_NUMBER] << ROW_BITS
    for index in range(len(pages)):
        page, address = pages[index], addresses[index]
        first = page_row(run, page)
        rows, size = page_row(run, page + 1) - first, page_bytes(run[RUN_DIRECTORY], page)
        if not _is_whole(address, size, page, rows, wide):
            return -1 - index
        subcode_place = address + HEAD_BYTES + 8 * rows
        start = address + _start_of_rows(rows, wide)
        end_place = start - 4 * rows
        begin = 0
        for row in range(rows):
            end = load_u32(end_place + 4 * row)
            if end < begin or start + end > address + size:
                return -1 - index
            if not is_removed(run[RUN_REMOVED], first + row):
                found[0, count] = load_u64(address + HEAD_BYTES + 8 * row)
                found[1, count] = load_u64(subcode_place + 8 * row) if wide else 0
                found[2, count] = start + begin
                found[3, count] = end - begin
                found[4, count] = first_place + first + row
                count += 1
            begin = end
    return count


@kernel
def take_rows(
    addresses: Any,
    windows: Any,
    page_runs: Any,
    pages: Any,
    first_wanted: Any,
    runs: Any,
    wide: bool,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    found: Any,
    content: Any,
) -> int:
    """Copy the wanted living rows out of some pages; return how many, or -1 - position of a page that is damaged."""
    # Windows are opened one after the other, and none is open in the end. `windows` are lines of `WINDOW_WORDS`, `runs` of
    # `RUN_WORDS`; `codes` and `subcodes` are wanted and ascend. `found` has five lines and a word more than the pages have
    # rows: code, subcode, place, where the row begins in `content` (and the last ends), scratch.
    count = 0
    window, behind = 0, 0
    copied = 0
    found[3, 0] = 0
    for index in range(len(pages)):
        if index >= behind:
            if behind > 0:
                copied = _copy_found(found, copied, count, content.ctypes.data)
                close_window(windows[window - 1, 4], windows[window - 1, 5])
                behind = 0
            if window < len(windows) and windows[window, 0] == index:
                if not open_window(windows[window, 2], windows[window, 3]):
                    return -1 - index
                behind = windows[window, 1]
                window += 1
        if index + _PAGES_AHEAD < behind:
            ahead = index + _PAGES_AHEAD
            rows = page_row(runs[page_runs[ahead]], pages[ahead] + 1) - page_row(runs[page_runs[ahead]], pages[ahead])
            for line in range(0, min(_start_of_rows(rows, wide), _MOST_AHEAD), 64):
                prefetch(addresses[ahead] + line)
        run = runs[page_runs[index]]
        taken = _take_from(
            addresses[index], pages[index], run, wide, codes, subcodes, by_row, first_wanted[index], found, count, len(content)
        )
        if taken < 0:
            count = -1 - index
            break
        count = taken
    if count > 0:
        _copy_found(found, copied, count, content.ctypes.data)
    if behind > 0:
        close_window(windows[window - 1, 4], windows[window - 1, 5])
    return count


@kernel
def _copy_found(found: Any, begin: int, end: int, target: int) -> int:
    """Copy some of the rows that were found, which are on their way into the cache; return the end."""
    for row in range(begin, end):
        copy_bytes(target + found[3, row], found[4, row], found[3, row + 1] - found[3, row])
    return end


@kernel
def _take_from(
    address: int,
    page: int,
    run: Any,
    wide: bool,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    wanted: int,
    found: Any,
    count: int,
    most_bytes: int,
) -> int:
    """List the wanted living rows of one page behind those found before; return how many there are then, or -1."""
    # In a damaged page rows may overlap: all that were found take `most_bytes` at most.
    first = page_row(run, page)
    rows, size = page_row(run, page + 1) - first, page_bytes(run[RUN_DIRECTORY], page)
    if not _is_whole(address, size, page, rows, wide):
        return -1
    code_place = address + HEAD_BYTES
    subcode_place = code_place + 8 * rows
    start = address + _start_of_rows(rows, wide)
    end_place = start - 4 * rows
    last_code = load_u64(code_place + 8 * (rows - 1))
    row = _row_at_or_behind(code_place, rows, codes[wanted])
    while row < rows:
        code = load_u64(code_place + 8 * row)
        subcode = load_u64(subcode_place + 8 * row) if wide else 0
        while wanted < len(codes) and (
            codes[wanted] < code or (by_row and codes[wanted] == code and subcodes[wanted] < subcode)
        ):
            wanted += 1
        if wanted == len(codes) or codes[wanted] > last_code:
            break
        hit = codes[wanted] == code and (not by_row or subcodes[wanted] == subcode)
        if hit and not is_removed(run[RUN_REMOVED], first + row):
            begin = load_u32(end_place + 4 * (row - 1)) if row > 0 else 0
            end = load_u32(end_place + 4 * row)
            if end < begin or start + end > address + size or found[3, count] + end - begin > most_bytes:
                return -1
            prefetch(start + begin)
            prefetch(start + end - 1)
            found[4, count] = start + begin
            found[0, count] = code
            found[1, count] = subcode
            found[2, count] = (run[RUN_NUMBER] << ROW_BITS) + first + row
            count += 1
            found[3, count] = found[3, count - 1] + end - begin
        row += 1
    return count
