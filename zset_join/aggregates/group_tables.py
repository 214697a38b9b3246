"""Groups as tables and back: what a snapshot holds, and what is on the disk.

A table of groups (key, row count, state words), and one per multiset (key, value, copies), the key columns always in front.

The law: groups that are written and inserted into a state that does not have them are present again, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.lines import Int64s
from zset_join.aggregates.multisets import ValuesOf
from zset_join.aggregates.preaggregation import PARTIAL_WEIGHT
from zset_join.kernels.aggregate.groups import add_rows
from zset_join.state.rows.side_snapshot import snapshot_parts
from zset_join.zset import single_batch

__all__ = ["GroupTables", "parts_of", "table_names", "weights_of"]

_ROWS_AT_ONCE = 1 << 16


def weights_of(rows: pa.RecordBatch) -> Int64s:
    """Return the weights of partial lines or of values."""
    return np.require(rows.column(PARTIAL_WEIGHT).to_numpy(zero_copy_only=False), np.int64, ["C", "W"])


def parts_of(rows: pa.Table | pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a table, or what reads one, in parts of which the working arrays are not too large."""
    yield from map(single_batch, snapshot_parts(rows))


def table_names(accumulation: Accumulation) -> tuple[str, ...]:
    """Return the names of the tables of a state: `groups`, then one per multiset."""
    return ("groups", *(f"values_{at}" for at, _ in _multisets(accumulation)))


def _multisets(accumulation: Accumulation) -> list[tuple[int, ValuesOf]]:
    return [(at, one) for at, one in enumerate(accumulation.accumulators) if isinstance(one, ValuesOf)]


class GroupTables:
    """Write the groups of a state, insert them, take them out."""

    def __init__(self, state: GroupState, accumulation: Accumulation) -> None:
        self._state = state
        self._accumulators = accumulation.accumulators
        self._multisets = _multisets(accumulation)
        self.names = table_names(accumulation)

    def schemas(self) -> list[pa.Schema]:
        nothing = np.empty(0, np.int64)
        return [table.schema for table in self.written(nothing, np.empty((0, self._state.line_words), np.int64))]

    def written(self, refs: Int64s, lines: Int64s) -> list[pa.Table]:
        heap = self._state.heap_address
        columns = [*self._keys(refs), pa.array(np.ascontiguousarray(lines[:, 0]))]
        fields = [*self._state.schema, pa.field(PARTIAL_WEIGHT, pa.int64())]
        for one in self._accumulators:
            columns += one.write(lines, heap)
            fields += one.columns()
        tables = [pa.table(columns, schema=pa.schema(fields))]
        for _, one in self._multisets:
            total = int(lines[:, one.distinct_at].sum())
            owners, values, copies = one.write_values(refs, self._state.state_place(one.at), total, heap)
            fields = [*self._state.schema, *one.value_columns(), pa.field(PARTIAL_WEIGHT, pa.int64())]
            tables.append(pa.table([*self._keys(owners), *values, pa.array(copies)], schema=pa.schema(fields)))
        return tables

    def _keys(self, refs: Int64s) -> list[pa.ChunkedArray]:
        parts = [self._state.gather_keys(refs[at : at + _ROWS_AT_ONCE]) for at in range(0, len(refs), _ROWS_AT_ONCE)]
        schema = self._state.schema
        return [pa.chunked_array([part[at] for part in parts], schema.field(at).type) for at in range(len(schema))]

    def insert(self, number: int, rows: pa.RecordBatch) -> None:
        """Add rows of one table to the state; the table of groups comes first. Cost: the rows."""
        lines, weights = self._state.load(rows, rows.num_rows), weights_of(rows)
        if number == 0:
            add_rows(lines.count, lines.entry_of, weights, lines.line_words, lines.after_address)
            for one in self._accumulators:
                one.merge(lines, [rows.column(field.name) for field in one.columns()])
        else:
            values = self._multisets[number - 1][1]
            values.add_values(lines, [rows.column(field.name) for field in values.value_columns()], weights)
        self._state.store(lines)

    def remove(self, tables: Sequence[pa.Table]) -> None:
        """Take groups out of the state, given as they were written. Cost: their rows."""
        for (_, one), table in zip(self._multisets, tables[1:], strict=True):
            for rows in parts_of(table):
                lines = self._state.load(rows, rows.num_rows)
                one.add_values(lines, [rows.column(field.name) for field in one.value_columns()], -weights_of(rows))
                self._state.store(lines)
        for rows in parts_of(tables[0]):
            lines = self._state.load(rows, rows.num_rows)
            lines.after[:, 0] = 0  # a group without rows is gone, whatever its words hold; its blocks are freed by them
            self._state.store(lines)

    @property
    def has_values(self) -> bool:
        """Whether groups keep values one by one."""
        return bool(self._multisets)

    def values_per_group(self, lines: Int64s) -> Int64s:
        """Return how many distinct values groups keep, over all multisets."""
        counts: Int64s = np.zeros(len(lines), np.int64)
        for _, one in self._multisets:
            counts += lines[:, one.distinct_at]
        return counts
