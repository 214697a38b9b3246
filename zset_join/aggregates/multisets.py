"""State of min, max, count distinct, lists and sets: every value of a group, in order, with its number of copies.

A maximum that is retracted must give way to the next one, however far down it is: after 10, 9, 8, 7, 6 come and 10, 9, 8 go,
the maximum is 7. So nothing is cut off and nothing is guessed.

The law: a multiset holds exactly the values of the live rows of its group (NULLs and rows that fail the filter omitted).

Cost: see `zset_join.kernels.aggregate.tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.aggregates.accumulators import Source, StateHeap
from zset_join.aggregates.lines import Cells, Int64s, Lines
from zset_join.aggregates.value_codecs import NEGATIVE_ZERO, CompositeCodec, codec_of, valid_flags
from zset_join.kernels.aggregate import tree
from zset_join.kernels.aggregate.cells import match_cells, sort_cells
from zset_join.kernels.aggregate.read import list_state
from zset_join.kernels.aggregate.store import copy_values, store_cells

__all__ = ["ValuesOf"]

_MORE_HEAP = 1 << 20
_LEAF_BYTES = 8192


@dataclass(frozen=True)
class _Rows:
    """The values of a delta, the entry of the group of each, which are valid, and their weights."""

    entry_of: Int64s
    keys: Int64s
    valid: Any
    weights: Int64s
    moved: Any = ()  # those of the first rows to which the last ones belong

    def of_other_zeros(self, cells: Cells) -> _Rows:
        """Return them with retractions of a zero that is not there as such of the other one, to which it is equal."""
        after, moved = cells.before[: cells.count] + cells.weights[: cells.count], np.zeros(len(self.keys), np.int64)
        for row in np.flatnonzero((self.weights < 0) & np.isin(self.keys[:, 0], (NEGATIVE_ZERO, 0))):
            cell = cells.cell_of[row]
            if cell >= 0 and after[cell] < 0:
                moved[row] = min(-after[cell], -self.weights[row])
                after[cell] += moved[row]
        (at,) = moved.nonzero()
        left = self.weights + moved
        keys, weights = np.concatenate([self.keys, NEGATIVE_ZERO - self.keys[at]]), np.concatenate([left, -moved[at]])
        valid = np.concatenate([self.valid, self.valid[at]])
        return _Rows(np.concatenate([self.entry_of, self.entry_of[at]]), keys, valid, weights, at)

    def limits(self, cells: Cells, count: int) -> tuple[Int64s, Int64s]:
        """Return the cell of each of the first rows, and the copies that each cell had, where both zeros of a group are one."""
        cell_of, before = cells.cell_of[:count].copy(), cells.before[: cells.count].copy()
        cell_of[self.moved] = cells.cell_of[count:]
        (zeros,) = (np.isin(self.keys[:, 0], (NEGATIVE_ZERO, 0)) & (cells.cell_of >= 0)).nonzero()
        root: dict[int, int] = {}
        for cell, entry in sorted({(int(cells.cell_of[row]), int(self.entry_of[row])) for row in zeros}):
            if root.setdefault(entry, cell) != cell:
                before[root[entry]] += before[cell]
                cell_of[cell_of == cell] = root[entry]
        return cell_of, before


class ValuesOf:
    """Keep the values of some columns."""

    words = tree.V_WORDS

    def __init__(self, source: Source, may_be_null: Sequence[bool], *, parts_zeros: bool = False) -> None:
        self.source = source
        self.at = 0
        self.may_be_null = tuple(may_be_null)
        self._parts_zeros = parts_zeros
        self.codec = CompositeCodec([codec_of(kind, parts_zeros=parts_zeros) for kind in source.types], may_be_null)

    @property
    def total_at(self) -> int:
        """Return the position in a line of the number of copies of all values."""
        return self.at + tree.V_TOTAL

    @property
    def distinct_at(self) -> int:
        """Return the position in a line of the number of distinct values."""
        return self.at + tree.V_DISTINCT

    def add(self, lines: Lines, rows: pa.RecordBatch, weights: Int64s) -> bool:
        return self.add_values(lines, [rows.column(name) for name in self.source.columns], weights)

    def add_values(self, lines: Lines, arrays: Sequence[pa.Array], weights: Int64s) -> bool:
        """Net the values of a delta into cells and look them up; return whether one falls below 0 copies."""
        count = lines.count
        keys: Int64s = np.empty((count, self.codec.words), np.int64)
        owners: list[Any] = [keys]
        self.codec.encode(arrays, keys, owners)
        valid = np.ones(count, np.uint8)
        for array, nullable in zip(arrays, self.may_be_null, strict=True):
            flags = None if nullable else valid_flags(array)
            if flags is not None:
                valid &= flags
        rows = _Rows(lines.entry_of[:count], keys, valid, weights)
        is_below = self._matched(lines, rows, owners)
        if is_below and self._parts_zeros:
            counts = [self.distinct_at, self.total_at]
            lines.after[:, counts] = lines.before[:, counts]
            other = rows.of_other_zeros(lines.cells[self.at])
            is_below = self._matched(lines, other, owners)
            if is_below:  # row by row, both zeros of a group are one cell
                lines.cells[self.at].limits = other.limits(lines.cells[self.at], count)
        return is_below

    def _matched(self, lines: Lines, rows: _Rows, owners: list[Any]) -> bool:
        count, words = len(rows.keys), self.codec.words
        cell_keys = np.empty((max(count, 1), words), np.int64)
        owners.append(cell_keys)
        cells = Cells(
            bounds=np.empty(lines.entries + 2, np.int64),
            keys=int(cell_keys.ctypes.data),
            weights=np.empty(count, np.int64),
            before=np.empty(count, np.int64),
            cell_of=np.empty(count, np.int64),
            count=0,
            owners=[*owners, rows],
        )
        cells.count = sort_cells(
            lines.entries,
            count,
            rows.entry_of,
            rows.weights,
            rows.valid,
            int(rows.keys.ctypes.data),
            words,
            self.codec.texts,
            cells.bounds,
            lines.scratch.array("cell_order", count),
            lines.scratch.array("cell_spare", count),
            cells.cell_of,
            cells.keys,
            cells.weights,
        )
        lines.cells[self.at] = cells
        return bool(
            match_cells(
                lines.heap,
                lines.entries,
                lines.line_words,
                self.at,
                lines.after_address,
                cells.bounds,
                cells.keys,
                cells.weights,
                cells.before,
                words,
                self.codec.texts,
            )
        )

    def columns(self) -> list[pa.Field]:
        return []

    def write(self, lines: Int64s, heap: int) -> list[pa.Array]:  # noqa: ARG002 - part of the protocol
        return []

    def merge(self, lines: Lines, columns: Sequence[pa.Array]) -> None:
        """Do nothing, see `add_values`."""

    def value_columns(self) -> list[pa.Field]:
        """Return the columns that a value is written down in."""
        return [pa.field(f"_zset_value_{number}", kind) for number, kind in enumerate(self.source.types)]

    def write_values(self, groups: Int64s, place: int, total: int, heap: int) -> tuple[Int64s, list[pa.Array], Int64s]:
        """Return every value of some groups: the record of its group, the value, and the number of copies."""
        refs, copies = np.empty(total, np.int64), np.empty(total, np.int64)
        keys = np.empty((total, self.codec.words), np.int64)
        list_state(heap, groups, len(groups), place, self.codec.words, self.codec.texts, refs, int(keys.ctypes.data), copies)
        return refs, [self.codec.decode(number, keys, None, heap) for number in range(len(self.source.types))], copies

    def leftover(self, lines: Lines) -> int:  # noqa: ARG002 - part of the protocol
        return -1

    def store(self, heap: StateHeap, lines: Lines) -> None:
        cells = lines.cells.get(self.at)
        if cells is None or not cells.count:
            return
        spare = np.empty(_LEAF_BYTES + (cells.count + 16) * (8 * self.codec.words + 8), np.uint8)
        entry, cell = 0, 0
        needed = cells.count * (8 * self.codec.words + 8)
        while entry < lines.entries:
            limit = heap.make_heap_room(needed + _MORE_HEAP)
            entry, cell, needed = store_cells(
                heap.view,
                entry,
                lines.entries,
                lines.line_words,
                self.at,
                lines.after_address,
                cells.bounds,
                cell,
                cells.keys,
                cells.weights,
                cells.before,
                self.codec.words,
                self.codec.texts,
                limit,
                int(spare.ctypes.data),
            )

    def copy(self, old: int, new: int, groups: int, copied: int, state_offset: int) -> None:
        place = state_offset + 8 * (self.at - 1)
        copy_values(old, new, groups, copied, place, self.codec.words, self.codec.texts)
