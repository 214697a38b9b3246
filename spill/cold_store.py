"""The cold store: rows on disk, found by a 64-bit code.

The law: a store holds a bag of rows, each with a code and a subcode. `fetch` returns exactly the rows that have the codes
requested and changes nothing; `put` adds, `remove` takes away, nothing else does. What goes in comes out bit for bit,
because a row is opaque bytes: the store has no notion of columns, weights or operators.

A code is a hash of a key and may collide: the caller of a fetch compares the key by value. The subcode orders and finds single
rows of one code without reading the others (a hash of the row's identity); a store without subcodes keeps 0.

How an epoch uses it. Fetching is reading, so it may happen twice. A caller that wants a fetched row in memory for good removes
it here, so that every row is in one place; a caller with too much in memory puts rows here, or restores them where they were if
they did not change meanwhile. Between the first change and `commit`
a store is unclean: a process that dies meanwhile leaves a store that `open` refuses, and that its owner wipes and builds
again from the checkpoint. So a store is a cache: it is never synced to the disk and never the only copy of anything.

Edge cases. Equal rows with equal codes are all kept. Codes may be requested that do not exist, and more than once. An empty
row is a row.

Known limits: a row has less than 2 GiB; a place holds until `tidy` or `clear` moves or drops its row.

`PageWriter`, `Pages`: page storage of a run: the part of a cold store that depends on the storage.

The law: `read` returns the bytes that were appended to that run under that page number; a run that was not finished leaves
nothing behind once it is discarded. Pages contain no rows, codes or liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.page_kernels import WINDOW_WORDS
from spill.write_kernels import ascending
from zset_join.core.errors import OptionError, ResourceError, StateError

__all__ = [
    "ColdRows",
    "ColdStore",
    "Int64s",
    "Pages",
    "ReadPages",
    "Revised",
    "cold_rows",
    "damaged_page",
    "damaged_run",
    "each_once",
]

Int64s = npt.NDArray[np.int64]

MOST_ROW_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ColdRows:
    """Rows on their way into a cold store or out of it. The arrays belong to their holder."""

    codes: Int64s
    subcodes: Int64s
    rows: pa.LargeBinaryArray
    places: Int64s  # in the store, for `remove`; empty for rows that come from elsewhere

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def row_bytes(self) -> int:
        offsets, _ = self.buffers()
        return int(offsets[-1] - offsets[0])

    def buffers(self) -> tuple[Int64s, npt.NDArray[np.uint8]]:
        """Return the offsets (one more than rows) and the bytes they point into."""
        _, offset_buffer, content_buffer = self.rows.buffers()
        begin, end = self.rows.offset, self.rows.offset + len(self.rows) + 1
        offsets = np.zeros(1, np.int64) if offset_buffer is None else np.frombuffer(offset_buffer, np.int64)[begin:end]
        if len(offsets) == 0:
            offsets = np.zeros(1, np.int64)
        content = np.empty(0, np.uint8) if content_buffer is None else np.frombuffer(content_buffer, np.uint8)
        return offsets, content

    def chosen(self, kept: npt.NDArray[np.bool_]) -> ColdRows:
        """Return some rows, by a flag for each."""
        if kept.all():
            return self
        return ColdRows(self.codes[kept], self.subcodes[kept], self.rows.filter(pa.array(kept)), self.places[kept])


Revised = Callable[[ColdRows], ColdRows]
"""Given some rows of a store, return those of them that become others, in their order: codes, subcodes and places as they are,
the rows as they will be."""


def each_once(codes: Int64s) -> Int64s:
    """Return codes ascending, without repeats; `np.unique` hashes first and took ten times as long as NumPy's sort.

    >>> each_once(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    in_order = ascending(codes)
    differs = np.ones(len(in_order), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=differs[1:])
    return in_order if differs.all() else in_order[differs]


def cold_rows(codes: Any, rows: Any, subcodes: Any = None) -> ColdRows:
    """Return rows for `ColdStore.put`.

    >>> len(cold_rows([7, 7], [b"a", b"b"]))
    2
    """
    codes = np.ascontiguousarray(codes, np.int64)
    subcodes = np.zeros(len(codes), np.int64) if subcodes is None else np.ascontiguousarray(subcodes, np.int64)
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    array = rows.cast(pa.large_binary()) if isinstance(rows, pa.Array) else pa.array(rows, pa.large_binary())
    if not len(codes) == len(subcodes) == len(array) or array.null_count:
        raise OptionError(
            f"a cold store was given {len(codes)} codes, {len(subcodes)} subcodes and {len(array)} rows of which "
            f"{array.null_count} are NULL; expected one code, one subcode and the bytes of each row.",
            code="COLD_ROWS",
            codes=len(codes),
            subcodes=len(subcodes),
            rows=len(array),
            nulls=array.null_count,
        )
    rows_of_codes = ColdRows(codes, subcodes, array, np.empty(0, np.int64))
    offsets, _ = rows_of_codes.buffers()
    longest = int(np.diff(offsets).max(initial=0))
    if longest > MOST_ROW_BYTES:
        raise ResourceError(
            f"one row has {longest} bytes; a cold store keeps rows of at most {MOST_ROW_BYTES} bytes. Keep such values outside "
            "the join and join their names.",
            code="COLD_ROW_BYTES",
            row_bytes=longest,
            limit=MOST_ROW_BYTES,
        )
    return rows_of_codes


class ColdStore(Protocol):
    """Rows on disk, found by code."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the last `commit`; -1 when there was none."""

    def put(self, rows: ColdRows) -> None:
        """Add rows: all of them, or none and an error. Cost: their bytes, and the sorting of their codes.

        Raises:
            ResourceError: the disk is full or cannot be written; the store is as before.
        """

    def fetch(self, codes: Int64s, subcodes: Int64s | None = None) -> ColdRows:
        """Return all rows of some codes, or of some pairs of code and subcode, in no particular order.

        Memory is what is returned and a few MB: call `bytes_of` first where one code may have more rows than fit.

        Raises:
            StateError: what is on the disk is not what was put there.
        """

    def stream(self, code: int, chunk_bytes: int = 1 << 20) -> Iterator[ColdRows]:
        """Yield all rows of one code in chunks of about `chunk_bytes` (a larger row arrives alone)."""

    def scan(self, chunk_bytes: int = 1 << 20) -> Iterator[ColdRows]:
        """Yield all rows, in chunks as `stream`."""

    def bytes_of(self, codes: Int64s) -> Int64s:
        """Return for each code at least the bytes that its rows take, 0 when it surely has none; the disk is not read."""

    def begin_change(self) -> None:
        """Mark the store as being changed, so that the `remove` and `restore` that follow do not fail on that.

        Raises:
            ResourceError: the disk is full or cannot be written; the store is as before.
        """

    def remove(self, places: Int64s) -> None:
        """Take rows out by their places, as the newest `fetch`, `stream` or `scan` returned them.

        Raises:
            StateError: places that do not hold any more, or of rows that are gone.
        """

    def restore(self, places: Int64s) -> npt.NDArray[np.bool_]:
        """Put rows back that were fetched and removed, where they were; their bytes on the disk are still what they are.

        Args:
            places: as they were fetched.

        Returns:
            Per row, whether it is back. A row whose place is gone (its run was merged meanwhile) is not: put it.

        Raises:
            StateError: a row that was not removed.
        """

    def revise(self, codes: Int64s, revised: Revised, chunk_bytes: int = 1 << 20) -> None:
        """Write some rows of some codes as they will be; until `exchange` the store holds them as they are.

        So a code may have more rows than fit in memory, and an error half-way changes none of them. Until `exchange` or
        `forget_revised` nothing else may change the store. Request all codes at once: what is written is a run for each run.

        Args:
            codes: of the rows.
            revised: replacements of some of them.
            chunk_bytes: rows to give it at once, about.

        Raises:
            ResourceError: the disk is full or cannot be written; `forget_revised` gives back what was written.
        """

    def exchange(self) -> None:
        """Replace all rows that were revised by what was written for them. Cost: a bit each."""

    def forget_revised(self) -> None:
        """Clear the entries of revised rows."""

    def tidy(self) -> None:
        """Merge runs, so that fetching stays fast and the disk small. An error leaves the store as before."""

    def commit(self, epoch: int) -> None:
        """Declare the store whole, at the end of `epoch`."""

    def clear(self) -> None:
        """Forget all rows."""

    def row_count(self) -> int:
        """Return how many rows there are."""

    def disk_bytes(self) -> int:
        """Return the bytes on disk, rows that are gone but not yet given back included."""

    def resident_bytes(self) -> int:
        """Return the bytes of memory that the store takes between calls."""

    def statistics(self) -> Mapping[str, int]:
        """Return counts for users: rows, runs, bytes, and what was read since the store was opened."""

    def close(self) -> None:
        """Release files and memory; rows put since the last `commit` are lost with it."""


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Pages in memory."""

    addresses: Int64s  # valid as long as `owner` lives
    owner: Any
    read_bytes: int  # gaps included
    # Of mapped files; the pages of a window are present from `open_window` to `close_window`.
    windows: Int64s = field(default_factory=lambda: np.empty((0, WINDOW_WORDS), np.int64))


class PageWriter(Protocol):
    """Write one run, front to back."""

    def append(self, content: npt.NDArray[np.uint8], ends: Int64s) -> None:
        """Add pages that are in `content` one behind the other; `ends`: where each ends."""

    def finish(self) -> None:
        """The run is complete."""

    def discard(self) -> None:
        """Leave nothing behind; after `finish` this is an error of the caller."""


class Pages(Protocol):
    """Keep the pages of the runs of one store.

    Attributes:
        kind: what they are, for the manifest of the store.
        group_bytes: of pages that are best read together.
    """

    kind: str
    group_bytes: int

    def write(self, run: int) -> PageWriter:
        """Begin a run."""

    def read(
        self,
        runs: Sequence[int],
        page_runs: Int64s,
        pages: Int64s,
        begins: Int64s,
        ends: Int64s,
        *,
        reuse: ReadPages | None = None,
        may_map: bool = False,
    ) -> ReadPages:
        """Return some pages.

        Args:
            runs: numbers of runs.
            page_runs: position in `runs` of each page, ascending.
            pages: numbers, ascending in each run; at least one.
            begins: first byte of each page in its run.
            ends: end of each page in its run.
            reuse: pages of an earlier read that nobody looks at any more; their memory may be taken for these.
            may_map: whether pages may be in windows.

        Raises:
            StateError: the run or a page of it is missing.
        """

    def check(self, run: int, *, pages: int, size: int) -> None:
        """Raise StateError if a run is absent, or has not as many pages, or as many bytes, as its directory records."""

    def drop(self, run: int) -> None:
        """Remove a run and give its space back."""

    def commit(self) -> None:
        """Make the written rows visible to the next process that opens the store."""

    def disk_bytes(self) -> int:
        """Return the bytes on disk."""

    def resident_bytes(self) -> int:
        """Return the bytes of memory kept between calls."""

    def close(self) -> None:
        """Release everything."""


def damaged_page(place: str, run: int, page: int) -> StateError:
    """Return the error of a page that is not what was written; `place` is the directory of its store."""
    return StateError(
        f"page {page} of run {run} of a cold store is damaged: {place} cannot be read or has other bytes than were written. "
        "It is a cache: remove the directory, and it is rebuilt from the checkpoint.",
        code="COLD_STORE_DAMAGED",
        path=place,
        run=run,
        page=page,
    )


def damaged_run(place: str, run: int, what: str) -> StateError:
    """Return the error of a run that is not what was written, and in what; `place` is the directory of its store."""
    return StateError(
        f"run {run} of the cold store in {place} is damaged: {what}. It is a cache: remove the directory, and it is rebuilt "
        "from the checkpoint.",
        code="COLD_STORE_DAMAGED",
        path=place,
        run=run,
    )
