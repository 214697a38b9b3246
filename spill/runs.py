"""Several runs, looked into at once: finding and listing rows, removing them, putting them back.

The law: `find` yields the living rows of all runs that have the codes (or pairs) requested, each once. One pass over the index
of all runs finds the pages to read; they are read together, and one pass over them takes the rows out.

Remembers 40 bytes per run. It is rebuilt whenever the runs of a store become others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill import run_kernels as k
from spill.cold_store import ColdRows, Int64s
from spill.page_kernels import list_rows, take_rows
from spill.pages import Pages, ReadPages, damaged_page
from spill.run import LyingRows, Run, Wanted
from spill.write_kernels import gather_bytes, merge_chunks
from zset_join.core.errors import StateError

__all__ = ["Runs", "gathered", "merged"]

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
