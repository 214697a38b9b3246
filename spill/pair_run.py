"""One run of pairs: written once, ascending; see `spill.pair_kernels` for its format.

In memory are 2 bytes per pair, mapped from a file, of which a look-up touches one word, and 8 bytes per page of 128 pairs. On
disk a pair takes 8 bytes, and the same 2.

Files: `<number>.index` (the filter, the directory, and how many words the filter has), and the pages.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from spill.cold_store import Int64s
from spill.pages import Pages, damaged_run
from spill.pair_kernels import PAIR_PAGE_BYTES, PAIRS_PER_FILTER_WORD, PAIRS_PER_PAGE, fill_filter, filter_word
from spill.run import mapped
from spill.write_kernels import gather_bytes
from zset_join.core.errors import StateError
from zset_join.storage.local import LocalFile, file_size, remove_file

__all__ = ["PairRun", "PairRunWriter", "bounds_of"]

_GROUP = 1 << 17  # pairs that are written at once


class PairRun:
    def __init__(self, place: Path, number: int, pages: Pages, *, rows: int) -> None:
        self.number = number
        self.rows = self.live = rows
        self._place = str(place)
        self._pages = pages
        self._page_count = -(-rows // PAIRS_PER_PAGE)
        self._file = _index_file(place, number)
        size = file_size(self._file) or 0
        if size < 8 or size % 8:
            raise self._damaged("its index is missing or incomplete")
        self._mapping: mmap.mmap | None = mapped(self._file, is_written=False)
        words = np.frombuffer(self._mapping, np.int64)
        filter_words = int(words[-1])
        if len(words) != filter_words + self._page_count + 2:
            raise self._damaged("its index is incomplete")
        self._directory = words[filter_words:-1]
        self._index_bytes = size
        address = int(words.ctypes.data)
        self._line = (address + 8 * filter_words, self._page_count, rows, address, filter_words)

    def line(self) -> tuple[int, ...]:
        return self._line

    def check(self) -> None:
        self._pages.check(self.number, pages=self._page_count, size=8 * self.rows)

    def words(self, chunk_pages: int) -> Iterator[Int64s]:
        """Yield all pairs as words, ascending, some pages at a time."""
        last = self._directory[0]
        for first in range(0, self._page_count, chunk_pages):
            pages = np.arange(first, min(first + chunk_pages, self._page_count))
            begins, ends = bounds_of(pages, self.rows)
            read = self._pages.read([self.number], np.zeros(len(pages), np.int64), pages, begins, ends)
            words, offsets = np.empty(int(ends[-1] - begins[0]) // 8, np.int64), np.empty(len(pages) + 1, np.int64)
            gather_bytes(read.addresses, ends - begins, int(words.ctypes.data), offsets)
            is_ascending = words[0] >= last and (words[1:] >= words[:-1]).all()
            if not is_ascending or (words[::PAIRS_PER_PAGE] != self._directory[pages]).any():
                raise self._damaged(f"its pages {first} to {first + len(pages) - 1} have other bytes than were written")
            last = words[-1]
            yield words

    def _damaged(self, what: str) -> StateError:
        return damaged_run(self._place, self.number, what)

    def release(self) -> None:
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def index_bytes(self) -> int:
        return self._index_bytes

    def staying_bytes(self) -> int:
        return 0

    def file_bytes(self) -> int:
        return self._index_bytes

    def drop(self) -> None:
        self.close()
        self._pages.drop(self.number)
        remove_file(self._file)

    def close(self) -> None:
        self._mapping = None
        self._directory = np.empty(0, np.int64)


class PairRunWriter:
    """Write one run of pairs, which come ascending."""

    def __init__(self, place: Path, number: int, pages: Pages) -> None:
        self._target = (place, number, pages)
        self._writer = pages.write(number)
        self._file: LocalFile | None = None
        self._rest = self._last = np.empty(0, np.int64)
        self._directory: list[Int64s] = []
        self._filter_words = self._filter_begin = 0
        self._filter_rest = np.zeros(1, np.int64)  # word `_filter_begin`, where the last pair has its bits
        self._rows = 0

    def expect(self, most_rows: int) -> None:
        """Begin to write so many pairs, or fewer."""
        place, number, _ = self._target
        self._filter_words = -(-most_rows // PAIRS_PER_FILTER_WORD)
        self._file = LocalFile(_index_file(place, number), 0o600)

    def append(self, words: Int64s) -> None:
        self._rows += len(words)
        words = np.concatenate([self._rest, words])
        whole = len(words) // PAIRS_PER_PAGE * PAIRS_PER_PAGE
        for begin in range(0, whole, _GROUP):
            self._write(words[begin : min(begin + _GROUP, whole)])
        self._rest = words[whole:].copy()

    def _write(self, words: Int64s) -> None:
        ends = np.arange(1, 1 + -(-len(words) // PAIRS_PER_PAGE)) * PAIR_PAGE_BYTES
        ends[-1] = 8 * len(words)
        self._writer.append(words.view(np.uint8), ends)
        self._directory.append(words[::PAIRS_PER_PAGE].copy())
        self._last = words[-1:].copy()
        self._filter(words)

    def _filter(self, words: Int64s) -> None:
        last = int(filter_word(int(words[-1]) >> 32, self._filter_words))
        bits = np.zeros(last - self._filter_begin + 1, np.int64)
        bits[0] = self._filter_rest[0]
        fill_filter(words, self._filter_words, self._filter_begin, bits)
        self._index().write(bits[:-1])
        self._filter_begin, self._filter_rest = last, bits[-1:].copy()

    def _index(self) -> LocalFile:
        if self._file is None:
            raise ValueError("pairs were written before they were expected")
        return self._file

    def finish(self) -> PairRun:
        if len(self._rest):
            self._write(self._rest)
        self._writer.finish()
        file = self._index()
        file.write(self._filter_rest)
        file.write(np.zeros(self._filter_words - self._filter_begin - 1, np.int64))
        file.write(np.concatenate([*self._directory, self._last, [self._filter_words]]))
        file.close()
        place, number, pages = self._target
        return PairRun(place, number, pages, rows=self._rows)

    def discard(self) -> None:
        place, number, _ = self._target
        if self._file is not None:
            self._file.close(discard=True)
        self._writer.discard()
        remove_file(_index_file(place, number))


def bounds_of(pages: Int64s, rows: Int64s | int) -> tuple[Int64s, Int64s]:
    """Return where some pages begin and end, of runs with so many pairs."""
    begins = PAIR_PAGE_BYTES * pages
    return begins, np.minimum(begins + PAIR_PAGE_BYTES, 8 * rows)


def _index_file(place: Path, number: int) -> str:
    return f"{os.path.abspath(place)}/{number}.index"  # noqa: PTH100 - Path.absolute() is slower
