"""The position of each column of a relation inside a row record.

A `RowLayout` is made once from a relation. It turns record batches into row records and lists of record addresses back into
Arrow columns, both through `zset_join.kernels.values.encode`. Besides the columns of the relation a record may hold hidden
ones: a key brought to the type it is compared in, the words of the sequence, and the degree of an outer-join row.

Bytes of a row: 21, plus one bit per column, plus the width of each value (16 for a string, whose bytes beyond 12 go to the
heap), rounded up to 8.

`BatchMessage`: record batches of few rows, made from one buffer by one call: as a message of Arrow's IPC format.

Arrow's Python library takes some microseconds for every array that is made of buffers, and again for the batch. A message holds
all of them, so its cost is that of one call. A message of a schema is always the same but for numbers (rows; NULLs of every
column; position and length of every buffer), so it is made once, and the numbers are written in.

The law: the batch of a message is that of its arrays (`pa.RecordBatch.from_arrays`), with the same schema.

Source: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc, and for the place
of the numbers https://flatbuffers.dev/internals/ (all are words of 64 bits, aligned).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.key_types import storage_type
from zset_join.core.row_conversion import cast_key, plain
from zset_join.kernels.values import keys as c
from zset_join.kernels.values.encode import encode_rows, gather_fixed, gather_variable, read_arrow_array
from zset_join.kernels.values.nested import decode_nested, encode_nested
from zset_join.shapes.kept_types import KeptAs, kept_as

__all__ = ["SPARE_BYTES", "Allocate", "BatchMessage", "EncodedRows", "GatherPlan", "RowLayout"]

Allocate = Callable[[int], pa.Buffer]
"""Returns a buffer of so many bytes or more, to be written to."""

_MAX_ARROW_BYTES = (1 << 31) - 1
SPARE_BYTES = 16
"""What must be free behind the bytes of a column of strings while they are filled in."""
_VARIABLE_KINDS = (c.VARIABLE, c.NESTED)
_KINDS: dict[KeptAs, int] = {
    "empty": c.EMPTY,
    "bit": c.BIT,
    "float16": c.FLOAT16,
    "float32": c.FLOAT32,
    "float64": c.FLOAT64,
    "variable": c.VARIABLE,
    "nested": c.NESTED,
    "fixed": c.FIXED,
}


class ColumnTable:
    """A column table of `zset_join.kernels.values.keys`, with the address kernels get it by."""

    __slots__ = ("address", "lines", "words")

    def __init__(self, lines: npt.NDArray[np.int64]) -> None:
        self.words = np.empty(1 + lines.size, np.int64)
        self.words[0] = len(lines)
        self.lines = self.words[1:].reshape(lines.shape)
        self.lines[:] = lines
        self.address = int(self.words.ctypes.data)

    def __len__(self) -> int:
        return len(self.lines)


@dataclass(slots=True)
class EncodedRows:
    """Row records of one batch; they are valid as long as `owners` live."""

    address: int  # of the first record
    count: int
    owners: list[Any]  # what long strings point into, and the buffer of the records
    unfit: npt.NDArray[np.bool_] | None = None  # rows with a key that does not fit its compared type


class RowLayout:
    """Lay out the columns of a relation.

    Args:
        schema: the columns, in the order `gather` returns them.
        key_casts: (column, type) of each join key column that is compared in another type than its own.
        sequence_words: how many hidden words order the changes of a row.
        has_degree: whether a hidden word counts the matches of a row.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        key_casts: Sequence[tuple[str, pa.DataType]] = (),
        sequence_words: int = 0,
        has_degree: bool = False,
    ) -> None:
        self.schema = schema
        self.key_casts = tuple(key_casts)
        self.visible = len(schema)
        types = [storage_type(field.type) for field in schema]
        types += [storage_type(kind) for _, kind in key_casts]
        self.storage_types = types
        hidden = sequence_words + has_degree
        count = len(types)
        table = np.zeros((count + sequence_words, c.TABLE_WIDTH), np.int64)
        for position, kind in enumerate(types):
            name = schema.names[position] if position < len(schema) else "key"
            kept, table[position, c.WIDTH] = kept_as(kind, column=name)
            table[position, c.KIND] = _KINDS[kept]
        table[count:, c.WIDTH] = 8
        self.head_bytes = c.NULLS + -(-count // 8)
        offset = -(-self.head_bytes // 8) * 8
        order = sorted(range(count), key=lambda position: -_alignment(int(table[position, c.WIDTH])))
        self.sequence_offset = offset
        offset += 8 * sequence_words
        self.degree_offset = offset if has_degree else -1
        offset += 8 * (hidden - sequence_words)
        for position in order:
            table[position, c.OFFSET] = offset
            offset += int(table[position, c.WIDTH])
        for position in range(count):
            table[position, c.NULL_BYTE] = c.NULLS + position // 8
            table[position, c.NULL_MASK] = 1 << (position % 8)
        for word in range(sequence_words):
            table[count + word, c.OFFSET] = self.sequence_offset + 8 * word
        self.sequence_words = sequence_words
        self.stride = -(-offset // 8) * 8
        self._table = table
        self._encoding = ColumnTable(table)
        self._encoding.lines[:count, c.OFFSET_WIDTH] = [_offset_width(kind) for kind in types]
        self._count = count
        self._kinds = table[:, c.KIND].tolist()
        sources = [field.type for field in schema] + [schema.field(name).type for name, _ in key_casts]
        self._needs_cast = [source != kind for source, kind in zip(sources, types, strict=True)]
        # Columns that are kept as they come are read through Arrow's C data interface, in one step.
        self._is_plain = 0 < count == self.visible and not any(self._needs_cast) and not {c.NESTED, c.EMPTY} & set(self._kinds)
        self._key_position = {name: len(schema) + at for at, (name, _) in enumerate(key_casts)}

    def lines_at(self, positions: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the lines of some columns, by position in the schema."""
        return self._table[np.array(positions, np.int64)]

    def columns(self, names: Sequence[str], *, null_safe: Sequence[bool] | None = None, as_key: bool = False) -> ColumnTable:
        """Return the column table of some columns; `as_key` takes the hidden cast of a column where there is one."""
        positions = []
        for name in names:
            position = self.schema.get_field_index(name)
            positions.append(self._key_position.get(name, position) if as_key else position)
        table = ColumnTable(self._table[np.array(positions, np.int64)])
        if null_safe is not None:
            table.lines[:, c.NULL_SAFE] = null_safe
        return table

    def offset_of(self, column: str) -> int:
        """Return the position of a column's value inside a record."""
        return int(self._table[self.schema.get_field_index(column), c.OFFSET])

    def visible_columns(self) -> ColumnTable:
        return ColumnTable(self._table[: self.visible])

    def columns_besides(self, names: Sequence[str]) -> ColumnTable:
        """Return the column table of every column, hidden keys included, that is not among `names`."""
        kept = [at for at in range(self._count) if at >= self.visible or self.schema.names[at] not in names]
        return ColumnTable(self._table[np.array(kept, np.int64)])

    def variable_columns(self, names: Sequence[str] | None = None) -> ColumnTable:
        """Return the column table of the columns that may have bytes on the heap: all of them, or those among `names`."""
        lines = self._table if names is None else self.columns(names).lines
        kinds = lines[:, c.KIND]
        return ColumnTable(lines[(kinds == c.VARIABLE) | (kinds == c.NESTED)])

    def encode(
        self,
        rows: pa.RecordBatch,
        sequence: Sequence[npt.NDArray[np.int64]],
        target: npt.NDArray[np.uint8],
        address: int,
    ) -> EncodedRows:
        """Write row records into `target` (at `address`), which has at least `stride` bytes per row.

        A key value that its comparison type cannot hold is stored as NULL and marked in `unfit`.
        """
        owners: list[Any] = [target]
        lines = self._encoding.lines
        unfit = None
        if not rows.num_rows:
            return EncodedRows(address, 0, owners)
        if self._is_plain:
            exported = rows.__arrow_c_array__()[1]
            owners.append(exported)
            read_arrow_array(_capsule_address(exported, b"arrow_array"), self._encoding.address, self._count)
        elif self._count:
            words, unfit = self._converted(rows, owners)
            lines[: self._count, c.VALIDITY : c.TABLE_WIDTH] = words
        for place, values in enumerate(sequence):
            owners.append(values)
            lines[self._count + place, c.DATA] = values.ctypes.data
        encode_rows(self._encoding.address, rows.num_rows, address, self.stride, self.head_bytes)
        return EncodedRows(address, rows.num_rows, owners, unfit)

    def _converted(
        self, rows: pa.RecordBatch, owners: list[Any]
    ) -> tuple[list[tuple[int, int, int, int, int]], npt.NDArray[np.bool_] | None]:
        """Bring every column to its storage type; return its buffers, and the rows whose key does not fit its type."""
        arrays = rows.columns
        for name, _ in self.key_casts:
            arrays.append(arrays[self.schema.get_field_index(name)])
        unfit: npt.NDArray[np.bool_] | None = None
        words = []
        for position, array in enumerate(arrays):
            if self._needs_cast[position]:
                if position < self.visible:
                    array = plain(array, self.storage_types[position])
                else:
                    source = plain(array, storage_type(array.type))
                    array, bad = cast_key(source, self.storage_types[position])
                    if bad is not None:
                        unfit = bad if unfit is None else unfit | bad
            if self._kinds[position] == c.NESTED:
                array = encode_nested(array)
            words.append(_buffer_words(self._kinds[position], array, owners))
        return words, unfit

    def gather_plan(self, positions: Sequence[int]) -> GatherPlan:
        """Prepare for gathering some columns, by their position in the schema."""
        return GatherPlan(self, positions)


class GatherPlan:
    """How to build some columns of a layout from record addresses."""

    def __init__(self, layout: RowLayout, positions: Sequence[int]) -> None:
        self._table = ColumnTable(layout.lines_at(positions))
        self._counts = np.zeros((2, max(len(positions), 1)), np.int64)
        self._count_addresses = tuple(int(part.ctypes.data) for part in self._counts)
        self._columns = []
        lines: Any = self._table.lines.tolist()
        for line, position in zip(lines, positions, strict=True):
            storage = layout.storage_types[position]
            narrow = pa.string() if pt.is_string(storage) or pt.is_large_string(storage) else pa.binary()
            self._columns.append((line[c.KIND], line[c.WIDTH], storage, layout.schema.field(position).type, narrow))

    @property
    def is_plain(self) -> bool:
        """Return whether Arrow takes the buffers that are filled in as they are, without an array in between."""
        return all(
            kind not in {c.NESTED, c.EMPTY} and declared == (narrow if kind == c.VARIABLE else storage)
            for kind, _, storage, declared, narrow in self._columns
        )

    @property
    def variable(self) -> Sequence[bool]:
        """Return, of each column, whether its values have bytes behind their offsets."""
        return [column[0] in _VARIABLE_KINDS for column in self._columns]

    def places(self, count: int, begin: int = 0) -> tuple[list[tuple[int, int, int]], int]:
        """Return, of each column, the places of validity and values (or offsets) and their bytes; and where all end."""
        bitmap_bytes = (count + 7) // 8
        padded_bitmap = (bitmap_bytes + 63) // 64 * 64
        size = begin
        places = []
        for kind, width, *_ in self._columns:
            if kind in _VARIABLE_KINDS:
                values_bytes = 4 * (count + 1)
            elif kind == c.BIT:
                values_bytes = bitmap_bytes
            else:
                values_bytes = width * count
            places.append((size, size + padded_bitmap, values_bytes))
            size += padded_bitmap + (values_bytes + 63) // 64 * 64
        return places, size

    def point(self, base: int, places: Sequence[tuple[int, int, int]]) -> None:
        """Let `fill` write to places."""
        if self._columns:
            self._table.lines[:, c.VALIDITY : c.OFFSETS + 1] = [
                (base + validity_at, 0, base + values_at)
                if column[0] in _VARIABLE_KINDS
                else (base + validity_at, base + values_at, 0)
                for column, (validity_at, values_at, _) in zip(self._columns, places, strict=True)
            ]

    def fill(self, refs: int, count: int) -> tuple[list[int], list[int]]:
        """Fill in validity, values and offsets of records; return, per column, NULLs and the bytes behind its offsets."""
        if not self._columns:
            return [], []
        gather_fixed(refs, count, self._table.address, *self._count_addresses)
        null_counts, byte_counts = self._counts.tolist()
        if max(byte_counts) > _MAX_ARROW_BYTES:
            raise OverflowError(max(byte_counts))
        return null_counts, byte_counts

    def fill_content(self, at: int, refs: int, count: int, heap: int, address: int) -> None:
        """Fill in the bytes behind the offsets of a column; `SPARE_BYTES` behind them are overwritten too."""
        gather_variable(refs, count, self._table.address, at, heap, address)

    def gather(self, refs: int, count: int, heap: int, allocate: Allocate = pa.allocate_buffer) -> list[pa.Array]:
        """Return the columns of `count` records, whose addresses are at address `refs`; address 0 gives NULLs."""
        if not self._columns:
            return []
        places, size = self.places(count)
        buffer = allocate(size)
        self.point(buffer.address, places)
        null_counts, byte_counts = self.fill(refs, count)
        bitmap_bytes = (count + 7) // 8  # no more is filled in, so no more is given out
        gathered = []
        for at, (validity_at, values_at, values_bytes) in enumerate(places):
            nulls = null_counts[at]
            validity = buffer.slice(validity_at, bitmap_bytes) if nulls else None
            values_buffer = buffer.slice(values_at, values_bytes)
            kind, _, storage, declared, narrow = self._columns[at]
            if kind in _VARIABLE_KINDS:
                content = allocate(byte_counts[at] + SPARE_BYTES)
                self.fill_content(at, refs, count, heap, content.address)
                array = pa.Array.from_buffers(
                    narrow, count, [validity, values_buffer, content.slice(0, byte_counts[at])], nulls
                )
                if kind == c.NESTED:
                    array = decode_nested(array, storage)
            elif kind == c.EMPTY:
                array = pa.nulls(count)
            else:
                array = pa.Array.from_buffers(storage, count, [validity, values_buffer], nulls)
            gathered.append(array if array.type == declared else _as_declared(array, declared))
        return gathered


_capsule_address: Any = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_address.restype = ctypes.c_void_p
_capsule_address.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _as_declared(array: pa.Array, declared: pa.DataType) -> pa.Array:
    if isinstance(declared, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(declared, array.cast(declared.storage_type))
    return array.cast(declared)


def _offset_width(kind: pa.DataType) -> int:
    return 8 if pt.is_large_string(kind) or pt.is_large_binary(kind) else 4


def _alignment(width: int) -> int:
    return 8 if width % 8 == 0 else width & -width


def _buffer_words(kind: int, array: pa.Array, owners: list[Any]) -> tuple[int, int, int, int, int]:
    """Return validity, values, offsets, start and offset width of an array, as a column table has them."""
    if kind == c.EMPTY:
        return 0, 0, 0, 0, 0
    buffers = array.buffers()
    owners.append(array)
    validity = buffers[0].address if buffers[0] is not None and array.null_count else 0
    if kind in _VARIABLE_KINDS:
        values = buffers[2].address if buffers[2] is not None else 0
        return validity, values, buffers[1].address, array.offset, _offset_width(array.type)
    return validity, buffers[1].address, 0, array.offset, 0


_PREFIX = 8  # a continuation marker, and how many bytes of metadata follow
_ALIGNED = 64
_HEADER, _BODY_BYTES = 2, 3  # fields of a message
_ROWS, _NODES, _BUFFERS = 0, 1, 2  # fields of a record batch


class BatchMessage:
    """Message of the record batches of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        text = one.serialize().to_pybytes()
        end = _PREFIX + int.from_bytes(text[4:8], "little")
        self.head_bytes = -(-end // _ALIGNED) * _ALIGNED
        head = bytearray(text[:end] + bytes(self.head_bytes - end))
        head[4:8] = (self.head_bytes - _PREFIX).to_bytes(4, "little")
        self.words: npt.NDArray[np.int64] = np.frombuffer(head, np.int64)
        self.address = int(self.words.ctypes.data)
        message = _PREFIX + _word32(head, _PREFIX)
        batch = _reference(head, _field(head, message, _HEADER))
        nodes, buffers = (_reference(head, _field(head, batch, field)) for field in (_NODES, _BUFFERS))
        self._body_at = _field(head, message, _BODY_BYTES) // 8
        self._rows_at = _field(head, batch, _ROWS) // 8
        self._nodes = self._vector(nodes, _word32(head, nodes))
        self.buffers = self._vector(buffers, _word32(head, buffers))

    def _vector(self, at: int, count: int) -> npt.NDArray[np.int64]:
        begin = (at + 4) // 8
        return self.words[begin : begin + 2 * count]

    def write(self, rows: int, nulls: Sequence[int], body_bytes: int) -> None:
        """Write the numbers of a batch into the message, but for its buffers."""
        words = self.words
        words[self._rows_at] = rows
        words[self._body_at] = body_bytes
        self._nodes[::2] = rows
        self._nodes[1::2] = nulls


def _word32(head: bytearray, at: int) -> int:
    return int.from_bytes(head[at : at + 4], "little")


def _reference(head: bytearray, at: int) -> int:
    return at + _word32(head, at)


def _field(head: bytearray, table: int, number: int) -> int:
    description = table - int.from_bytes(head[table : table + 4], "little", signed=True)
    at = description + 4 + 2 * number
    return table + int.from_bytes(head[at : at + 2], "little")
