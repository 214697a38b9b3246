"""Rows an operator about time keeps, whatever leads to them, and their snapshot.

A record holds the columns, then the *order words* of its row: what orders it (time, then whatever breaks ties), at last its
arrival, so that no two rows are equal. A snapshot is the columns with weight, arrival and the mark of a DELETE.

Files: `<name>.header`, `.rows`, `.heap`. Bytes per row: `layout.stride` and long strings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels.rows import side as s
from zset_join.kernels.time import runs as r
from zset_join.kernels.values import columns as c
from zset_join.state.time.key_runs import KeyRuns
from zset_join.state.time.state_files import open_arena
from zset_join.zset.row_layout import RowLayout

__all__ = ["RowStore"]

_Words = npt.NDArray[np.int64]

_H_NEXT_ARRIVAL = 40
_WEIGHT, _ARRIVAL, _MARKS = "_zset_weight", "_zset_arrival", "_zset_delete"  # 1: a DELETE, 2: versions before it were freed
_SNAPSHOT_ROWS = 1 << 16


class RowStore:
    def __init__(
        self,
        schema: pa.Schema,
        keys: KeyRuns,
        *,
        words: int,
        name: str,
        latest_first: bool = False,
        facts: Sequence[object] = (),
    ) -> None:
        self.schema = schema
        self.keys = keys
        self.name = name
        self.words = words + 1
        self._latest_first = latest_first
        self._directory = keys.directory
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
        """Return the places of long values."""
        return self.arena.heap_address

    @property
    def live_rows(self) -> int:
        return self.arena.live_rows

    def make_room(self, rows: int, heap_bytes: int) -> None:
        """Make room for so many more rows; records may move."""
        if self.arena.make_room(rows, heap_bytes):
            self.arena.write_view(self._view)

    def next_arrivals(self, count: int) -> _Words:
        """Return the arrival words of rows that arrive now."""
        first = int(self.arena.header[_H_NEXT_ARRIVAL])
        arrivals = np.arange(first, first + count, dtype=np.int64)
        return ~arrivals if self._latest_first else arrivals

    def count_arrivals(self, rows: int) -> None:
        """Count rows that have arrived, whether they were kept or not."""
        self.arena.header[_H_NEXT_ARRIVAL] += rows

    def snapshot_schema(self) -> pa.Schema:
        """Return the columns of a snapshot: the row's own, then what is remembered of it."""
        hidden = [(_WEIGHT, pa.int64()), (_ARRIVAL, pa.int64()), (_MARKS, pa.int8())]  # Spark has no unsigned integers
        own = [one.with_nullable(True) for one in self.schema]
        return pa.schema([*own, *(pa.field(name, kind) for name, kind in hidden)])

    def live_refs(self) -> _Words:
        """Return the record addresses of all rows, in the order of their arrival."""
        end = int(self.arena.header[s.H_ROWS_END])
        live = np.flatnonzero(self._field("u1", c.FLAGS, end) & c.FLAG_LIVE)
        arrivals = self._field("<i8", self._arrival_place, end)[live]
        order = np.argsort(~arrivals if self._latest_first else arrivals, kind="stable")
        return np.ascontiguousarray(self._view[s.ROWS] + live[order].astype(np.int64) * self.layout.stride)

    def first_words(self) -> _Words:
        """Return the first order word of all rows, in the order of `snapshot_batches`."""
        rows = (self.live_refs() - self._view[s.ROWS]) // self.layout.stride
        words = self._field("<i8", self.layout.sequence_offset, int(self.arena.header[s.H_ROWS_END]))[rows]
        return np.ascontiguousarray(words, np.int64)

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
                pa.array((self._field("u1", c.FLAGS, end)[rows] // r.FLAG_DELETE).astype(np.int8)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def restored(self, table: pa.Table) -> Iterator[tuple[pa.RecordBatch, _Words, _Words, npt.NDArray[np.uint8]]]:
        """Yield rows, weights, arrival words and marks of a snapshot, in parts; what arrives next comes after them."""
        for begin in range(0, table.num_rows, _SNAPSHOT_ROWS):
            part = table.slice(begin, _SNAPSHOT_ROWS).combine_chunks()
            weights = part.column(_WEIGHT).to_numpy().astype(np.int64)
            arrivals = part.column(_ARRIVAL).to_numpy().astype(np.int64)
            marks = part.column(_MARKS).to_numpy()
            header = self.arena.header
            header[_H_NEXT_ARRIVAL] = max(int(header[_H_NEXT_ARRIVAL]), int(arrivals.max()) + 1)
            rows = part.select(self.schema.names).cast(pa.schema([one.with_nullable(True) for one in self.schema]))
            yield rows.to_batches()[0], weights, ~arrivals if self._latest_first else arrivals, marks.astype(np.uint8)

    def repeated(self, restored: pa.Table) -> int:
        """Return how many of the restored rows found no place, or have the key and the arrival of another one."""
        lost: int = restored.num_rows - self.live_rows
        if (np.diff(restored.column(_ARRIVAL).to_numpy()) > 0).all():
            return lost
        end = int(self.arena.header[s.H_ROWS_END])  # rows out of several buckets have one arrival under different keys
        live = np.flatnonzero(self._field("u1", c.FLAGS, end) & c.FLAG_LIVE)
        arrivals, keys = (self._field(*at, end)[live] for at in (("<i8", self._arrival_place), ("<u4", c.HASH)))
        order = np.lexsort((keys, arrivals))
        return lost + int(np.count_nonzero((np.diff(arrivals[order]) == 0) & (np.diff(keys[order]) == 0)))

    def resident_bytes(self) -> int:
        return self.arena.record_bytes() + self.arena.heap_bytes()

    def is_current(self) -> bool:
        return self.arena.is_current()

    def clear(self) -> None:
        self.arena.close(remove=self._directory is not None)
        self._open()

    def close(self) -> None:
        self.arena.close()
