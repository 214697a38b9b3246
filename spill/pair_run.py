"""One run of pairs: written once, ascending; see `spill.pair_kernels` for its format.

In memory stand 8 bytes per page of 128 pairs, and for a run of up to 65,536 pairs, until it is closed, a filter of 2 to 4 bytes
per pair. On disk a pair takes 8 bytes.

Files: `<number>.directory`, and the pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spill.cold_store import Int64s
from spill.filters import FILTERED_ROWS, filter_of, shift_of
from spill.pages import Pages
from spill.pair_kernels import PAIR_PAGE_BYTES, PAIRS_PER_PAGE
from spill.write_kernels import gather_bytes
from zset_join.errors import StateError
from zset_join.storage.local import LocalFile, read_bytes, remove_file

__all__ = ["PairRun", "PairRunWriter", "bounds_of"]

_GROUP_BYTES = 1 << 20


class PairRun:
    """Open one run of pairs.

    Args:
        place: directory of the store.
        number: of the run.
        pages: where its pages are.
        rows: how many pairs it has.
        filter_bits: as the writer made it; None for a run that was opened again, or is large.

    Raises:
        StateError: its directory is missing or has another size.
    """

    def __init__(
        self, place: Path, number: int, pages: Pages, *, rows: int, filter_bits: npt.NDArray[np.uint8] | None = None
    ) -> None:
        self.number = number
        self.rows = self.live = rows
        self._place = str(place)
        self._pages = pages
        self._page_count = -(-rows // PAIRS_PER_PAGE)
        self._file = _directory_file(place, number)
        content = read_bytes(self._file)
        if content is None or len(content) != 8 * (self._page_count + 1):
            raise self._damaged("its directory is missing or incomplete")
        self._directory = np.frombuffer(content, np.int64)
        self._filter = filter_bits
        line = [int(self._directory.ctypes.data), self._page_count, rows]
        self._line = (*line, *((0, 0) if filter_bits is None else (int(filter_bits.ctypes.data), shift_of(filter_bits))))

    def line(self) -> tuple[int, ...]:
        """Return what the kernels know of the run, valid as long as it is held."""
        return self._line

    def check(self) -> None:
        """Raise StateError unless the pages are all there."""
        self._pages.check(self.number, pages=self._page_count, size=8 * self.rows)

    def words(self, chunk_pages: int) -> Iterator[Int64s]:
        """Yield all pairs as words, ascending, some pages at a time.

        Raises:
            StateError: they are not what was written.
        """
        for first in range(0, self._page_count, chunk_pages):
            pages = np.arange(first, min(first + chunk_pages, self._page_count))
            begins, ends = bounds_of(pages, self.rows)
            read = self._pages.read([self.number], np.zeros(len(pages), np.int64), pages, begins, ends)
            words, offsets = np.empty(int(ends[-1] - begins[0]) // 8, np.int64), np.empty(len(pages) + 1, np.int64)
            gather_bytes(read.addresses, ends - begins, int(words.ctypes.data), offsets)
            if (words[::PAIRS_PER_PAGE] != self._directory[pages]).any() or (words[1:] < words[:-1]).any():
                raise self._damaged(f"its pages {first} to {first + len(pages) - 1} hold other bytes than were written")
            yield words

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"run {self.number} of the cold store in {self._place} is damaged: {what}. It is a cache: remove the directory, "
            "and it is built anew from the checkpoint.",
            code="COLD_STORE_DAMAGED",
            path=self._place,
            run=self.number,
        )

    def let_go(self) -> None:
        """Do nothing: nothing is mapped between two calls."""

    def index_bytes(self) -> int:
        """Return the bytes of directory and filter."""
        return self._directory.nbytes + (0 if self._filter is None else self._filter.nbytes)

    staying_bytes = index_bytes

    def file_bytes(self) -> int:
        """Return the bytes of the directory."""
        return self._directory.nbytes

    def drop(self) -> None:
        """Remove the run with its files."""
        self._pages.drop(self.number)
        remove_file(self._file)

    def close(self) -> None:
        """Do nothing: the store closes the pages."""


class PairRunWriter:
    """Write one run of pairs, which come ascending.

    Args:
        place: directory of the store.
        number: of the run.
        pages: where its pages go.
    """

    def __init__(self, place: Path, number: int, pages: Pages) -> None:
        self._target = (place, number, pages)
        self._writer = pages.write(number)
        self._file: LocalFile | None = None
        self._rest = self._last = np.empty(0, np.int64)
        self._directory: list[Int64s] = []
        self._held: list[Int64s] = []  # all words, as long as these are few
        self.rows = 0

    def append(self, words: Int64s) -> None:
        """Add pairs, as words, none of which is below one added earlier."""
        self.rows += len(words)
        self._held = [*self._held, words] if self.rows <= FILTERED_ROWS else []
        words = np.concatenate([self._rest, words])
        whole = len(words) // PAIRS_PER_PAGE * PAIRS_PER_PAGE
        group = _GROUP_BYTES // 8
        for begin in range(0, whole, group):
            self._write(words[begin : min(begin + group, whole)])
        self._rest = words[whole:].copy()

    def _write(self, words: Int64s) -> None:
        ends = np.arange(1, 1 + -(-len(words) // PAIRS_PER_PAGE)) * PAIR_PAGE_BYTES
        ends[-1] = 8 * len(words)
        self._writer.append(words.view(np.uint8), ends)
        self._directory.append(words[::PAIRS_PER_PAGE].copy())
        self._last = words[-1:].copy()

    def finish(self) -> PairRun:
        """Return the run; there is at least one pair in it."""
        if len(self._rest):
            self._write(self._rest)
        self._writer.finish()
        place, number, pages = self._target
        self._file = LocalFile(_directory_file(place, number), 0o600)
        self._file.write(np.concatenate([*self._directory, self._last]))
        self._file.close()
        filter_bits = filter_of([words >> 32 for words in self._held]) if self._held else None
        return PairRun(place, number, pages, rows=self.rows, filter_bits=filter_bits)

    def discard(self) -> None:
        """Leave nothing behind."""
        place, number, _ = self._target
        if self._file is not None:
            self._file.close(discard=True)
        self._writer.discard()
        remove_file(_directory_file(place, number))


def bounds_of(pages: Int64s, rows: Int64s | int) -> tuple[Int64s, Int64s]:
    """Return where some pages begin and end, of runs with so many pairs."""
    begins = PAIR_PAGE_BYTES * pages
    return begins, np.minimum(begins + PAIR_PAGE_BYTES, 8 * rows)


def _directory_file(place: Path, number: int) -> str:
    return f"{os.path.abspath(place)}/{number}.directory"  # noqa: PTH100 - Path.absolute() is slower
