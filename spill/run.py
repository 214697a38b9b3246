"""One run: rows written once, in the order of their codes, and the index of it in memory.

The law: a run holds the rows it was written with, minus those that were removed; nothing is ever added to it. Rows are in pages
(`spill.cold_store`); what memory keeps of them (mapped from files, so that any process opens a run without reading it) is the
directory, 32 bytes per page, the prints, 2 bytes per row, and a bit per row that marks it as removed. So an absent or
removed row does not reach the disk, save about once in 65,000 rows of the page it would be in (4,000 for a code in a store
with subcodes). Only the bits are ever written to again. A run of up to 65,536 rows keeps a filter in memory too, 2 to 4 bytes
per row, until it is closed. Runs are read together: `spill.run`.

Bytes in memory per row, for rows of 56 bytes with subcodes in pages of 1 KiB: 4.6. On disk: 20 more than the row itself, and
the same 4.6.

Files: `<number>.directory`, `<number>.prints`, `<number>.removed`, and what the pages take.

`Runs`: several runs, looked into at once: finding and listing rows, removing them, putting them back.

The law: `find` yields the living rows of all runs that have the codes (or pairs) requested, each once. One pass over the index
of all runs finds the pages to read; they are read together, and one pass over them takes the rows out.

Remembers 40 bytes per run. It is rebuilt whenever the runs of a store become others.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill import run_kernels as k
from spill import write_kernels as w
from spill.cold_store import ColdRows, Int64s, Pages, ReadPages, damaged_page, damaged_run, each_once
from spill.page_kernels import list_rows, take_rows
from spill.run_kernels import FILTERED_ROWS, filter_of, shift_of
from spill.write_kernels import ascending_positions, gather_bytes, merge_chunks
from zset_join.core.errors import StateError
from zset_join.storage.local import LocalFile, file_size, remove_file
from zset_join.storage.operations import perform

__all__ = ["LEAST_PART", "LyingRows", "Run", "RunWriter", "Runs", "Wanted", "gathered", "in_order", "mapped", "merged"]

LEAST_PART = 64
_GROUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LyingRows:
    """Rows whose bytes lie somewhere in memory, as long as that is left alone."""

    codes: Int64s
    subcodes: Int64s
    addresses: Int64s  # of the bytes of each row
    lengths: Int64s

    @classmethod
    def of(cls, rows: ColdRows, order: Int64s | None = None) -> LyingRows:
        """Return rows that stay in `rows`, by default all of them as they come."""
        offsets, content = rows.buffers()
        parts = (rows.codes, rows.subcodes, int(content.ctypes.data) + offsets[:-1], offsets[1:] - offsets[:-1])
        return cls(*parts) if order is None else cls(*(part[order] for part in parts))

    def __len__(self) -> int:
        return len(self.codes)


class Wanted:
    """Codes, or pairs of code and subcode, that are looked for: ascending, each once."""

    __slots__ = ("by_row", "codes", "subcodes")

    def __init__(self, codes: Int64s, subcodes: Int64s | None) -> None:
        self.by_row = subcodes is not None
        if subcodes is None:
            self.codes, self.subcodes = each_once(codes), np.empty(0, np.int64)
            return
        order = in_order(codes, subcodes)
        self.codes, self.subcodes = codes[order], subcodes[order]
        if len(order):
            first = np.ones(len(order), np.bool_)
            first[1:] = (self.codes[1:] != self.codes[:-1]) | (self.subcodes[1:] != self.subcodes[:-1])
            self.codes, self.subcodes = self.codes[first], self.subcodes[first]

    def __len__(self) -> int:
        return len(self.codes)

    def parts(self, count: int) -> Iterator[Wanted]:
        """Yield so many parts of about the same length, or fewer; one below the other."""
        size = max(LEAST_PART, -(-len(self) // count))
        for begin in range(0, len(self), size):
            part = Wanted.__new__(Wanted)
            part.codes, part.subcodes = self.codes[begin : begin + size], self.subcodes[begin : begin + size]
            part.by_row = self.by_row
            yield part


def in_order(codes: Int64s, subcodes: Int64s | None) -> Int64s:
    """Return the positions of rows in the order of a run: by code, then by subcode.

    >>> in_order(np.array([5, 1, 5]), np.array([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    order = ascending_positions(codes)
    if subcodes is not None and len(order):
        large = np.empty(2 * (1 + len(order) // 32), np.int64)
        for group in range(w.order_subcodes(codes, subcodes, order, large)):
            begin, end = large[2 * group : 2 * group + 2]
            rows = order[begin:end]
            order[begin:end] = rows[np.argsort(subcodes[rows])]
    return order


class Run:
    def __init__(
        self,
        directory: Path,
        number: int,
        pages: Pages,
        *,
        rows: int,
        live: int,
        filter_bits: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.number = number
        self.rows = rows
        self.live = live
        self._files = _index_files(directory, number)
        self._pages = pages
        directory_bytes = file_size(self._files[0]) or 0
        line = 8 * k.DIRECTORY_WORDS
        sizes = [file_size(path) for path in self._files[1:]]
        if not directory_bytes or directory_bytes % line or sizes != [2 * rows, _removed_bytes(rows)]:
            raise damaged_run(str(directory), number, "its index is missing or incomplete")
        self._mappings = tuple(mapped(path, is_written=path is self._files[2]) for path in self._files)
        words, prints, removed = (np.frombuffer(mapping, np.uint8) for mapping in self._mappings)
        self.directory: npt.NDArray[np.int64] = words.view(np.int64).reshape(-1, k.DIRECTORY_WORDS)
        self.removed = removed
        self._file_bytes = self._index_bytes = len(words) + len(prints) + len(removed)
        self._staying_bytes = len(removed)
        addresses = [int(words.ctypes.data), len(self.directory), int(prints.ctypes.data), rows, int(removed.ctypes.data)]
        self._filter = filter_bits
        if filter_bits is not None:
            self._index_bytes += filter_bits.nbytes
            self._staying_bytes += filter_bits.nbytes
            addresses += [int(filter_bits.ctypes.data), shift_of(filter_bits)]
        self._line = (number, *addresses, *([0, 0] if filter_bits is None else []))
        self._long_codes: Int64s | None = None

    def check(self) -> None:
        self._pages.check(self.number, pages=len(self.directory), size=int(self.directory[-1, k.END]))

    def line(self) -> tuple[int, ...]:
        """Return the view of the run for kernels, valid until it is closed."""
        return self._line

    def long_codes(self, *, keep_index: bool) -> Int64s:
        """Return the codes whose rows begin in one page and continue in the next, ascending. Cost: its pages, once."""
        if self._long_codes is None:
            goes_on = (self.directory[:, k.FIRST_ROW] & k.CONTINUES) != 0
            self._long_codes = np.unique(self.directory[goes_on, k.FIRST_CODE])
            if not keep_index:
                self.release()
        return self._long_codes

    def release(self, pages: int | None = None) -> None:
        # The bits of removed rows stay: they are few, and to write to a mapped page again costs several microseconds.
        if pages is None:
            pages, rows = len(self.directory), self.rows
        else:
            rows = int(self.directory[pages, k.FIRST_ROW]) >> 1
        for mapping, size in zip(self._mappings[:2], (8 * k.DIRECTORY_WORDS * pages, 2 * rows), strict=True):
            if size:
                mapping.madvise(mmap.MADV_DONTNEED, 0, size)

    def index_bytes(self) -> int:
        return self._index_bytes

    def staying_bytes(self) -> int:
        return self._staying_bytes

    def file_bytes(self) -> int:
        return self._file_bytes

    def drop(self) -> None:
        self.close()
        self._pages.drop(self.number)
        for path in self._files:
            remove_file(path)

    def close(self) -> None:
        self._mappings = ()
        self.directory = np.empty((0, k.DIRECTORY_WORDS), np.int64)
        self.removed = np.empty(0, np.uint8)


class RunWriter:
    def __init__(self, directory: Path, number: int, pages: Pages, *, wide: bool) -> None:
        self._target = (directory, number, pages)
        self._wide = wide
        self._rows = 0
        self._page_count = 0
        self._bytes = 0
        self._last_code = 0
        self._page_bytes = np.empty(0, np.uint8)  # where pages are filled, group by group
        self._writer = pages.write(number)
        self._index: list[LocalFile] = []
        self._codes: list[Int64s] = []  # of all rows, as long as these are few
        self._paths = _index_files(directory, number)

    def append(self, rows: LyingRows) -> None:
        if len(rows) == 0:
            return
        if not self._index:
            for path in self._paths:
                self._index.append(LocalFile(path, 0o600))
        codes, subcodes = rows.codes, rows.subcodes
        page_rows, ends = np.empty((2, len(rows) + 1), np.int64)
        count = int(w.cut_pages(codes, rows.lengths, 20 if self._wide else 12, page_rows, ends))
        page_rows, ends = page_rows[: count + 1], ends[:count]
        begin = 0
        while begin < count:
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + _GROUP_BYTES, "right")))
            group, group_ends = page_rows[begin : end + 1], ends[begin:end] - before
            size = int(group_ends[-1])
            if len(self._page_bytes) < size:
                self._page_bytes = np.empty(max(size, _GROUP_BYTES), np.uint8)
            w.fill_pages(
                codes,
                subcodes,
                rows.addresses,
                rows.lengths,
                group,
                self._page_count,
                self._wide,
                int(self._page_bytes.ctypes.data),
                group_ends,
            )
            lines = np.empty((end - begin, k.DIRECTORY_WORDS), np.int64)
            w.index_pages(
                codes,
                subcodes,
                group,
                group_ends,
                self._rows,
                self._bytes,
                self._page_count > 0,
                self._last_code,
                lines,
            )
            self._writer.append(self._page_bytes, group_ends)
            self._index[0].write(lines)
            self._page_count += end - begin
            self._bytes += size
            self._last_code = int(codes[group[-1] - 1])
            begin = end
        prints = np.empty(len(rows), np.uint16)
        k.make_prints(codes, subcodes, self._wide, prints)
        self._index[1].write(prints)
        self._rows += len(rows)
        if self._rows <= FILTERED_ROWS:
            self._codes.append(codes)
        else:
            self._codes = []

    @property
    def rows(self) -> int:
        return self._rows

    def finish(self) -> Run:
        self._index[2].write(bytes(_removed_bytes(self._rows)))
        for file in self._index:
            file.close()
        self._writer.finish()
        directory, number, pages = self._target
        filter_bits = filter_of(self._codes) if self._codes else None
        return Run(directory, number, pages, rows=self._rows, live=self._rows, filter_bits=filter_bits)

    def discard(self) -> None:
        for file in self._index:
            file.close(discard=True)
        self._writer.discard()
        for path in self._paths:
            remove_file(path)


def _index_files(directory: Path, number: int) -> list[str]:
    place = os.path.abspath(directory)  # noqa: PTH100 - Path.absolute() is slower
    return [f"{place}/{number}.{name}" for name in ("directory", "prints", "removed")]


def _removed_bytes(rows: int) -> int:
    return (rows + 7) // 8


def mapped(path: str, *, is_written: bool) -> mmap.mmap:

    def act() -> mmap.mmap:
        descriptor = os.open(path, (os.O_RDWR if is_written else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_WRITE if is_written else mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    return perform("map", path, act)


_GROUP_PAGES = 1 << 13
_USUAL_PAGE_BYTES = 1 << 10
_LEAST_PAGES = 1 << 8  # a single code may have many


class Runs:
    def __init__(self, runs: Sequence[Run], pages: Pages, *, wide: bool, place: str) -> None:
        self._runs = tuple(runs)
        self._pages = pages
        self._wide = wide
        self._place = place
        self._numbers = [run.number for run in runs]
        self._table = np.array([run.line() for run in runs], np.int64).reshape(-1, k.RUN_WORDS)

    # ---------------------------------------------------------------- reading

    def find(self, wanted: Wanted, *, keep_index: bool, group_bytes: int | None = None) -> Iterator[tuple[ColdRows, int, int]]:
        """Yield the wanted rows, group by group, with the number and the bytes of the pages read for them."""
        # Rows that were yielded may be removed before the next are requested, and others may be put.
        cursor = np.array([0, 0, 0, -1, 0], np.int64)
        most = min(_GROUP_PAGES, max(_LEAST_PAGES, 2 * len(wanted) * len(self._runs)))
        page_runs, pages, first_wanted = (np.empty(most, np.int64) for _ in range(3))
        read: ReadPages | None = None
        while len(wanted) and cursor[0] < len(self._runs):
            count = k.find_pages(
                self._table,
                self._wide,
                wanted.codes,
                wanted.subcodes,
                wanted.by_row,
                cursor,
                self._pages.group_bytes if group_bytes is None else group_bytes,
                page_runs,
                pages,
                first_wanted,
            )
            if count:
                requested = (page_runs[:count], pages[:count])
                read = self._read(*requested, read, may_map=True)
                yield self._taken(read, *requested, first_wanted[:count], int(cursor[4]), wanted), count, read.read_bytes
        if not keep_index:
            self._release()

    def _release(self) -> None:
        for run in self._runs:
            run.release()

    def scan(self, chunk_bytes: int, *, keep_index: bool) -> Iterator[tuple[LyingRows, Int64s]]:
        """Yield all living rows and their places, run by run and in the order of each, in chunks of about `chunk_bytes`."""
        # They are in the pages that were read, until the next are requested. Else as `find`.
        read: ReadPages | None = None
        for number, run in enumerate(self._runs):
            begin, written, chunk_pages = 0, run.directory, 1 + chunk_bytes // _USUAL_PAGE_BYTES
            while begin < len(written):
                limit = chunk_bytes + (int(written[begin - 1, k.END]) if begin else 0)
                ends = written[begin : begin + chunk_pages, k.END]
                end = begin + max(1, int(np.searchsorted(ends, limit, "right")))
                pages = np.arange(begin, end, dtype=np.int64)
                next_row = int(written[end, k.FIRST_ROW]) >> 1 if end < len(written) else run.rows
                rows = next_row - (int(written[begin, k.FIRST_ROW]) >> 1)
                read = self._read(np.full(len(pages), number), pages, read)
                yield self._listed(read, number, pages, rows)
                begin = end
                if not keep_index:
                    run.release(begin if begin < len(written) else None)

    def _read(self, page_runs: Int64s, pages: Int64s, reuse: ReadPages | None, *, may_map: bool = False) -> ReadPages:
        begins, ends = np.empty((2, len(pages)), np.int64)
        k.page_bounds(self._table, page_runs, pages, begins, ends)
        return self._pages.read(self._numbers, page_runs, pages, begins, ends, reuse=reuse, may_map=may_map)

    def _taken(
        self, read: ReadPages, page_runs: Int64s, pages: Int64s, first_wanted: Int64s, most: int, wanted: Wanted
    ) -> ColdRows:
        """Return the wanted rows of pages; `most` is how many rows were written there."""
        row_lines, content = np.empty((5, most + 1), np.int64), np.empty(read.read_bytes, np.uint8)
        count = take_rows(
            read.addresses,
            read.windows,
            page_runs,
            pages,
            first_wanted,
            self._table,
            self._wide,
            wanted.codes,
            wanted.subcodes,
            wanted.by_row,
            row_lines,
            content,
        )
        if count < 0:
            raise self._damaged(page_runs[-1 - count], pages[-1 - count])
        content.resize(int(row_lines[3, count]), refcheck=False)
        codes, subcodes, places = row_lines[:3, :count].copy()
        return _cold_rows(codes, subcodes, row_lines[3, : count + 1].copy(), content, places)

    def _listed(self, read: ReadPages, run: int, pages: Int64s, most: int) -> tuple[LyingRows, Int64s]:
        """Return the living rows of pages of a run, and their places; `most` is how many rows were written there."""
        row_lines = np.empty((5, most), np.int64)
        count = list_rows(read.addresses, self._table[run], pages, self._wide, row_lines)
        if count < 0:
            raise self._damaged(run, pages[-1 - count])
        codes, subcodes, addresses, lengths, places = row_lines[:, :count]
        return LyingRows(codes, subcodes, addresses, lengths), places

    def _damaged(self, at: int, page: int) -> StateError:
        return damaged_page(self._place, self._numbers[at], int(page))

    def measure(self, codes: Int64s, sizes: Int64s, *, keep_index: bool) -> None:
        """Add to `sizes` the bytes that may have to be read for each of some ascending codes."""
        k.measure_codes(self._table, self._wide, codes, sizes)
        if not keep_index:
            self._release()

    # ---------------------------------------------------------------- changing

    def remove(self, places: Int64s) -> bool:
        """Remove rows by place; return False, and remove none, if there is a place without a row."""
        erased = np.zeros(len(self._runs), np.int64)
        if k.erase_places(self._table, places, erased) >= 0:
            return False
        self._count(-erased)
        return True

    def restore(self, places: Int64s) -> npt.NDArray[np.bool_] | None:
        """Undo the removal of rows whose run is present and return which; None, and undo nothing, if one was not removed."""
        restored, added = np.empty(len(places), np.bool_), np.zeros(len(self._runs), np.int64)
        if k.restore_places(self._table, places, restored, added) >= 0:
            return None
        self._count(added)
        return restored

    def _count(self, added: npt.NDArray[Any]) -> None:
        for run, rows in zip(self._runs, added.tolist(), strict=True):
            run.live += rows


def gathered(rows: LyingRows, places: Int64s) -> ColdRows:
    """Return a copy of rows that lie somewhere."""
    offsets, content = np.empty(len(rows) + 1, np.int64), np.empty(int(rows.lengths.sum()), np.uint8)
    gather_bytes(rows.addresses, rows.lengths, int(content.ctypes.data), offsets)
    return _cold_rows(rows.codes, rows.subcodes, offsets, content, places)


def _cold_rows(codes: Int64s, subcodes: Int64s, offsets: Int64s, content: npt.NDArray[np.uint8], places: Int64s) -> ColdRows:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return ColdRows(codes, subcodes, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(codes), buffers), places)


def merged(sources: Sequence[Iterator[tuple[LyingRows, Int64s]]]) -> Iterator[LyingRows]:
    """Yield the rows of several runs in one order, given those of each in chunks, as `Runs.scan` yields them."""
    chunks = np.zeros((len(sources), 7), np.int64)
    held: list[Any] = [None] * len(sources)
    while True:
        for at, source in enumerate(sources):
            while chunks[at, 4] == chunks[at, 5] and not chunks[at, 6]:
                first_part = next(source, None)
                if first_part is None:
                    chunks[at, 6] = 1
                    break
                rows, _ = first_part
                held[at] = rows
                lines = (rows.codes, rows.subcodes, rows.addresses, rows.lengths)
                chunks[at] = [*(int(line.ctypes.data) for line in lines), 0, len(rows), 0]
        room = int((chunks[:, 5] - chunks[:, 4]).sum())
        if room == 0:
            return
        merged_rows = np.empty((4, room), np.int64)
        count = int(merge_chunks(chunks, *merged_rows))
        yield LyingRows(*merged_rows[:, :count])
