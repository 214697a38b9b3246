"""Rows of a few tables on disk, found by the hash of the key that all tables begin with.

A group of an aggregate is one row of a table of groups and any number of rows in tables of values. Together they are one
unit: they are under one code, and the subcode decides which table a row is of.

The law: what `find` returns and `take` removes is exactly what `store` was given, bit by bit, keys included. A code is a hash
and may be that of another key as well: a reader that finds strangers takes them into memory, where they do no harm.

Remembers on disk the rows; in memory 4.5 bytes per row on disk.

The rows are a cache. Without a directory they go with their process; in one they are at the epoch of the last `commit`, and
opening them compares it with that of the groups in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import ColdRows, Int64s
from spill.cold_stores import ColdStores, closing_on_error
from spill.opening import open_stores
from spill.residency import NEVER, ResidencyPolicy, Scores
from spill.row_bytes import pack_rows, unpack_rows
from spill.run_kernels import seen_before, shift_of
from zset_join.core.options import HotBudget
from zset_join.state.rows.directories import PrivateDirectory
from zset_join.zset.row_layout import RowLayout

__all__ = ["BusyGroups", "ColdTables", "FoundRows"]

_SLACK = 0.3  # of the budget is freed at a time


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that were found on disk, by table; `take` makes room for them there."""

    rows: tuple[pa.RecordBatch, ...]
    places: Int64s


class ColdTables:
    def __init__(
        self,
        relation: str,
        schemas: Sequence[pa.Schema],
        *,
        directory: str | None = None,
        layout: int = 0,
        budget: HotBudget,
    ) -> None:
        self._schemas = tuple(schemas)
        self._layouts = [RowLayout(schema) for schema in self._schemas]
        self._variables = [layout.variable_columns() for layout in self._layouts]
        self._plans = [layout.gather_plan(range(len(layout.schema))) for layout in self._layouts]
        private = None
        if directory is not None:
            place = Path(directory) / "cold"
        else:
            private = PrivateDirectory()
            place = private.path
        opened: list[ColdStores] = []
        self._finalizer = weakref.finalize(self, _release, opened, private)
        owner: dict[str, str | int] = {"relation": relation, "layout": layout}
        with closing_on_error(self._finalizer):
            self._stores = open_stores(budget.cold_store, place, max_hot_bytes=budget.max_hot_bytes)
            opened.append(self._stores)
            self._store = self._stores.rows("groups", owner=owner, with_subcodes=True)
        self._counts = {"fetched_groups": 0, "spilled_groups": 0}

    @property
    def epoch(self) -> int:
        """Return the epoch of the last `commit`; -1 when there was none."""
        return self._store.epoch

    def commit(self, epoch: int) -> None:
        self._store.commit(epoch)

    def is_current(self) -> bool:
        return self._store.is_current() and self._stores.is_current()

    def find(self, codes: Int64s) -> FoundRows | None:
        """Read all rows of some hashes; None where there are none."""
        if not len(codes) or not self._store.row_count():
            return None
        cold_rows = self._store.fetch(codes)
        if not len(cold_rows):
            return None
        return FoundRows(tuple(self._of_table(cold_rows, table) for table in range(len(self._schemas))), cold_rows.places)

    def may_be_seen(self, codes: Int64s, seen: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return which hashes may be among those that a filter was given before, and give it these."""
        found = np.empty(len(codes), np.bool_)
        seen_before(codes, shift_of(seen), seen, found)
        return found

    def take(self, rows: FoundRows) -> None:
        """Remove rows that were found, for they are in memory now."""
        self._store.begin_change()
        self._store.remove(rows.places)
        self._counts["fetched_groups"] += rows.rows[0].num_rows

    def packed(self, table: int, rows: pa.RecordBatch, codes: Int64s) -> ColdRows:
        """Return rows as the disk takes them; `store` puts them there."""
        layout, count = self._layouts[table], rows.num_rows
        records = np.zeros(count * layout.stride + 8, np.uint8)
        address = int(records.ctypes.data)
        encoded = layout.encode(rows, [], records, address)
        refs = address + layout.stride * np.arange(count, dtype=np.int64)
        packed = pack_rows(refs, stride=layout.stride, variables=self._variables[table].address)
        del encoded
        return ColdRows(codes, np.full(count, table, np.int64), packed, np.empty(0, np.int64))

    def store(self, pieces: Sequence[ColdRows]) -> None:
        """Put rows of whole groups, all of them or none."""
        pieces = [piece for piece in pieces if len(piece)]
        if pieces:
            codes, subcodes = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("codes", "subcodes"))
            rows = pa.concat_arrays([piece.rows for piece in pieces])
            self._store.put(ColdRows(codes, subcodes, rows, np.empty(0, np.int64)))
            self._counts["spilled_groups"] += int(np.count_nonzero(subcodes == 0))

    def tidy(self) -> None:
        """Merge runs, so that finding stays fast and the disk small; an error here does not undo `store`."""
        self._store.tidy()

    def scan(self, table: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a table, in chunks. Cost: the rows of all tables."""
        for chunk in self._store.scan():
            yield self._of_table(chunk, table)

    def clear(self) -> None:
        self._store.clear()

    def keep_index(self, keep: bool, window: int) -> None:
        """Set whether the index may stay in memory, else how much of it at a time; release it if it may not."""
        self._store.keep_index, self._store.index_window = keep, window
        if not keep:
            self._store.release()

    def index_bytes(self) -> int:
        return self._store.resident_bytes()

    def resident_bytes(self) -> int:
        """Return their bytes in memory between two epochs."""
        return self.index_bytes() if self._store.keep_index else self.staying_bytes()

    def staying_bytes(self) -> int:
        """Return their bytes that always stay in memory."""
        return self._store.staying_bytes()

    def lingering_bytes(self) -> int:
        """Return their further bytes in memory because of reads."""
        return self._store.lingering_bytes()

    def disk_bytes(self) -> int:
        return self._store.disk_bytes()

    def statistics(self) -> Mapping[str, int]:
        """Return counts: groups that arrived and went since they were opened, and bytes on disk."""
        return {**self._counts, "cold_disk_bytes": self.disk_bytes()}

    def close(self) -> None:
        """Release the files; without a directory they are removed."""
        self._store.close()
        self._finalizer()

    def _of_table(self, cold_rows: ColdRows, table: int) -> pa.RecordBatch:
        rows = cold_rows.rows.filter(pa.array(cold_rows.subcodes == table))
        layout = self._layouts[table]
        unpacked = unpack_rows(rows, stride=layout.stride, variables=self._variables[table].address)
        refs = unpacked.refs(layout.stride)
        columns = self._plans[table].gather(int(refs.ctypes.data), len(refs), 0)
        return pa.RecordBatch.from_arrays(columns, schema=self._schemas[table])


def _release(opened: list[ColdStores], private: PrivateDirectory | None) -> None:
    while opened:
        opened.pop().close()
    if private is not None:
        private.remove()


class BusyGroups:
    """Remember which groups in memory are busy, and return the ones to spill."""

    def __init__(self, budget: HotBudget) -> None:
        self._policy = ResidencyPolicy(max_hot_keys=budget.max_hot_keys, max_hot_bytes=budget.max_hot_bytes, slack=_SLACK)
        self._scores: Scores = np.empty(0, np.float32)
        self._owner: object = None
        self._clock = 0.0

    def touch(self, owner: object, numbers: Int64s) -> None:
        # Another owner has other groups under the same numbers, which count from 1; 0 is none.
        numbers = numbers[numbers > 0]
        self._follow(owner, int(numbers.max(initial=0)))
        self._scores[numbers - 1] = self._policy.touched(self._scores[numbers - 1], self._clock)

    def limit_bytes(self, max_bytes: int | None) -> None:
        self._policy = replace(self._policy, max_hot_bytes=max_bytes)

    def victims(self, owner: object, sizes: npt.NDArray[Any]) -> Int64s:
        """Return the positions of the records to spill, which are taken for gone; a negative size is no group."""
        self._follow(owner, len(sizes))
        chosen = self._policy.victims(self._scores[: len(sizes)], sizes)
        spilled = int(sizes[chosen].sum(dtype=np.int64))
        self._clock = self._policy.advanced(self._clock, spilled_bytes=spilled, spilled_keys=len(chosen))
        self._scores[chosen] = NEVER
        return chosen

    def exceeds(self, groups: int, size: int) -> bool:
        policy = self._policy
        return (policy.max_hot_keys is not None and groups > policy.max_hot_keys) or (
            policy.max_hot_bytes is not None and size > policy.max_hot_bytes
        )

    def resident_bytes(self) -> int:
        return self._scores.nbytes

    def _follow(self, owner: object, records: int) -> None:
        if self._owner is not owner:
            self._owner = owner
            self._scores[:] = NEVER
        if records > len(self._scores):
            grown = np.full(max(records, 2 * len(self._scores), 1024), NEVER, np.float32)
            grown[: len(self._scores)] = self._scores
            self._scores = grown
