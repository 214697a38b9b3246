"""Which key columns can be compared, and as what.

Two key columns are compared in their *common type*. Widening is implicit where Spark's join does it without losing a value
(integers, float to double, decimals of different scale, timestamps of different unit, string and binary of different offset
width); anything else needs an explicit cast by the user. MAP and union types cannot be keys.

`fixed_width`, `flag_bytes`: the types that blobs of nested values can hold, and how wide they are.

A type is first brought to its *stored* type: an extension type to its storage, a dictionary to its values, a view to the
large form. The width of a type is the number of bytes that every value of it takes in a blob, where there is one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import KeyTypeError

__all__ = [
    "check_key_type",
    "common_key_type",
    "fixed_width",
    "flag_bytes",
    "has_float",
    "has_large_offsets",
    "is_bytes",
    "is_list",
    "is_nested",
    "refuse_unsupported",
    "storage_type",
    "stored_type",
]

_MAX_DECIMAL_DIGITS = 38
_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def storage_type(declared: pa.DataType) -> pa.DataType:
    """Return the type a column is brought to before it is stored: dictionaries decoded, views made plain."""
    if pt.is_dictionary(declared):
        return storage_type(declared.value_type)
    if pt.is_string_view(declared):
        return pa.large_string()
    if pt.is_binary_view(declared):
        return pa.large_binary()
    if isinstance(declared, pa.BaseExtensionType):
        return storage_type(declared.storage_type)
    return declared


def check_key_type(declared: pa.DataType, *, relation: str, column: str) -> None:
    """Refuse a key column that has no equality."""
    stack = [storage_type(declared)]
    while stack:
        kind = stack.pop()
        if pt.is_map(kind) or pt.is_union(kind):
            raise KeyTypeError(
                f'relation "{relation}": key column "{column}" has type {declared}; maps and unions have no equality. '
                "Turn it into a list of structs in a fixed order, or choose another key.",
                code="KEY_TYPE",
                relation=relation,
                column=column,
                type=str(declared),
            )
        stack.extend(kind.field(position).type for position in range(kind.num_fields))


def common_key_type(left: pa.DataType, right: pa.DataType, *, left_column: str, right_column: str) -> pa.DataType:
    """Return the type in which two key columns are compared.

    >>> common_key_type(pa.int32(), pa.int64(), left_column="a", right_column="b")
    DataType(int64)
    """
    left_stored, right_stored = storage_type(left), storage_type(right)
    key_type = _common(left_stored, right_stored)
    if key_type is None:
        raise KeyTypeError(
            f'key columns "{left_column}" ({left}) and "{right_column}" ({right}) cannot be compared as they are; '
            "cast one of them explicitly to the type of the other.",
            code="KEY_TYPES_DIFFER",
            left=str(left),
            right=str(right),
        )
    return key_type


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left == right:
        return left
    if pt.is_null(left):
        return right
    if pt.is_null(right):
        return left
    if pt.is_integer(left) and pt.is_integer(right):
        return _common_integer(left, right)
    if pt.is_floating(left) and pt.is_floating(right):
        return left if left.bit_width > right.bit_width else right
    if _is_exact(left) and _is_exact(right):
        return _common_decimal(left, right)
    if pt.is_timestamp(left) and pt.is_timestamp(right) and (left.tz is None) == (right.tz is None):
        return pa.timestamp(max(left.unit, right.unit, key=_UNITS.index), tz=left.tz and "UTC")
    if pt.is_date(left) and pt.is_date(right):
        return pa.date32()
    if _is_text(left) and _is_text(right):
        return pa.large_string()
    if _is_bytes(left) and _is_bytes(right):
        return pa.large_binary()
    return _common_nested(left, right)


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return left if left.bit_width > right.bit_width else right
    unsigned = left if pt.is_unsigned_integer(left) else right
    if unsigned.bit_width == 64:
        return pa.decimal128(20, 0)
    return pa.int64()


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scales, integer_digits = [], []
    for kind in (left, right):
        scale = kind.scale if pt.is_decimal(kind) else 0
        precision = kind.precision if pt.is_decimal(kind) else _INTEGER_DIGITS[kind.bit_width]
        scales.append(scale)
        integer_digits.append(precision - scale)
    scale = max(scales)
    precision = max(integer_digits) + scale
    return pa.decimal128(precision, scale) if precision <= _MAX_DECIMAL_DIGITS else pa.decimal256(min(precision, 76), scale)


def _common_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_struct(left) and pt.is_struct(right) and left.num_fields == right.num_fields:
        fields = []
        for position in range(left.num_fields):
            child = _common(storage_type(left.field(position).type), storage_type(right.field(position).type))
            if child is None or left.field(position).name != right.field(position).name:
                return None
            fields.append(pa.field(left.field(position).name, child))
        return pa.struct(fields)
    if _is_list(left) and _is_list(right):
        child = _common(storage_type(left.value_type), storage_type(right.value_type))
        return None if child is None else pa.large_list(child)
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def is_nested(data_type: pa.DataType) -> bool:
    """Return whether values of this type are stored as blobs.

    >>> is_nested(pa.list_(pa.int8())), is_nested(pa.string())
    (True, False)
    """
    stored = stored_type(data_type)
    return bool(is_list(stored) or pa.types.is_struct(stored) or pa.types.is_fixed_size_list(stored))


def has_float(data_type: pa.DataType) -> bool:
    """Return whether a float hides anywhere inside the type; without one the blob is never stored twice.

    >>> has_float(pa.struct({"a": pa.list_(pa.float32())}))
    True
    """
    stored = stored_type(data_type)
    if pa.types.is_struct(stored):
        return any(has_float(field.type) for field in stored)
    if pa.types.is_map(stored):
        return has_float(stored.key_type) or has_float(stored.item_type)
    if is_nested(stored):
        return has_float(stored.value_type)
    return bool(pa.types.is_floating(stored))


def refuse_unsupported(data_type: pa.DataType) -> None:
    """Raise a `KeyTypeError` naming the first type inside `data_type` that has no encoding."""
    stored = stored_type(data_type)
    if pa.types.is_struct(stored):
        parts = [field.type for field in stored]
    elif pa.types.is_map(stored):
        parts = [stored.key_type, stored.item_type]
    elif is_nested(stored):
        parts = [stored.value_type]
    elif pa.types.is_nested(stored) or pa.types.is_run_end_encoded(stored):
        raise KeyTypeError(
            f"a column holds values of type {stored}, which cannot be stored; cast it to a struct, a list or a plain "
            "type first.",
            code="UNSUPPORTED_TYPE",
            type=str(stored),
        )
    else:
        parts = []
    for part in parts:
        refuse_unsupported(part)


def stored_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that represents `data_type` in a blob: no extension, no dictionary, no view."""
    if isinstance(data_type, pa.BaseExtensionType):
        return stored_type(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return stored_type(data_type.value_type)
    if pa.types.is_string_view(data_type):
        return pa.large_string()
    if pa.types.is_binary_view(data_type):
        return pa.large_binary()
    return data_type


def is_list(stored: pa.DataType) -> bool:
    """Return whether a stored type is a list of any number of elements; a map is one."""
    return bool(pa.types.is_list(stored) or pa.types.is_large_list(stored) or pa.types.is_map(stored))


def is_bytes(stored: pa.DataType) -> bool:
    """Return whether a stored type is a string or binary of any length."""
    return bool(
        pa.types.is_string(stored)
        or pa.types.is_large_string(stored)
        or pa.types.is_binary(stored)
        or pa.types.is_large_binary(stored)
    )


def has_large_offsets(stored: pa.DataType) -> bool:
    """Return whether the offsets of a stored type take 64 bits."""
    return bool(pa.types.is_large_string(stored) or pa.types.is_large_binary(stored) or pa.types.is_large_list(stored))


def fixed_width(data_type: pa.DataType) -> int | None:
    """Return the bytes every value of the type takes, or None when they vary."""
    stored = stored_type(data_type)
    if pa.types.is_null(stored):
        return 0
    if pa.types.is_boolean(stored):
        return 1
    if pa.types.is_struct(stored):
        widths = [fixed_width(field.type) for field in stored]
        return None if None in widths else flag_bytes(len(widths)) + sum(width or 0 for width in widths)
    if pa.types.is_fixed_size_list(stored):
        width = fixed_width(stored.value_type)
        return None if width is None else flag_bytes(stored.list_size) + stored.list_size * width
    if is_list(stored) or is_bytes(stored):
        return None
    return int(stored.bit_width) // 8


def flag_bytes(count: int) -> int:
    """Return the bytes that one bit for each of `count` fields or elements takes."""
    return (count + 7) // 8
