"""A cold store of runs: what is put is sorted and written once, and small runs are merged into larger ones.

The law is that of `spill.cold_store`. A row is in exactly one run, so runs have no order among them and any of them can be
merged. A fetch looks into the index of all runs, which is in memory, in one pass, and reads the pages that hold something; a
run without a row of any code asked for costs no read.

Remembers in memory 4.5 bytes per row (with subcodes, rows of 56 bytes) and nothing else between calls; see `spill.run`.

Runs stay few: they are counted in levels of a factor of four in their living rows, and four of one level are merged with all
that are smaller, so N rows put n at a time lie in at most `3 log4(N / n) + 3` runs and are rewritten `log4(N / n)` times. A
run that has lost more than half of its rows is rewritten too, so the disk holds at most twice the living rows, and the
merged ones while they are merged. Merging takes memory for one chunk per run, whatever their size.

Crash safety. `store.json` names the owner, the epoch and the runs. Before the first change after a `commit` it is marked as
unclean, and `commit` writes it anew; both by renaming. So a store that was being changed when its process died is told from
one that is whole, and is refused. Nothing is synced: a store is also refused after the host was restarted.

Files: `store.json`, and those of the runs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from spill.pages import Pages
from spill.run import LyingRows, Run, RunWriter, Wanted, in_order
from spill.runs import Runs, gathered, merged
from zset_join.errors import OptionError, ResourceError, StateError
from zset_join.storage.local import list_directory, make_directories, read_bytes, write_atomic

__all__ = ["RunStore", "runs_to_merge"]

_FORMAT = 3
_MANIFEST = "store.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_FANOUT_BITS = 2
_SMALLEST_BITS = 10
_CHUNK_BYTES = 1 << 20
_INDEX_WINDOW = 8 << 20
_SURELY_PAGES = 1 << 19  # a code with so many bytes goes from one page to the next in some run
_MERGED_AT_ONCE = 2 << 20
_LEAST_CHUNK = 1 << 17


def runs_to_merge(live: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return the positions of the runs to merge into one; none when all is well.

    Args:
        live: per run, its living rows.
        rows: per run, the rows it was written with.

    >>> runs_to_merge([1000] * 3 + [90_000], [1000] * 3 + [90_000])
    []
    >>> runs_to_merge([1000] * 4 + [90_000], [1000] * 4 + [90_000])
    [0, 1, 2, 3]
    >>> runs_to_merge([400, 90_000], [1000, 90_000])
    [0]
    """
    levels = [max(0, (count >> _SMALLEST_BITS).bit_length() - 1) // _FANOUT_BITS for count in live]
    full = [level for level in set(levels) if levels.count(level) >= 1 << _FANOUT_BITS]
    if full:
        return [position for position, level in enumerate(levels) if level <= max(full)]
    return [position for position, count in enumerate(live) if 2 * count < rows[position]]


class RunStore:
    """Keep cold rows in runs.

    Args:
        directory: of this store alone; made when it is not there.
        pages: where the pages of the runs lie.
        owner: whose rows they are and what their bytes depend on: query, bucket, layout. Compared when the store is opened.
        with_subcodes: whether rows are also found by subcode; without, subcodes are not kept.

    Attributes:
        keep_index: whether what was looked at of the index stays in memory; else it leaves it on the way (`let_go`).
        index_window: bytes of the index that a fetch then looks at before it lets them go, about; a smaller index is let go
            by `let_go` only.

    Raises:
        StateError: the directory holds another owner's store, one of another version or boot, or one that was being changed
            when its process died.
    """

    def __init__(
        self, directory: str | Path, *, pages: Pages, owner: Mapping[str, str | int], with_subcodes: bool = True
    ) -> None:
        self._directory = Path(directory)
        self._pages = pages
        self._wide = with_subcodes
        self._stamp = {**_stamp(), "pages": pages.kind, "subcodes": with_subcodes, "owner": dict(owner)}
        self.keep_index = True
        self.index_window = _INDEX_WINDOW
        self._epoch = -1
        self._next_run = 1
        self._set_runs([])
        self._counts = {"fetches": 0, "pages_read": 0, "bytes_read": 0, "rows_fetched": 0, "rows_put": 0, "rows_merged": 0}
        self._clean = False
        self._written = b""
        make_directories(self._directory, durable=False)
        self._open()

    def _set_runs(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)
        self._index = Runs(self._runs, self._pages, wide=self._wide, place=str(self._directory))

    # ---------------------------------------------------------------- opening

    def _open(self) -> None:
        data = read_bytes(self._directory / _MANIFEST)
        if data is None:
            if list_directory(self._directory):
                raise self._refused("its directory holds files that no manifest names")
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
                f"{ {name: self._stamp[name] for name in differing} }. It is a cache: remove the directory, and it is built "
                "anew from the checkpoint.",
                code="COLD_STORE_FOREIGN",
                path=str(self._directory),
                differing=differing,
            )
        if not manifest["clean"]:
            raise self._refused("it was being changed when its process died")
        self._epoch, self._next_run = manifest["epoch"], manifest["next_run"]
        try:
            for number, rows, live in manifest["runs"]:
                run = Run(self._directory, number, self._pages, rows=rows, live=live)
                self._set_runs([*self._runs, run])
                run.check()
        except BaseException:
            self._close_runs()
            raise
        self._written, self._clean = data, True

    def _refused(self, why: str) -> StateError:
        return StateError(
            f"the cold store in {self._directory} cannot be used: {why}. It is a cache: remove the directory, and it is built "
            "anew from the checkpoint.",
            code="COLD_STORE_UNCLEAN",
            path=str(self._directory),
        )

    def is_current(self) -> bool:
        """Say whether the store on the disk is the one this process left there; another process may have changed it."""
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

    def begin_change(self) -> None:
        """Mark the store as being changed, where it is not yet; changing it cannot fail on that afterwards."""
        try:
            if self._clean:
                self._write_manifest(clean=False)
        except OSError as error:
            raise self._unwritable(error) from error

    # ---------------------------------------------------------------- reading

    @property
    def epoch(self) -> int:
        """Return the epoch of the last `commit`; -1 when there was none."""
        return self._epoch

    def fetch(self, codes: Int64s, subcodes: Int64s | None = None) -> ColdRows:
        """Return all rows of some codes, or of some pairs of code and subcode.

        Args:
            codes: any, in any order.
            subcodes: one per code; only in a store with subcodes.
        """
        return _joined(list(self.fetch_parts(codes, subcodes)))

    def fetch_parts(self, codes: Int64s, subcodes: Int64s | None = None) -> Iterator[ColdRows]:
        """Yield what `fetch` returns as it is read, the rows of some MB of pages at a time.

        Rows that were yielded may be removed before the next ones are asked for, and others may be put or restored.
        """
        if subcodes is not None and not self._wide:
            raise OptionError(
                f"the cold store in {self._directory} was made without subcodes and was asked for some; make it with "
                "with_subcodes=True.",
                code="COLD_SUBCODES",
                path=str(self._directory),
            )
        self._counts["fetches"] += 1
        wanted, index = Wanted(codes, subcodes), self._index
        keep = self.keep_index or index.index_bytes() <= self.index_window
        parts = 1 if keep else 1 + index.index_bytes() // self.index_window
        return chain.from_iterable(self._find(part, index, keep_index=keep) for part in wanted.parts(parts))

    def _find(self, wanted: Wanted, index: Runs, *, keep_index: bool, **options: int) -> Iterator[ColdRows]:
        with self._reading():
            for rows, pages, read_bytes_count in index.find(wanted, keep_index=keep_index, **options):
                self._counts["pages_read"] += pages
                self._counts["bytes_read"] += read_bytes_count
                self._counts["rows_fetched"] += len(rows)
                yield rows

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"the cold store in {self._directory} could not be read ({error}). Look after that disk, and start again: "
                "local state is a cache and is built anew from the checkpoint.",
                code="COLD_STORE_IO",
                path=str(self._directory),
            ) from error

    def stream(self, code: int, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[ColdRows]:
        """Yield all rows of one code in chunks of about `chunk_bytes`."""
        wanted = Wanted(np.array([code], np.int64), None)
        yield from (
            rows for rows in self._find(wanted, self._index, keep_index=self.keep_index, group_bytes=chunk_bytes) if len(rows)
        )

    def scan(self, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[ColdRows]:
        """Yield all rows, in chunks of about `chunk_bytes`."""
        with self._reading():
            for rows, places in self._index.scan(chunk_bytes, keep_index=self.keep_index):
                if len(rows):
                    yield gathered(rows, places)

    def bytes_of(self, codes: Int64s) -> Int64s:
        """Return for each code the bytes that would be read for it, 0 when it surely has no row."""
        ascending, inverse = np.unique(np.ascontiguousarray(codes, np.int64), return_inverse=True)
        sizes = np.zeros(len(ascending), np.int64)
        self._index.measure(ascending, sizes)
        found: Int64s = sizes[inverse]
        return found

    def long_among(self, codes: Int64s, least_bytes: int) -> Int64s:
        """Return those codes whose rows take at least so many bytes, ascending. Cost: next to nothing where few codes do."""
        if least_bytes > _SURELY_PAGES:
            spread = [found for run in self._runs if len(found := run.long_codes())]
            codes = codes[np.isin(codes, np.concatenate(spread))] if spread else codes[:0]
        ascending = np.unique(np.ascontiguousarray(codes, np.int64))
        long: Int64s = ascending[self.bytes_of(ascending) >= max(1, least_bytes)]
        return long

    # ---------------------------------------------------------------- changing

    def put(self, rows: ColdRows) -> None:
        """Add rows: all of them, or none and an error."""
        if len(rows) == 0:
            return
        with self._written_run() as writer:
            writer.append(LyingRows.of(rows, self.in_order(rows.codes, rows.subcodes)))
        self._counts["rows_put"] += len(rows)

    def put_parts(self, parts: Iterable[ColdRows]) -> None:
        """Add rows, at least one, that come part by part in their order (`in_order`): all of them, or none and an error."""
        with self._written_run() as writer:
            for rows in parts:
                writer.append(LyingRows.of(rows))
        self._counts["rows_put"] += writer.rows

    def in_order(self, codes: Int64s, subcodes: Int64s) -> Int64s:
        """Return the positions of rows in the order in which they lie here."""
        return in_order(codes, subcodes if self._wide else None)

    @contextmanager
    def _written_run(self) -> Iterator[RunWriter]:
        """Let a run be written; it becomes part of the store at the end, or leaves nothing behind."""
        writer: RunWriter | None = None
        try:
            self.begin_change()
            writer = RunWriter(self._directory, self._next_run, self._pages, wide=self._wide)
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

    def _discard(self, writer: RunWriter, failure: BaseException) -> None:
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

    def remove(self, places: Int64s) -> None:
        """Take rows out by their places. Cost: one store to memory each."""
        if len(places) == 0:
            return
        self.begin_change()
        if not self._index.remove(places):
            raise self._misplaced("removed", len(places))

    def restore(self, places: Int64s) -> npt.NDArray[np.bool_]:
        """Put removed rows back where they were; say which of them still had their place. Cost: as `remove`."""
        self.begin_change()
        restored = self._index.restore(places)
        if restored is None:
            raise self._misplaced("restored", len(places))
        return restored

    def replace(self, parts: Iterable[ColdRows]) -> None:
        """Replace all rows by others: all of them, or none and an error. Cost: as `put`; meanwhile both are on the disk."""
        before = self._runs
        try:
            for part in parts:
                self.put(part)
        except BaseException:
            self._drop([run for run in self._runs if run not in before])
            raise
        self._drop(before)

    def _misplaced(self, what: str, places: int) -> StateError:
        return StateError(
            f"rows of the cold store in {self._directory} were to be {what} that are not there; a row is removed once, and "
            "restored once, and its place holds until its run is merged. Fetch them again.",
            code="COLD_PLACES",
            path=str(self._directory),
            places=places,
        )

    def remove_codes(self, codes: Int64s) -> int:
        """Take all rows of some codes out; return how many there were."""
        removed = 0
        for found in self._find(Wanted(codes, None), self._index, keep_index=self.keep_index):
            self.remove(found.places)
            removed += len(found)
        return removed

    def tidy(self) -> None:
        """Merge runs where there are many, and rewrite those that have lost most of their rows."""
        while True:
            live, rows = [run.live for run in self._runs], [run.rows for run in self._runs]
            positions = runs_to_merge(live, rows)
            if not positions:
                return
            self._merge(positions)

    def _merge(self, positions: Sequence[int]) -> None:
        merging = [self._runs[position] for position in positions]
        expected = sum(run.live for run in merging)
        if expected:
            with self._written_run() as writer:
                chunk_bytes = max(_LEAST_CHUNK, _MERGED_AT_ONCE // len(merging))
                for rows in merged([self._one(run).scan(chunk_bytes, keep_index=False) for run in merging]):
                    writer.append(rows)
                if writer.rows != expected:
                    raise self._refused(f"merging its runs found {writer.rows} rows instead of {expected}")
            self._counts["rows_merged"] += expected
        self._drop(merging)

    def _one(self, run: Run) -> Runs:
        return Runs([run], self._pages, wide=self._wide, place=str(self._directory))

    def _drop(self, runs: Sequence[Run]) -> None:
        self.begin_change()
        self._set_runs([run for run in self._runs if run not in runs])
        try:
            for run in runs:
                run.drop()
        except OSError as error:
            raise self._unwritable(error) from error

    def commit(self, epoch: int) -> None:
        """Declare the store whole, at the end of `epoch`."""
        try:
            self._pages.commit()
            self._epoch = epoch
            self._write_manifest(clean=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def clear(self) -> None:
        """Forget all rows."""
        self._drop(list(self._runs))

    # ---------------------------------------------------------------- numbers

    def row_count(self) -> int:
        """Return how many rows there are."""
        return sum(run.live for run in self._runs)

    def disk_bytes(self) -> int:
        """Return the bytes of pages and index on disk."""
        return self._pages.disk_bytes() + sum(run.file_bytes() for run in self._runs)

    def let_go(self) -> None:
        """Let the index leave the memory of this process; it comes back where it is looked at, from the host's page cache."""
        for run in self._runs:
            run.let_go()

    def resident_bytes(self) -> int:
        """Return the bytes of the index, and what the pages keep in memory."""
        return self._index.index_bytes() + self._pages.resident_bytes()

    def staying_bytes(self) -> int:
        """Return what of the index stays in memory when it was let go."""
        return sum(run.staying_bytes() for run in self._runs)

    def statistics(self) -> dict[str, int]:
        """Return counts: rows, runs and bytes now; fetches, pages, bytes and rows since the store was opened."""
        return {
            "rows": self.row_count(),
            "runs": len(self._runs),
            "disk_bytes": self.disk_bytes(),
            "resident_bytes": self.resident_bytes(),
            **self._counts,
        }

    def close(self) -> None:
        """Let go of files and memory."""
        self._close_runs()
        self._pages.close()

    def _close_runs(self) -> None:
        closing = self._runs
        self._set_runs([])
        for run in closing:
            run.close()


def _stamp() -> dict[str, Any]:
    boot = read_bytes(_BOOT_ID)
    try:
        library = version("zset-join")
    except PackageNotFoundError:
        library = "source"  # run from a source tree
    return {"format": _FORMAT, "library": library, "boot": "" if boot is None else boot.decode().strip()}


def _joined(parts: Sequence[ColdRows]) -> ColdRows:
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, np.int64)
    return ColdRows(
        np.concatenate([empty, *(part.codes for part in parts)]),
        np.concatenate([empty, *(part.subcodes for part in parts)]),
        pa.concat_arrays([pa.array([], pa.large_binary()), *(part.rows for part in parts)]),
        np.concatenate([empty, *(part.places for part in parts)]),
    )
