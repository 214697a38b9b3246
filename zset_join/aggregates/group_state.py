"""Everything an aggregate remembers: a row record per group, found by its key, with the state words of all accumulators.

`load` finds the groups a delta touches and copies their state into lines; accumulators work on the lines; `store` writes them
back. Between the two nothing is modified, so loading twice gives the same lines twice.

Files: `<name>.header`, `.rows`, `.heap`, `.join.slots<n>` in one directory, or nothing but memory. A directory is opened in
O(1): nothing of it is read.

Bytes: 24 and a bit per key column, the key columns, 8 per state word; 13 to 26 of table; and what accumulators keep in the
heap.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.aggregates.accumulators import Accumulator, Int64s, Lines, WorkingArrays
from zset_join.core.errors import StateError
from zset_join.core.row_conversion import shown_floats
from zset_join.core.shown_values import shown_key
from zset_join.kernels.aggregate.groups import copy_groups, group_delta, load_groups, store_groups
from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.rows import side as s
from zset_join.kernels.values import keys as c
from zset_join.kernels.values.keys import hash_rows
from zset_join.state.rows.directories import HashTables, hold_directory
from zset_join.state.rows.row_tables import RowArena, SlotTable
from zset_join.storage.local import make_directory
from zset_join.zset.row_layout import RowLayout

__all__ = ["GroupState"]

_LAYOUT_VERSION = 2


class _GroupLayout(RowLayout):
    """Key columns, and state words behind them, so that a record of a delta and one of the state agree in their keys."""

    def __init__(self, schema: pa.Schema, state_words: int) -> None:
        super().__init__(schema)
        self.state_offset = self.stride
        self.stride += 8 * state_words


class GroupState:
    def __init__(
        self,
        relation: str,
        schema: pa.Schema,
        accumulators: Sequence[Accumulator],
        *,
        fingerprint: object,
        tables: HashTables,
        name: str,
    ) -> None:
        directory = tables.directory
        self.relation, self.schema, self.directory, self.name = relation, schema, directory, name
        self.accumulators = tuple(accumulators)
        self.line_words = 1
        for accumulator in self.accumulators:
            accumulator.at = self.line_words
            self.line_words += accumulator.words
        self._hash_key = tables.hash_key
        self._layout = _GroupLayout(schema, self.line_words - 1)
        self._key_layout = RowLayout(schema)
        self._columns = self._layout.columns(schema.names)
        self._variables = self._layout.variable_columns()
        self._key_plan = self._layout.gather_plan(range(len(schema)))
        self._fingerprint = _fingerprint(fingerprint, schema, self._hash_key, self._layout.stride)
        self._scratch = WorkingArrays()
        self.most_bytes: int | None = None
        self.keeps_bits = False  # keys are shown with their own bits, not as Spark shows those of a group
        self._release = hold_directory(self, directory, name)
        try:
            self._open(directory)
        except BaseException:
            self._release()
            raise

    def _open(self, directory: str | None) -> None:
        self._arena = RowArena(self._layout, directory=directory, name=self.name)
        header = self._arena.header
        if header[s.H_FINGERPRINT] == 0:
            header[s.H_FINGERPRINT] = self._fingerprint
            header[s.H_ABSORBED_EPOCH] = -1
        elif header[s.H_FINGERPRINT] != self._fingerprint:
            raise StateError(
                f'the local state of the aggregate over "{self.relation}" in {directory} was written for another aggregate, '
                "library version or before the host restarted. It is a cache: delete the directory and it is rebuilt from "
                "the checkpoint.",
                code="STATE_FINGERPRINT",
                relation=self.relation,
                directory=directory,
            )
        elif header[s.H_DIRTY] != 0:
            raise StateError(
                f'the local state of the aggregate over "{self.relation}" in {directory} was being written when its process '
                "died. It is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
                relation=self.relation,
                directory=directory,
            )
        self._table = SlotTable(header, s.H_JOIN_COUNT, s.H_JOIN_BITS, directory=directory, name=f"{self.name}.join")
        self._view = np.zeros(s.VIEW_WORDS, np.int64)
        self.view = int(self._view.ctypes.data)
        self._refresh_view()

    def _refresh_view(self) -> None:
        self._view[s.HASH_KEY] = self._hash_key
        self._arena.write_view(self._view)
        self._view[s.JOIN_SLOTS] = self._table.address
        self._view[s.JOIN_BITS] = self._table.bits

    @property
    def absorbed_epoch(self) -> int:
        return int(self._arena.header[s.H_ABSORBED_EPOCH])

    @property
    def groups(self) -> int:
        return int(self._arena.header[s.H_LIVE_ROWS])

    @property
    def cold_groups(self) -> int:
        """Return the number of groups that are on disk; it is kept with the state, for who has put them there."""
        return int(self._arena.header[s.H_COLD_GROUPS])

    @cold_groups.setter
    def cold_groups(self, groups: int) -> None:
        self._arena.header[s.H_COLD_GROUPS] = groups

    @property
    def records(self) -> object:
        """Return the identity of record numbers; another object after they have changed."""
        return self._arena

    @property
    def record_bytes(self) -> int:
        return self._layout.stride

    @property
    def heap_used(self) -> int:
        """Return the bytes of the heap that groups take."""
        return int(self._arena.header[s.H_HEAP_USED])

    # ---------------------------------------------------------------- reading

    def load(self, rows: pa.RecordBatch, count: int) -> Lines:
        """Find the groups of some rows and copy their state into lines. Cost: the rows."""
        entry_of, keys, key_codes, entries = self._group(rows, count)
        scratch = self._scratch
        numbers = scratch.array("found", entries)
        size, shape = entries * self.line_words, (entries, self.line_words)
        before = scratch.array("before", size)[:size].reshape(shape)
        after = scratch.array("after", size)[:size].reshape(shape)
        load_groups(
            self.view,
            entries,
            keys,
            key_codes,
            self._columns.address,
            self._layout.state_offset,
            self.line_words,
            numbers,
            int(before.ctypes.data),
            int(after.ctypes.data),
        )
        heap = self._arena.heap_address
        lines = Lines(
            count, entries, self.line_words, entry_of, keys, key_codes, numbers, before, after, heap, scratch, self._group_of
        )
        self._lines = lines
        return lines

    def _group(self, rows: pa.RecordBatch, count: int) -> tuple[Int64s, Int64s, Int64s, int]:
        scratch = self._scratch
        entry_of = scratch.array("entry_of", count)
        keys, key_codes = scratch.array("keys", count), scratch.array("key_codes", count)
        stride = self._key_layout.stride
        target = scratch.array("records", max(count, 1) * stride, np.uint8)
        address = scratch.address("records")
        if not self.schema.names:
            target[:stride] = 0
            entry_of[:count] = 0
            keys[0], key_codes[0] = address, 0
            return entry_of, keys, key_codes, 1
        batch = pa.RecordBatch.from_arrays([rows.column(name) for name in self.schema.names], schema=self.schema)
        encoded = self._key_layout.encode(batch, [], target, address)
        self._owners = encoded.owners
        codes = scratch.array("codes", count)
        scratch.array("nulls", count, np.uint8)
        places = scratch.address("codes"), scratch.address("nulls")
        hash_rows(address, stride, count, self._columns.address, self._hash_key, *places)
        table, bits = scratch.table("entries", count)
        entries = group_delta(address, stride, count, codes, self._columns.address, table, bits, entry_of, keys, key_codes)
        return entry_of, keys, key_codes, int(entries)

    def key_refs(self, lines: Lines) -> Int64s:
        """Return a record with the key of every entry: the stored one where there is one, whose bits came first."""
        numbers = lines.found[: lines.entries]
        stored = self._view[s.ROWS] + (numbers - 1) * self._layout.stride
        return np.where(numbers != 0, stored, lines.keys[: lines.entries])

    def gather_keys(self, refs: Int64s) -> list[pa.Array]:
        keys = self._key_plan.gather(int(refs.ctypes.data), len(refs), self._arena.heap_address)
        return keys if self.keeps_bits else list(map(shown_floats, keys))

    def _group_of(self, entry: int) -> tuple[Any, ...]:
        refs = self.key_refs(self._lines)[entry : entry + 1].copy()
        return shown_key(self.gather_keys(refs), 0)

    def live_lines(self) -> tuple[Int64s, Int64s]:
        """Return the record address and the line of every group. Cost: the records ever in use."""
        positions = np.flatnonzero(self.are_groups())
        return self.refs_at(positions), self.lines_at(positions)

    def are_groups(self) -> npt.NDArray[np.bool_]:
        """Return for each record ever in use whether there is a group."""
        end = int(self._arena.header[s.H_ROWS_END])
        live: npt.NDArray[np.bool_] = (self._record_words("u1", c.FLAGS, end, 1)[:, 0] & c.FLAG_LIVE) != 0
        return live

    def refs_at(self, positions: Int64s) -> Int64s:
        """Return the addresses of some records, by position; they move when the state grows."""
        return int(self._view[s.ROWS]) + positions * self._layout.stride

    def lines_at(self, positions: Int64s) -> Int64s:
        end = int(self._arena.header[s.H_ROWS_END])
        lines = np.empty((len(positions), self.line_words), np.int64)
        lines[:, :1] = self._record_words("<i8", c.WEIGHT, end, 1)[positions]
        lines[:, 1:] = self._record_words("<i8", self._layout.state_offset, end, self.line_words - 1)[positions]
        return lines

    def _record_words(self, dtype: str, offset: int, count: int, width: int) -> npt.NDArray[Any]:
        """Return some fields of the first `count` records as an array over the state itself."""
        if count == 0 or width == 0:
            return np.zeros((count, width), dtype)
        stride = self._layout.stride
        records: Any = (ctypes.c_uint8 * (count * stride)).from_address(int(self._view[s.ROWS]))
        size = np.dtype(dtype).itemsize
        return np.ndarray((count, width), dtype, buffer=records, offset=offset, strides=(stride, size))

    @property
    def heap_address(self) -> int:
        """Return where the heap starts; moves when the state grows."""
        return self._arena.heap_address

    def state_place(self, at: int) -> int:
        """Return the offset in a record of the word at position `at` of a line."""
        return self._layout.state_offset + 8 * (at - 1)

    # ---------------------------------------------------------------- writing

    def begin(self) -> None:
        """Mark the state as being written."""
        self._arena.header[s.H_DIRTY] = 1

    def end(self, epoch: int) -> None:
        """Compact where it pays, then mark the state as whole again, with `epoch` folded in."""
        if self._arena.is_sparse() and self._has_room_to_compact():
            self.compact()
        self._arena.header[s.H_ABSORBED_EPOCH] = epoch
        self._arena.header[s.H_DIRTY] = 0

    def _has_room_to_compact(self) -> bool:
        """Return whether the limit leaves room for the old state and the new one; a state far above it is compacted too."""
        held, most = self.state_bytes(), self.most_bytes
        return most is None or held > most + most // 4 or 2 * held - self.dead_bytes() <= most

    def unmark(self) -> None:
        """Mark the state as whole again, at its last epoch."""
        self._arena.header[s.H_DIRTY] = 0

    @property
    def fingerprint(self) -> int:
        return self._fingerprint

    def make_heap_room(self, size: int) -> int:
        """Make room for so many bytes and return the heap offset up to which there is room."""
        self._arena.make_room(0, size)
        self._refresh_view()
        return int(self._arena.header[s.H_HEAP_END]) + size

    def store(self, lines: Lines) -> None:
        """Write lines back. Cost: the entries, amortised."""
        entries = lines.entries
        new = int((lines.found[:entries] == 0).sum())
        heap_bytes = 0
        if new and len(self._variables):
            first, stride = self._scratch.address("records"), self._key_layout.stride
            heap_bytes = int(heap_bytes_needed(first, stride, lines.count, self._variables.address))
        self._arena.make_room(new, heap_bytes)
        self._table.make_room(new)
        self._refresh_view()
        for accumulator in self.accumulators:
            accumulator.store(self, lines)
        self._arena.make_room(new, heap_bytes)
        self._refresh_view()
        store_groups(
            self.view,
            entries,
            lines.keys,
            lines.key_codes,
            self._variables.address,
            self._layout.state_offset,
            self._layout.state_offset,
            self.line_words,
            lines.found,
            lines.after_address,
        )

    def compact(self) -> None:
        """Rewrite the state without its dead records and blocks. Cost: the state."""
        old_arena, old_table, old_view = self._arena, self._table, self._view
        old_header = old_arena.header.copy()
        live = int(old_header[s.H_LIVE_ROWS])
        spare = None if self.directory is None else str(Path(self.directory) / f"{self.name}.compacting")
        if spare is not None:
            make_directory(spare)
        self._open(spare)
        self.begin()
        self._arena.make_room(live, int(old_header[s.H_HEAP_USED]))
        self._table.make_room(live)
        self._refresh_view()
        copied = np.empty((live, 2), np.int64)
        old, pairs = int(old_view.ctypes.data), int(copied.ctypes.data)
        offset = self._layout.state_offset
        copy_groups(old, self.view, self._variables.address, offset, offset, self.line_words, pairs)
        for accumulator in self.accumulators:
            accumulator.copy(old, self.view, live, pairs, offset)
        self._arena.header[s.H_ABSORBED_EPOCH] = old_header[s.H_ABSORBED_EPOCH]
        self._arena.header[s.H_COLD_GROUPS] = old_header[s.H_COLD_GROUPS]
        for owner in (old_table, old_arena):
            owner.close(remove=self.directory is not None)
        if self.directory is not None:
            self._arena.relocate(self.directory)
            self._table.relocate(self.directory)

    def clear(self) -> None:
        remove = self.directory is not None
        self._table.close(remove=remove)
        self._arena.close(remove=remove)
        self._open(self.directory)

    def resident_bytes(self) -> int:
        return self.state_bytes() + self._scratch.resident_bytes()

    def state_bytes(self, more: int = 0) -> int:
        """Return the bytes of records and heap, and of the table as it will be with `more` groups."""
        return self._arena.record_bytes() + self._arena.heap_bytes() + self._table.table_bytes(more)

    def tail_bytes(self) -> int:
        """Return the bytes that records and heap may use beyond their ends, since memory is paged."""
        return self._arena.tail_bytes()

    def dead_bytes(self) -> int:
        """Return the bytes of records and blocks that wait to be used again."""
        return self._arena.dead_bytes()

    def is_current(self) -> bool:
        return self._arena.is_current() and self._arena.header[s.H_DIRTY] == 0 and self._table.is_current()

    def working_bytes(self) -> int:
        return self._scratch.resident_bytes()

    def close(self) -> None:
        self._table.close()
        self._arena.close()
        self._release()


def _fingerprint(meaning: object, schema: pa.Schema, hash_key: int, stride: int) -> int:
    """Return a number that changes with everything the bytes of the state depend on, the boot of the host included."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    description = repr((_LAYOUT_VERSION, boot, repr(meaning), str(schema), hash_key, stride))
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:7], "little") + 1
