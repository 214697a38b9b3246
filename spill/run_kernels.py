"""The format of a run, and the loops over its index: finding pages, removing rows and putting them back.

A *page* is the piece of a run that is read at once (all integers little-endian):

    0    u32  number of rows, n
    4    u32  number of the page in its run
    8    i64  code of each row, ascending
    ...  i64  subcode of each row, ascending below one code (only in stores with subcodes)
    ...  u32  end of each row, counted from the end of this list
    ...       the rows

Of every page the *directory* keeps four int64 words in memory: first code, first subcode, where it ends in the run, and the
number of its first row (doubled; 1 is added when its first code is the last one of the page before). Of every row the
*prints* keep a fingerprint of 16 bits: of its code, or 12 of its code and 4 of its subcode below them in stores with
subcodes. A print only marks a page as worth reading; the codes in the page decide. A bit per row marks it as removed.

A small run has a *filter* beside these (`spill.run_kernels`): one look excludes most codes that do not exist.

Several runs are looked into at once: a line of `RUN_WORDS` words holds the addresses of its directory, prints, bits and filter.

Ties: rows of equal code and subcode are in any order. A code whose rows do not fit one page continues in the
next; the pages of one code are never longer than `SPLIT_BYTES`, unless a single row is.

What takes rows out of pages is in `page_kernels`, what writes runs in `write_kernels`.

`filter_of`, `passes`: filters of small runs: 16 to 32 bits per row of which one is set for each code.

The law: a code that a run has passes its filter; of the others, one in 16 to 32 does. (The filter of a large run would miss the
cache as often as its index does, so that has none.)

Remembers 2 to 4 bytes per row, in memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u8, load_u16, load_u64, prefetch, shift_right, store_u8

__all__ = [
    "CONTINUES",
    "DIRECTORY_WORDS",
    "END",
    "FILTERED_ROWS",
    "FIRST_CODE",
    "FIRST_ROW",
    "FIRST_SUBCODE",
    "HEAD_BYTES",
    "PAGE_BYTES",
    "ROW_BITS",
    "RUN_WORDS",
    "SPLIT_BYTES",
    "erase_places",
    "filter_of",
    "find_pages",
    "is_removed",
    "make_prints",
    "measure_codes",
    "page_bounds",
    "page_bytes",
    "page_row",
    "restore_places",
    "shift_of",
]

FILTERED_ROWS = 1 << 16
"""How many rows a run may have for a filter."""
_ODD = -0x61C8864680B583EB


def filter_of(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint8]:
    """Return the filter of some codes, as bytes: 2^k bits, 16 to 32 for each code.

    >>> bits = filter_of([np.arange(100)])
    >>> len(bits), passes(bits.ctypes.data, shift_of(bits), 7)
    (256, True)
    """
    rows = sum(map(len, parts))
    bits = np.zeros((1 << (16 * rows - 1).bit_length()) // 8, np.uint8)
    for codes in parts:
        _set_bits(codes, shift_of(bits), bits)
    return bits


def shift_of(bits: npt.NDArray[np.uint8]) -> int:
    """Return by how much a mixed code is shifted to be the number of its bit."""
    return 65 - (8 * len(bits)).bit_length()


@kernel
def _set_bits(codes: Any, shift: int, bits: Any) -> None:
    for row in range(len(codes)):
        bit = shift_right(codes[row] * _ODD, shift)
        bits[bit >> 3] |= 1 << (bit & 7)


@kernel
def seen_before(codes: Any, shift: int, bits: Any, seen: Any) -> None:
    """Mark which codes may be among those that were given before, with these bits, and add them."""
    for row in range(len(codes)):
        bit = shift_right(codes[row] * _ODD, shift)
        seen[row] = (bits[bit >> 3] >> (bit & 7)) & 1
        bits[bit >> 3] |= 1 << (bit & 7)


@kernel
def passes(bits: int, shift: int, code: int) -> bool:
    """Return whether a run with a filter at this address (0: it has none) may have a code."""
    if bits == 0:
        return True
    bit = shift_right(code * _ODD, shift)
    return bool((load_u8(bits + (bit >> 3)) >> (bit & 7)) & 1 == 1)


FIRST_CODE, FIRST_SUBCODE, END, FIRST_ROW = 0, 1, 2, 3
DIRECTORY_WORDS = 4
CONTINUES = 1
RUN_NUMBER, RUN_DIRECTORY, RUN_PAGES, RUN_PRINTS, RUN_ROWS, RUN_REMOVED, RUN_FILTER, RUN_SHIFT = 0, 1, 2, 3, 4, 5, 6, 7
RUN_WORDS = 8
ROW_BITS = 36
ROW_MASK = (1 << ROW_BITS) - 1
HEAD_BYTES = 8
PAGE_BYTES = 1024
SPLIT_BYTES = 32768

_ODD_1 = -0x61C8864680B583EB
_ODD_2 = -0x3D4D51C2D82B14B1
_EACH = 0x0001000100010001
_EACH_HIGHEST = -0x7FFF7FFF7FFF8000
_BLOCK = 64
_AHEAD = 8  # look-ups whose directory is requested before they come


@kernel
def _code_print(code: int, wide: bool) -> int:
    """Return 16 bits of a code; in stores with subcodes the lowest four are left to those."""
    mixed = shift_right(code * _ODD_1, 48)
    return mixed & 0xFFF0 if wide else mixed


@kernel
def _print(code: int, subcode: int, wide: bool) -> int:
    if wide:
        return _code_print(code, True) | shift_right(subcode * _ODD_2, 60)
    return _code_print(code, False)


@kernel
def make_prints(codes: Any, subcodes: Any, wide: bool, prints: Any) -> None:
    for row in range(len(codes)):
        prints[row] = _print(codes[row], subcodes[row], wide)


@kernel
def _run_of(runs: Any, place: int, guess: int) -> int:
    """Return the run that a place is in, -1 for none; looks at `guess` first."""
    if 0 <= guess < len(runs) and shift_right(place, ROW_BITS) == runs[guess, RUN_NUMBER]:
        return guess
    for run in range(len(runs)):
        if shift_right(place, ROW_BITS) == runs[run, RUN_NUMBER]:
            return run
    return -1


@kernel
def is_removed(removed: int, row: int) -> bool:
    return bool((load_u8(removed + (row >> 3)) >> (row & 7)) & 1 == 1)


@kernel
def _flip_removed(removed: int, row: int) -> None:
    place = removed + (row >> 3)
    store_u8(place, load_u8(place) ^ (1 << (row & 7)))


@kernel
def erase_places(runs: Any, places: Any, erased: Any) -> int:
    """Mark rows as removed, by place; return -1, or the position of a place that holds no row, and then nothing was done."""
    # `erased` gets, per run, how many rows went; `places` may repeat.
    run = 0
    for index in range(len(places)):
        row = places[index] & ROW_MASK
        run = _run_of(runs, places[index], run)
        if run < 0 or row >= runs[run, RUN_ROWS] or is_removed(runs[run, RUN_REMOVED], row):
            return index
    for index in range(len(places)):
        row = places[index] & ROW_MASK
        run = _run_of(runs, places[index], run)
        if not is_removed(runs[run, RUN_REMOVED], row):
            _flip_removed(runs[run, RUN_REMOVED], row)
            erased[run] += 1
    return -1


@kernel
def restore_places(runs: Any, places: Any, restored: Any, added: Any) -> int:
    """Undo the removal of rows whose run is still there; return -1, or the position of one that was not removed."""
    # `restored` gets, per row, whether it is back, `added`, per run, how many are; nothing is back after an error.
    run = 0
    bad = -1
    for index in range(len(places)):
        row = places[index] & ROW_MASK
        run = _run_of(runs, places[index], run)
        restored[index] = False
        if run < 0:
            continue
        if row >= runs[run, RUN_ROWS] or not is_removed(runs[run, RUN_REMOVED], row):
            bad = index
            break
        _flip_removed(runs[run, RUN_REMOVED], row)
        restored[index] = True
        added[run] += 1
    for index in range(bad):
        if restored[index]:
            run = _run_of(runs, places[index], run)
            _flip_removed(runs[run, RUN_REMOVED], places[index] & ROW_MASK)
            restored[index] = False
    return bad


@kernel
def _word(directory: int, page: int, column: int) -> int:
    return load_u64(directory + (page * DIRECTORY_WORDS + column) * 8)


@kernel
def _pages_per_code(directory: int, pages: int) -> float:
    """Return how many pages a step of 1 in the codes is, if they are spread evenly, which hashes are."""
    distance = float(_word(directory, pages - 1, FIRST_CODE)) - float(_word(directory, 0, FIRST_CODE))
    return (pages - 1) / distance if distance > 0 else 0.0


@kernel
def _guessed_page(directory: int, pages: int, page: int, code: int, pages_per_code: float) -> int:
    """Return where a code would be, seen from another page: the nearer that is, the better the guess."""
    distance = float(code) - float(_word(directory, page, FIRST_CODE))
    return max(0, min(pages - 1, page + int(distance * pages_per_code)))


@kernel
def _first_page(directory: int, pages: int, guess: int, code: int, subcode: int, by_row: bool) -> int:
    """Return the first page that may hold a code (or a pair): the last one that begins before it, else page 0."""
    # Gallops from the guess, so a good one costs a step or two and a bad one the logarithm of its error.
    low, high = guess, guess + 1
    step = 1
    if _begins_before(directory, guess, code, subcode, by_row):
        while high < pages and _begins_before(directory, high, code, subcode, by_row):
            low = high
            high = min(high + step, pages)
            step *= 2
    else:
        high = guess
        low = max(guess - 1, 0)
        while low > 0 and not _begins_before(directory, low, code, subcode, by_row):
            high = low
            low = max(low - step, 0)
            step *= 2
    while high - low > 1:
        middle = (low + high) >> 1
        if _begins_before(directory, middle, code, subcode, by_row):
            low = middle
        else:
            high = middle
    return low


@kernel
def _begins_before(directory: int, page: int, code: int, subcode: int, by_row: bool) -> bool:
    """Return whether a row of this code (or pair) can be only in this page or behind it."""
    first = _word(directory, page, FIRST_CODE)
    if first != code:
        return bool(first < code)
    if _word(directory, page, FIRST_ROW) & CONTINUES == 0:
        return True
    return by_row and bool(_word(directory, page, FIRST_SUBCODE) < subcode)


@kernel
def page_row(run: Any, page: int) -> int:
    """Return the first row of a page of a run; that of the page behind the last one is the number of rows."""
    if page == run[RUN_PAGES]:
        return run[RUN_ROWS]
    return _word(run[RUN_DIRECTORY], page, FIRST_ROW) >> 1


@kernel
def page_bytes(directory: int, page: int) -> int:
    return _word(directory, page, END) - (0 if page == 0 else _word(directory, page - 1, END))


@kernel
def _may_hold(prints: int, removed: int, begin: int, end: int, sought: int, mask: int) -> bool:
    """Return whether one of some rows is present and has this print, where `mask` has bits; four are compared at once."""
    # Of a word whose four parts are the differences, the subtraction borrows into the highest bit of a part that is 0.
    row = begin
    four = sought * _EACH
    masks = mask * _EACH
    while row < end:
        compared = min(row + 4, end)
        if compared == row + 4:
            differing = (load_u64(prints + 2 * row) & masks) ^ four
            if (differing - _EACH) & ~differing & _EACH_HIGHEST == 0:
                row = compared
                continue
        while row < compared:
            if load_u16(prints + 2 * row) & mask == sought and not is_removed(removed, row):
                return True
            row += 1
    return False


@kernel
def find_pages(
    runs: Any,
    wide: bool,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    cursor: Any,
    most_bytes: int,
    page_runs: Any,
    pages: Any,
    first_wanted: Any,
) -> int:
    """List the pages that may hold some wanted codes or pairs, run by run, ascending and each once; return how many."""
    # Stops when `pages` is full or the pages take `most_bytes`; called again with the same cursor it continues. One page is
    # always listed. `cursor` is at first 0, 0, 0, -1, 0: run, next wanted, page to look at next, last page listed, and rows of
    # the listed pages; the run ends as their number. `first_wanted` gets the first of the wanted that each page may hold.
    count = 0
    listed_bytes = 0
    run, wanted, resumed, last = cursor[0], cursor[1], cursor[2], cursor[3]
    cursor[4] = 0
    mask = 0xFFF0 if wide and not by_row else 0xFFFF
    chosen, starts = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    while run < len(runs):
        directory, page_count = runs[run, RUN_DIRECTORY], runs[run, RUN_PAGES]
        prints, removed = runs[run, RUN_PRINTS], runs[run, RUN_REMOVED]
        bits, shift = runs[run, RUN_FILTER], runs[run, RUN_SHIFT]
        pages_per_code = _pages_per_code(directory, page_count)
        while wanted < len(codes):
            block = 0
            while wanted < len(codes) and block < _BLOCK:
                chosen[block] = wanted
                block += 1 if passes(bits, shift, codes[wanted]) else 0
                wanted += 1
            next_wanted = wanted
            _locate(runs, run, codes, subcodes, by_row, chosen, block, max(last, 0), pages_per_code, starts)
            for index in range(block):
                wanted = chosen[index]
                code = codes[wanted]
                subcode = subcodes[wanted] if by_row else 0
                page = starts[index] if resumed == 0 else resumed
                resumed = 0
                sought = _print(code, subcode, wide) & mask
                while page < page_count:
                    first = _word(directory, page, FIRST_CODE)
                    if first > code or (by_row and first == code and _word(directory, page, FIRST_SUBCODE) > subcode):
                        break
                    begin, end = page_row(runs[run], page), page_row(runs[run], page + 1)
                    if page != last and _may_hold(prints, removed, begin, end, sought, mask):
                        size = page_bytes(directory, page)
                        if count == len(pages) or (count > 0 and listed_bytes + size > most_bytes):
                            cursor[0], cursor[1], cursor[2], cursor[3] = run, wanted, page, last
                            return count
                        listed_bytes += size
                        cursor[4] += end - begin
                        page_runs[count] = run
                        pages[count] = page
                        first_wanted[count] = wanted
                        count += 1
                        last = page
                    page += 1
            wanted = next_wanted
        run, wanted, last = run + 1, 0, -1
    cursor[0] = run
    return count


@kernel
def _locate(
    runs: Any,
    run: int,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    chosen: Any,
    count: int,
    page: int,
    pages_per_code: float,
    starts: Any,
) -> None:
    """Write the first page of each of the chosen codes; memory is requested ahead, so that its delays overlap."""
    directory, pages, prints = runs[run, RUN_DIRECTORY], runs[run, RUN_PAGES], runs[run, RUN_PRINTS]
    for index in range(count):
        wanted = chosen[index]
        subcode = subcodes[wanted] if by_row else 0
        guess = _guessed_page(directory, pages, page, codes[wanted], pages_per_code)
        page = _first_page(directory, pages, guess, codes[wanted], subcode, by_row)
        starts[index] = page
        first_print = prints + 2 * (_word(directory, page, FIRST_ROW) >> 1)
        prefetch(first_print)
        prefetch(first_print + 32)
        if index + _AHEAD < count:
            guess = _guessed_page(directory, pages, page, codes[chosen[index + _AHEAD]], pages_per_code)
            line = directory + 8 * DIRECTORY_WORDS * guess
            prefetch(line - 64)
            prefetch(line)
            prefetch(line + 64)


@kernel
def measure_codes(runs: Any, wide: bool, codes: Any, sizes: Any) -> None:
    """Add to `sizes` the bytes of the pages that may hold each of some ascending codes."""
    mask = 0xFFF0 if wide else 0xFFFF
    for run in range(len(runs)):
        directory, pages, prints = runs[run, RUN_DIRECTORY], runs[run, RUN_PAGES], runs[run, RUN_PRINTS]
        removed = runs[run, RUN_REMOVED]
        pages_per_code = _pages_per_code(directory, pages)
        start = 0
        for wanted in range(len(codes)):
            code = codes[wanted]
            if not passes(runs[run, RUN_FILTER], runs[run, RUN_SHIFT], code):
                continue
            guess = _guessed_page(directory, pages, start, code, pages_per_code)
            start = _first_page(directory, pages, guess, code, 0, False)
            page = start
            sought = _code_print(code, wide)
            while page < pages and _word(directory, page, FIRST_CODE) <= code:
                begin, end = page_row(runs[run], page), page_row(runs[run], page + 1)
                if _may_hold(prints, removed, begin, end, sought, mask):
                    sizes[wanted] += page_bytes(directory, page)
                page += 1


@kernel
def page_bounds(runs: Any, page_runs: Any, pages: Any, begins: Any, ends: Any) -> None:
    for index in range(len(pages)):
        directory = runs[page_runs[index], RUN_DIRECTORY]
        ends[index] = _word(directory, pages[index], END)
        begins[index] = ends[index] - page_bytes(directory, pages[index])
