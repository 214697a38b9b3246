"""The keys of an operator that keeps rows in order of time, with the runs of each.

`KeyRuns` finds the key of a row, whichever input it comes from: all inputs share one table, so a key that one of them met is
found once for all. What a run holds is the business of `VersionedRows`. Kernels in `zset_join.kernels.time.runs`.

Files: `keys.header`, `keys.rows`, `keys.heap`, `keys.join.slots<n>`.
Bytes per key: the record (24, the key columns, 24 per run, 16), 13 to 26 for the table, and the blocks of its runs (16 per row,
up to half as many again for rows to come).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.key_types import storage_type
from zset_join.core.row_conversion import cast_key, plain
from zset_join.kernels.rows import side as s
from zset_join.kernels.time import groups as g
from zset_join.kernels.time import runs as r
from zset_join.state.rows.directories import hold_directory
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.slot_table import SlotTable
from zset_join.state.time.state_files import open_arena, refuse_half_written
from zset_join.zset.row_layout import RowLayout

__all__ = ["KeyGroups", "KeyRuns"]

_Words = npt.NDArray[np.int64]
_H_FORGOTTEN = 31  # of the header
_NONE_FORGOTTEN = -(1 << 63)


@dataclass(slots=True)
class KeyGroups:
    count: int
    table: _Words
    bits: int  # binary logarithm of the size of `table`
    reps: _Words  # address of the key record of each group
    codes: _Words
    numbers: _Words  # in the state, 0 for a new key
    group_of: list[_Words]  # per input and row; -1 where its key can never match
    # Per input, rows whose key does not fit the type keys are compared in; None when all do.
    unfit: list[npt.NDArray[np.bool_] | None]
    _owners: list[Any] = field(default_factory=list)


class KeyRuns:
    def __init__(
        self,
        key_types: Sequence[pa.DataType],
        *,
        null_safe: bool,
        runs: int,
        tables: HashTables,
        facts: Sequence[object] = (),
    ) -> None:
        schema = pa.schema([(f"key_{at}", kind) for at, kind in enumerate(key_types)])
        self.runs = runs
        self.directory = directory = tables.directory
        self.layout = RowLayout(schema, sequence_words=3 * runs + 2)
        self._schema = schema
        self._probe = RowLayout(schema)
        flags = [null_safe] * len(schema)
        self.columns = self.layout.columns(schema.names, null_safe=flags)
        self._probe_columns = self._probe.columns(schema.names, null_safe=flags)
        self._variables = self.layout.variable_columns()
        self._hash_key = tables.hash_key
        self._facts = (*facts, self._hash_key, null_safe)
        self._release = hold_directory(self, directory, "keys")
        try:
            self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        self.arena = open_arena(self.layout, self._facts, directory=self.directory, name="keys")
        refuse_half_written(self.arena, directory=self.directory)
        self.table = SlotTable(self.arena.header, s.H_JOIN_COUNT, s.H_JOIN_BITS, directory=self.directory, name="keys.join")
        self._view = np.zeros(s.VIEW_WORDS, np.int64)
        self.view = int(self._view.ctypes.data)
        self._refresh_view()

    def _refresh_view(self) -> None:
        self._view[s.HASH_KEY] = self._hash_key
        self.arena.write_view(self._view)
        self._view[s.SEQUENCE_WORDS] = self.layout.sequence_words
        self._view[s.JOIN_SLOTS] = self.table.address
        self._view[s.JOIN_BITS] = self.table.bits

    @property
    def header(self) -> _Words:
        """Return the header words, with the epoch and the counts of the operator too."""
        return self.arena.header

    def run_place(self, run: int) -> int:
        """Return where the words of a run are in a key record."""
        return self.layout.sequence_offset + run * r.RUN_BYTES

    @property
    def forgotten_until(self) -> int:
        """Return the newest time of a DELETE that was forgotten; the smallest number where none was."""
        return int(self.header[_H_FORGOTTEN]) ^ _NONE_FORGOTTEN

    @forgotten_until.setter
    def forgotten_until(self, time: int) -> None:
        self.header[_H_FORGOTTEN] = time ^ _NONE_FORGOTTEN

    @property
    def waiting_place(self) -> int:
        """Return where a key record counts the rows that wait under it."""
        return self.run_place(self.runs)

    @property
    def forget_place(self) -> int:
        """Return the place in a key record of the time until which its last DELETE is remembered."""
        return self.waiting_place + 8

    def group(self, inputs: Sequence[Sequence[pa.Array]]) -> KeyGroups:
        """Find the keys of the rows of an epoch: per input its key columns. Cost: one hash and one probe per row."""
        counts = [len(columns[0]) if columns else 0 for columns in inputs]
        total = sum(counts)
        bits = max(4, (total + total // 2).bit_length())
        table = np.zeros(1 << bits, np.int64)
        reps, codes = np.empty(total, np.int64), np.empty(total, np.int64)
        owners: list[Any] = []
        unfits: list[npt.NDArray[np.bool_] | None] = []
        group_of, groups = [], 0
        for columns, count in zip(inputs, counts, strict=True):
            groups_here = np.empty(count, np.int64)
            unfit = None
            if count:
                rows, unfit = self._as_keys(columns)
                records = np.empty(count * self._probe.stride, np.uint8)
                encoded = self._probe.encode(rows, [], records, int(records.ctypes.data))
                owners.append(encoded)
                groups = int(
                    g.group_keys(
                        encoded.address,
                        self._probe.stride,
                        count,
                        self._probe_columns.address,
                        self._hash_key,
                        table,
                        bits,
                        reps,
                        codes,
                        groups,
                        groups_here,
                    )
                )
            group_of.append(groups_here)
            unfits.append(unfit)
        key_groups = KeyGroups(groups, table, bits, reps, codes, np.zeros(groups, np.int64), group_of, unfits, owners)
        self.number(key_groups)
        return key_groups

    def number(self, groups: KeyGroups) -> None:
        """Write down which number each key has in the state, 0 for none; again after others have stored keys."""
        shape = self.view, self.columns.address, self._probe_columns.address
        groups.numbers[:] = 0
        g.find_groups(*shape, groups.reps, groups.codes, groups.count, groups.numbers)

    def _as_keys(self, columns: Sequence[pa.Array]) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]:
        unfit: npt.NDArray[np.bool_] | None = None
        cast = []
        for column, kind in zip(columns, self._schema.types, strict=True):
            if column.type != kind:
                column, bad = cast_key(plain(column, storage_type(column.type)), storage_type(kind))
                if bad is not None:
                    unfit = bad if unfit is None else unfit | bad
                column = column if column.type == kind else column.cast(kind)
            cast.append(column)
        return pa.RecordBatch.from_arrays(cast, schema=self._schema), unfit

    def store(self, groups: KeyGroups, wanted: npt.NDArray[np.bool_], run_bytes: int) -> None:
        """Give new keys a number where they are wanted, and make room for blocks of runs of so many bytes."""
        new = int((wanted & (groups.numbers == 0)).sum())
        heap_bytes = run_bytes
        if new and len(self._variables):
            heap_bytes += int(r.key_heap_bytes(groups.reps, groups.numbers, groups.count, self._probe_columns.address))
        moved = self.arena.make_room(new, heap_bytes)
        if self.table.make_room(new) or moved:
            self._refresh_view()
        if new:
            r.store_keys(
                self.view,
                self.columns.address,
                self._probe_columns.address,
                groups.reps,
                groups.codes,
                groups.count,
                wanted,
                groups.numbers,
                self.runs,
            )

    def drop_empty(self, numbers: _Words) -> int:
        """Forget those of some keys that hold no row and for which none waits."""
        return int(r.drop_empty_keys(self.view, self._variables.address, numbers, len(numbers), self.runs))

    def resident_bytes(self) -> int:
        return self.arena.record_bytes() + self.arena.heap_bytes() + self.table.table_bytes()

    def is_current(self) -> bool:
        return self.arena.is_current() and self.table.is_current() and self.header[s.H_DIRTY] == 0

    def clear(self) -> None:
        self.table.close(remove=self.directory is not None)
        self.arena.close(remove=self.directory is not None)
        self._open()

    def close(self) -> None:
        self.table.close()
        self.arena.close()
        self._release()
