"""The loops that write runs: ordering rows, cutting them into pages, filling pages, merging; the format: `run_kernels`.

`ascending`, `ascending_positions`: sorting of words by their digits: codes are hashes, and few of their bits are needed.

The law: `ascending` is `numpy.sort` of int64 words, and `ascending_positions` is `numpy.argsort` of them, stable.

NumPy took 26 to 33 ns per word (measured, AMD EPYC, 10,000 to 40,000 words). Here each digit of 11 bits is one pass of about
2 ns, and digits that are the same in all words are omitted: three passes for hashes of 32 bits. Few words are left to NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spill.run_kernels import CONTINUES, END, FIRST_CODE, FIRST_ROW, FIRST_SUBCODE, HEAD_BYTES, PAGE_BYTES, SPLIT_BYTES
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import copy_bytes, load_u64, store_u32, store_u64

__all__ = [
    "ascending",
    "ascending_positions",
    "cut_pages",
    "fill_pages",
    "gather_bytes",
    "index_pages",
    "merge_chunks",
    "order_subcodes",
]

Words = npt.NDArray[np.int64]

_FEW = 1 << 9
_DIGIT_BITS = 11
_DIGITS = 6
_BUCKETS = 1 << _DIGIT_BITS
_SIGN = -(1 << 63)
_NONE = np.empty(0, np.int64)


def ascending(words: Words) -> Words:
    """Return the words in order. Memory: two copies of them.

    >>> ascending(np.array([3, -1, 3])).tolist()
    [-1, 3, 3]
    """
    if len(words) < _FEW:
        few: Words = np.sort(words)
        return few
    sorted_words, spare = words.copy(), np.empty(len(words), np.int64)
    return spare if _sort(sorted_words, spare, _NONE, _NONE) else sorted_words


def ascending_positions(words: Words) -> Words:
    """Return the positions of the words in order, those of equal ones ascending. Memory: four times theirs.

    >>> ascending_positions(np.array([3, -1, 3])).tolist()
    [1, 0, 2]
    """
    if len(words) < _FEW:
        return np.argsort(words, kind="stable")
    sorted_words, spare = words.copy(), np.empty(len(words), np.int64)
    positions, spare_positions = np.arange(len(words)), np.empty(len(words), np.int64)
    return spare_positions if _sort(sorted_words, spare, positions, spare_positions) else positions


@kernel
def _sort(words: Any, spare: Any, positions: Any, spare_positions: Any) -> bool:
    """Sort words, and with them their positions unless these are empty; return whether they are in the spare arrays then."""
    counts = np.empty(_BUCKETS, np.int64)
    differing = _differing(words)
    is_spare, has_positions = False, len(positions) > 0
    for digit in range(_DIGITS):
        shift = digit * _DIGIT_BITS
        if (differing >> shift) & (_BUCKETS - 1) == 0:
            continue
        source, target = (spare, words) if is_spare else (words, spare)
        origins, places = (spare_positions, positions) if is_spare else (positions, spare_positions)
        _count(source, shift, counts)
        for index in range(len(source)):
            bucket = ((source[index] ^ _SIGN) >> shift) & (_BUCKETS - 1)
            place = counts[bucket]
            counts[bucket] = place + 1
            target[place] = source[index]
            if has_positions:
                places[place] = origins[index]
        is_spare = not is_spare
    return is_spare


@kernel
def _differing(words: Any) -> int:
    differing = 0
    for index in range(1, len(words)):
        differing |= words[index] ^ words[0]
    return differing


@kernel
def _count(words: Any, shift: int, counts: Any) -> None:
    """Write where the words of each bucket of a digit begin."""
    counts[:] = 0
    for index in range(len(words)):
        counts[((words[index] ^ _SIGN) >> shift) & (_BUCKETS - 1)] += 1
    begin = 0
    for bucket in range(_BUCKETS):
        count = counts[bucket]
        counts[bucket] = begin
        begin += count


_SMALL_GROUP = 32


@kernel
def order_subcodes(codes: Any, subcodes: Any, order: Any, large: Any) -> int:
    """Bring the rows of one code into the order of their subcodes, within an order by code."""
    # Groups of more than 32 rows are left to the caller: their bounds go to `large`, two words each; returns how many.
    count = len(order)
    large_count = 0
    begin = 0
    while begin < count:
        code = codes[order[begin]]
        end = begin + 1
        while end < count and codes[order[end]] == code:
            end += 1
        if end - begin > _SMALL_GROUP:
            large[2 * large_count] = begin
            large[2 * large_count + 1] = end
            large_count += 1
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
    return large_count


@kernel
def cut_pages(codes: Any, lengths: Any, row_head_bytes: int, page_rows: Any, page_ends: Any) -> int:
    """Cut ordered rows into pages; return how many."""
    # `page_rows` gets the position of the first row of each page, and the end; `page_ends` counts from the first page.
    pages = 0
    total = 0
    filled = 0
    before = 0
    for position in range(len(codes)):
        row_bytes = lengths[position] + row_head_bytes
        code = codes[position]
        grown = filled + row_bytes
        if filled == 0 or grown > SPLIT_BYTES or (grown > PAGE_BYTES and code != before):
            page_rows[pages] = position
            pages += 1
            total += HEAD_BYTES
            grown = HEAD_BYTES + row_bytes
        filled = grown
        before = code
        total += row_bytes
        page_ends[pages - 1] = total
    page_rows[pages] = len(codes)
    return pages


@kernel
def fill_pages(
    codes: Any,
    subcodes: Any,
    addresses: Any,
    lengths: Any,
    page_rows: Any,
    first_page: int,
    wide: bool,
    target: int,
    page_ends: Any,
) -> None:
    """Write the pages between two entries of `page_rows` one after the other; `page_ends` gets where each ends."""
    # `addresses` and `lengths` are of the bytes of all rows; `target` is an address, from which `page_ends` counts.
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
            row = begin + position
            store_u64(code_place + 8 * position, codes[row])
            if wide:
                store_u64(subcode_place + 8 * position, subcodes[row])
            copy_bytes(place, addresses[row], lengths[row])
            place += lengths[row]
            store_u32(end_place + 4 * position, place - start)
        page_ends[page] = place - target


@kernel
def index_pages(
    codes: Any,
    subcodes: Any,
    page_rows: Any,
    page_ends: Any,
    first_row: int,
    first_byte: int,
    follows: bool,
    code_before: int,
    directory: Any,
) -> None:
    """Fill in the directory of pages that `fill_pages` has written."""
    # `first_row` and `first_byte` are where these pages begin in the run; `code_before` is the last code of a page before them.
    for page in range(len(page_rows) - 1):
        first = page_rows[page]
        continues = 0
        if follows and codes[first] == code_before:
            continues = CONTINUES
        directory[page, FIRST_CODE] = codes[first]
        directory[page, FIRST_SUBCODE] = subcodes[first]
        directory[page, END] = first_byte + page_ends[page]
        directory[page, FIRST_ROW] = 2 * (first_row + first) + continues
        follows = True
        code_before = codes[page_rows[page + 1] - 1]


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
def merge_chunks(chunks: Any, codes: Any, subcodes: Any, addresses: Any, lengths: Any) -> int:
    """Merge chunks of ordered rows until one of them is used up that is not the last of its run; return the rows."""
    # A chunk is a line: addresses of the codes, subcodes, addresses and lengths of its rows; the next row, which is brought
    # forward, the number of rows, and whether it is the last of its run.
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
        codes[count] = best_code
        subcodes[count] = best_subcode
        addresses[count] = load_u64(chunks[best, 2] + 8 * row)
        lengths[count] = load_u64(chunks[best, 3] + 8 * row)
        chunks[best, 4] = row + 1
        count += 1
