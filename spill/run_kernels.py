"""The loops of a run: cutting sorted rows into pages, finding pages in memory, taking rows out of pages, merging.

A *page* is the piece of a run that is read at once (all integers little-endian):

    0    u32  number of rows, n
    4    u32  number of the page in its run
    8    i64  code of each row, ascending
    ...  i64  subcode of each row, ascending below one code (only in stores with subcodes)
    ...  u32  end of each row, counted from the end of this list
    ...       the rows

Of every page the *directory* keeps four int64 words in memory: first code, first subcode, where it ends in the run, and the
number of its first row (doubled; 1 is added when its first code is the last one of the page before). Of every row the
*prints* keep a fingerprint: 16 bits of its code, and 16 bits of its subcode below them in stores with subcodes. Print 0 is a
row that was removed. A print only says that a page is worth reading; the codes in the page decide.

Ties: rows of equal code and subcode stand in any order. A code whose rows do not fit one page goes on in the
next; the pages of one code are never longer than `SPLIT_BYTES`, unless a single row is.

Everything that is inlined here stands in this file or in `zset_join.kernels`, so that compiled code is never out of date.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zset_join.kernels.compiled import kernel
from zset_join.kernels.memory import copy_bytes, load_u32, load_u64, prefetch, shift_right, store_u32, store_u64

__all__ = [
    "CONTINUES",
    "DIRECTORY_WORDS",
    "END",
    "FIRST_CODE",
    "FIRST_ROW",
    "FIRST_SUBCODE",
    "HEAD_BYTES",
    "PAGE_BYTES",
    "SPLIT_BYTES",
    "cut_pages",
    "erase_prints",
    "fill_pages",
    "find_pages",
    "gather_bytes",
    "index_pages",
    "make_prints",
    "measure_codes",
    "merge_chunks",
    "order_subcodes",
    "restore_prints",
    "take_rows",
]

FIRST_CODE, FIRST_SUBCODE, END, FIRST_ROW = 0, 1, 2, 3
DIRECTORY_WORDS = 4
CONTINUES = 1
HEAD_BYTES = 8
PAGE_BYTES = 1024
SPLIT_BYTES = 32768

_ODD_1 = -0x61C8864680B583EB
_ODD_2 = -0x3D4D51C2D82B14B1
_SMALL_GROUP = 32
_BLOCK = 64


@kernel
def order_subcodes(codes: Any, subcodes: Any, order: Any, large: Any) -> int:
    """Bring the rows of one code into the order of their subcodes, within an order by code.

    Groups of more than 32 rows are left to the caller: their bounds go to `large`, two words each; returns how many.
    """
    count = len(order)
    found = 0
    begin = 0
    while begin < count:
        code = codes[order[begin]]
        end = begin + 1
        while end < count and codes[order[end]] == code:
            end += 1
        if end - begin > _SMALL_GROUP:
            large[2 * found] = begin
            large[2 * found + 1] = end
            found += 1
        else:
            for position in range(begin + 1, end):
                row = order[position]
                subcode = subcodes[row]
                hole = position
                while hole > begin and subcodes[order[hole - 1]] > subcode:
                    order[hole] = order[hole - 1]
                    hole -= 1
                order[hole] = row
        begin = end
    return found


@kernel
def cut_pages(codes: Any, offsets: Any, order: Any, row_head_bytes: int, page_rows: Any) -> int:
    """Cut ordered rows into pages; `page_rows` gets the position of each page's first row, and the end; returns the pages."""
    pages = 0
    filled = 0
    before = 0
    for position in range(len(order)):
        row = order[position]
        row_bytes = offsets[row + 1] - offsets[row] + row_head_bytes
        code = codes[row]
        grown = filled + row_bytes
        if filled == 0 or grown > SPLIT_BYTES or (grown > PAGE_BYTES and code != before):
            page_rows[pages] = position
            pages += 1
            grown = HEAD_BYTES + row_bytes
        filled = grown
        before = code
    page_rows[pages] = len(order)
    return pages


@kernel
def fill_pages(
    codes: Any,
    subcodes: Any,
    offsets: Any,
    content: int,
    order: Any,
    page_rows: Any,
    first_page: int,
    wide: bool,
    target: int,
    page_ends: Any,
) -> None:
    """Write the pages between two entries of `page_rows` one after the other; `page_ends` gets where each ends.

    Args:
        codes: of all rows; as `subcodes`, `offsets`, `content` and `order`.
        subcodes: of all rows.
        offsets: of the rows in `content`.
        content: address of the bytes of all rows.
        order: of all rows.
        page_rows: first position of each page to write, and the end of the last one.
        first_page: number of the first page in the run.
        wide: whether the store has subcodes.
        target: where to write.
        page_ends: counted from `target`.
    """
    place = target
    for page in range(len(page_rows) - 1):
        begin, end = page_rows[page], page_rows[page + 1]
        count = end - begin
        store_u32(place, count)
        store_u32(place + 4, first_page + page)
        code_place = place + HEAD_BYTES
        subcode_place = code_place + 8 * count
        end_place = subcode_place + (8 * count if wide else 0)
        start = end_place + 4 * count
        place = start
        for position in range(count):
            row = order[begin + position]
            length = offsets[row + 1] - offsets[row]
            store_u64(code_place + 8 * position, codes[row])
            if wide:
                store_u64(subcode_place + 8 * position, subcodes[row])
            copy_bytes(place, content + offsets[row], length)
            place += length
            store_u32(end_place + 4 * position, place - start)
        page_ends[page] = place - target


@kernel
def index_pages(
    codes: Any,
    subcodes: Any,
    order: Any,
    page_rows: Any,
    page_ends: Any,
    first_row: int,
    first_byte: int,
    follows: bool,
    code_before: int,
    directory: Any,
) -> None:
    """Fill in the directory of pages that `fill_pages` has written.

    Args:
        codes: of all rows.
        subcodes: of all rows.
        order: of all rows.
        page_rows: as for `fill_pages`.
        page_ends: as `fill_pages` left them.
        first_row: number in the run of the row at position 0 of `order`.
        first_byte: where the first page begins in the run.
        follows: whether a page stands before the first one.
        code_before: the last code of that page.
        directory: one line per page.
    """
    for page in range(len(page_rows) - 1):
        first = order[page_rows[page]]
        continues = 0
        if follows and codes[first] == code_before:
            continues = CONTINUES
        directory[page, FIRST_CODE] = codes[first]
        directory[page, FIRST_SUBCODE] = subcodes[first]
        directory[page, END] = first_byte + page_ends[page]
        directory[page, FIRST_ROW] = 2 * (first_row + page_rows[page]) + continues
        follows = True
        code_before = codes[order[page_rows[page + 1] - 1]]


@kernel
def _code_print(code: int) -> int:
    mixed = shift_right(code * _ODD_1, 48)
    return mixed if mixed != 0 else 1


@kernel
def _print(code: int, subcode: int, wide: bool) -> int:
    if wide:
        return (_code_print(code) << 16) | shift_right(subcode * _ODD_2, 48)
    return _code_print(code)


@kernel
def make_prints(codes: Any, subcodes: Any, order: Any, wide: bool, prints: Any) -> None:
    """Write the prints of ordered rows."""
    for position in range(len(order)):
        row = order[position]
        prints[position] = _print(codes[row], subcodes[row], wide)


@kernel
def restore_prints(codes: Any, subcodes: Any, rows: Any, wide: bool, prints: Any) -> None:
    """Write the prints of some rows of a run, by row number."""
    for index in range(len(rows)):
        prints[rows[index]] = _print(codes[index], subcodes[index], wide)


@kernel
def erase_prints(prints: Any, rows: Any) -> int:
    """Mark rows as removed; return how many were there."""
    erased = 0
    for index in range(len(rows)):
        row = rows[index]
        if prints[row] != 0:
            prints[row] = 0
            erased += 1
    return erased


@kernel
def _pages_per_code(directory: Any) -> float:
    """Return how many pages a step of 1 in the codes is, if they are spread evenly, which hashes are."""
    pages = len(directory)
    distance = float(directory[pages - 1, FIRST_CODE]) - float(directory[0, FIRST_CODE])
    return (pages - 1) / distance if distance > 0 else 0.0


@kernel
def _guessed_page(directory: Any, page: int, code: int, pages_per_code: float) -> int:
    """Return where a code would be, seen from another page: the nearer that is, the better the guess."""
    distance = float(code) - float(directory[page, FIRST_CODE])
    return max(0, min(len(directory) - 1, page + int(distance * pages_per_code)))


@kernel
def _first_page(directory: Any, guess: int, code: int, subcode: int, by_row: bool) -> int:
    """Return the first page that may hold a code (or a pair): the last one that begins before it, else page 0.

    Gallops from the guess, so a good one costs a step or two and a bad one the logarithm of its error.
    """
    low, high = guess, guess + 1
    step = 1
    if _begins_before(directory, guess, code, subcode, by_row):
        while high < len(directory) and _begins_before(directory, high, code, subcode, by_row):
            low = high
            high = min(high + step, len(directory))
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
def _begins_before(directory: Any, page: int, code: int, subcode: int, by_row: bool) -> bool:
    """Say whether a row of this code (or pair) can stand only in this page or behind it."""
    first = directory[page, FIRST_CODE]
    if first != code:
        return bool(first < code)
    if directory[page, FIRST_ROW] & CONTINUES == 0:
        return True
    return by_row and bool(directory[page, FIRST_SUBCODE] < subcode)


@kernel
def _may_hold(directory: Any, prints: Any, page: int, wanted: int, shift: int) -> bool:
    """Say whether a page has a row with this print; without an early end, so that several are compared at once."""
    begin = directory[page, FIRST_ROW] >> 1
    end = len(prints) if page + 1 == len(directory) else directory[page + 1, FIRST_ROW] >> 1
    hits = 0
    for row in range(begin, end):
        hits += (prints[row] >> shift) == wanted
    return hits != 0


@kernel
def _page_begin(directory: Any, page: int) -> int:
    return 0 if page == 0 else directory[page - 1, END]


@kernel
def find_pages(
    directory: Any,
    prints: Any,
    wide: bool,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    cursor: Any,
    most_bytes: int,
    pages: Any,
    first_wanted: Any,
) -> int:
    """List the pages that may hold some of the wanted codes (or pairs), ascending and each once; return how many.

    Stops when `pages` is full or the pages take `most_bytes`; called again with the same cursor it goes on.

    Args:
        directory: of the run.
        prints: of the run.
        wide: whether the store has subcodes.
        codes: wanted, ascending.
        subcodes: wanted, ascending below one code; ignored unless `by_row`.
        by_row: whether pairs are wanted.
        cursor: three words, at first 0, 0 and -1: next wanted, page to look at next, last page listed. The first one ends
            as the number of wanted codes.
        most_bytes: of the pages; one page is always listed.
        pages: gets the numbers.
        first_wanted: gets, per page, the first of the wanted that it may hold.
    """
    count = 0
    listed_bytes = 0
    wanted, resumed, last = cursor[0], cursor[1], cursor[2]
    shift = 16 if wide and not by_row else 0
    starts = np.empty(_BLOCK, np.int64)
    pages_per_code = _pages_per_code(directory) if len(directory) else 0.0
    while wanted < len(codes) and len(directory) > 0:
        block_end = min(wanted + _BLOCK, len(codes))
        _locate(directory, prints, codes, subcodes, by_row, wanted, block_end, max(last, 0), pages_per_code, starts)
        block = wanted
        while wanted < block_end:
            code = codes[wanted]
            subcode = subcodes[wanted] if by_row else 0
            page = starts[wanted - block] if resumed == 0 else resumed
            resumed = 0
            sought = _print(code, subcode, wide and by_row)
            while page < len(directory):
                first = directory[page, FIRST_CODE]
                if first > code or (by_row and first == code and directory[page, FIRST_SUBCODE] > subcode):
                    break
                if page != last and _may_hold(directory, prints, page, sought, shift):
                    page_bytes = directory[page, END] - _page_begin(directory, page)
                    if count == len(pages) or (count > 0 and listed_bytes + page_bytes > most_bytes):
                        cursor[0], cursor[1], cursor[2] = wanted, page, last
                        return count
                    listed_bytes += page_bytes
                    pages[count] = page
                    first_wanted[count] = wanted
                    count += 1
                    last = page
                page += 1
            wanted += 1
    cursor[0], cursor[1], cursor[2] = len(codes), 0, last
    return count


@kernel
def _locate(
    directory: Any,
    prints: Any,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    begin: int,
    end: int,
    page: int,
    pages_per_code: float,
    starts: Any,
) -> None:
    """Write the first page of each of some wanted codes; memory is asked for ahead, so that its delays overlap."""
    prints_place = prints.ctypes.data
    for wanted in range(begin, end):
        subcode = subcodes[wanted] if by_row else 0
        guess = _guessed_page(directory, page, codes[wanted], pages_per_code)
        page = _first_page(directory, guess, codes[wanted], subcode, by_row)
        starts[wanted - begin] = page
        place = prints_place + (directory[page, FIRST_ROW] >> 1) * prints.itemsize
        prefetch(place)
        prefetch(place + 64)


@kernel
def measure_codes(directory: Any, prints: Any, wide: bool, codes: Any, sizes: Any) -> None:
    """Add to `sizes` the bytes of the pages that may hold each of some ascending codes."""
    if len(directory) == 0:
        return
    shift = 16 if wide else 0
    pages_per_code = _pages_per_code(directory)
    start = 0
    for wanted in range(len(codes)):
        code = codes[wanted]
        start = _first_page(directory, _guessed_page(directory, start, code, pages_per_code), code, 0, False)
        page = start
        sought = _code_print(code)
        while page < len(directory) and directory[page, FIRST_CODE] <= code:
            if _may_hold(directory, prints, page, sought, shift):
                sizes[wanted] += directory[page, END] - _page_begin(directory, page)
            page += 1


@kernel
def take_rows(
    addresses: Any,
    pages: Any,
    first_wanted: Any,
    directory: Any,
    prints: Any,
    wide: bool,
    codes: Any,
    subcodes: Any,
    by_row: bool,
    everything: bool,
    first_place: int,
    found: Any,
) -> int:
    """List the living rows of some pages that are wanted; return how many, or -1 - page for a page that is damaged.

    Args:
        addresses: where each page was read to.
        pages: number of each page.
        first_wanted: as `find_pages` left them.
        directory: of the run.
        prints: of the run.
        wide: whether the store has subcodes.
        codes: wanted, ascending.
        subcodes: wanted, below one code ascending.
        by_row: whether pairs are wanted.
        everything: whether all living rows are wanted; codes and subcodes are ignored.
        first_place: place of row 0 of the run.
        found: five lines with room for all rows of the pages: code, subcode, address, length, place.
    """
    count = 0
    for index in range(len(pages)):
        page = pages[index]
        row = directory[page, FIRST_ROW] >> 1
        end = len(prints) if page + 1 == len(directory) else directory[page + 1, FIRST_ROW] >> 1
        rows = end - row
        address = addresses[index]
        size = directory[page, END] - _page_begin(directory, page)
        code_place = address + HEAD_BYTES
        subcode_place = code_place + 8 * rows
        end_place = subcode_place + (8 * rows if wide else 0)
        start = end_place + 4 * rows
        if size < start - address or load_u32(address) != rows or load_u32(address + 4) != (page & 0xFFFFFFFF):
            return -1 - page
        if load_u32(end_place + 4 * (rows - 1)) != size - (start - address):
            return -1 - page
        wanted = first_wanted[index]
        row_begin = 0
        for position in range(rows):
            row_end = load_u32(end_place + 4 * position)
            if row_end < row_begin:
                return -1 - page
            code = load_u64(code_place + 8 * position)
            subcode = load_u64(subcode_place + 8 * position) if wide else 0
            hit = everything
            if not everything:
                while wanted < len(codes) and (
                    codes[wanted] < code or (by_row and codes[wanted] == code and subcodes[wanted] < subcode)
                ):
                    wanted += 1
                if wanted == len(codes):
                    break
                hit = codes[wanted] == code and (not by_row or subcodes[wanted] == subcode)
            if hit and prints[row + position] != 0:
                found[0, count] = code
                found[1, count] = subcode
                found[2, count] = start + row_begin
                found[3, count] = row_end - row_begin
                found[4, count] = first_place + row + position
                count += 1
            row_begin = row_end
    return count


@kernel
def gather_bytes(sources: Any, lengths: Any, target: int, offsets: Any) -> None:
    """Copy pieces of bytes behind one another; `offsets` gets where each begins, and the end."""
    place = 0
    offsets[0] = 0
    for index in range(len(sources)):
        copy_bytes(target + place, sources[index], lengths[index])
        place += lengths[index]
        offsets[index + 1] = place


@kernel
def merge_chunks(chunks: Any, codes: Any, subcodes: Any, lengths: Any, sources: Any) -> int:
    """Merge chunks of ordered rows until one of them is used up that is not the last of its run; return the rows.

    Args:
        chunks: one line per chunk: address of its codes, of its subcodes, of its offsets, of its bytes; the next row, the
            number of rows, and whether it is the last of its run. The next row is brought forward.
        codes: get the merged rows, with room for all.
        subcodes: as `codes`.
        lengths: as `codes`: the bytes of each row.
        sources: as `codes`: where they stand.
    """
    count = 0
    while True:
        best = -1
        best_code = 0
        best_subcode = 0
        for chunk in range(len(chunks)):
            row = chunks[chunk, 4]
            if row == chunks[chunk, 5]:
                if chunks[chunk, 6] == 0:
                    return count
                continue
            code = load_u64(chunks[chunk, 0] + 8 * row)
            subcode = load_u64(chunks[chunk, 1] + 8 * row)
            if best < 0 or code < best_code or (code == best_code and subcode < best_subcode):
                best, best_code, best_subcode = chunk, code, subcode
        if best < 0:
            return count
        row = chunks[best, 4]
        begin = load_u64(chunks[best, 2] + 8 * row)
        codes[count] = best_code
        subcodes[count] = best_subcode
        lengths[count] = load_u64(chunks[best, 2] + 8 * row + 8) - begin
        sources[count] = chunks[best, 3] + begin
        chunks[best, 4] = row + 1
        count += 1
