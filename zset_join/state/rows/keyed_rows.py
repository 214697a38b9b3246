"""Rows under a key that others request: many keys in, all rows of each out.

A `KeyedRows` is a `SideState` in append mode that is read by key and from which rows leave by number. It holds what a lookup
fetched, what a cache keeps, and what a join remembers of the rows it has joined.

The law: `find` lists exactly the pairs of a requested key and a stored row with equal keys, as Spark compares them; NULL equals
nothing, or NULL under `null_safe`. Per requested key the rows arrive in the order they were added in.

Remembers `layout.stride` bytes per row plus long strings, and 13 to 26 per key. Rows are numbered until the next `compact`.

`equal_keys`: whether rows have the join key of another one, by value; the rows may be of either side, in a state, a delta or on
disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.slots import count_matches, list_matches
from zset_join.kernels.rows.storing import mark_equal_keys
from zset_join.kernels.values import keys as c
from zset_join.state.rows.directories import IN_MEMORY, HashTables
from zset_join.state.rows.side import SideRules, SideState
from zset_join.state.rows.side_snapshot import restore_side, side_reader
from zset_join.zset import ZSet
from zset_join.zset.row_layout import RowLayout

__all__ = ["KeyFinder", "KeyRow", "KeyedRows", "equal_keys"]

Matches = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Positions of the requested keys, ascending, and the numbers of the rows that each of them met."""


class KeyFinder:
    def __init__(self, side: SideState, key_types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> None:
        names = side.relation.join_key
        schema = pa.schema([pa.field(name, kind) for name, kind in zip(names, key_types, strict=True)])
        self._side = side
        self._relation = Relation(name=side.relation.name, schema=schema)
        self._layout = RowLayout(schema)
        self._columns = self._layout.columns(list(names), null_safe=list(null_safe))

    def find(self, keys: pa.RecordBatch) -> Matches:
        """Return every pair of a requested key and a row that has it."""
        count = keys.num_rows
        if not count or not int(self._side.header[s.H_JOIN_COUNT]):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows = conform(keys, self._relation)
        stride = self._layout.stride
        records = np.empty(count * stride, np.uint8)
        encoded = self._layout.encode(rows, [], records, int(records.ctypes.data))
        codes, unmatchable = np.empty(count, np.int64), np.empty(count, np.uint8)
        heads, ends = np.empty((2, count), np.int64)
        total = count_matches(
            self._side.view,
            self._side.join_columns.address,
            encoded.address,
            stride,
            count,
            self._columns.address,
            int(codes.ctypes.data),
            int(unmatchable.ctypes.data),
            heads,
            ends,
        )
        positions, numbers = np.empty((2, int(total)), np.int64)
        list_matches(self._side.view, heads, ends, positions, numbers)
        return positions, numbers


class KeyedRows:
    """Keep rows by key.

    >>> kept = KeyedRows("rates", pa.schema({"k": pa.string(), "v": pa.int64()}), ("k",))
    >>> numbers = kept.add(pa.record_batch({"k": ["a", "b", "a"], "v": [1, 2, 3]}))
    >>> positions, found = kept.find(pa.record_batch({"k": ["x", "a"]}))
    >>> positions.tolist(), kept.gather(found, ("v",)).column("v").to_pylist()
    ([1, 1], [1, 3])
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        null_safe: bool | Sequence[bool] = False,
        file_name: str = "rows",
        tables: HashTables = IN_MEMORY,
    ) -> None:
        self.relation = Relation(name=name, schema=schema, join_key=tuple(key))
        safe = [null_safe] * len(key) if isinstance(null_safe, bool) else list(null_safe)
        self.side = SideState(
            self.relation,
            key_types=[schema.field(column).type for column in key],
            null_safe=safe,
            tables=tables.seeded(),
            name=file_name,
            rules=SideRules(arranges=bool(key)),
        )
        self._finder = KeyFinder(self.side, [schema.field(column).type for column in key], safe)
        self._plans: dict[tuple[str, ...], Any] = {}

    def __len__(self) -> int:
        return int(self.side.header[s.H_LIVE_ROWS])

    @property
    def ends(self) -> int:
        """Return the largest row number that was ever in use since the last `compact`."""
        return int(self.side.header[s.H_ROWS_END])

    def add(self, rows: pa.RecordBatch, weights: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Store rows, each with a weight (default 1); return their numbers. Cost: the rows."""
        count = rows.num_rows
        if not count:
            return np.zeros(0, np.int64)
        prepared = self.side.prepare(ZSet(rows, np.ones(count, np.int64) if weights is None else weights))
        self.side.absorb(prepared, None)
        numbers = np.array(prepared.numbers[:count], np.int64)
        self.side.shrink_working(prepared)
        return numbers

    def remove(self, numbers: npt.NDArray[np.int64]) -> None:
        if len(numbers):
            self.side.evict(np.ascontiguousarray(numbers, np.int64))

    def find(self, keys: pa.RecordBatch) -> Matches:
        return self._finder.find(keys)

    def gather(self, numbers: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        names = tuple(self.relation.schema.names if columns is None else columns)
        if names not in self._plans:
            self._plans[names] = self.side.layout.gather_plan(self.relation.field_indices(names))
        schema = pa.schema([self.relation.schema.field(name).with_nullable(True) for name in names])
        if not len(numbers):
            return pa.RecordBatch.from_pylist([], schema=schema)
        refs = np.ascontiguousarray(self.side.refs_of(numbers))
        gathered = self._plans[names].gather(int(refs.ctypes.data), len(refs), self.side.arena.heap_address)
        return pa.RecordBatch.from_arrays(gathered, schema=schema)

    def words(self, column: str, dtype: str = "<i8") -> npt.NDArray[Any]:
        """Return a column of fixed width as an array over the state itself, one value per row number from 1 on."""
        return self.side.record_words(dtype, self.side.layout.offset_of(column), self.ends)

    def is_live(self) -> npt.NDArray[np.bool_]:
        """Return for every row number from 1 on whether a row has it."""
        flags: npt.NDArray[np.uint8] = self.side.record_words("u1", c.FLAGS, self.ends)
        is_live: npt.NDArray[np.bool_] = (flags & c.FLAG_LIVE) != 0
        return is_live

    def weights(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.side.weights(numbers)

    def set_weights(self, numbers: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> None:
        self.side.record_words("<i8", c.WEIGHT, self.ends)[numbers - 1] = weights

    def clear(self) -> None:
        self.side.clear()

    def reader(self) -> pa.RecordBatchReader:
        return side_reader(self.side)

    def restore(self, table: pa.Table | pa.RecordBatchReader) -> None:
        """Replace the rows by a snapshot; `SideState.end_absorb` is the caller's."""
        restore_side(self.side, table)

    def close(self) -> None:
        self.side.close()


@dataclass(frozen=True, slots=True)
class KeyRow:
    side: SideState
    ref: int  # address of its record, which this object keeps alive
    owner: object = None  # of the record, where nothing else keeps it in memory


def equal_keys(key: KeyRow, side: SideState, refs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which records of a side have the key of a row. Cost: the records."""
    marks = np.zeros(len(refs), np.uint8)
    mark_equal_keys(
        key.ref,
        key.side.arena.heap_address,
        key.side.join_columns.address,
        int(refs.ctypes.data),
        len(refs),
        side.arena.heap_address,
        side.join_columns.address,
        int(marks.ctypes.data),
    )
    return marks.view(np.bool_)
