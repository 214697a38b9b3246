"""Taking rows out of the pages of runs (`run_kernels` has their format): all living ones, or those that are wanted.

Pages that were read are in memory. Those of a window (`read_kernels`) are in a file that is mapped while its rows are taken,
and are requested two pages ahead, as far as codes and ends of their rows go; then the rows that were found, so that copying
finds them in the cache.
"""

from __future__ import annotations

from typing import Any

from spill.read_kernels import close_window, open_window
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

__all__ = ["list_rows", "take_rows"]

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
