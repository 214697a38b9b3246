"""Runs in a directory, whatever they hold: how they are written, merged and dropped, and how a process finds them again.

The law: the runs are those of the last `commit`, and what was written, merged and dropped since. Whatever fails leaves the set
as it was, or as a whole change left it.

Runs stay few: they are counted in levels of a factor of eight in their living rows, and eight of one level are merged with all
that are smaller, so N rows put n at a time are in at most `7 log8(N / n) + 7` runs and are rewritten `log8(N / n)` times. A
run that has lost more than half of its rows is rewritten too, so the disk holds at most twice the living rows, and the
merged ones while they are merged.

Crash safety. `store.json` names the owner, the epoch and the runs. Before the first change after a `commit` it is marked as
unclean, and `commit` writes it again; both by renaming. So a set that was being changed when its process died is distinguished
from one that is whole, and is refused. Nothing is synced: a set is also refused after the host was restarted.

Files: `store.json`, and those of the runs.
"""

from __future__ import annotations

import functools
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from spill.cold_store import Pages
from zset_join.core.errors import ResourceError, StateError
from zset_join.storage.local import list_directory, make_directories, read_bytes, write_atomic

__all__ = ["RunSet", "StoredRun", "StoredRunWriter", "runs_to_merge"]

_FORMAT = 4
_MANIFEST = "store.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SMALLEST_BITS = 10
_INDEX_WINDOW = 8 << 20


def runs_to_merge(live: Sequence[int], rows: Sequence[int], fanout: int) -> list[int]:
    """Return the positions of the runs to merge into one; none when all is well.

    >>> runs_to_merge([1000] * 3 + [90_000], [1000] * 3 + [90_000], 4)
    []
    >>> runs_to_merge([1000] * 4 + [90_000], [1000] * 4 + [90_000], 4)
    [0, 1, 2, 3]
    >>> runs_to_merge([400, 90_000], [1000, 90_000], 4)
    [0]
    """
    bits = fanout.bit_length() - 1
    levels = [max(0, (count >> _SMALLEST_BITS).bit_length() - 1) // bits for count in live]
    full = [level for level in set(levels) if levels.count(level) >= fanout]
    if full:
        return [position for position, level in enumerate(levels) if level <= max(full)]
    return [position for position, count in enumerate(live) if 2 * count < rows[position]]


class StoredRun(Protocol):
    """One run: written once, with `rows` rows of which `live` are still there."""

    number: int
    rows: int
    live: int

    def check(self) -> None:
        """Raise StateError unless it is all there."""

    def release(self) -> None:
        """Release the mapped index from the memory of this process."""

    def index_bytes(self) -> int:
        """Return the bytes of its index in memory."""

    def staying_bytes(self) -> int:
        """Return the bytes that `release` leaves in memory."""

    def file_bytes(self) -> int:
        """Return the bytes of its index on disk."""

    def drop(self) -> None:
        """Remove it with all its files."""

    def close(self) -> None:
        """Release files and memory."""


R = TypeVar("R", bound=StoredRun)
R_co = TypeVar("R_co", bound=StoredRun, covariant=True)


class StoredRunWriter(Protocol[R_co]):
    """Write one run."""

    def finish(self) -> R_co:
        """Return the run."""

    def discard(self) -> None:
        """Leave nothing behind."""


class RunSet(ABC, Generic[R]):
    """Keep runs.

    Attributes:
        keep_index: whether what was looked at of the index stays in memory; else it leaves it on the way (`release`).
        index_window: bytes of the index that a look-up then looks at before it releases them, about: some runs, or a part of
            one. A smaller index is freed by `release` only.
        fanout: of the levels; a power of two. With 8 instead of 4, an epoch of 10,000 changes with uniform keys takes a tenth
            less, and one of 100,000 a twenty-fifth more: rows are rewritten less often, and looked for in more runs.
    """

    fanout = 8

    def __init__(self, directory: str | Path, *, pages: Pages, stamp: Mapping[str, Any]) -> None:
        self._directory = Path(directory)
        self._pages = pages
        self._stamp = {**_stamp(), "pages": pages.kind, **stamp}
        self.keep_index = True
        self.index_window = _INDEX_WINDOW
        self._epoch = -1
        self._next_run = 1
        self._clean = False
        self._written = b""
        self._rows_merged = 0
        self._set_runs([])
        make_directories(self._directory, durable=False)
        self._open()

    # ---------------------------------------------------------------- what runs are

    @abstractmethod
    def _opened_run(self, number: int, rows: int, live: int) -> R:
        """Open a run that is present."""

    @abstractmethod
    def _new_writer(self, number: int) -> StoredRunWriter[R]:
        """Begin a run."""

    @abstractmethod
    def _merged(self, runs: Sequence[R]) -> None:
        """Write one run that holds what some runs hold."""

    def _set_runs(self, runs: Sequence[R]) -> None:
        """Take over other runs."""
        self._runs = list(runs)
        self._index_bytes = sum(run.index_bytes() for run in runs)

    # ---------------------------------------------------------------- opening

    def _open(self) -> None:
        data = read_bytes(self._directory / _MANIFEST)
        if data is None:
            if list_directory(self._directory):
                raise self._refused("its directory has files that no manifest names")
            self._write_manifest(clean=True)
            return
        try:
            manifest: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise self._refused("its manifest cannot be read") from error
        differing = sorted(name for name, value in self._stamp.items() if manifest.get(name) != value)
        if differing:
            raise StateError(
                f"the cold store in {self._directory} was made for something else: it has "
                f"{ {name: manifest.get(name) for name in differing} }, expected "
                f"{ {name: self._stamp[name] for name in differing} }. It is a cache: remove the directory, and it is "
                "rebuilt from the checkpoint.",
                code="COLD_STORE_FOREIGN",
                path=str(self._directory),
                differing=differing,
            )
        if not manifest["clean"]:
            raise self._refused("it was being changed when its process died")
        self._epoch, self._next_run = manifest["epoch"], manifest["next_run"]
        try:
            for number, rows, live in manifest["runs"]:
                run = self._opened_run(number, rows, live)
                self._set_runs([*self._runs, run])
                run.check()
        except BaseException:
            self._close_runs()
            raise
        self._written, self._clean = data, True

    def _refused(self, why: str) -> StateError:
        return StateError(
            f"the cold store in {self._directory} cannot be used: {why}. It is a cache: remove the directory, and it is "
            "rebuilt from the checkpoint.",
            code="COLD_STORE_UNCLEAN",
            path=str(self._directory),
        )

    def is_current(self) -> bool:
        """Return whether the store on the disk is the one this process left there; another process may have changed it."""
        with self._reading():
            return read_bytes(self._directory / _MANIFEST) == self._written

    def _write_manifest(self, *, clean: bool) -> None:
        manifest = {
            **self._stamp,
            "written": uuid.uuid4().hex,  # no two manifests are equal
            "clean": clean,
            "epoch": self._epoch,
            "next_run": self._next_run,
            "runs": [[run.number, run.rows, run.live] for run in self._runs],
        }
        content = json.dumps(manifest).encode()
        write_atomic(self._directory / _MANIFEST, content, durable=False)
        self._written, self._clean = content, clean

    @property
    def epoch(self) -> int:
        return self._epoch

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"the cold store in {self._directory} could not be read ({error}). Look after that disk, and start again: "
                "local state is a cache and is rebuilt from the checkpoint.",
                code="COLD_STORE_IO",
                path=str(self._directory),
            ) from error

    def _portions(self, runs: Sequence[R]) -> list[tuple[int, int, int]]:
        """Return which runs to look into together, from one to before another, and in how many parts of what is looked for.

        The index of one portion at a time is in memory, where not all of it may be (`_keeps_index`).
        """
        if self._keeps_index:
            return [(0, len(runs), 1)]
        window, portions, begin, size = self.index_window, [], 0, 0
        for at, run in enumerate(runs):
            if begin < at and size + run.index_bytes() > window:
                portions.append((begin, at, 1 + size // window))
                begin, size = at, 0
            size += run.index_bytes()
        return [*portions, (begin, len(runs), 1 + size // window)]

    @property
    def _keeps_index(self) -> bool:
        return self.keep_index or self._index_bytes <= self.index_window

    # ---------------------------------------------------------------- changing

    def begin_change(self) -> None:
        """Mark the store as being changed, where it is not yet; changing it cannot fail on that afterwards."""
        try:
            if self._clean:
                self._write_manifest(clean=False)
        except OSError as error:
            raise self._unwritable(error) from error

    @contextmanager
    def _written_run(self) -> Iterator[Any]:
        """Let a run be written; it becomes part of the store at the end, or leaves nothing behind."""
        writer: StoredRunWriter[R] | None = None
        try:
            self.begin_change()
            writer = self._new_writer(self._next_run)
            self._next_run += 1
            yield writer
            run = writer.finish()
        except BaseException as error:
            if writer is not None:
                self._discard(writer, error)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self._set_runs([*self._runs, run])

    def _discard(self, writer: StoredRunWriter[R], failure: BaseException) -> None:
        try:
            writer.discard()
        except (OSError, ResourceError) as error:
            # The failure itself is what the caller must see; what is left behind goes when the store is wiped.
            failure.add_note(f"removing the unfinished run: {error}")

    def _unwritable(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"the cold store in {self._directory} could not be written ({error}); it takes {self.disk_bytes()} bytes there. "
            "Make room on that disk, let local state lie on a larger one, or raise the memory budget.",
            code="COLD_STORE_IO",
            path=str(self._directory),
            disk_bytes=self.disk_bytes(),
        )

    def tidy(self) -> None:
        while True:
            live, rows = [run.live for run in self._runs], [run.rows for run in self._runs]
            positions = runs_to_merge(live, rows, self.fanout)
            if not positions:
                return
            merging = [self._runs[position] for position in positions]
            expected = sum(live[position] for position in positions)
            if expected:
                self._merged(merging)
                self._rows_merged += expected
            self._drop(merging)

    def _drop(self, runs: Sequence[R]) -> None:
        self.begin_change()
        self._set_runs([run for run in self._runs if run not in runs])
        try:
            for run in runs:
                run.drop()
        except OSError as error:
            raise self._unwritable(error) from error

    def commit(self, epoch: int) -> None:
        try:
            self._pages.commit()
            self._epoch = epoch
            self._write_manifest(clean=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def clear(self) -> None:
        self._drop(list(self._runs))

    # ---------------------------------------------------------------- numbers

    def row_count(self) -> int:
        return sum(run.live for run in self._runs)

    def disk_bytes(self) -> int:
        return self._pages.disk_bytes() + sum(run.file_bytes() for run in self._runs)

    def release(self) -> None:
        """Let the index leave the memory of this process; it comes back where it is looked at, from the host's page cache."""
        for run in self._runs:
            run.release()

    def resident_bytes(self) -> int:
        """Return the bytes of the index, and what the pages keep in memory."""
        return self._index_bytes + self._pages.resident_bytes()

    def staying_bytes(self) -> int:
        """Return the bytes of the index that stay in memory after `release`."""
        return sum(run.staying_bytes() for run in self._runs)

    def lingering_bytes(self) -> int:
        """Return the further bytes in memory of a small index, kept from a look-up to `release`."""
        return self._index_bytes - self.staying_bytes() if self._keeps_index and not self.keep_index else 0

    def close(self) -> None:
        self._close_runs()
        self._pages.close()

    def _close_runs(self) -> None:
        closing = self._runs
        self._set_runs([])
        for run in closing:
            run.close()


def _stamp() -> dict[str, Any]:
    boot = read_bytes(_BOOT_ID)
    return {"format": _FORMAT, "library": _library(), "boot": "" if boot is None else boot.decode().strip()}


@functools.cache
def _library() -> str:
    """Return the version of the library; to find it takes longer than to make an empty set of runs."""
    try:
        return version("zset-join")
    except PackageNotFoundError:
        return "source"  # run from a source tree
