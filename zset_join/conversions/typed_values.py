"""Typed values as values of another type, where the target holds them exactly; FLOAT and DOUBLE take the nearest.

| given | taken by |
|---|---|
| integers | integers and decimals in whose range they are, floats |
| floats | integers they are equal to; decimals that have all digits of their shortest form; floats |
| decimals | integers and decimals that they are equal to; floats |
| dates | dates; timestamps, as the beginning of the day |
| timestamps without zone | timestamps of another unit without a rest; in UTC, those with zone; at midnight, dates |
| timestamps with zone | those of another unit or zone, by instant |
| times, durations | those of another unit without a rest |
| strings, and binaries that are UTF-8 | all that `texts` reads; binaries |
| lists, structs, maps | those whose members convert, by name |

All else is refused: a number is no boolean, date, timestamp or text.

Cost: a few passes in Arrow; value by value only floats that become decimals in an exponential form.

`python_values`: Python objects as values of a column: dicts of rows, columns of mixed classes, values of parsed JSON.

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
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.conversions.texts import Bools, Converted, flags, joined, none_convert, only, read_texts, whole
from zset_join.core.key_types import storage_type

__all__ = ["Leaf", "can_convert", "convert_values", "python_values"]

_DIGITS = 76
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_PER_DAY = 86_400


def can_convert(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether some value of one type converts to the other.

    >>> can_convert(pa.float64(), pa.int64()), can_convert(pa.int64(), pa.date32())
    (True, False)
    """
    given, kind = storage_type(given), storage_type(kind)
    if given == kind or pt.is_null(given):
        return True
    if pt.is_nested(given) or pt.is_nested(kind):
        return _can_convert_nested(given, kind)
    if _is_text(given):
        return not (pt.is_time(kind) or pt.is_duration(kind) or pt.is_interval(kind))
    if _is_bytes(given):
        return _is_bytes(kind) or _is_text(kind)
    if _is_number(given):
        return _is_number(kind)
    if pt.is_date(given) or (pt.is_timestamp(given) and given.tz is None):
        return bool(pt.is_date(kind) or pt.is_timestamp(kind))
    if pt.is_timestamp(given):
        return bool(pt.is_timestamp(kind) and kind.tz is not None)
    return bool((pt.is_time(given) and pt.is_time(kind)) or (pt.is_duration(given) and pt.is_duration(kind)))


def _can_convert_nested(given: pa.DataType, kind: pa.DataType) -> bool:
    if pt.is_struct(given) and pt.is_struct(kind):
        names = [field.name for field in given]
        return sorted(names) == sorted(field.name for field in kind) and all(
            can_convert(given.field(field.name).type, field.type) for field in kind
        )
    if pt.is_map(given) and pt.is_map(kind):
        return can_convert(given.key_type, kind.key_type) and can_convert(given.item_type, kind.item_type)
    return _is_list(given) and _is_list(kind) and can_convert(given.value_type, kind.value_type)


def convert_values(array: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Converted:
    """Return values in another type.

    >>> convert_values(pa.array([3.0, 3.9]), pa.int64()).values.to_pylist()
    [3, None]
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == kind:
        return Converted(array)
    stored = storage_type(kind)
    array = _stored(array)
    if stored != kind:
        converted = convert_values(array, stored)
        return Converted(converted.values.cast(kind), converted.unfit)
    given = array.type
    if given == kind:
        return Converted(array)
    if pt.is_null(given):
        return Converted(pa.nulls(len(array), kind))
    if not can_convert(given, kind):
        return none_convert(array, kind)
    if pt.is_nested(kind):
        return _nested(array, kind)
    if _is_text(given):
        return read_texts(array, kind)
    if _is_bytes(given):
        return _from_bytes(array, kind)
    if pt.is_integer(kind):
        return _to_integer(array, kind)
    if pt.is_floating(kind):
        return _to_float(array, kind)
    if pt.is_decimal(kind):
        return _to_decimal(array, kind)
    return _to_temporal(array, kind)


def _stored(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return _stored(array.storage)
    if pt.is_dictionary(array.type):
        return _stored(array.dictionary_decode())
    stored = storage_type(array.type)
    return array if array.type == stored else array.cast(stored)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _valid(array: pa.Array) -> Bools:
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _from_bytes(array: pa.Array, kind: pa.DataType) -> Converted:
    try:
        return Converted(array.cast(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # some are no UTF-8, or of another length
    width = kind.byte_width if pt.is_fixed_size_binary(kind) else None
    fits = np.array([one is not None and _is_fitting(one, width) for one in array.to_pylist()], np.bool_)
    plain = only(array.cast(pa.large_binary()), fits)
    return joined(plain.cast(pa.binary()).cast(kind), fits, _valid(array))


def _is_fitting(value: bytes, width: int | None) -> bool:
    if width is not None:
        return len(value) == width
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _to_integer(array: pa.Array, kind: pa.DataType) -> Converted:
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    if pt.is_integer(array.type):
        own = np.iinfo(array.type.to_pandas_dtype())
        low, high = max(low, int(own.min)), min(high, int(own.max))
        fits = flags(pc.and_(*(compare(array, pa.scalar(limit, array.type)) for compare, limit in _within(low, high))))
        return joined(only(array, fits).cast(kind), fits, _valid(array))
    if pt.is_floating(array.type):
        numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        with np.errstate(invalid="ignore"):
            fits = (
                (np.trunc(numbers) == numbers) & (numbers >= float(low)) & (numbers < float(high) + (1 if high < 2**53 else 0))
            )
        values = np.where(fits, numbers, 0).astype(kind.to_pandas_dtype())
        return joined(pa.array(values, kind, mask=~(fits & _valid(array))), fits, _valid(array))
    wide = array.cast(pa.decimal256(_DIGITS, array.type.scale))
    fits = flags(pc.equal(pc.floor(wide), wide))
    scalars = ((compare, pa.scalar(decimal.Decimal(limit), wide.type)) for compare, limit in _within(low, high))
    fits &= flags(pc.and_(*(compare(wide, scalar) for compare, scalar in scalars)))
    integers = only(wide, fits)
    if pt.is_uint64(kind):
        values = pa.array([None if one is None else int(one) for one in integers.to_pylist()], kind)
    else:
        values = integers.cast(pa.int64()).cast(kind)
    return joined(values, fits, _valid(array))


def _within(low: int, high: int) -> tuple[tuple[Any, int], tuple[Any, int]]:
    return (pc.greater_equal, low), (pc.less_equal, high)


def _to_float(array: pa.Array, kind: pa.DataType) -> Converted:
    if pt.is_decimal(array.type):  # by way of text: Arrow's own conversion is off by one in the last place
        return Converted(array.cast(pa.string()).cast(kind))
    with np.errstate(over="ignore"):
        numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(kind.to_pandas_dtype())
    return Converted(pa.array(numbers, kind, mask=~_valid(array)))


def _to_decimal(array: pa.Array, kind: pa.DataType) -> Converted:
    if pt.is_floating(array.type):
        return read_texts(array.cast(pa.string()), kind)
    if pt.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    wide = array.cast(pa.decimal256(_DIGITS, array.type.scale))
    fits = _valid(array)
    if kind.precision - kind.scale + array.type.scale < _DIGITS:  # else no value of the given type is too large
        limit = pa.scalar(decimal.Decimal(10) ** (kind.precision - kind.scale), wide.type)
        fits = fits & flags(pc.less(pc.abs(wide), limit))
    if array.type.scale > kind.scale:
        fits &= flags(pc.equal(pc.round(wide, ndigits=kind.scale, round_mode="towards_zero"), wide))
    return joined(only(wide, fits).cast(pa.decimal256(_DIGITS, kind.scale)).cast(kind), fits, _valid(array))


def _to_temporal(array: pa.Array, kind: pa.DataType) -> Converted:
    """Convert numbers of one unit to those of another, where nothing is left over."""
    given = array.type
    if pt.is_date(given) and pt.is_date(kind):
        return Converted(array.cast(kind))
    from_seconds, to_seconds = _unit(given), _unit(kind)
    if pt.is_date(given):
        array = array.cast(pa.date32()).cast(pa.int32())
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    numbers = array.cast(width).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    fits = np.ones(len(numbers), np.bool_)
    if to_seconds >= from_seconds:
        factor = int(to_seconds / from_seconds)
        fits = np.abs(numbers) <= (2**63 - 1) // factor
        numbers = np.where(fits, numbers, 0) * factor
    else:
        numbers, rest = np.divmod(numbers, int(from_seconds / to_seconds))
        fits = rest == 0
    values = pa.array(numbers, mask=~(fits & _valid(array)))
    if kind.bit_width == 32:
        values = values.cast(pa.int32())
    return joined(values.cast(kind), fits, _valid(array))


def _unit(kind: pa.DataType) -> float:
    """Return how many units of a type are a second."""
    return 1 / _PER_DAY if pt.is_date(kind) else _PER_SECOND[kind.unit]


def _nested(array: pa.Array, kind: pa.DataType) -> Converted:
    if pt.is_struct(kind):
        parts = [convert_values(pc.struct_field(array, field.name), field.type) for field in kind]
        values = pa.StructArray.from_arrays([part.values for part in parts], fields=list(kind), mask=array.is_null())
        unfit = np.zeros(len(array), np.bool_)
        for part in parts:
            if part.unfit is not None:
                unfit |= part.unfit
        unfit &= _valid(array)
        return Converted(only(values, ~unfit), unfit if unfit.any() else None)
    if pt.is_map(kind):
        array = array.take(pa.array(np.arange(len(array))))  # keys and items of a slice are those of the whole
        keys, items = convert_values(array.keys, kind.key_type), convert_values(array.items, kind.item_type)
        fields = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
        members = pa.StructArray.from_arrays([keys.values, items.values], fields=fields)
        unfit_members = [part.unfit for part in (keys, items) if part.unfit is not None]
        counts = np.array([0 if one is None else len(one) for one in array.to_pylist()], np.int64)
        return _listed(array, members, np.logical_or.reduce(unfit_members) if unfit_members else None, counts, kind)
    counts = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    members = convert_values(array.flatten(), kind.value_type)
    return _listed(array, members.values, members.unfit, counts, kind)


def _listed(array: pa.Array, members: pa.Array, unfit_members: Bools | None, counts: Any, kind: pa.DataType) -> Converted:
    """Return members in lists of these lengths; a list with a member that does not convert does not either."""
    ends = np.cumsum(counts)
    offsets = np.concatenate([[0], ends])
    unfit = np.zeros(len(array), np.bool_)
    if unfit_members is not None:
        total = np.concatenate([[0], np.cumsum(unfit_members)])
        unfit = total[ends] > total[ends - counts]
    mask = pa.array(~_valid(array) | unfit)
    if pt.is_map(kind):
        pairs = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), members, mask=mask).to_pylist()
        lines = [None if one is None else [(pair["key"], pair["value"]) for pair in one] for one in pairs]
        values = pa.array(lines, kind)
    elif pt.is_large_list(kind):
        values = pa.LargeListArray.from_arrays(pa.array(offsets), members, type=kind, mask=mask)
    elif pt.is_list(kind):
        values = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), members, type=kind, mask=mask)
    else:
        plain = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), members, mask=mask)
        fits = ~unfit & ((counts == kind.list_size) | ~_valid(array))
        return joined(only(plain, fits).cast(kind), fits, _valid(array))
    return Converted(values.cast(kind), unfit if unfit.any() else None)


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
