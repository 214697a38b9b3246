"""The types that blobs of nested values can hold, and how wide they are.

A type is first brought to its *stored* type: an extension type to its storage, a dictionary to its values, a view to the
large form. The width of a type is the number of bytes that every value of it takes in a blob, where there is one.
"""

from __future__ import annotations

import pyarrow as pa

from zset_join.core.errors import KeyTypeError

__all__ = [
    "fixed_width",
    "flag_bytes",
    "has_float",
    "has_large_offsets",
    "is_bytes",
    "is_list",
    "is_nested",
    "refuse_unsupported",
    "stored_type",
]


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
