"""Python objects as values of a column: dicts of rows, columns of mixed classes, values of parsed JSON.

The law: every object is converted by its own class. Objects of one class become one Arrow array and are converted at once, as
`convert_values` does; a column of several classes is partitioned by class.

Edge cases: None is NULL, and so is pandas' NA and NaT; NaN is a float. A datetime with a zone is an instant, one without is
without. Integers of any length are decimals.

Cost: one pass in Arrow per class; value by value only where Arrow has no type for an object.
"""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from zset_join.conversions.texts import Converted, none_convert, whole
from zset_join.conversions.typed_values import convert_values
from zset_join.core.key_types import storage_type

__all__ = ["Leaf", "python_values"]

Leaf = Callable[[Sequence[Any], pa.DataType], Converted]
"""Converts values that are not nested."""

_ZONE = operator.attrgetter("tzinfo")


def python_values(values: Sequence[Any], kind: pa.DataType, leaf: Leaf | None = None) -> Converted:
    """Return Python objects as values of a type.

    >>> converted = python_values([3.0, 3.9, "7", True, None], pa.int64())
    >>> converted.values.to_pylist(), converted.unfit.tolist()
    ([3, None, 7, None, None], [False, True, False, True, False])
    """
    convert = leaf or _leaf
    stored = storage_type(kind)
    if stored != kind:
        converted = python_values(values, stored, leaf)
        return Converted(converted.values.cast(kind), converted.unfit)
    if pt.is_struct(kind):
        return _structs(values, kind, leaf)
    if pt.is_map(kind):
        return _lists([_pairs(one, is_json=leaf is not None) for one in values], kind, leaf)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _lists(values, kind, leaf)
    return convert(values, kind)


def _leaf(values: Sequence[Any], kind: pa.DataType) -> Converted:
    classes = set(map(type, values)) - {type(None)}
    if not classes:
        return Converted(pa.nulls(len(values), kind))
    if len(classes) == 1:
        return _of_class(values, kind)
    of_class: dict[type, list[int]] = {}
    for row, value in enumerate(values):
        if value is not None:
            of_class.setdefault(type(value), []).append(row)
    parts: list[tuple[npt.NDArray[np.int64], Converted]] = [
        (np.array(rows, np.int64), _of_class([values[row] for row in rows], kind)) for rows in of_class.values()
    ]
    return whole(parts, len(values), kind)


def _of_class(values: Sequence[Any], kind: pa.DataType) -> Converted:
    """Convert values of one class and None."""
    first = next(value for value in values if value is not None)
    if hasattr(first, "tzinfo") and hasattr(first, "date"):
        zones = {_ZONE(value) is None for value in values if value is not None}
        if len(zones) > 1:
            return _one_by_one(values, kind)
    if isinstance(first, int) and not isinstance(first, bool) and pt.is_integer(kind):
        try:
            return Converted(pa.array(values, kind))  # an integer that Arrow takes is itself
        except (pa.ArrowException, OverflowError):
            pass
    if isinstance(first, decimal.Decimal) and pt.is_floating(kind):  # a decimal of Arrow has no negative zero
        return convert_values(pa.array([None if value is None else str(value) for value in values]), kind)
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return _one_by_one(values, kind)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return convert_values(array, kind)


def _one_by_one(values: Sequence[Any], kind: pa.DataType) -> Converted:
    parts = []
    for row, value in enumerate(values):
        if value is not None:
            parts.append((np.array([row], np.int64), _one(value, kind)))
    return whole(parts, len(values), kind)


def _one(value: Any, kind: pa.DataType) -> Converted:
    if isinstance(value, int) and not isinstance(value, bool):
        value = decimal.Decimal(value)
    try:
        if isinstance(value, decimal.Decimal):
            if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
                return none_convert(pa.array([True]), kind)
            return convert_values(_decimal(value), kind)
        return convert_values(pa.array([value]), kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return none_convert(pa.array([True]), kind)  # Arrow has no type for it


def _decimal(value: decimal.Decimal) -> pa.Array:
    """Return a decimal as one of Arrow's, or, beyond its digits or range, as the text it is."""
    if not value.is_finite() or len(value.as_tuple().digits) + abs(value.adjusted()) > 70:
        return pa.array([str(value)])
    return pa.array([value])


def _structs(values: Sequence[Any], kind: pa.DataType, leaf: Leaf | None) -> Converted:
    is_struct = np.array([isinstance(one, Mapping) for one in values], np.bool_)
    unfit = np.array([one is not None for one in values], np.bool_) & ~is_struct
    arrays = []
    for field in kind:
        part = python_values([one.get(field.name) if isinstance(one, Mapping) else None for one in values], field.type, leaf)
        arrays.append(part.values)
        if part.unfit is not None:
            unfit |= part.unfit
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pa.array(~is_struct | unfit))
    return Converted(structs, unfit if unfit.any() else None)


def _pairs(value: Any, *, is_json: bool) -> Any:
    """Return a map as the list of its keys and values; a list of pairs is one too, but not in JSON."""
    if isinstance(value, Mapping):
        return [{"key": key, "value": item} for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        if is_json:
            return object()  # converts to nothing
        return [{"key": one[0], "value": one[1]} if isinstance(one, (list, tuple)) and len(one) == 2 else one for one in value]
    return value


def _lists(values: Sequence[Any], kind: pa.DataType, leaf: Leaf | None) -> Converted:
    of_map = pt.is_map(kind)
    member = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)]) if of_map else kind.value_type
    lists = [one.tolist() if isinstance(one, np.ndarray) else one for one in values]
    is_list = np.array([isinstance(one, (list, tuple)) for one in lists], np.bool_)
    unfit = np.array([one is not None for one in lists], np.bool_) & ~is_list
    counts = np.array([len(one) if isinstance(one, (list, tuple)) else 0 for one in lists], np.int64)
    flat = python_values([item for one in lists if isinstance(one, (list, tuple)) for item in one], member, leaf)
    ends = np.cumsum(counts)
    if flat.unfit is not None:
        total = np.concatenate([[0], np.cumsum(flat.unfit)])
        unfit |= total[ends] > total[ends - counts]
    if of_map:
        keys_missing = flat.values.field(0).is_null().to_numpy(zero_copy_only=False)
        total = np.concatenate([[0], np.cumsum(keys_missing)])
        unfit |= total[ends] > total[ends - counts]
    offsets = np.concatenate([[0], ends])
    mask = pa.array(~is_list | unfit)
    if of_map:
        pairs = pa.LargeListArray.from_arrays(pa.array(offsets), flat.values, mask=mask).to_pylist()
        lines = [None if one is None else [(pair["key"], pair["value"]) for pair in one] for one in pairs]
        if leaf is not None:  # names of JSON such as "1" and "01" may be one key: the last value counts
            lines = [None if one is None else [*dict(one).items()] for one in lines]
        return Converted(pa.array(lines, kind), unfit if unfit.any() else None)
    plain = pa.large_list(kind.value_field)
    arrays = pa.LargeListArray.from_arrays(pa.array(offsets), flat.values, type=plain, mask=mask)
    if pt.is_fixed_size_list(kind):
        unfit |= is_list & (counts != kind.list_size)
        kept = [None if bad else one for bad, one in zip(unfit.tolist(), arrays.to_pylist(), strict=True)]
        return Converted(pa.array(kept, kind), unfit if unfit.any() else None)
    return Converted(arrays.cast(kind), unfit if unfit.any() else None)
