"""Everything a join remembers of one side.

A `SideState` is an arena with two tables over it. The arrangement finds the rows of a join key, linked through their records;
one whose key can never match is stored only. The primary-key table finds a row by its identity (primary key, or the whole
row). `prepare` returns what a delta changes; `absorb` writes exactly that. Preparing twice gives the same changes twice.

Sides that are fed the same upserts may hold their rows once: one writes them, and the others *follow* it. A follower finds rows
and lists changes as before, in the state before an epoch until the writer has folded it in, and counts its own epochs. Over
files it keeps its own, without rows, and in them the mark of those that it holds, which it takes up again when it is opened.
Rows of another mark were stored later, and may be others.

Files: `<name>.header`, `.rows`, `.heap`, `.join.slots<n>`, `.identity.slots<n>` in one directory, or nothing but memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform
from zset_join.kernels.join import absorb as kernels_absorb
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows import moves as kernels_compact
from zset_join.kernels.rows import side as s
from zset_join.kernels.rows.storing import bytes_of_rows, evict_rows, list_tombstones
from zset_join.kernels.values import keys as c
from zset_join.shapes.kept_types import MOST_NULL_KEYS, count_sequence_words
from zset_join.state.rows.directories import HashTables, hold_directory
from zset_join.state.rows.order_words import sequence_nulls, sequence_words
from zset_join.state.rows.row_tables import RowArena, SlotTable
from zset_join.zset import ZSet
from zset_join.zset.row_layout import EncodedRows, RowLayout

__all__ = ["DeltaArrays", "PreparedSide", "SideRules", "SideState", "dropped_rows", "hold_once", "shared_sides", "table_bits"]

_LAYOUT_VERSION = 6
_TABLES = {"join": (s.H_JOIN_COUNT, s.H_JOIN_BITS), "identity": (s.H_IDENTITY_COUNT, s.H_IDENTITY_BITS)}
_NO_WATERMARK = -(1 << 62)
_COUNTS = slice(s.H_STALE_ROWS, s.H_REJECTED_ROWS + 1)


# The words of the view that hold the addresses of one line each; two at one place are never used in one mode.
_LINES = (
    (s.D_JOIN_CODES,),
    (s.D_IDENTITY_CODES,),
    (s.D_NUMBERS,),
    (s.D_FIRST_OF,),
    (s.D_LAST_OF,),
    (s.D_FOUND,),
    (s.D_AFTER_OF,),
    (s.D_INSERTED_DELETED, s.D_ENTRY_OF),
    (s.D_MOVED_OVERWRITTEN, s.D_BEFORE_OF),
    (s.D_OTHERS_LIST,),
)
_BYTE_LINES = (s.D_STATUS, s.D_UNMATCHABLE, s.D_IDENTITY_NULLS)
_LEAST_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRules:
    keeps_unmatchable: bool = True  # rows whose key can never match matter (a preserved side)
    has_degree: bool = False  # rows count their matches (a preserved side with a residual predicate)
    tombstone_retention_us: int = 0
    compared: Sequence[str] | None = None  # columns in which an upsert must differ to be a change; None: all
    arranges: bool = True  # rows are looked up by join key too, not by identity only
    is_hybrid: bool = False  # some rows may lie on disk; the files are useless alone


class DeltaArrays:
    """The working arrays about one delta, kept from epoch to epoch.

    Room is made once for the largest delta seen, 83 bytes per row, its record, and 12 to 24 for the table that groups rows;
    until then an epoch allocates nothing. The content is arbitrary at the start of each delta: kernels write before they read.
    """

    def __init__(self, stride: int) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros(s.DELTA_WORDS, np.int64)
        self.address = int(self.words.ctypes.data)
        self._stride = stride
        self._rows = 0
        self._used = 0
        self._allocate(_LEAST_ROWS)

    def make_room(self, rows: int) -> None:
        """Make room for a delta of so many rows; at least doubles."""
        if rows > self._rows:
            self._allocate(max(rows, min(2 * rows, 2 * self._rows)))
        self._used = max(self._used, rows)

    def shrink(self, rows: int) -> None:
        """Give memory back that a delta of so many rows has no use for: where it takes less than an eighth."""
        if 8 * max(rows, _LEAST_ROWS) < self._rows:
            self._allocate(max(2 * rows, _LEAST_ROWS))

    def _allocate(self, rows: int) -> None:
        self._rows = rows
        self._used = 0
        self._lines: npt.NDArray[np.int64] = np.empty((len(_LINES), rows), np.int64)
        self._bytes: npt.NDArray[np.uint8] = np.empty((len(_BYTE_LINES), rows), np.uint8)
        self.records: npt.NDArray[np.uint8] = np.empty(rows * self._stride, np.uint8)
        self._table = np.empty(1 << table_bits(rows), np.int64)
        for line, places in zip(self._lines, _LINES, strict=True):
            for place in places:
                self.words[place] = line.ctypes.data
        for marks, place in zip(self._bytes, _BYTE_LINES, strict=True):
            self.words[place] = marks.ctypes.data
        self.words[s.D_ROWS] = self.records.ctypes.data
        self.words[s.D_TABLE] = self._table.ctypes.data

    def line(self, place: int) -> npt.NDArray[Any]:
        if place in _BYTE_LINES:
            return np.asarray(self._bytes[_BYTE_LINES.index(place)])
        return np.asarray(self._lines[next(at for at, places in enumerate(_LINES) if place in places)])

    def resident_bytes(self) -> int:
        """Return the bytes of all arrays, as far as they were used."""
        by_row = len(_LINES) * 8 + len(_BYTE_LINES) + self._stride
        return self._used * by_row + min(int(self._table.nbytes), 8 << table_bits(self._used))


def table_bits(rows: int) -> int:
    """Return the binary logarithm of the size of the table that groups so many rows."""
    return max(4, (rows + rows // 2).bit_length())


@dataclass(slots=True)
class PreparedSide:
    """Effect of one delta on one side, computed before it is applied.

    Valid until the same side prepares its next delta. `dropped`: how many of its rows may be dropped for a NULL key.
    """

    delta: ZSet
    encoded: EncodedRows
    arrays: DeltaArrays
    rejected: int = 0
    dropped: int = 0
    entries: int = 0
    stale: int = 0
    unknown_deletes: int = 0

    @property
    def most_changes(self) -> int:
        """Return how many changes there can be at most."""
        return 2 * self.count

    @property
    def count(self) -> int:
        return self.encoded.count

    @property
    def status(self) -> Any:
        return self.arrays.line(s.D_STATUS)

    @property
    def join_codes(self) -> Any:
        return self.arrays.line(s.D_JOIN_CODES)

    @property
    def unmatchable(self) -> Any:
        """Return for every row whether its join key can never match, as bytes."""
        return self.arrays.line(s.D_UNMATCHABLE)

    @property
    def identity_codes(self) -> Any:
        return self.arrays.line(s.D_IDENTITY_CODES)

    @property
    def numbers(self) -> Any:
        """Return, once it is absorbed, the row number of every row of the delta that was stored."""
        return self.arrays.line(s.D_NUMBERS)

    @property
    def first_of(self) -> Any:
        return self.arrays.line(s.D_FIRST_OF)

    @property
    def last_of(self) -> Any:
        """Return the row that decides for every entry; -1 where the state is newer."""
        return self.arrays.line(s.D_LAST_OF)

    @property
    def after_of(self) -> Any:
        """Return, for upserts, the row of every entry that is live after the epoch; -1 for none."""
        return self.arrays.line(s.D_AFTER_OF)


class SideState:
    """The state of one side of a join, or of any operator that keeps keyed rows."""

    def __init__(
        self,
        relation: Relation,
        *,
        key_types: Sequence[pa.DataType],
        null_safe: Sequence[bool],
        tables: HashTables,
        name: str,
        rules: SideRules = SideRules(),
    ) -> None:
        self.relation = relation
        self.directory = directory = tables.directory
        self.name = name
        self._hash_key = tables.hash_key
        self._retention_us = rules.tombstone_retention_us
        self.has_identity = relation.mode != "append"
        self.numbering = 0  # another number whenever rows have got other numbers
        # Called before records move, with their positions before and after, and how many are left.
        self.on_compacting: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64], int], None] | None = None
        self.arranges = rules.arranges
        self._is_hybrid = rules.is_hybrid
        self._sequence_indices = relation.field_indices(relation.sequence_by)
        words = count_sequence_words(
            [relation.schema.field(at).type for at in self._sequence_indices],
            relation=relation.name,
            columns=relation.sequence_by,
        )
        self.keeps_tombstones = relation.mode == "upsert" and words > 0
        self.drops_unmatchable = not rules.keeps_unmatchable and not (relation.mode == "upsert" and words > 0)
        own_types = [relation.schema.field(name).type for name in relation.join_key]
        casts = [
            (column, key_type)
            for column, own, key_type in zip(relation.join_key, own_types, key_types, strict=True)
            if own != key_type
        ]
        self.layout = RowLayout(relation.schema, key_casts=casts, sequence_words=words, has_degree=rules.has_degree)
        self._owner: SideState | None = None  # writes the rows that it holds; None: itself
        self._followers: list[SideState] = []
        self._absorbed, self._held = -1, 0  # of a follower its epoch, and over files the mark of what it holds
        self._needs = (relation.field_indices(relation.join_key), tuple(null_safe)) if rules.arranges else None
        self._arranged_by = self._needs
        identity = relation.primary_key if relation.mode == "upsert" else tuple(relation.schema.names)
        self.join_columns = self.layout.columns(relation.join_key, null_safe=null_safe, as_key=True)
        self.identity_columns = self.layout.columns(identity)
        compared: Sequence[str] = relation.schema.names if rules.compared is None else rules.compared
        if relation.mode == "upsert":  # live row and new row share the primary key, so there is nothing to compare
            compared = [name for name in compared if name not in relation.primary_key]
        self._compared_columns = self.layout.columns(compared)
        silent = [name for name in relation.schema.names if name not in compared and name not in identity]
        self._silent_columns = self.layout.columns(silent)
        self._silent_variables = self.layout.variable_columns(silent)
        self._variables = self.layout.variable_columns()
        self._other_columns = self.layout.columns_besides(identity)
        facts = [[str(kind) for kind in key_types], list(null_safe), self._hash_key, *(["hybrid"] if rules.is_hybrid else [])]
        self._fingerprint = _fingerprint(relation, self.layout, *facts)
        self._arrays = DeltaArrays(self.layout.stride)
        for place, columns in (
            (s.D_JOIN_COLUMNS, self.join_columns),
            (s.D_IDENTITY_COLUMNS, self.identity_columns),
            (s.D_COMPARED_COLUMNS, self._compared_columns),
            (s.D_OTHER_COLUMNS, self._other_columns),
            (s.D_VARIABLES, self._variables),
            (s.D_SILENT_COLUMNS, self._silent_columns),
            (s.D_SILENT_VARIABLES, self._silent_variables),
        ):
            self._arrays.words[place] = columns.address
        self._release = hold_directory(self, directory, name)
        try:
            self._open(directory)
        except BaseException:
            self._release()
            raise

    def _open(self, directory: str | None) -> None:
        self.numbering += 1
        self.arena = RowArena(self.layout, directory=directory, name=self.name)
        header = self.arena.header
        if header[s.H_FINGERPRINT] == 0:
            header[s.H_FINGERPRINT] = self._fingerprint
            header[s.H_ABSORBED_EPOCH] = -1
            header[s.H_WATERMARK] = _NO_WATERMARK
            header[s.H_NULL_KEYS_COUNTED] = 1
            header[s.H_MARK] = 1 + secrets.randbits(62)
        elif header[s.H_FINGERPRINT] != self._fingerprint:
            raise StateError(
                f'the local state of "{self.relation.name}" in {directory} was written for another relation, library version '
                "or before the host restarted. It is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_FINGERPRINT",
                relation=self.relation.name,
                directory=directory,
            )
        elif header[s.H_DIRTY] != 0:
            raise StateError(
                f'the local state of "{self.relation.name}" in {directory} was being written when its process died. '
                "It is a cache: delete the directory and it is rebuilt from the checkpoint.",
                code="STATE_HALF_WRITTEN",
                relation=self.relation.name,
                directory=directory,
            )
        self.arrangement, self.primary_keys = (
            SlotTable(header, *words, directory=directory, name=f"{self.name}.{of}") for of, words in _TABLES.items()
        )
        self._own = (self.arena, self.arrangement, self.primary_keys)
        self._held, self._absorbed = int(header[s.H_MARK_HELD]), int(header[s.H_ABSORBED_EPOCH])
        self._view = np.zeros(s.VIEW_WORDS, np.int64)
        self.view = int(self._view.ctypes.data)
        self._refresh_view()

    def _refresh_view(self) -> None:
        self._view[s.HASH_KEY] = self._hash_key
        self.arena.write_view(self._view)
        self._view[[s.JOIN_SLOTS, s.JOIN_BITS]] = self.arrangement.address, self.arrangement.bits
        self._view[[s.IDENTITY_SLOTS, s.IDENTITY_BITS]] = self.primary_keys.address, self.primary_keys.bits
        for one in self._followers:
            one._mirror()

    @property
    def header(self) -> npt.NDArray[np.int64]:
        return self.arena.header

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch that was folded in, -1 when there was none."""
        return self._absorbed if self.follows else int(self.header[s.H_ABSORBED_EPOCH])

    @property
    def watermark(self) -> int:
        """Return the newest watermark of all epochs that were folded in; a very old one when there was none."""
        return int(self.header[s.H_WATERMARK])

    @property
    def horizon(self) -> int | None:
        """Return the watermark up to which tombstones have expired; None when no epoch had one."""
        return None if self.watermark == _NO_WATERMARK else self.watermark - self._retention_us

    # ---------------------------------------------------------------- reading

    def prepare(self, delta: ZSet, *, words: Sequence[npt.NDArray[np.int64]] | None = None) -> PreparedSide:
        """Return the changes of a delta; `words`: the sequence, where no column has it. Cost: the rows of the delta."""
        prepared = self.encode(delta, words=words)
        self.resolve(prepared)
        return prepared

    def encode(self, delta: ZSet, *, words: Sequence[npt.NDArray[np.int64]] | None = None) -> PreparedSide:
        """Do the part of `prepare` that needs no row of the state: records, hashes, weights, NULLs."""
        count = len(delta)
        arrays, mode = self._arrays, self.relation.mode
        arrays.make_room(count)
        rows = conform(delta.rows, self.relation)
        sequence = [rows.column(at) for at in self._sequence_indices] if words is None else []
        words = sequence_words(sequence) if words is None else words
        encoded = self.layout.encode(rows, words, arrays.records, int(arrays.words[s.D_ROWS]))
        weights = pa.py_buffer(np.ascontiguousarray(delta.weights))  # whose address costs less than an array's own
        encoded.owners.append(weights)
        arrays.words[s.D_COUNT] = count
        arrays.words[s.D_WEIGHTS] = weights.address
        arrays.words[s.D_TABLE_BITS] = table_bits(count)
        lost, nulls, bad = ch.hash_delta(self.view, arrays.address, self.has_identity, mode == "append")
        prepared = PreparedSide(delta, encoded, arrays, dropped=lost if self.drops_unmatchable else 0)
        if not self.arranges:
            prepared.unmatchable[:count] = 1
        if encoded.unfit is not None:
            self._set_status(prepared, encoded.unfit, ch.KEY_RANGE)
        if lost and self.drops_unmatchable and mode != "upsert":
            self._set_status(prepared, arrays.line(s.D_UNMATCHABLE)[:count] != 0, ch.NOTHING)
        if not self.has_identity:
            if bad or encoded.unfit is not None:
                prepared.rejected = int((prepared.status[:count] > ch.LAST_HARMLESS).sum())
            return prepared
        self._refuse_nulls(prepared, nulls, sequence)
        return prepared

    def resolve(self, prepared: PreparedSide) -> None:
        """Do the part of `prepare` that looks rows up."""
        if not self.has_identity:
            return
        arrays, is_changelog = prepared.arrays, self.relation.mode == "changelog"
        ch.group_rows(self.view, arrays.address, is_changelog)
        if is_changelog:
            ch.resolve_weights(self.view, arrays.address)
        prepared.entries, prepared.stale, _, prepared.rejected = arrays.words[s.D_ENTRIES : s.D_REJECTED + 1].tolist()

    def _set_status(self, prepared: PreparedSide, marked: npt.NDArray[np.bool_], status: int) -> None:
        own = prepared.status[: prepared.count]
        own[marked & (own == ch.OK)] = status

    def _refuse_nulls(self, prepared: PreparedSide, nulls: int, sequence: list[pa.Array]) -> None:
        count = prepared.count
        if self.relation.mode == "upsert":
            if nulls:
                self._set_status(prepared, self._arrays.line(s.D_IDENTITY_NULLS)[:count] != 0, ch.NULL_PRIMARY_KEY)
        else:
            for column in self.relation.primary_key:
                key = prepared.delta.rows.column(column)
                if key.null_count:
                    status = prepared.status[:count]
                    status[key.is_null().to_numpy(zero_copy_only=False) & (status != ch.ZERO_WEIGHT)] = ch.NULL_PRIMARY_KEY
        null_sequence = sequence_nulls(sequence)
        if null_sequence is not None:
            self._set_status(prepared, null_sequence, ch.NULL_SEQUENCE)

    def list_changes(self, prepared: PreparedSide, base: int, changes: int, marks: int = 0) -> int:
        """Write the changes from position `base` on, the first one at address `changes`; return where they end."""
        # Completes what `prepare` began: `absorb` needs it. At most `most_changes` of them. `marks` is the address of zeroed
        # bits, one per row number: those of the state rows that change are set (0: not wanted).
        delta = prepared.arrays.address
        if self.relation.mode == "append":
            return int(ch.changes_of_appends(self.view, delta, base, changes))
        if self.relation.mode == "changelog":
            return int(ch.changes_of_weights(self.view, delta, base, changes, marks))
        end = int(ch.changes_of_upserts(self.view, delta, self.drops_unmatchable, base, changes, marks))
        prepared.stale, prepared.unknown_deletes = prepared.arrays.words[s.D_STALE : s.D_UNKNOWN_DELETES + 1].tolist()
        return end

    # ---------------------------------------------------------------- writing

    def begin_absorb(self) -> None:
        if not self.follows:
            self.header[s.H_DIRTY] = 1

    def end_absorb(self, epoch: int) -> None:
        """Compact where it pays, then mark the state as whole again, with `epoch` folded in."""
        if self.follows:
            self._absorbed = epoch
            if self._held:
                self._own[0].header[s.H_ABSORBED_EPOCH] = epoch
            return
        if self.arena.is_sparse(tight=self._is_hybrid):
            self.compact()
        self.header[s.H_ABSORBED_EPOCH] = epoch
        self.header[s.H_DIRTY] = 0

    def absorb(self, prepared: PreparedSide | None, watermark: int | None) -> None:
        """Store the result of `prepare` (None: nothing) and drop expired tombstones. Cost: the changes, amortised."""
        if self.follows:
            return
        header = self.arena.header
        if watermark is not None and watermark > header.item(s.H_WATERMARK):
            header[s.H_WATERMARK] = watermark
        if prepared is not None and prepared.count:
            self._store(prepared)
            if prepared.stale or prepared.unknown_deletes or prepared.rejected:
                header[_COUNTS] += (prepared.stale, prepared.unknown_deletes, prepared.rejected)
            if prepared.dropped and header.item(s.H_NULL_KEYS) < MOST_NULL_KEYS:
                total = header.item(s.H_NULL_KEYS) + dropped_rows(prepared, is_upsert=self.relation.mode == "upsert")
                header[s.H_NULL_KEYS] = min(total, MOST_NULL_KEYS)
                header[s.H_NULL_KEYS_COUNTED] &= total < MOST_NULL_KEYS
        if header.item(s.H_TOMBSTONES) and (horizon := self.horizon) is not None:
            kernels_absorb.expire_tombstones(self.view, self.identity_columns.address, self._variables.address, horizon)

    def _store(self, prepared: PreparedSide) -> None:
        count, delta = prepared.count, prepared.arrays.address
        heap_bytes = 0
        if len(self._variables):
            heap_bytes = kernels_absorb.heap_bytes_needed(
                prepared.encoded.address, self.layout.stride, count, self._variables.address
            )
        self.make_room(count, int(heap_bytes))
        if self.relation.mode == "append":
            kernels_absorb.absorb_appends(self.view, delta)
        elif self.relation.mode == "upsert":
            kernels_absorb.absorb_upserts(self.view, delta, self.keeps_tombstones, self.watermark)
        else:
            kernels_absorb.absorb_weights(self.view, delta)

    def evict(self, numbers: npt.NDArray[np.int64]) -> None:
        """Drop rows of a side in append mode for good, by number."""
        evict_rows(self.view, self._variables.address, int(numbers.ctypes.data), len(numbers))

    def make_room(self, rows: int, heap_bytes: int, *, join_keys: int | None = None) -> None:
        """Make room for so many more rows, their join keys (default: one a row) and bytes of long values; records may move."""
        moved = self.arena.make_room(rows, heap_bytes)
        moved |= self.arranges and self.arrangement.make_room(rows if join_keys is None else join_keys)
        moved |= self.has_identity and self.primary_keys.make_room(rows)
        if moved:
            self._refresh_view()

    def compact(self, *, more_rows: int = 0) -> None:
        """Compact the live rows and release the memory of dead ones, except slots for `more_rows` rows."""
        header = self.header
        used = int(header[s.H_LIVE_ROWS]) + int(header[s.H_TOMBSTONES])
        sources, targets = np.empty((2, min(used, int(header[s.H_ROWS_END]) - used)), np.int64)
        count = kernels_compact.plan_moves(self.view, used, sources, targets)
        sources, targets = sources[:count], targets[:count]
        self.numbering += 1
        if self.on_compacting is not None:
            self.on_compacting(sources, targets, used)
        kernels_compact.move_records(self.view, used, self.identity_columns.address, self.has_identity, sources, targets)
        kernels_compact.slide_blocks(self.view, self._variables.address)
        self.arena.give_back()
        self.arrangement.shrink(more_rows)
        self.primary_keys.shrink(more_rows)
        self._refresh_view()

    def live_refs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the record addresses of the live rows and of the tombstones (oldest first)."""
        end = int(self.header[s.H_ROWS_END])
        flags = self.record_words("u1", c.FLAGS, end)
        addresses = self._view[s.ROWS] + np.arange(end, dtype=np.int64) * self.layout.stride
        live = addresses[(flags & c.FLAG_LIVE) != 0]
        return live, addresses[self.tombstone_numbers() - 1]

    def tombstone_numbers(self) -> npt.NDArray[np.int64]:
        numbers = np.empty(int(self.header[s.H_TOMBSTONES]), np.int64)
        list_tombstones(self.view, np.empty(0, np.int32), 0, numbers)
        return numbers

    def record_words(self, dtype: str, offset: int, count: int) -> npt.NDArray[Any]:
        """Return one field of the first `count` records as an array over the state itself."""
        if count == 0:
            return np.zeros(0, dtype)
        size = count * self.layout.stride
        records: Any = (ctypes.c_uint8 * size).from_address(int(self._view[s.ROWS]))
        return np.ndarray((count,), dtype, buffer=records, offset=offset, strides=(self.layout.stride,))

    def refs_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.first_record + (numbers - 1) * self.layout.stride

    def sizes_of(self, refs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bytes that some rows count for (record and heap blocks), by record address."""
        refs, sizes = np.ascontiguousarray(refs), np.empty(len(refs), np.int64)
        bytes_of_rows(int(refs.ctypes.data), len(refs), self.layout.stride, self._variables.address, int(sizes.ctypes.data))
        return sizes

    def degrees(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.record_words("<i8", self.layout.degree_offset, int(self.header[s.H_ROWS_END]))[numbers - 1]

    @property
    def first_record(self) -> int:
        """Return the address of row number 1; moves when the arena grows."""
        return int(self._view[s.ROWS])

    def weights(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.record_words("<i8", c.WEIGHT, int(self.header[s.H_ROWS_END]))[numbers - 1]

    @property
    def ignored(self) -> tuple[int, int, int]:
        """Return how many rows came too late for their sequence, deleted what was absent, or were rejected, so far."""
        stale, unknown_deletes, rejected = self.header[_COUNTS].tolist()
        return stale, unknown_deletes, rejected

    @ignored.setter
    def ignored(self, counts: tuple[int, int, int]) -> None:
        self.header[_COUNTS] = counts

    @property
    def live_bytes(self) -> int:
        """Return the bytes that the live rows count for (records and heap blocks); for a side without tombstones."""
        return int(self.header[s.H_LIVE_ROWS]) * self.layout.stride + int(self.header[s.H_HEAP_USED])

    @property
    def held_bytes(self) -> int:
        """Return the bytes that all rows count for, those on disk too, as `live_bytes` does."""
        return self.live_bytes + int(self.header[s.H_COLD_BYTES])

    @property
    def variables_address(self) -> int:
        return self._variables.address

    def statistics(self) -> dict[str, int]:
        return {
            f"{self.name}_rows": int(self.header[s.H_LIVE_ROWS]),
            **({f"{self.name}_keys": int(self.header[s.H_JOIN_COUNT])} if self.arranges else {}),
            f"{self.name}_tombstones": int(self.header[s.H_TOMBSTONES]),
            f"{self.name}_bytes": self.resident_bytes(),
        }

    def store_degrees(self, numbers: npt.NDArray[np.int64], degrees: npt.NDArray[np.int64]) -> None:
        self.record_words("<i8", self.layout.degree_offset, int(self.header[s.H_ROWS_END]))[numbers - 1] = degrees

    def is_current(self) -> bool:
        return not self.lacks_rows and self.header[s.H_DIRTY] == 0 and all(part.is_current() for part in self._own)

    def shrink_working(self, prepared: PreparedSide | None) -> int:
        """Give working arrays back that are far too large for the delta that was absorbed; return its rows."""
        count = 0 if prepared is None else prepared.count
        self._arrays.shrink(count)
        return count

    def working_bytes(self) -> int:
        return self._arrays.resident_bytes()

    def clear(self) -> None:
        if not self._leaves():
            for part in (self.arrangement, self.primary_keys, self.arena):
                part.close(remove=self.directory is not None)
        self._open(self.directory)

    # ---------------------------------------------------------------- rows that several sides hold

    @property
    def follows(self) -> bool:
        """Return whether another side writes its rows."""
        return self._owner is not None or self._held != 0

    @property
    def writer(self) -> SideState:
        """Return the side that writes its rows."""
        return self._owner or self

    @property
    def lacks_rows(self) -> bool:
        """Return whether the rows that it holds are those of a side that it has not found."""
        return self._owner is None and self._held != 0

    def can_follow(self, other: SideState) -> bool:
        """Return whether it can hold the rows of another side that was fed the same: they are those that it holds."""
        ones = [self._contract(), other._contract()]
        needed = {one._needs for one in (self, *self._followers)} - {None}
        is_found = not needed or (needed == {other._arranged_by} and self._hash_key == other._hash_key)
        counts = [s.H_LIVE_ROWS, s.H_TOMBSTONES, s.H_NULL_KEYS, s.H_NULL_KEYS_COUNTED]
        holds_same = ones[0] == ones[1] and (self.header[counts] == other.header[counts]).all()
        return bool(is_found and None not in ones and holds_same)

    def _contract(self) -> tuple[object, ...] | None:
        """Return what sides of the same records agree on; None for one that holds its rows alone."""
        if self.relation.mode != "upsert" or self._is_hybrid or self.layout.degree_offset >= 0:
            return None  # its cold rows, or what it counts per row are its own
        if self.follows or self.layout.key_casts or (self.drops_unmatchable and self.header[s.H_NULL_KEYS]):
            return None
        one = self.relation
        keys = one.field_indices(one.primary_key), self._sequence_indices
        return one.schema.types, keys, self.layout.stride, self._retention_us, self.directory is None

    def follow(self, other: SideState) -> None:
        """Hold the rows of another side, with those that follow this one; its own rows are dropped. See `can_follow`."""
        if self.directory is not None:
            epoch = self.absorbed_epoch
            self.clear()
            self._held, self._absorbed = int(other.header[s.H_MARK]), epoch
            self.header[[s.H_MARK_HELD, s.H_ABSORBED_EPOCH]] = self._held, epoch
            self._resume(other)
            return
        moved = [(one, one.absorbed_epoch) for one in (self, *self._followers)]
        self._followers = []
        for part in (self.arrangement, self.primary_keys, self.arena):
            part.close()
        other.drops_unmatchable = False
        for one, epoch in moved:
            one._owner, one._absorbed, one.drops_unmatchable = other, epoch, False
            other._followers.append(one)
            one._mirror()

    def hold_with(self, other: SideState | None) -> bool:
        """Hold over files the rows of a side that is fed the same, of none else; return whether its own were dropped for it."""
        if self._owner is not None and self._owner is not other:
            self._part()
        if other is None or self._owner is other:
            return False
        if self.follows:
            self._resume(other)
        elif self.can_follow(other):
            self.follow(other)
            return True
        return False

    def _resume(self, other: SideState) -> None:
        """Hold the rows of another side again where they are those that it held."""
        if self._held == other.header[s.H_MARK]:
            other.drops_unmatchable = self.drops_unmatchable = False
            self._owner = other
            other._followers.append(self)
            self._mirror()

    def _part(self) -> None:
        """Let those that follow it over files, and itself, hold no rows of another side."""
        for one in tuple(self._followers):
            one._part()
        if self._owner is not None:
            self._owner._followers.remove(self)
            self._owner = None
            self.arena, self.arrangement, self.primary_keys = self._own
            self._refresh_view()

    def promote(self, writer: SideState) -> None:
        """Let a follower write the rows from now on, arranged as they are, and follow it with all others."""
        writer.arranges, writer.join_columns, writer._arranged_by = self.arranges, self.join_columns, self._arranged_by
        writer._arrays.words[s.D_JOIN_COLUMNS] = writer.join_columns.address
        self._absorbed = self.absorbed_epoch
        self.header[s.H_ABSORBED_EPOCH] = writer._absorbed
        writer._owner, self._owner = None, writer
        writer._followers = [self, *(one for one in self._followers if one is not writer)]
        self._followers = []
        for one in writer._followers:
            one._owner = writer

    def _mirror(self) -> None:
        owner = self._owner
        assert owner is not None  # noqa: S101 - it follows
        self.arena, self.arrangement, self.primary_keys = owner.arena, owner.arrangement, owner.primary_keys
        self._hash_key, self.numbering = owner._hash_key, owner.numbering
        self._refresh_view()

    def _leaves(self) -> bool:
        """Leave the rows to the sides that hold them as well; return whether there are any. Over files they stay its own."""
        if self.directory is not None:
            self._part()
            return False
        if self._followers:
            self.promote(self._followers[0])
        if self._owner is None:
            return False
        self._owner._followers.remove(self)
        self._owner = None
        return True

    def take_over(self, other: SideState) -> None:
        """Hold what another side in memory, of the same relation and hashes, holds (over files: a copy); that one ends."""
        if self.follows:
            other.close()
            return
        self.numbering += 1
        for name in ("arrangement", "primary_keys", "arena"):
            own, held = getattr(self, name), getattr(other, name)
            if self.directory is None:
                setattr(self, name, held)
            else:
                own.copy(held)
            (own if self.directory is None else held).close()
        self._refresh_view()

    def table_bytes(self, keys: int = 0) -> int:
        """Return the bytes of both tables, as they are or as they will be with so many more keys."""
        identities = self.primary_keys.table_bytes(keys) if self.has_identity else 0
        return self.arrangement.table_bytes(keys if self.arranges else 0) + identities

    def resident_bytes(self) -> int:
        return self.state_bytes() + self.working_bytes()

    def state_bytes(self) -> int:
        """Return the bytes of records, heap and tables that it writes; those of dead rows are among them."""
        if self.follows:
            return 0
        return self.arena.record_bytes() + self.arena.heap_bytes() + self.table_bytes()

    def close(self) -> None:
        if not self._leaves():
            for part in (self.arrangement, self.primary_keys, self.arena):
                part.close()
        self._release()


def shared_sides(operator: object, *, over_files: bool = False) -> Sequence[SideState]:
    """Return the sides of an operator that may hold their rows with others, by the places of its inputs."""
    # Over files each folds its epochs in alone, so that the rows of another one may be those after the epoch.
    found: Sequence[SideState] = getattr(operator, "shared_sides", ())
    return () if over_files and getattr(operator, "counts_pairs", False) else found


def hold_once(sides: Sequence[SideState]) -> None:
    """Let sides that were fed the same hold it once, as far as they can."""
    owners = list({id(one): one for one in (side.writer for side in sides)}.values())
    while owners:
        chosen = max(owners, key=lambda one: (any(side._needs for side in (one, *one._followers)), len(one._followers)))
        following = [one for one in owners if one is not chosen and one in sides and one.can_follow(chosen)]
        for one in following:
            one.follow(chosen)
        owners = [one for one in owners if one is not chosen and one not in following]


def _fingerprint(relation: Relation, layout: RowLayout, *more: object) -> int:
    """Return a number that changes with everything the bytes of the state depend on, the boot of the host included."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    contract = (
        relation.name,
        str(relation.schema),
        relation.join_key,
        relation.primary_key,
        relation.sequence_by,
        relation.mode,
    )
    description = repr((_LAYOUT_VERSION, boot, *contract, layout.stride, layout.degree_offset, *more))
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:7], "little") + 1


def dropped_rows(prepared: PreparedSide, *, is_upsert: bool) -> int:
    """Return how many rows of a resolved delta a side drops for NULL in their key: their weight, or how many upserts."""
    unmatchable, weights, count = prepared.unmatchable, prepared.delta.weights, prepared.count
    if not is_upsert:
        dropped = weights[(prepared.status[:count] == ch.NOTHING) & (unmatchable[:count] != 0)]
        return (int((dropped >> 32).sum()) << 32) + int((dropped & 0xFFFF_FFFF).sum())  # past an int64, too
    last = prepared.last_of[: prepared.entries]
    return int(np.count_nonzero((unmatchable[last] != 0) & (weights[last] > 0)))
