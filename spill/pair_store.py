"""A store of pairs of numbers on disk, found by the first: which key a row has, by its primary key.

The law: `find` returns exactly the pairs that were put with the first numbers requested, each once or as often as it was put.
Nothing takes single pairs away; `replace` puts others in the place of all.

Pairs are in runs (`spill.run_set`), which are merged; where equal pairs meet, one stays. A look-up checks the filter of each
run, and reads the page where the pair would be, out of a mapped window where many are wanted. Of the numbers that a run does
not have one in fifty costs a page. Remembers 2.1 bytes per pair, in mapped files.

Numbers have 32 bits and no sign.

`PairRun`, `PairRunWriter`: one run of pairs: written once, ascending; see `spill.pair_kernels` for its format.

In memory are 2 bytes per pair, mapped from a file, of which a look-up touches one word, and 8 bytes per page of 128 pairs. On
disk a pair takes 8 bytes, and the same 2.

Files: `<number>.index` (the filter, the directory, and how many words the filter has), and the pages.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from spill import pair_kernels as k
from spill.cold_store import Int64s, Pages, damaged_page, damaged_run, each_once
from spill.file_pages import FilePages
from spill.pair_kernels import PAIR_PAGE_BYTES, PAIRS_PER_FILTER_WORD, PAIRS_PER_PAGE, fill_filter, filter_word
from spill.run import LEAST_PART, mapped
from spill.run_set import RunSet
from spill.write_kernels import gather_bytes
from zset_join.core.errors import StateError
from zset_join.storage.local import LocalFile, file_size, remove_file

__all__ = ["PairStore"]

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


_BIAS = 1 << 31
_MOST_PAGES = 1 << 11
_MOST_LOOKUPS = 1 << 14
_LEAST_LOOKUPS = 1 << 8  # a single number may have pairs in many pages
_MERGED_PAGES = 1 << 9  # of all runs that are merged, in memory at once
_LEAST_CHUNK = 1 << 5


class PairStore(RunSet[PairRun]):
    """Keep pairs of numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = PairStore(f"{directory}/keys", owner={"query": "doctest"})
    ...     store.put(np.array([7, 8, 7]), np.array([1, 2, 3]))
    ...     found = store.find(np.array([7, 9]))
    ...     store.close()
    >>> found[0].tolist(), found[1].tolist()
    ([7, 7], [1, 3])
    """

    fanout = 4  # pairs are merged faster than they are looked for in many runs

    def __init__(self, directory: str | Path, *, owner: Mapping[str, str | int], pages: Pages | None = None) -> None:
        lying = FilePages(directory) if pages is None else pages
        super().__init__(directory, pages=lying, stamp={"holds": "pairs", "owner": dict(owner)})

    @override
    def _set_runs(self, runs: Sequence[PairRun]) -> None:
        super()._set_runs(runs)
        self._numbers = [run.number for run in runs]
        self._rows = np.array([run.rows for run in runs], np.int64)
        self._table = np.array([run.line() for run in runs], np.int64).reshape(-1, k.RUN_WORDS)

    @override
    def _opened_run(self, number: int, rows: int, live: int) -> PairRun:
        return PairRun(self._directory, number, self._pages, rows=rows)

    @override
    def _new_writer(self, number: int) -> PairRunWriter:
        return PairRunWriter(self._directory, number, self._pages)

    def find(self, firsts: Int64s) -> tuple[Int64s, Int64s]:
        """Return the pairs with some first numbers: first and second number of each, in no particular order."""
        wanted = each_once(firsts) - _BIAS
        word_parts = [np.empty(0, np.int64)]
        with self._reading():
            for first, behind, parts in self._portions(self._runs):
                size = max(LEAST_PART, -(-len(wanted) // parts))
                for begin in range(0, len(wanted), size):
                    word_parts += self._found(wanted[begin : begin + size], slice(first, behind))
                    if not self._keeps_index:
                        for run in self._runs[first:behind]:
                            run.release()
        words = np.concatenate(word_parts)
        return (words >> 32) + _BIAS, words & 0xFFFFFFFF

    def _found(self, wanted: Int64s, among: slice) -> Iterator[Int64s]:
        cursor, table = np.array([0, 0, -1], np.int64), self._table[among]
        most = min(_MOST_LOOKUPS, max(_LEAST_LOOKUPS, 2 * len(wanted) * len(table)))
        page_runs, pages = np.empty((2, min(most, _MOST_PAGES)), np.int64)
        wanted_firsts, wanted_pages, guesses = np.empty((3, most), np.int64)
        lists = (page_runs, pages, wanted_firsts, wanted_pages, guesses)
        while cursor[0] < len(table):
            count, looked = k.find_pair_pages(table, wanted, cursor, *lists)
            if looked:
                lookups = (wanted_firsts[:looked], wanted_pages[:looked], guesses[:looked])
                yield self._taken(page_runs[:count], pages[:count], lookups, among)

    def _taken(self, page_runs: Int64s, pages: Int64s, lookups: tuple[Int64s, Int64s, Int64s], among: slice) -> Int64s:
        numbers = self._numbers[among]
        begins, ends = bounds_of(pages, self._rows[among][page_runs])
        read = self._pages.read(numbers, page_runs, pages, begins, ends, may_map=True)
        words = np.empty(len(pages) * k.PAIRS_PER_PAGE, np.int64)
        count = k.take_pairs(read.addresses, read.windows, page_runs, pages, *lookups, self._table[among], words)
        if count < 0:
            raise damaged_page(str(self._directory), numbers[page_runs[-1 - count]], int(pages[-1 - count]))
        taken: Int64s = words[:count].copy()
        return taken

    def put(self, firsts: Int64s, seconds: Int64s) -> None:
        """Add pairs: all of them, or none and an error. Cost: their sorting, and 8 bytes each."""
        if len(firsts) == 0:
            return
        words = each_once(((firsts - _BIAS) << 32) | seconds)
        with self._written_run() as writer:
            writer.expect(len(words))
            writer.append(words)

    def replace(self, parts: Iterable[tuple[Int64s, Int64s]]) -> None:
        """Replace all pairs by others: all of them, or none and an error. Cost: as `put`; meanwhile both are on the disk."""
        before = self._runs
        try:
            for part in parts:
                self.put(*part)
        except BaseException:
            self._drop([run for run in self._runs if run not in before])
            raise
        self._drop(before)

    @override
    def _merged(self, runs: Sequence[PairRun]) -> None:
        with self._written_run() as writer:
            writer.expect(sum(run.rows for run in runs))
            for words in _in_one_order([run.words(max(_LEAST_CHUNK, _MERGED_PAGES // len(runs))) for run in runs]):
                writer.append(words)


def _in_one_order(sources: Sequence[Iterator[Int64s]]) -> Iterator[Int64s]:
    """Yield ascending words of several sources, each of them ascending, in one order; equal ones that meet once."""
    held: list[tuple[Iterator[Int64s], Int64s]] = [(source, words) for source in sources for words in _next_of(source)]
    while held:
        bound = min(int(words[-1]) for _, words in held)
        parts: list[Int64s] = []
        left: list[tuple[Iterator[Int64s], Int64s]] = []
        for source, words in held:
            end = int(np.searchsorted(words, bound, "right"))
            parts.append(words[:end])
            left += [(source, words[end:])] if end < len(words) else [(source, more) for more in _next_of(source)]
        held = left
        yield each_once(np.concatenate(parts))


def _next_of(source: Iterator[Int64s]) -> list[Int64s]:
    """Return the next part of a source, if there is one."""
    part = next(source, None)
    return [] if part is None else [part]
