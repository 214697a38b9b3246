"""The keys of an operator that keeps rows in order of time, with the runs of each.

`KeyRuns` finds the key of a row, whichever input it comes from: all inputs share one table, so a key that one of them met is
found once for all. What a run holds is the business of `VersionedRows`. Kernels in `zset_join.kernels.time.runs`.

Files: `keys.header`, `keys.rows`, `keys.heap`, `keys.join.slots<n>`.
Bytes per key: the record (24, the key columns, 24 per run, 16), 13 to 26 for the table, and the blocks of its runs (16 per row,
up to half as many again for rows to come).

`open_arena`: whether mapped files belong to the operator that opens them, and are whole.

Every arena carries a fingerprint of all that its bytes depend on, the boot of the host included; the arena of keys is also
marked while it is written. What does not fit is refused: it is a cache, and rebuilt from the checkpoint.

`RowStore`: rows an operator about time keeps, whatever leads to them, and their snapshot.

A record holds the columns, then the *order words* of its row: what orders it (time, then whatever breaks ties), at last its
arrival, so that no two rows are equal. A snapshot is the columns with weight, arrival and the mark of a DELETE.

Files: `<name>.header`, `.rows`, `.heap`. Bytes per row: `layout.stride` and long strings.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.core.key_types import storage_type
from zset_join.core.row_conversion import cast_key, plain
from zset_join.kernels.rows import side as s
from zset_join.kernels.time import groups as g
from zset_join.kernels.time import runs as r
from zset_join.kernels.values import keys as c
from zset_join.state.rows.directories import HashTables, hold_directory
from zset_join.state.rows.row_tables import RowArena, SlotTable
from zset_join.zset.row_layout import RowLayout

__all__ = ["KeyGroups", "KeyRuns", "RowStore"]

_LAYOUT_VERSION = 1
_TITLE = "It is a cache: delete the directory and it is rebuilt from the checkpoint."


def fingerprint(*facts: object) -> int:
    """Return a number that changes with any of the facts and with the boot of the host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    description = repr((_LAYOUT_VERSION, boot, *map(str, facts)))
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:7], "little") + 1


def open_arena(layout: RowLayout, facts: Sequence[object], *, directory: str | None, name: str) -> RowArena:
    arena = RowArena(layout, directory=directory, name=name)
    own = fingerprint(name, layout.schema, layout.stride, layout.sequence_words, *facts)
    if arena.header[s.H_FINGERPRINT] == 0:
        arena.header[s.H_FINGERPRINT] = own
        arena.header[s.H_ABSORBED_EPOCH] = -1
    elif arena.header[s.H_FINGERPRINT] != own:
        arena.close()
        raise StateError(
            f'the local state "{name}" in {directory} was written for another relation, library version or before the host '
            f"restarted. {_TITLE}",
            code="STATE_FINGERPRINT",
            relation=name,
            directory=directory,
        )
    return arena


def refuse_half_written(arena: RowArena, *, directory: str | None) -> None:
    """Raise StateError when the process that wrote the state died on it."""
    if arena.header[s.H_DIRTY] != 0:
        raise StateError(
            f"the local state in {directory} was being written when its process died. {_TITLE}",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )


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
