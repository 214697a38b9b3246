"""A cold store in plain files, one per run.

A page is read by position, so a fetch reads what it needs and the gaps that are cheaper to read than to skip, or it is looked
at in a window of the file that is mapped for the moment (`spill.page_kernels`); nothing is cached in this process, the host's
page cache does that. Pages the host does not have in memory are all requested before the first of them is waited for, so the
disk works on many at a time.

Files are written once, never synced, and removed whole.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spill.cold_store import Int64s, ReadPages
from spill.page_kernels import (
    LEAST_PAGES,
    POPULATE_READ,
    WINDOW_BYTES,
    WINDOW_WORDS,
    find_windows,
    measured_spread,
    plan_reads,
    read_ranges,
    read_ranges_cached,
)
from spill.run_store import RunStore
from zset_join.core.errors import StateError
from zset_join.storage.local import LocalFile, file_size, remove_file
from zset_join.storage.operations import perform

__all__ = ["FileColdStore", "FilePages"]

_GAP_BYTES = 2048
_USUAL_SPREAD_BYTES = 1 << 16
_READS_WITHOUT_WAITING = hasattr(os, "RWF_NOWAIT")


def _maps_windows() -> bool:
    """Return whether the host can bring a window into memory and report what it cannot read."""
    with mmap.mmap(-1, mmap.PAGESIZE) as probe:
        try:
            probe.madvise(POPULATE_READ)
        except (OSError, AttributeError):
            return False
    return True


_MAPS_WINDOWS = _maps_windows()


class FileColdStore(RunStore):
    """Keep cold rows in plain files.

    >>> import tempfile
    >>> from spill.cold_store import cold_rows
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = FileColdStore(f"{directory}/orders", owner={"query": "doctest"})
    ...     store.put(cold_rows([7, 8, 7], [b"a", b"b", b"c"]))
    ...     sorted(store.fetch(np.array([7])).rows.to_pylist())
    ...     store.close()
    [b'a', b'c']
    """

    def __init__(self, directory: str | Path, *, owner: Mapping[str, str | int], with_subcodes: bool = True) -> None:
        super().__init__(directory, pages=FilePages(directory), owner=owner, with_subcodes=with_subcodes)


class FilePages:
    """Keep the pages of each run in a file `<run>.pages`."""

    kind = "file"
    group_bytes = 2 << 20

    def __init__(self, directory: str | Path) -> None:
        self._directory = os.path.abspath(directory)  # noqa: PTH100 - Path.absolute() is slower
        self._descriptors: dict[int, int] = {}
        self._mappings: dict[int, tuple[mmap.mmap, int]] = {}
        self._sizes: dict[int, int] = {}
        self._spread_bytes: int | None = None

    def _path(self, run: int) -> str:
        return f"{self._directory}/{run}.pages"

    def write(self, run: int) -> _FileWriter:
        return _FileWriter(self._path(run), lambda size: self._sizes.__setitem__(run, size))

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
        files, range_begins, range_ends, places, late = np.empty((5, len(pages)), np.int64)
        windows = np.empty((len(pages) // LEAST_PAGES, WINDOW_WORDS), np.int64)
        may_map = may_map and _READS_WITHOUT_WAITING and _MAPS_WINDOWS
        descriptors, mappings, mapped_sizes, spreads = np.zeros((4, len(runs)), np.int64)
        counts = np.bincount(page_runs, minlength=len(runs))
        for at in np.flatnonzero(counts).tolist():
            descriptors[at] = self._open(runs[at])
            if may_map and counts[at] >= LEAST_PAGES:
                mappings[at], mapped_sizes[at] = self._mapped(runs[at])
                spreads[at] = self._spread(runs[at])
        wanted = (page_runs, begins, ends)
        dense = 0
        if mappings.any():
            dense = find_windows(*wanted, spreads, descriptors, mappings, mapped_sizes, windows)
        windows = windows[:dense]
        outputs = (files, range_begins, range_ends, places)
        ranges, size, mapped_bytes = plan_reads(*wanted, _GAP_BYTES, mappings, windows, *outputs)
        files, range_begins, range_ends = files[:ranges], range_begins[:ranges], range_ends[:ranges]
        content: npt.NDArray[np.uint8]
        content = reuse.owner if reuse is not None and len(reuse.owner) >= size else np.empty(size, np.uint8)
        address = int(content.ctypes.data)
        np.subtract(address - 1, places, out=places, where=places < 0)

        def act() -> int:
            if _READS_WITHOUT_WAITING:
                scratch = np.empty(2, np.int64)
                return int(read_ranges_cached(descriptors, files, range_begins, range_ends, address, scratch, late))
            return int(read_ranges(descriptors, files, range_begins, range_ends, address))

        failed = perform("read", self._path(runs[int(page_runs[0])]), act)
        if failed >= 0:
            begin, end, run = int(range_begins[failed]), int(range_ends[failed]), runs[int(files[failed])]
            read_bytes = len(os.pread(self._open(run), end - begin, begin))
            raise _missing(self._path(run), f"bytes {begin} to {end} could not be read (found {read_bytes})")
        return ReadPages(places, content, size + mapped_bytes, windows)

    def _open(self, run: int) -> int:
        if run not in self._descriptors:
            path = self._path(run)
            self._descriptors[run] = perform("open", path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return self._descriptors[run]

    def _mapped(self, run: int) -> tuple[int, int]:
        """Return address and size of a run's mapped file; it is present until the run is closed."""
        if run not in self._mappings:
            descriptor = self._open(run)

            def act() -> mmap.mmap:
                return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)

            mapping = perform("map", self._path(run), act)
            self._mappings[run] = mapping, int(np.frombuffer(mapping, np.uint8).ctypes.data)
        mapping, address = self._mappings[run]
        return address, len(mapping)

    def _spread(self, run: int) -> int:
        """Return how near the wanted pages of a mapped run must be for it to be looked at in windows (`measured_spread`)."""
        if self._spread_bytes is None:
            address, size = self._mapped(run)
            if size < WINDOW_BYTES:
                return _USUAL_SPREAD_BYTES
            self._spread_bytes = measured_spread(self._open(run), address, size)
        return self._spread_bytes

    def check(self, run: int, *, pages: int, size: int) -> None:  # noqa: ARG002 - a file does not count its pages
        file_bytes = file_size(self._path(run))
        if file_bytes != size:
            raise _missing(self._path(run), f"it has {file_bytes} bytes instead of {size}")
        self._sizes[run] = size

    def drop(self, run: int) -> None:
        self._close(run)
        self._sizes.pop(run, None)
        remove_file(self._path(run))

    def commit(self) -> None:
        # What was written is in the file already.
        pass

    def disk_bytes(self) -> int:
        return sum(self._sizes.values())

    def resident_bytes(self) -> int:
        return 0

    def close(self) -> None:
        for run in list(self._descriptors):
            self._close(run)

    def _close(self, run: int) -> None:
        self._mappings.pop(run, None)
        descriptor = self._descriptors.pop(run, None)
        if descriptor is not None:
            perform("close", self._path(run), lambda: os.close(descriptor))


class _FileWriter:
    """Write a file by whole windows: what is written at once lies together in the host's memory, and is mapped at once."""

    def __init__(self, path: str, note_size: Callable[[int], None]) -> None:
        self._path = path
        self._note_size = note_size
        self._size = 0
        self._waiting = np.empty(WINDOW_BYTES, np.uint8)
        self._count = 0
        self._file = LocalFile(path, 0o600)

    def append(self, content: npt.NDArray[np.uint8], ends: Int64s) -> None:
        left = content[: int(ends[-1])]
        self._size += len(left)
        while len(left):
            if not self._count and len(left) >= WINDOW_BYTES:
                taken = len(left) // WINDOW_BYTES * WINDOW_BYTES
                self._file.write(left[:taken])
            else:
                taken = min(len(left), WINDOW_BYTES - self._count)
                self._waiting[self._count : self._count + taken] = left[:taken]
                self._count += taken
                if self._count == WINDOW_BYTES:
                    self._write_waiting()
            left = left[taken:]

    def _write_waiting(self) -> None:
        waiting, self._count = self._waiting[: self._count], 0
        self._file.write(waiting)

    def finish(self) -> None:
        self._write_waiting()
        self._file.close()
        self._note_size(self._size)

    def discard(self) -> None:
        self._file.close(discard=True)
        remove_file(self._path)


def _missing(path: str, what: str) -> StateError:
    return StateError(
        f"{path} of a cold store is damaged: {what}. It is a cache: remove the store's directory, and it is rebuilt from "
        "the checkpoint.",
        code="COLD_STORE_DAMAGED",
        path=path,
    )
