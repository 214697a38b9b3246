"""Nested Arrow values as one binary blob per row, and back.

`encode_nested` turns an array of structs, lists or maps, at any depth, into a `large_binary` array of the same length;
`decode_nested` is its inverse. The arena stores the blobs like strings; keys and row identity compare their front part.

A blob is

    u32 canonical_length | canonical encoding | raw encoding (only if it differs from the canonical one)

with all integers little-endian. The canonical encoding has every NaN replaced by one quiet NaN and -0.0 by 0.0.

The law: `decode_nested(encode_nested(a), a.type)` equals `a` bit for bit (NaN payloads and -0.0 included), and two
values of one type are equal under Spark's key equality (a nested NULL equals itself, NaN = NaN, 0.0 = -0.0) exactly
when the first `4 + canonical_length` bytes of their blobs are equal.

An encoding, by type; "flags" is one bit per field or element, 1 = not NULL, padded to whole bytes with 0:

    leaf of w bytes   the w bytes; bool takes one byte; null takes none
    string, binary    its bytes
    struct            flags | fields of fixed width | u32 end of each other field | the other fields
    list, map         u32 count | flags | elements of fixed width, or u32 end of each element | elements
    fixed_size_list   as a list, without the count

A type is of fixed width when all of its parts are. A NULL slot of fixed width is zeros, any other has no bytes.

Ties and edge cases: a top-level NULL stays NULL. What hides below a NULL (Arrow leaves it undefined) is not kept. A map
is payload: two maps are equal here when they hold the same entries in the same order. Dictionaries are stored by value,
extension types by their storage; `string` and `large_string`, `list` and `large_list` give the same bytes.

Memory: one copy of the encoded bytes per level of nesting while encoding; the blobs take 4 bytes per row, the flags, 4
bytes per list and per string, and the values; values with -0.0 or an unusual NaN take twice that.

Limits: unions, run-end encoded and list-view types are refused with a `KeyTypeError`; one value holds less than 4 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import ResourceError, StateError
from zset_join.core.key_types import (
    fixed_width,
    flag_bytes,
    has_float,
    has_large_offsets,
    is_bytes,
    is_list,
    is_nested,
    refuse_unsupported,
    stored_type,
)
from zset_join.kernels.values.nested_bytes import (
    copy_runs,
    get_bits,
    get_counts,
    get_fixed,
    get_list_fixed,
    get_list_variable,
    get_variable,
    open_blobs,
    put_bits,
    put_blobs,
    put_fixed,
    put_list_fixed,
    put_list_variable,
    put_variable,
)

__all__ = ["canonical_floats", "canonical_nested", "decode_nested", "encode_nested", "has_float", "is_nested"]

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Int64s: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]

_COUNT_BYTES = 4
_END_BYTES = 4
_BLOB_LIMIT = 1 << 32

# Per width in bytes: the bits of +infinity and of the one quiet NaN.
_FLOAT_BITS = {
    2: (0x7C00, 0x7E00),
    4: (0x7F800000, 0x7FC00000),
    8: (0x7FF0000000000000, 0x7FF8000000000000),
}


@dataclass(frozen=True, slots=True)
class _Slots:
    """Encoded values: value i is at `starts[i]:ends[i]` of `content`; `width` is their common length, or None."""

    content: _Bytes
    starts: _Int64s
    ends: _Int64s
    width: int | None


class _FloatRule:
    """How floats are packed, and whether packing them has changed any bit."""

    def __init__(self, *, canonical: bool) -> None:
        self.canonical = canonical
        self.changed = False


def canonical_floats(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return float bit patterns with one quiet NaN for every NaN and 0.0 for -0.0.

    >>> canonical_floats(np.array([-0.0, 1.5]).view(np.uint64)).view(np.float64)
    array([0. , 1.5])
    """
    infinity, quiet_nan = _FLOAT_BITS[bits.dtype.itemsize]
    magnitudes = bits & ((1 << (8 * bits.dtype.itemsize - 1)) - 1)
    canonical: npt.NDArray[Any] = bits.copy()
    canonical[magnitudes == 0] = 0
    canonical[magnitudes > infinity] = quiet_nan
    return canonical


def encode_nested(array: pa.Array) -> pa.LargeBinaryArray:
    """Turn nested values into one blob per row.

    >>> decode_nested(encode_nested(pa.array([[1, None], None])), pa.list_(pa.int64())).to_pylist()
    [[1, None], None]
    """
    return _encode(array, keep_raw=True)


def canonical_nested(array: pa.Array) -> pa.LargeBinaryArray:
    """Turn nested values into bytes that are equal exactly where Spark calls the values equal.

    >>> canonical_nested(pa.array([[0.0], [-0.0], None])).value_counts().field("counts").to_pylist()
    [2, 1]
    """
    # These are the front parts of the blobs of `encode_nested`; a value with -0.0 or an unusual NaN cannot be had back.
    return _encode(array, keep_raw=False)


def _encode(array: pa.Array, *, keep_raw: bool) -> pa.LargeBinaryArray:
    refuse_unsupported(array.type)
    array = _stored(array)
    floats = _FloatRule(canonical=True)
    raw = canonical = _pack(array, floats)
    valid = _validity(array)
    lengths = np.where(valid, canonical.ends - canonical.starts, 0)
    if len(lengths) and int(lengths.max()) >= _BLOB_LIMIT:
        raise ResourceError(
            f"row {int(lengths.argmax())} holds a {array.type} of {int(lengths.max())} bytes; a nested value must stay "
            f"below {_BLOB_LIMIT} bytes. Split it, or leave its column out of the relation.",
            code="NESTED_VALUE_TOO_LARGE",
            row=int(lengths.argmax()),
            bytes=int(lengths.max()),
        )
    differs = np.zeros(len(array), np.bool_)
    if floats.changed and keep_raw:
        raw = _pack(array, _FloatRule(canonical=False))
        differs = _differing(canonical, raw) & valid
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(np.where(valid, _COUNT_BYTES + lengths + differs * lengths, 0), out=offsets[1:])
    content = np.empty(int(offsets[-1]), np.uint8)
    packed = canonical.content, canonical.starts, canonical.ends
    put_blobs(content, offsets, valid, differs, *packed, raw.content, raw.starts)
    return pa.Array.from_buffers(
        pa.large_binary(), len(array), [_validity_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def decode_nested(blobs: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Turn blobs back into the values they were made from."""
    refuse_unsupported(data_type)
    valid = _validity(blobs)
    content, starts, ends = _binary_ranges(blobs, valid)
    damaged = open_blobs(content, starts, ends, valid)
    if damaged >= 0:
        raise StateError(
            f"blob {damaged} of a {data_type} column contradicts its own length; the state it came from is damaged. "
            "Restore it from the checkpoint.",
            code="DAMAGED_BLOB",
            row=damaged,
        )
    width = fixed_width(data_type)
    if width is not None:
        dense = np.zeros(len(blobs) * width, np.uint8)
        get_fixed(dense, width, content, starts, ends, 0)
        content, starts, ends = _fixed_slots(dense, width, len(blobs))
    return _unpack(data_type, _Slots(content, starts, ends, width), valid)


def _stored(array: pa.Array) -> pa.Array:
    """Return the array in its stored type."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _stored(array.storage)
    if pa.types.is_dictionary(array.type):
        # Below a NULL parent an index may point outside the dictionary, where `dictionary_decode` would raise.
        indices = array.indices
        inside = pc.less(indices.cast(pa.uint64(), safe=False), pa.scalar(len(array.dictionary), pa.uint64()))
        return _stored(array.dictionary.take(pc.if_else(inside, indices, pa.scalar(None, indices.type))))
    target = stored_type(array.type)
    return array if target == array.type else array.cast(target)


def _read_only(content: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view, so that kernels see one array type for any owner of the bytes."""
    view = content.view()
    view.flags.writeable = False
    return view


def _buffer(buffer: pa.Buffer | None, dtype: Any, start: int, count: int) -> npt.NDArray[Any]:
    if buffer is None or count == 0:
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count=count, offset=start * np.dtype(dtype).itemsize)


def _bits(buffer: pa.Buffer, start: int, count: int) -> _Bools:
    first_byte, shift = divmod(start, 8)
    packed = _buffer(buffer, np.uint8, first_byte, flag_bytes(shift + count))
    return np.unpackbits(packed, count=shift + count, bitorder="little")[shift:].view(np.bool_)


def _validity(array: pa.Array) -> _Bools:
    """Return one bool per value, False where it is NULL; contiguous."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    buffer = array.buffers()[0]
    if buffer is None or array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return np.ascontiguousarray(_bits(buffer, array.offset, len(array)))


def _validity_buffer(valid: _Bools) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed_slots(content: _Bytes, width: int, count: int) -> tuple[_Bytes, _Int64s, _Int64s]:
    starts = np.arange(count, dtype=np.int64) * width
    return _read_only(content), starts, starts + width


def _binary_ranges(array: pa.Array, valid: _Bools) -> tuple[_Bytes, _Int64s, _Int64s]:
    """Return the bytes of a string or binary array and the range of each value; a NULL has an empty range."""
    offset_dtype = np.int64 if has_large_offsets(array.type) else np.int32
    buffers = array.buffers()
    offsets = _buffer(buffers[1], offset_dtype, array.offset, len(array) + 1).astype(np.int64)
    content = np.zeros(0, np.uint8) if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    starts = offsets[:-1]
    return _read_only(content), starts, np.where(valid, offsets[1:], starts)


def _differing(canonical: _Slots, raw: _Slots) -> _Bools:
    """Return for each value whether its two encodings differ; they always have the same layout."""
    unequal = np.flatnonzero(canonical.content != raw.content)
    differs = np.zeros(len(canonical.starts), np.bool_)
    # The slots of one packed level are in ascending order without overlap, zero-width ones aside.
    differs[np.searchsorted(canonical.ends, unequal, side="right")] = True
    return differs


def _pack(array: pa.Array, floats: _FloatRule) -> _Slots:
    """Encode every value of an array of a stored type; NULL slots are zeros or empty."""
    if pa.types.is_struct(array.type):
        return _pack_struct(array, floats)
    if pa.types.is_fixed_size_list(array.type) or is_list(array.type):
        return _pack_list(array, floats)
    valid = _validity(array)
    if is_bytes(array.type):
        return _Slots(*_binary_ranges(array, valid), None)
    return _pack_fixed(array, valid, floats)


def _pack_fixed(array: pa.Array, valid: _Bools, floats: _FloatRule) -> _Slots:
    width, count = fixed_width(array.type) or 0, len(array)
    if width == 0:
        return _Slots(*_fixed_slots(np.zeros(0, np.uint8), 0, count), 0)
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        content = np.zeros(count, np.uint8) if data is None else _bits(data, array.offset, count).view(np.uint8)
    else:
        content = _buffer(data, np.uint8, array.offset * width, count * width)
    if array.null_count:
        content = content.copy()
        content.reshape(count, width)[~valid] = 0
    if floats.canonical and pa.types.is_floating(array.type):
        bits = content.view(f"u{width}")
        canonical = canonical_floats(bits)
        if not np.array_equal(bits, canonical):
            floats.changed = True
            content = canonical.view(np.uint8)
    return _Slots(*_fixed_slots(np.ascontiguousarray(content), width, count), width)


def _pack_struct(array: pa.StructArray, floats: _FloatRule) -> _Slots:
    count, valid = len(array), _validity(array)
    children = [_stored(array.field(index)) for index in range(array.type.num_fields)]
    parts = [_pack(child, floats) for child in children]
    flags = flag_bytes(len(parts))
    fixed_bytes = flags + sum(part.width for part in parts if part.width is not None)
    variable = [part for part in parts if part.width is None]
    head_bytes = fixed_bytes + _END_BYTES * len(variable)

    lengths = np.full(count, head_bytes, np.int64)
    for part in variable:
        lengths += part.ends - part.starts
    if variable:
        lengths[~valid] = 0
    ends = np.cumsum(lengths)
    starts = ends - lengths
    content = np.zeros(int(ends[-1]) if count else 0, np.uint8)

    position, end_position = flags, fixed_bytes
    filled = np.full(count, head_bytes, np.int64)
    for index, (child, part) in enumerate(zip(children, parts, strict=True)):
        put_bits(content, starts, valid, index // 8, index % 8, _validity(child))
        if part.width is not None:
            put_fixed(content, starts, valid, position, part.width, part.content)
            position += part.width
        else:
            put_variable(content, starts, valid, filled, end_position, head_bytes, part.content, part.starts, part.ends)
            end_position += _END_BYTES
    return _Slots(_read_only(content), starts, ends, None if variable else head_bytes)


def _pack_list(array: pa.Array, floats: _FloatRule) -> _Slots:
    """Encode lists, maps and fixed-size lists; the latter have no count in front."""
    count, valid = len(array), _validity(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        values = array.values.slice(array.offset * size, count * size)
        firsts = np.arange(count, dtype=np.int64) * size
        counts = np.where(valid, size, 0)
        head_bytes = 0
    else:
        offset_dtype = np.int64 if has_large_offsets(array.type) else np.int32
        offsets = _buffer(array.buffers()[1], offset_dtype, array.offset, count + 1).astype(np.int64)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        firsts = offsets[:-1] - offsets[0]
        counts = np.where(valid, np.diff(offsets), 0)
        head_bytes = _COUNT_BYTES
    values = _stored(values)
    part = _pack(values, floats)
    element_valid = _validity(values)

    lengths = head_bytes + (counts + 7) // 8
    if part.width is not None:
        lengths += counts * part.width
    else:
        sizes = np.zeros(len(values) + 1, np.int64)
        np.cumsum(part.ends - part.starts, out=sizes[1:])
        lengths += counts * _END_BYTES + sizes[firsts + counts] - sizes[firsts]
    width = fixed_width(array.type)
    if width is None:
        lengths[~valid] = 0
    else:
        lengths[:] = width
    ends = np.cumsum(lengths)
    starts = ends - lengths
    content = np.zeros(int(ends[-1]) if count else 0, np.uint8)
    if part.width is not None:
        put_list_fixed(content, starts, valid, head_bytes, firsts, counts, element_valid, part.content, part.width)
    else:
        put_list_variable(
            content, starts, valid, head_bytes, firsts, counts, element_valid, part.content, part.starts, part.ends
        )
    return _Slots(_read_only(content), starts, ends, width)


def _unpack(data_type: pa.DataType, slots: _Slots, valid: _Bools, *, nullable: bool = True) -> pa.Array:
    """Decode every slot; `valid` marks the values that are not NULL. NULL slots are zeros or empty."""
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, _unpack(data_type.storage_type, slots, valid))
    if pa.types.is_dictionary(data_type):
        unpacked = _unpack(data_type.value_type, slots, valid).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            unpacked.indices.cast(data_type.index_type), unpacked.dictionary, ordered=data_type.ordered
        )
    stored = stored_type(data_type)
    validity = _validity_buffer(valid) if nullable else None
    if pa.types.is_struct(stored):
        return _unpack_struct(stored, slots, valid, validity)
    if pa.types.is_fixed_size_list(stored) or is_list(stored):
        return _unpack_list(stored, slots, valid, validity)
    if pa.types.is_null(stored):
        return pa.nulls(len(valid))
    if is_bytes(stored):
        offsets = _offsets(slots.ends - slots.starts)
        content = np.empty(int(offsets[-1]), np.uint8)
        copy_runs(content, offsets, slots.content, slots.starts, slots.ends)
        buffers = [validity, _offset_buffer(stored, offsets), pa.py_buffer(content)]
        unpacked = pa.Array.from_buffers(stored, len(valid), buffers)
        return unpacked if stored == data_type else unpacked.cast(data_type)
    values = np.packbits(slots.content, bitorder="little") if pa.types.is_boolean(stored) else slots.content
    return pa.Array.from_buffers(stored, len(valid), [validity, pa.py_buffer(values)])


def _unpack_struct(data_type: pa.StructType, slots: _Slots, valid: _Bools, validity: pa.Buffer | None) -> pa.Array:
    count = len(valid)
    fields = list(data_type)
    widths = [fixed_width(field.type) for field in fields]
    position = flag_bytes(len(fields))
    end_position = fixed_bytes = position + sum(width for width in widths if width is not None)
    head_bytes = fixed_bytes + _END_BYTES * widths.count(None)
    children = []
    for index, (field, width) in enumerate(zip(fields, widths, strict=True)):
        present = get_bits(slots.content, slots.starts, slots.ends, index // 8, index % 8)
        if width is not None:
            dense = np.zeros(count * width, np.uint8)
            get_fixed(dense, width, slots.content, slots.starts, slots.ends, position)
            part = _Slots(*_fixed_slots(dense, width, count), width)
            position += width
        else:
            is_first = end_position == fixed_bytes
            starts, ends = get_variable(slots.content, slots.starts, slots.ends, end_position, head_bytes, is_first)
            part = _Slots(slots.content, starts, ends, None)
            end_position += _END_BYTES
        # Below a NULL struct a field that may not be NULL holds zeros instead.
        nullable = field.nullable or not np.array_equal(present, valid)
        children.append(_unpack(field.type, part, present, nullable=nullable))
    return pa.Array.from_buffers(data_type, count, [validity], children=children)


def _unpack_list(data_type: pa.DataType, slots: _Slots, valid: _Bools, validity: pa.Buffer | None) -> pa.Array:
    count = len(valid)
    is_map = pa.types.is_map(data_type)
    element_type = pa.struct([data_type.key_field, data_type.item_field]) if is_map else data_type.value_type
    element_width = fixed_width(element_type)
    if pa.types.is_fixed_size_list(data_type):
        head_bytes, counts = 0, np.full(count, data_type.list_size, np.int64)
    else:
        head_bytes, counts = _COUNT_BYTES, get_counts(slots.content, slots.starts, slots.ends)
    offsets = _offsets(counts)
    total = int(offsets[-1])
    present = np.zeros(total, np.bool_)
    if element_width is not None:
        dense = np.zeros(total * element_width, np.uint8)
        get_list_fixed(dense, present, offsets, slots.content, slots.starts, slots.ends, head_bytes, element_width)
        part = _Slots(*_fixed_slots(dense, element_width, total), element_width)
    else:
        starts, ends = np.zeros(total, np.int64), np.zeros(total, np.int64)
        get_list_variable(starts, ends, present, offsets, slots.content, slots.starts, slots.ends, head_bytes)
        part = _Slots(slots.content, starts, ends, None)
    if is_map:
        nullable = bool(not present.all())
    else:
        may_hide = data_type.value_field.nullable or not pa.types.is_fixed_size_list(data_type)
        nullable = may_hide or not np.array_equal(present, np.repeat(valid, data_type.list_size))
    elements = _unpack(element_type, part, present, nullable=nullable)
    buffers = [validity] if pa.types.is_fixed_size_list(data_type) else [validity, _offset_buffer(data_type, offsets)]
    return pa.Array.from_buffers(data_type, count, buffers, children=[elements])


def _offsets(lengths: _Int64s) -> _Int64s:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _offset_buffer(data_type: pa.DataType, offsets: _Int64s) -> pa.Buffer:
    if has_large_offsets(data_type):
        return pa.py_buffer(offsets)
    if int(offsets[-1]) > np.iinfo(np.int32).max:
        raise ResourceError(
            f"a column of type {data_type} needs {int(offsets[-1])} elements or bytes in one array, more than its "
            "32-bit offsets reach; declare it large_string, large_binary or large_list, or take fewer rows at a time.",
            code="OFFSETS_TOO_SMALL",
            type=str(data_type),
        )
    return pa.py_buffer(offsets.astype(np.int32))
