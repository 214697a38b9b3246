"""The answer of one epoch: `-old` and `+new` of every group that changed.

Law: per group at most one retraction, of exactly the row that was emitted last, and one insertion; nothing where all columns
stay what they are. All retractions of an epoch come before its insertions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from zset_join.aggregates.group_state import GroupState
from zset_join.aggregates.lines import Int64s, Lines
from zset_join.aggregates.results import Reading, Result
from zset_join.core.tick import Tick
from zset_join.zset import ZSet

__all__ = ["GroupedOutput"]


class GroupedOutput:
    """Build answers."""

    def __init__(self, state: GroupState, results: Sequence[Result], schema: pa.Schema, chunk_rows: int) -> None:
        self._state, self._results, self._schema, self._chunk_rows = state, tuple(results), schema, chunk_rows

    def check(self, lines: Lines, tick: Tick, relation: str) -> None:
        """Refuse an epoch after which a column does not fit its type."""
        for result in self._results:
            result.check(lines, tick, relation)

    def chunks(self, lines: Lines, *, was_empty: bool) -> Iterator[ZSet]:
        """Yield the answer; `was_empty`: no epoch came before, so that a global aggregate has no row yet."""
        existed, exists = lines.before[:, 0] > 0, lines.after[:, 0] > 0
        if not self._state.schema.names:
            existed, exists = np.full(1, not was_empty), np.ones(1, np.bool_)
        readings = [result.read(lines) for result in self._results]
        changed = existed != exists
        for reading in readings:
            changed |= existed & exists & reading.differs()
        old, new = np.flatnonzero(existed & changed), np.flatnonzero(exists & changed)
        refs = self._state.key_refs(lines)
        for begin in range(0, len(old) + len(new), self._chunk_rows):
            end = begin + self._chunk_rows
            parts = old[begin:end], new[max(0, begin - len(old)) : max(0, end - len(old))]
            yield from self._chunk(refs, readings, *parts)

    def held(self, lines: Lines) -> Iterator[ZSet]:
        """Yield the current groups, each with its number of rows as the weight; a global group may have none."""
        readings = [result.read(lines) for result in self._results]
        exists = lines.after[:, 0] > 0 if self._state.schema.names else np.ones(1, np.bool_)
        there, refs = np.flatnonzero(exists), self._state.key_refs(lines)
        counts = lines.after[there, 0]
        done = 0
        for begin in range(0, len(there), self._chunk_rows):
            for chunk in self._chunk(refs, readings, there[:0], there[begin : begin + self._chunk_rows]):
                yield ZSet(chunk.rows, counts[done : done + len(chunk)])
                done += len(chunk)

    def _chunk(self, refs: Int64s, readings: Sequence[Reading], old: Int64s, new: Int64s) -> Iterator[ZSet]:
        chosen = np.concatenate([refs[old], refs[new]])
        try:
            columns = self._state.gather_keys(chosen)
        except OverflowError:
            if len(chosen) == 1:
                raise
            for some in (old, new):
                half = len(some) // 2
                for part in (some[:half], some[half:]):
                    yield from self._chunk(refs, readings, *((part, new[:0]) if some is old else (old[:0], part)))
            return
        columns += [reading.column(old, new) for reading in readings]
        weights = np.ones(len(chosen), np.int64)
        weights[: len(old)] = -1
        yield ZSet(self._rows(columns, len(chosen)), weights)

    def _rows(self, columns: list[pa.Array], count: int) -> pa.RecordBatch:
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
