"""Where each column of a relation stands inside a row record.

A `RowLayout` is made once from a relation. It turns record batches into row records and lists of record addresses back into
Arrow columns, both through `zset_join.kernels.encode`. Besides the columns of the relation a record may hold hidden ones: a
key brought to the type it is compared in, the words of the sequence, and the degree of an outer-join row.

Bytes of a row: 21, plus one bit per column, plus the width of each value (16 for a string, whose bytes beyond 12 go to the
heap), rounded up to 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.errors import PlanError
from zset_join.kernels import columns as c
from zset_join.kernels.encode import encode_rows, gather_fixed, gather_variable
from zset_join.kernels.nested import decode_nested, encode_nested
from zset_join.key_types import storage_type

__all__ = ["EncodedRows", "RowLayout"]

_MAX_ARROW_BYTES = (1 << 31) - 1
_SLOT_BYTES = 16


@dataclass(slots=True)
class EncodedRows:
    """Row records of one batch; they are valid as long as `owners` live.

    Args:
        address: of the first record.
        count: how many.
        owners: the Arrow arrays that long strings point into, and the buffer of the records.
    """

    address: int
    count: int
    owners: list[Any]


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
            table[position, c.KIND], table[position, c.WIDTH] = _physical(kind, schema, position)
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
        self._count = count
        self._key_position = {name: len(schema) + at for at, (name, _) in enumerate(key_casts)}

    def columns(self, names: Sequence[str], *, null_safe: Sequence[bool] | None = None, as_key: bool = False) -> Any:
        """Return the column table of some columns; `as_key` takes the hidden cast of a column where there is one."""
        positions = []
        for name in names:
            position = self.schema.get_field_index(name)
            positions.append(self._key_position.get(name, position) if as_key else position)
        table = self._table[positions].copy() if positions else self._table[:0].copy()
        if null_safe is not None:
            table[:, c.NULL_SAFE] = null_safe
        return table

    def visible_columns(self) -> Any:
        """Return the column table of the columns of the schema."""
        return self._table[: self.visible].copy()

    def columns_besides(self, names: Sequence[str]) -> Any:
        """Return the column table of every column, hidden keys included, that is not among `names`."""
        kept = [at for at in range(self._count) if at >= self.visible or self.schema.names[at] not in names]
        return self._table[kept].copy()

    def variable_columns(self) -> Any:
        """Return the column table of the columns that may have bytes on the heap."""
        kinds = self._table[:, c.KIND]
        return self._table[(kinds == c.VARIABLE) | (kinds == c.NESTED)].copy()

    def encode(self, rows: pa.RecordBatch, sequence: Sequence[npt.NDArray[np.int64]], target: npt.NDArray[np.uint8]) -> EncodedRows:
        """Write row records into `target`, which has at least `stride` bytes per row.

        Raises:
            pa.ArrowInvalid: a key value that its comparison type cannot hold.
        """
        owners: list[Any] = [target]
        table = self._table.copy()
        arrays = [rows.column(position) for position in range(self.visible)]
        for name, _ in self.key_casts:
            arrays.append(arrays[self.schema.get_field_index(name)])
        for position, array in enumerate(arrays):
            kind = self.storage_types[position]
            if array.type != kind:
                if isinstance(array.type, pa.BaseExtensionType):
                    array = array.storage
                array = array.cast(kind)
            if table[position, c.KIND] == c.NESTED:
                array = encode_nested(array)
            _point_to_buffers(table[position], array, owners)
        for word, values in enumerate(sequence):
            owners.append(values)
            table[self._count + word, c.DATA] = values.ctypes.data
        address = target.ctypes.data
        encode_rows(table, rows.num_rows, address, self.stride, self.head_bytes)
        return EncodedRows(address, rows.num_rows, owners)

    def gather(self, refs: npt.NDArray[np.int64], begin: int, count: int, heap: int, positions: Sequence[int] | None = None) -> list[pa.Array]:
        """Return the columns of the records `refs[begin : begin + count]`; address 0 gives NULLs.

        Raises:
            OverflowError: the strings of one column exceed 2 GiB; ask for fewer rows at a time.
        """
        chosen = range(self.visible) if positions is None else positions
        table = self._table[list(chosen)].copy()
        layout, size = _output_layout(table, count)
        buffer = pa.allocate_buffer(size)
        base = buffer.address
        for line, (validity_at, _, values_at, _) in zip(table, layout, strict=True):
            line[c.VALIDITY] = base + validity_at
            if line[c.KIND] in (c.VARIABLE, c.NESTED):
                line[c.OFFSETS] = base + values_at
            else:
                line[c.DATA] = base + values_at
        writable = np.frombuffer(buffer, np.uint8)
        bitmap_bytes = -(-count // 8)
        for line, (validity_at, _, values_at, _) in zip(table, layout, strict=True):
            writable[validity_at : validity_at + bitmap_bytes] = 0
            if line[c.KIND] == c.BIT:
                writable[values_at : values_at + bitmap_bytes] = 0
        nulls = np.empty(len(table), np.int64)
        byte_counts = np.empty(len(table), np.int64)
        gather_fixed(refs, begin, count, table, nulls, byte_counts)
        gathered = []
        for at, position in enumerate(chosen):
            validity_at, validity_bytes, values_at, values_bytes = layout[at]
            validity = buffer.slice(validity_at, validity_bytes) if nulls[at] else None
            values = buffer.slice(values_at, values_bytes)
            gathered.append(
                self._finish(position, table, at, refs, begin, count, heap, validity, values, int(nulls[at]), int(byte_counts[at]))
            )
        return gathered

    def _finish(
        self, position: int, table: Any, at: int, refs: Any, begin: int, count: int, heap: int,
        validity: pa.Buffer | None, values: pa.Buffer, nulls: int, byte_count: int,
    ) -> pa.Array:
        storage = self.storage_types[position]
        declared = self.schema.field(position).type
        kind = table[at, c.KIND]
        if kind == c.EMPTY:
            array = pa.nulls(count)
        elif kind in (c.VARIABLE, c.NESTED):
            if byte_count > _MAX_ARROW_BYTES:
                raise OverflowError(byte_count)
            content = pa.allocate_buffer(byte_count)
            gather_variable(refs, begin, count, table, at, heap, content.address)
            narrow = pa.string() if pt.is_string(storage) or pt.is_large_string(storage) else pa.binary()
            array = pa.Array.from_buffers(narrow, count, [validity, values, content], nulls)
            array = decode_nested(array, storage) if kind == c.NESTED else array
        else:
            array = pa.Array.from_buffers(storage, count, [validity, values], nulls)
        if array.type == declared:
            return array
        if isinstance(declared, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(declared, array.cast(declared.storage_type))
        return array.cast(declared)


def _output_layout(table: Any, count: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return (validity offset, bytes, values offset, bytes) per column, each aligned to 64 bytes, and the total size."""
    layout = []
    size = 0
    bitmap_bytes = -(-count // 8)
    for line in table.tolist():
        kind = line[c.KIND]
        if kind in (c.VARIABLE, c.NESTED):
            values_bytes = 4 * (count + 1)
        elif kind == c.BIT:
            values_bytes = bitmap_bytes
        else:
            values_bytes = line[c.WIDTH] * count
        values_at = size + (-(-bitmap_bytes // 64) * 64)
        layout.append((size, bitmap_bytes, values_at, values_bytes))
        size = values_at + (-(-values_bytes // 64) * 64)
    return layout, size


def _physical(kind: pa.DataType, schema: pa.Schema, position: int) -> tuple[int, int]:
    """Return how a storage type is kept: (kind, bytes inside the record)."""
    if pt.is_null(kind):
        return c.EMPTY, 0
    if pt.is_boolean(kind):
        return c.BIT, 1
    if pt.is_float16(kind):
        return c.FLOAT16, 2
    if pt.is_float32(kind):
        return c.FLOAT32, 4
    if pt.is_float64(kind):
        return c.FLOAT64, 8
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return c.VARIABLE, _SLOT_BYTES
    if pt.is_nested(kind) and not pt.is_union(kind):
        return c.NESTED, _SLOT_BYTES
    if (pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_decimal(kind)) and kind.byte_width:
        return c.FIXED, kind.byte_width
    name = schema.names[position] if position < len(schema) else "key"
    raise PlanError(
        f'column "{name}" has type {kind}, which cannot be kept in state; cast it to another type first.',
        code="UNSUPPORTED_TYPE",
        column=name,
        type=str(kind),
    )


def _alignment(width: int) -> int:
    return 8 if width % 8 == 0 else width & -width


def _point_to_buffers(line: Any, array: pa.Array, owners: list[Any]) -> None:
    """Write the addresses of an array's buffers into its line of a column table."""
    if len(array) == 0 or line[c.KIND] == c.EMPTY:
        return
    buffers = array.buffers()
    owners.append(array)
    line[c.START] = array.offset
    line[c.VALIDITY] = buffers[0].address if buffers[0] is not None and array.null_count else 0
    if line[c.KIND] in (c.VARIABLE, c.NESTED):
        line[c.OFFSETS] = buffers[1].address
        line[c.OFFSET_WIDTH] = 8 if pt.is_large_string(array.type) or pt.is_large_binary(array.type) else 4
        line[c.DATA] = buffers[2].address if buffers[2] is not None else 0
    else:
        line[c.DATA] = buffers[1].address
