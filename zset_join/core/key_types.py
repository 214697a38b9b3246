"""Which key columns can be compared, and as what.

Two key columns are compared in their *common type*. Widening is implicit where Spark's join does it without losing a value
(integers, float to double, decimals of different scale, timestamps of different unit, string and binary of different offset
width); anything else needs an explicit cast by the user. MAP and union types cannot be keys.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import KeyTypeError

__all__ = ["check_key_type", "common_key_type", "storage_type"]

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
