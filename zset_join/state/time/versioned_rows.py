"""Rows per key in order: the versions of a table, the rows an as-of join looks among, the rows a dedup chooses from.

Each row has *order words*: what orders it (time, then whatever breaks ties), and at last its arrival, so that no two are
equal. The rows of a key stand in a run sorted by them (`zset_join.kernels.time.runs`). What a retraction takes back is found
by its order words and compared by value; among equal rows the oldest goes first.

The law: `prepare` reads and changes nothing; `absorb` does what it found. The rows after an epoch do not depend on how the same
changes were cut into epochs.

In `append` and `changelog` mode every row is kept; in `upsert` mode a row takes the place of one of the same key and first
word, and weight -1 is a row too: a DELETE.

Files: `<name>.header`, `.rows`, `.heap`. Bytes per row: `layout.stride`, long strings, 16 to 24 for its entry in the run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels import changes as ch
from zset_join.kernels import columns as c
from zset_join.kernels import side as s
from zset_join.kernels.absorb import heap_bytes_needed
from zset_join.kernels.time import groups as g
from zset_join.kernels.time import runs as r
from zset_join.row_layout import RowLayout
from zset_join.state.time.key_runs import KeyGroups, KeyRuns
from zset_join.state.time.state_files import open_arena

__all__ = ["H_NEXT_ARRIVAL", "SNAPSHOT_ARRIVAL", "SNAPSHOT_DELETE", "SNAPSHOT_WEIGHT", "PreparedRows", "VersionedRows"]

_Words = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.bool_]

H_NEXT_ARRIVAL = 40
SNAPSHOT_WEIGHT, SNAPSHOT_ARRIVAL, SNAPSHOT_DELETE = "_zset_weight", "_zset_arrival", "_zset_delete"
_SNAPSHOT_ROWS = 1 << 16


@dataclass(slots=True)
class PreparedRows:
    """What the rows of an epoch do to one `VersionedRows`.

    Args:
        count: rows.
        address: of their records.
        weights: as given.
        status: of every row, as in `zset_join.kernels.changes`.
        deletes: which rows are DELETEs.
        left: weight of each new row after what this epoch took back of it; 0 for other rows.
        begin: where the new rows of each group begin in `order`.
        order: the new rows, by group and in order.
        removed_begin: where the list of what is taken off the entries of each group's run begins.
        removed_at: positions in the run.
        removed_weight: what is taken off.
        group_of: the group of each row.
    """

    count: int
    address: int
    weights: _Words
    status: npt.NDArray[np.uint8]
    deletes: npt.NDArray[np.uint8]
    left: _Words
    begin: _Words
    order: _Words
    removed_begin: _Words
    removed_at: _Words
    removed_weight: _Words
    group_of: _Words
    owners: list[Any]

    @property
    def rejected(self) -> int:
        """Return how many rows break the contract."""
        return int((self.status > ch.LAST_HARMLESS).sum())


class VersionedRows:
    """Own the rows of one input.

    Args:
        schema: the columns.
        keys: the keys they stand under.
        run: which run of a key is theirs.
        words: how many order words there are besides the arrival.
        name: first part of the file names.
        latest_first: of equal rows the later arrival comes first.
        directory: where to map files; None keeps everything in memory.
        facts: what else the files depend on.

    Raises:
        StateError: the directory holds something else.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: KeyRuns,
        *,
        run: int,
        words: int,
        name: str,
        latest_first: bool = False,
        directory: str | None,
        facts: Sequence[object] = (),
    ) -> None:
        self.schema = schema
        self.keys = keys
        self.run = run
        self.name = name
        self.words = words + 1
        self.place = keys.run_place(run)
        self._latest_first = latest_first
        self._directory = directory
        self._facts = (*facts, latest_first)
        self.layout = RowLayout(schema, sequence_words=self.words)
        self.columns = self.layout.visible_columns()
        self.variables = self.layout.variable_columns()
        self._open()

    def _open(self) -> None:
        self.arena = open_arena(self.layout, self._facts, directory=self._directory, name=self.name)
        self._view = np.zeros(s.VIEW_WORDS, np.int64)
        self.view = int(self._view.ctypes.data)
        self.arena.write_view(self._view)

    @property
    def heap_address(self) -> int:
        """Return where long values stand."""
        return self.arena.heap_address

    @property
    def live_rows(self) -> int:
        """Return how many rows are kept."""
        return self.arena.live_rows

    # ---------------------------------------------------------------- reading

    def prepare(
        self,
        rows: pa.RecordBatch,
        order: Sequence[_Words],
        weights: _Words,
        groups: KeyGroups,
        which: int,
        *,
        status: npt.NDArray[np.uint8],
        deletes: npt.NDArray[np.uint8] | None = None,
        arrivals: _Words | None = None,
    ) -> PreparedRows:
        """Find out what the rows of an epoch change. Cost: the rows, and what shares their key and order.

        Args:
            rows: with the columns of the schema.
            order: the order words of each row, without the arrival.
            weights: below 0 a retraction, where `deletes` is None.
            groups: the keys of the epoch.
            which: which input of `groups` these are.
            status: of each row; what is not OK is left out. Retractions of what is not there are marked in it.
            deletes: which rows are DELETEs; None: negative weights are retractions.
            arrivals: the arrival of each row, where it does not come now.
        """
        count = rows.num_rows
        group_of = groups.group_of[which]
        if arrivals is None:
            first = int(self.arena.header[H_NEXT_ARRIVAL])
            arrivals = np.arange(first, first + count, dtype=np.int64)
            if self._latest_first:
                arrivals = ~arrivals
        records = np.empty(count * self.layout.stride, np.uint8)
        encoded = self.layout.encode(rows, [*order, arrivals], records, int(records.ctypes.data))
        usable = (status == ch.OK) & (group_of >= 0)
        is_new = usable if deletes is not None else usable & (weights > 0)
        marks = np.zeros(count, np.uint8) if deletes is None else deletes
        begin, places, scratch = np.empty(groups.count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
        at = self.layout.sequence_offset
        shape = (encoded.address, self.layout.stride, at, self.words, group_of)
        g.order_groups(*shape, is_new, count, groups.count, begin, places, scratch)
        left = np.where(is_new, weights if deletes is None else 1, 0)
        removed_begin = np.zeros(groups.count + 1, np.int64)
        removed_at = removed_weight = np.zeros(0, np.int64)
        is_back = usable & (weights < 0) if deletes is None else None
        if is_back is not None and is_back.any():
            back_begin, back = np.empty(groups.count + 1, np.int64), np.empty(count, np.int64)
            g.order_groups(*shape, is_back, count, groups.count, back_begin, back, scratch)
            most = int(is_back.sum()) + min(self.live_rows, -int(np.maximum(weights[is_back], -(1 << 40)).sum()))
            removed_at, removed_weight = np.empty(most, np.int64), np.empty(most, np.int64)
            r.retract_rows(
                self.keys.view,
                self.place,
                self.view,
                self.columns.address,
                encoded.address,
                weights,
                groups.numbers,
                groups.count,
                begin,
                places,
                back_begin,
                back,
                left,
                status,
                ch.ABSENT_ROW,
                removed_begin,
                removed_at,
                removed_weight,
                self._latest_first,
            )
        return PreparedRows(
            count,
            encoded.address,
            weights,
            status,
            marks,
            left,
            begin,
            places,
            removed_begin,
            removed_at,
            removed_weight,
            group_of,
            [encoded, rows],
        )

    # ---------------------------------------------------------------- writing

    def wanted(self, prepared: PreparedRows) -> _Marks:
        """Return which groups get a row."""
        return prepared.begin[1:] > prepared.begin[:-1]

    def run_bytes(self, prepared: PreparedRows, groups: KeyGroups) -> int:
        """Return what the blocks of the runs may take more."""
        return int(r.run_bytes_needed(self.keys.view, self.place, groups.numbers, groups.count, prepared.begin))

    def absorb(self, prepared: PreparedRows, groups: KeyGroups, *, supersedes: bool, limit: int = 0) -> None:
        """Do what `prepare` found; the keys have their numbers, and room for their runs. Cost: the changes, amortised.

        Args:
            prepared: the rows.
            groups: the keys.
            supersedes: a row takes the place of one of the same key and first word.
            limit: keep only so many copies per key, the first ones; 0: all.
        """
        heap_bytes = 0
        if len(self.variables):
            heap_bytes = heap_bytes_needed(prepared.address, self.layout.stride, prepared.count, self.variables.address)
        if self.arena.make_room(prepared.count, int(heap_bytes)):
            self.arena.write_view(self._view)
        r.merge_groups(
            self.keys.view,
            self.place,
            self.view,
            self.variables.address,
            prepared.address,
            prepared.left,
            prepared.deletes,
            groups.numbers,
            groups.count,
            prepared.begin,
            prepared.order,
            prepared.removed_begin,
            prepared.removed_at,
            prepared.removed_weight,
            supersedes,
            limit,
        )

    def count_arrivals(self, rows: int) -> None:
        """Say that so many rows have arrived, whether they were kept or not."""
        self.arena.header[H_NEXT_ARRIVAL] += rows

    # ---------------------------------------------------------------- snapshots

    def snapshot_schema(self) -> pa.Schema:
        """Return the columns of a snapshot: the row's own, then what is remembered of it."""
        hidden = [(SNAPSHOT_WEIGHT, pa.int64()), (SNAPSHOT_ARRIVAL, pa.int64()), (SNAPSHOT_DELETE, pa.bool_())]
        own = [one.with_nullable(True) for one in self.schema]
        return pa.schema([*own, *(pa.field(name, kind) for name, kind in hidden)])

    def live_refs(self) -> _Words:
        """Return the record addresses of all rows, in the order of their arrival."""
        end = int(self.arena.header[s.H_ROWS_END])
        live = np.flatnonzero(self._field("u1", c.FLAGS, end) & c.FLAG_LIVE)
        arrivals = self._field("<i8", self._arrival_place, end)[live]
        order = np.argsort(~arrivals if self._latest_first else arrivals, kind="stable")
        return np.ascontiguousarray(self._view[s.ROWS] + live[order].astype(np.int64) * self.layout.stride)

    @property
    def _arrival_place(self) -> int:
        return self.layout.sequence_offset + 8 * (self.words - 1)

    def _field(self, dtype: str, offset: int, count: int) -> Any:
        """Return one field of the first records as an array over the state itself."""
        if count == 0:
            return np.zeros(0, dtype)
        records: Any = (ctypes.c_uint8 * (count * self.layout.stride)).from_address(int(self._view[s.ROWS]))
        return np.ndarray((count,), dtype, buffer=records, offset=offset, strides=(self.layout.stride,))

    def snapshot_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; the state must not change meanwhile."""
        schema, plan = self.snapshot_schema(), self.layout.gather_plan(range(len(self.schema)))
        refs = self.live_refs()
        end = int(self.arena.header[s.H_ROWS_END])
        for begin in range(0, len(refs), _SNAPSHOT_ROWS):
            part = np.ascontiguousarray(refs[begin : begin + _SNAPSHOT_ROWS])
            rows = (part - self._view[s.ROWS]) // self.layout.stride
            arrivals = self._field("<i8", self._arrival_place, end)[rows]
            columns = plan.gather(int(part.ctypes.data), len(part), self.heap_address)
            columns += [
                pa.array(self._field("<i8", c.WEIGHT, end)[rows]),
                pa.array(~arrivals if self._latest_first else arrivals),
                pa.array((self._field("u1", c.FLAGS, end)[rows] & r.FLAG_DELETE) != 0),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def restored(self, table: pa.Table) -> Iterator[tuple[pa.RecordBatch, _Words, _Words, npt.NDArray[np.uint8]]]:
        """Yield rows, weights, arrival words and DELETE marks of a snapshot, in parts; what arrives next comes after them."""
        for begin in range(0, table.num_rows, _SNAPSHOT_ROWS):
            part = table.slice(begin, _SNAPSHOT_ROWS).combine_chunks()
            weights = part.column(SNAPSHOT_WEIGHT).to_numpy().astype(np.int64)
            arrivals = part.column(SNAPSHOT_ARRIVAL).to_numpy().astype(np.int64)
            deletes = part.column(SNAPSHOT_DELETE).to_numpy(zero_copy_only=False).astype(np.uint8)
            header = self.arena.header
            header[H_NEXT_ARRIVAL] = max(int(header[H_NEXT_ARRIVAL]), int(arrivals.max()) + 1)
            rows = part.select(self.schema.names).cast(pa.schema([one.with_nullable(True) for one in self.schema]))
            yield rows.to_batches()[0], weights, ~arrivals if self._latest_first else arrivals, deletes

    def resident_bytes(self) -> int:
        """Return the bytes of records and long values."""
        return self.arena.record_bytes() + self.arena.heap_bytes()

    def is_current(self) -> bool:
        """Say whether the mapped files are still those of the directory."""
        return self.arena.is_current()

    def clear(self) -> None:
        """Forget everything."""
        self.arena.close(remove=self._directory is not None)
        self._open()

    def close(self) -> None:
        """Unmap everything."""
        self.arena.close()
