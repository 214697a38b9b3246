"""A cold store of runs: what is put is sorted and written once, and small runs are merged into larger ones.

The law is that of `spill.cold_store`. A row is in exactly one run, so runs have no order among them and any of them can be
merged. A fetch looks into the index of all runs, which is in memory, in one pass, and reads the pages that hold something; a
run without a row of any code requested costs no read.

Remembers in memory 4.5 bytes per row (with subcodes, rows of 56 bytes) and nothing else between calls; see `spill.run`.
Merging takes memory for one chunk per run, whatever their size. How many runs there are, and what a crash leaves:
`spill.run_set`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from spill.cold_store import ColdRows, Int64s, Pages, Revised, each_once
from spill.run import LEAST_PART, LyingRows, Run, Runs, RunWriter, Wanted, gathered, in_order, merged
from spill.run_kernels import ROW_MASK
from spill.run_set import RunSet
from zset_join.core.errors import OptionError, StateError

__all__ = ["RunStore"]

_CHUNK_BYTES = 1 << 20
_SPREAD_BYTES = 1 << 17  # a code with so many bytes goes from one page to the next in some run, if these are few
_MERGED_AT_ONCE = 2 << 20
_LEAST_CHUNK = 1 << 17
_PART_OF_LARGE = 16  # of all rows: a run that has as many is worth a look of its own
_ALL_REMOVED = 0xFF


@dataclass(frozen=True, slots=True)
class _Revision:
    """Rows of a run that another one, hidden until then, is to replace."""

    old: Run
    new: Run  # hidden until then
    replaced: list[tuple[int, npt.NDArray[np.uint8]]]  # a byte of `Run.removed`, and bits to be set there and behind


class RunStore(RunSet[Run]):
    """Keep cold rows in runs."""

    def __init__(
        self, directory: str | Path, *, pages: Pages, owner: Mapping[str, str | int], with_subcodes: bool = True
    ) -> None:
        self._wide = with_subcodes
        self._revisions: list[_Revision] = []
        self._counts = {"fetches": 0, "pages_read": 0, "bytes_read": 0, "rows_fetched": 0, "rows_put": 0}
        super().__init__(directory, pages=pages, stamp={"subcodes": with_subcodes, "owner": dict(owner)})

    @override
    def _set_runs(self, runs: Sequence[Run]) -> None:
        super()._set_runs(runs)
        self._looked_into: dict[tuple[int, int], Runs] = {}

    @property
    def _index(self) -> Runs:
        """Return all runs, to look into; made when somebody looks."""
        return self._some(0, len(self._runs))

    def _some(self, begin: int, end: int) -> Runs:
        if (begin, end) not in self._looked_into:
            runs = self._runs[begin:end]
            self._looked_into[begin, end] = Runs(runs, self._pages, wide=self._wide, place=str(self._directory))
        return self._looked_into[begin, end]

    @override
    def _opened_run(self, number: int, rows: int, live: int) -> Run:
        return Run(self._directory, number, self._pages, rows=rows, live=live)

    @override
    def _new_writer(self, number: int) -> RunWriter:
        return RunWriter(self._directory, number, self._pages, wide=self._wide)

    # ---------------------------------------------------------------- reading

    def fetch(self, codes: Int64s, subcodes: Int64s | None = None) -> ColdRows:
        return _joined(list(self.fetch_parts(codes, subcodes)))

    def fetch_parts(self, codes: Int64s, subcodes: Int64s | None = None) -> Iterator[ColdRows]:
        """Yield the result of `fetch` while it is read, the rows of some MB of pages at a time.

        Rows that were yielded may be removed before the next ones are requested, and others may be put or restored.
        """
        if subcodes is not None and not self._wide:
            raise OptionError(
                f"the cold store in {self._directory} was made without subcodes, and subcodes are needed; make it with "
                "with_subcodes=True.",
                code="COLD_SUBCODES",
                path=str(self._directory),
            )
        self._counts["fetches"] += 1
        return self._find_in_portions(Wanted(codes, subcodes))

    def _find_in_portions(self, wanted: Wanted, **options: int) -> Iterator[ColdRows]:
        """Find rows in the runs that are present now, with no more of the index in memory than may be."""
        keep, bounds = self._keeps_index, self._portions(self._runs)
        portions = [(self._some(begin, end), parts) for begin, end, parts in bounds]
        return chain.from_iterable(
            self._find(part, runs, keep_index=keep, **options) for runs, count in portions for part in wanted.parts(count)
        )

    def _find_in(self, run: Run, wanted: Wanted, **options: int) -> Iterator[ColdRows]:
        """Find rows in one run, in their order."""
        keep, index = self._keeps_index, self._one(run)
        parts = wanted.parts(self._portions([run])[0][2])
        return chain.from_iterable(self._find(part, index, keep_index=keep, **options) for part in parts)

    def fetch_some(self, wanted: Callable[[], Int64s]) -> Iterator[ColdRows]:
        """Yield of each code that has rows at least one, from the large runs one after the other and then from all small ones.

        As `fetch_parts`. Cost: where all codes have rows in several runs, of each code little more than a page.
        """
        self._counts["fetches"] += 1
        keep, least = self._keeps_index, self.row_count() // _PART_OF_LARGE
        runs = sorted((run for run in self._runs if run.live), key=lambda run: -run.live)
        large = sum(run.live >= least for run in runs)
        for group in (*([run] for run in runs[:large]), runs[large:]):
            for begin, end, count in self._portions(group):
                codes, index = wanted(), Runs(group[begin:end], self._pages, wide=self._wide, place=str(self._directory))
                for part in Wanted(codes, None).parts(count):
                    yield from self._find(part, index, keep_index=keep)

    def _find(self, wanted: Wanted, index: Runs, *, keep_index: bool, **options: int) -> Iterator[ColdRows]:
        with self._reading():
            for rows, pages, read_bytes_count in index.find(wanted, keep_index=keep_index, **options):
                self._counts["pages_read"] += pages
                self._counts["bytes_read"] += read_bytes_count
                self._counts["rows_fetched"] += len(rows)
                yield rows

    def stream(self, code: int, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[ColdRows]:
        wanted = Wanted(np.array([code], np.int64), None)
        yield from (rows for rows in self._find_in_portions(wanted, group_bytes=chunk_bytes) if len(rows))

    def scan(self, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[ColdRows]:
        with self._reading():
            for rows, places in self._index.scan(chunk_bytes, keep_index=self.keep_index):
                if len(rows):
                    yield gathered(rows, places)

    def bytes_of(self, codes: Int64s) -> Int64s:
        ascending, inverse = np.unique(np.ascontiguousarray(codes, np.int64), return_inverse=True)
        code_bytes: Int64s = self._measured(ascending)[inverse]
        return code_bytes

    def long_among(self, codes: Int64s, least_bytes: int) -> tuple[Int64s, Int64s]:
        """Return those codes whose rows take at least so many bytes, ascending, and these bytes.

        Cost: next to nothing where few codes take more than 32 KB; codes that take no more in any run may then be omitted.
        """
        if least_bytes >= _SPREAD_BYTES:
            spread = [long_codes for run in self._runs if len(long_codes := run.long_codes(keep_index=self.keep_index))]
            codes = codes[np.isin(codes, np.concatenate(spread))] if spread else codes[:0]
        ascending = each_once(codes)
        sizes = self._measured(ascending)
        long = sizes >= max(1, least_bytes)
        return ascending[long], sizes[long]

    def _measured(self, ascending: Int64s) -> Int64s:
        """Return the bytes that may have to be read for each of some ascending codes."""
        sizes = np.zeros(len(ascending), np.int64)
        for begin, end, count in self._portions(self._runs):
            runs, size = self._some(begin, end), max(LEAST_PART, -(-len(ascending) // count))
            for first in range(0, len(ascending), size):
                runs.measure(ascending[first : first + size], sizes[first : first + size], keep_index=self._keeps_index)
        return sizes

    # ---------------------------------------------------------------- changing

    def put(self, rows: ColdRows) -> None:
        if len(rows) == 0:
            return
        with self._written_run() as writer:
            writer.append(LyingRows.of(rows, self.in_order(rows.codes, rows.subcodes)))
        self._counts["rows_put"] += len(rows)

    def put_parts(self, parts: Iterable[ColdRows]) -> None:
        """Add rows, at least one, that arrive part by part in their order (`in_order`): all of them, or none and an error."""
        with self._written_run() as writer:
            for rows in parts:
                writer.append(LyingRows.of(rows))
        self._counts["rows_put"] += writer.rows

    def in_order(self, codes: Int64s, subcodes: Int64s) -> Int64s:
        """Return the positions of rows in the order in which they lie here."""
        return in_order(codes, subcodes if self._wide else None)

    def remove(self, places: Int64s) -> None:
        # Cost: one store to memory each.
        if len(places) == 0:
            return
        self.begin_change()
        if not self._index.remove(places):
            raise self._misplaced("removed", len(places))

    def restore(self, places: Int64s) -> npt.NDArray[np.bool_]:
        self.begin_change()
        restored = self._index.restore(places)
        if restored is None:
            raise self._misplaced("restored", len(places))
        return restored

    def _misplaced(self, what: str, places: int) -> StateError:
        return StateError(
            f"rows of the cold store in {self._directory} were to be {what} that are not there; a row is removed once, and "
            "restored once, and its place holds until its run is merged. Fetch them again.",
            code="COLD_PLACES",
            path=str(self._directory),
            places=places,
        )

    def revise(self, codes: Int64s, revised: Revised, chunk_bytes: int = _CHUNK_BYTES) -> None:
        # Until `exchange` the store holds them as they are.
        wanted = Wanted(codes, None)
        for old in [run for run in self._runs if run.live]:
            old_rows = self._find_in(old, wanted, group_bytes=chunk_bytes)
            parts = (rows for part in old_rows if len(part) and len(rows := revised(part)))
            first = next(parts, None)
            if first is None:
                continue
            replaced: list[tuple[int, npt.NDArray[np.uint8]]] = []
            with self._written_run() as writer:
                for rows in chain([first], parts):
                    writer.append(LyingRows.of(rows))
                    replaced.append(_bits(rows.places & ROW_MASK))
            new = self._runs[-1]
            new.removed[:] = _ALL_REMOVED
            new.live = 0
            self._revisions.append(_Revision(old, new, replaced))

    def exchange(self) -> None:
        revisions, self._revisions = self._revisions, []
        for revision in revisions:
            for begin, bits in revision.replaced:
                revision.old.removed[begin : begin + len(bits)] |= bits
            revision.new.removed[:] = 0
            revision.new.live = revision.new.rows
            revision.old.live -= revision.new.rows

    def forget_revised(self) -> None:
        revisions, self._revisions = self._revisions, []
        if revisions:
            self._drop([revision.new for revision in revisions])

    @override
    def clear(self) -> None:
        self._revisions = []
        super().clear()

    @override
    def _merged(self, runs: Sequence[Run]) -> None:
        expected = sum(run.live for run in runs)
        with self._written_run() as writer:
            chunk_bytes = max(_LEAST_CHUNK, _MERGED_AT_ONCE // len(runs))
            for rows in merged([self._one(run).scan(chunk_bytes, keep_index=self.keep_index) for run in runs]):
                writer.append(rows)
            if writer.rows != expected:
                raise self._refused(f"merging its runs found {writer.rows} rows instead of {expected}")

    def _one(self, run: Run) -> Runs:
        return Runs([run], self._pages, wide=self._wide, place=str(self._directory))

    # ---------------------------------------------------------------- numbers

    def statistics(self) -> dict[str, int]:
        return {
            "rows": self.row_count(),
            "runs": len(self._runs),
            "disk_bytes": self.disk_bytes(),
            "resident_bytes": self.resident_bytes(),
            **self._counts,
            "rows_merged": self._rows_merged,
        }


def _bits(rows: Int64s) -> tuple[int, npt.NDArray[np.uint8]]:
    """Return rows of a run as bits, eight to a byte, and the place of the first byte."""
    begin = int(rows.min()) >> 3
    flags = np.zeros(((int(rows.max()) >> 3) - begin + 1) << 3, np.uint8)
    flags[rows - (begin << 3)] = 1
    return begin, np.packbits(flags, bitorder="little")


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
