"""Columns of one plain type with their NULLs, and Spark's arithmetic, comparison and conversion on them.

A `Vector` has n values or one, which then represents all rows. Numbers, booleans and temporal values are NumPy arrays
(temporal ones as the integers they are stored as), strings, binaries and decimals are Arrow arrays. What is in
the place of a NULL is undefined. Nothing here raises for a row: what cannot be computed comes back as a mask of
*faults*, because a row that AND or OR skips must not fail.

Ties and edge cases: NaN equals NaN and is greater than every other number, 0.0 equals -0.0; integers are checked for
overflow; decimals are computed exactly and then rounded half up; a remainder has the sign of its dividend.

Memory: a few arrays of n values per operation, freed when the next one is done.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.expressions.type_rules import exact_type, kind_of, plain_type

__all__ = [
    "Bools",
    "Vector",
    "absolute",
    "arithmetic",
    "compare",
    "fit_decimal",
    "from_arrow",
    "length",
    "negate",
    "rescale",
    "starts_with",
    "to_arrow",
    "widen",
]

Bools: TypeAlias = npt.NDArray[np.bool_]

_DIGITS = 76
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Vector:
    """A column inside an expression."""

    type: pa.DataType
    values: Any  # n or 1: a NumPy array, or an Arrow array for strings, binaries and decimals
    valid: Bools  # n or 1, False where the value is NULL
    faults: npt.NDArray[np.int32] | None = None  # n or 1, 0 where the value could be computed


def from_arrow(array: pa.Array | pa.ChunkedArray) -> Vector:
    """Return an Arrow column as a vector of its plain type; numbers are not copied when the Arrow type is plain."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        return from_arrow(array.storage)
    if pa.types.is_dictionary(array.type):
        return from_arrow(array.dictionary_decode())
    plain = plain_type(array.type)
    kind = kind_of(plain)
    valid = np.ones(len(array), np.bool_)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    if kind in {"null", "other"}:
        return Vector(plain, np.zeros(len(array), np.bool_), valid)
    if plain != array.type:
        array = array.cast(plain)
    if kind in {"string", "binary", "decimal", "array"}:
        return Vector(plain, array, valid)
    if kind == "boolean":
        return Vector(plain, array.fill_null(False).to_numpy(zero_copy_only=False), valid)
    return Vector(plain, np.frombuffer(*_window(array), offset=array.offset * array.type.bit_width // 8), valid)


def _window(array: pa.Array) -> tuple[Any, Any, int]:
    is_float = pa.types.is_floating(array.type)
    dtype = np.dtype(f"{'f' if is_float else 'i'}{array.type.bit_width // 8}")
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return bytes((array.offset + len(array)) * dtype.itemsize + 1), dtype, len(array)
    return buffer, dtype, len(array)


def widen(vector: Vector, target: pa.DataType) -> Vector:
    """Convert without loss of meaning: the implicit half of Spark's casts. NULL becomes any type."""
    if vector.type == target:
        return vector
    kind, target_kind = kind_of(vector.type), kind_of(target)
    if kind == "null":
        return replace(vector, type=target, values=_zeros(target, len(vector.valid)))
    if kind == "decimal" and target_kind == "float":
        # By way of text: Arrow's direct conversion is off by one unit in the last place for some values.
        return replace(vector, type=target, values=_numbers(vector.values.cast(pa.string()).cast(target)))
    if kind == "integer" and pa.types.is_decimal(target):
        return replace(vector, type=target, values=to_arrow(vector).cast(exact_type(pa.int64())).cast(target))
    if kind == "decimal":
        return replace(vector, type=target, values=vector.values.cast(target))
    return replace(vector, type=target, values=vector.values.astype(target.to_pandas_dtype()))


def _zeros(plain: pa.DataType, count: int) -> Any:
    kind = kind_of(plain)
    if kind in {"string", "binary", "array"} or pa.types.is_decimal(plain):
        return pa.nulls(count, plain)
    if kind in {"integer", "float"}:
        return np.zeros(count, plain.to_pandas_dtype())
    if kind == "boolean":
        return np.zeros(count, np.bool_)
    return np.zeros(count, np.int32 if plain.bit_width == 32 else np.int64)


def to_arrow(vector: Vector) -> pa.Array:
    """Return a vector as an Arrow array of its type."""
    if isinstance(vector.values, pa.Array):
        return vector.values
    values, valid = vector.values, vector.valid
    if len(values) != len(valid):  # one of the two may be the same for all rows
        values, valid = np.broadcast_arrays(values, valid)
    plain = pa.array(values, mask=~valid)
    return plain if plain.type == vector.type else plain.view(vector.type)


def _numbers(array: pa.Array) -> Any:
    return array.fill_null(0).to_numpy(zero_copy_only=False)


def _paired(first: Vector, second: Vector) -> tuple[Any, Any]:
    """Return two Arrow values that compute functions can broadcast: an array and an array or scalar."""
    values = first.values, second.values
    if len(values[0]) == len(values[1]):
        return values
    return (values[0][0], values[1]) if len(values[0]) == 1 else (values[0], values[1][0])


def _flags(array: pa.Array | pa.BooleanScalar) -> Bools:
    flags: Bools = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def compare(operation: str, first: Vector, second: Vector) -> Bools:
    """Compare two vectors of one type, temporal ones perhaps of different unit; undefined where either is NULL."""
    if operation in {"gt", "ge"}:
        return compare("lt" if operation == "gt" else "le", second, first)
    if operation in {"ne", "le"}:
        opposite: Bools = ~compare("eq" if operation == "ne" else "gt", first, second)
        return opposite
    if isinstance(first.values, pa.Array):
        return _flags((pc.equal if operation == "eq" else pc.less)(*_paired(first, second)))
    one, other = first.values, second.values
    if kind_of(first.type) == "float":
        with np.errstate(invalid="ignore"):
            if operation == "eq":
                return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))
            return np.asarray((one < other) | (np.isnan(other) & ~np.isnan(one)))
    if first.type != second.type and kind_of(first.type) in {"timestamp", "instant", "duration", "time"}:
        return _compare_units(operation, first, second)
    return np.asarray(one == other if operation == "eq" else one < other)


def _compare_units(operation: str, first: Vector, second: Vector) -> Bools:
    """Compare temporal values of different unit without leaving 64 bits: by the coarser unit, then by what is left."""
    first_parts, second_parts = _PER_SECOND[first.type.unit], _PER_SECOND[second.type.unit]
    if first_parts > second_parts:
        quotients, rests = np.divmod(first.values, first_parts // second_parts)
        equal = (quotients == second.values) & (rests == 0)
        return np.asarray(equal if operation == "eq" else quotients < second.values)
    quotients, rests = np.divmod(second.values, second_parts // first_parts)
    same = first.values == quotients
    return np.asarray(same & (rests == 0) if operation == "eq" else (first.values < quotients) | (same & (rests > 0)))


def starts_with(vector: Vector, prefix: str | bytes) -> Bools:
    """Return which strings or binaries start with `prefix`."""
    if isinstance(prefix, str):
        return _flags(pc.starts_with(vector.values, prefix))
    # `starts_with` wants text; slicing works on bytes.
    return _flags(pc.equal(pc.binary_slice(vector.values, 0, len(prefix)), pa.scalar(prefix, pa.large_binary())))


def length(vector: Vector) -> Vector:
    """Return the characters of strings, or the bytes of binaries, as int32."""
    if kind_of(vector.type) == "null":
        return widen(vector, pa.int32())
    count = pc.utf8_length if kind_of(vector.type) == "string" else pc.binary_length
    return replace(vector, type=pa.int32(), values=_numbers(count(vector.values)).astype(np.int32))


def negate(vector: Vector) -> tuple[Vector, Bools]:
    """Return `-vector` and which rows overflow."""
    if isinstance(vector.values, pa.Array):
        return replace(vector, values=pc.negate(vector.values)), np.zeros(1, np.bool_)
    with np.errstate(over="ignore"):
        return replace(vector, values=vector.values if kind_of(vector.type) == "null" else -vector.values), _is_lowest(vector)


def absolute(vector: Vector) -> tuple[Vector, Bools]:
    """Return `abs(vector)` and which rows overflow."""
    if isinstance(vector.values, pa.Array):
        return replace(vector, values=pc.abs(vector.values)), np.zeros(1, np.bool_)
    with np.errstate(over="ignore"):
        return replace(vector, values=np.abs(vector.values)), _is_lowest(vector)


def _is_lowest(vector: Vector) -> Bools:
    if vector.values.dtype.kind != "i":
        return np.zeros(1, np.bool_)
    return np.asarray(vector.values == np.iinfo(vector.values.dtype).min)


def arithmetic(operation: str, first: Vector, second: Vector, result: pa.DataType) -> tuple[Vector, str, Bools]:
    """Compute `+ - * / %`."""
    valid = first.valid & second.valid
    if kind_of(result) == "decimal":
        return _decimal_arithmetic(operation, first, second, result, valid)
    if kind_of(result) in {"timestamp", "instant", "duration"}:
        return _temporal_arithmetic(operation, first, second, result, valid)
    one, other = widen(first, result).values, widen(second, result).values
    if operation in {"divide", "remainder"}:
        zero = np.asarray(other == 0)
        divisor = np.where(zero, other.dtype.type(1), other)
        with np.errstate(all="ignore"):
            # -1 divides everything; the processor's own division of the lowest integer by it would trap.
            safe = divisor if divisor.dtype.kind == "f" else np.where(divisor == -1, divisor.dtype.type(1), divisor)
            value = np.true_divide(one, divisor) if operation == "divide" else np.fmod(one, safe)
        return Vector(result, value, valid), "DIVIDE_BY_ZERO", zero
    value, overflow = _checked(operation, one, other)
    return Vector(result, value, valid), "ARITHMETIC_OVERFLOW", overflow


def _checked(operation: str, one: Any, other: Any) -> tuple[Any, Bools]:
    """Compute with wrap-around and return where it wrapped; floats never do."""
    function = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[operation]
    with np.errstate(all="ignore"):
        value = function(one, other)
        if value.dtype.kind == "f":
            return value, np.zeros(1, np.bool_)
        if operation == "add":
            return value, ((one ^ value) & (other ^ value)) < 0
        if operation == "subtract":
            return value, ((one ^ other) & (one ^ value)) < 0
        # Undo the multiplication; the lowest integer times -1 is the one case this would not notice.
        divisor = np.where(one == 0, one.dtype.type(1), one)
        lowest = np.iinfo(value.dtype).min
        undone = np.where(divisor == -1, -value, value // divisor)
        return value, ((one != 0) & (undone != other)) | ((one == -1) & (other == lowest))


def _decimal_arithmetic(
    operation: str, first: Vector, second: Vector, result: pa.DataType, valid: Bools
) -> tuple[Vector, str, Bools]:
    """Compute exactly in 256 bits, then round."""
    one, other = exact_type(first.type), exact_type(second.type)
    if operation in {"divide", "remainder"}:
        return _decimal_division(operation, widen(first, one), widen(second, other), result, valid)
    if operation == "multiply":
        one = pa.decimal256(one.precision, one.scale)
        other = pa.decimal256(other.precision, other.scale)
    else:
        one = other = pa.decimal256(_DIGITS, max(one.scale, other.scale))
    function = {"add": pc.add, "subtract": pc.subtract, "multiply": pc.multiply}[operation]
    exact = function(*_paired(_narrowed(widen(first, one)), _narrowed(widen(second, other))))
    values, overflow = fit_decimal(exact, result)
    return Vector(result, values, valid), "ARITHMETIC_OVERFLOW", overflow


def _decimal_division(
    operation: str, first: Vector, second: Vector, result: pa.DataType, valid: Bools
) -> tuple[Vector, str, Bools]:
    """Divide with integers of any size: exactly, and rounded once."""
    one, other = _unscaled(first.values), _unscaled(second.values)
    zero = np.asarray(other == 0, np.bool_)
    divisor = np.where(zero, 1, other)
    if operation == "divide":
        lift = result.scale - first.type.scale + second.type.scale
        top, bottom = (abs(one) * 10**lift, abs(divisor)) if lift >= 0 else (abs(one), abs(divisor) * 10**-lift)
        size = (2 * top + bottom) // (2 * bottom)
    else:
        scale = max(first.type.scale, second.type.scale)
        size = (abs(one) * 10 ** (scale - first.type.scale)) % (abs(divisor) * 10 ** (scale - second.type.scale))
        divisor = np.where(zero, 1, abs(divisor))
    is_negative = np.asarray((one < 0) ^ (divisor < 0), np.bool_)
    overflow = np.asarray(size >= 10**result.precision, np.bool_)
    numbers = np.where(is_negative, -size, size)
    with decimal.localcontext(prec=_DIGITS):
        places = -result.scale
        quotients = [
            None if failed else decimal.Decimal(int(number)).scaleb(places)
            for number, failed in zip(numbers, np.broadcast_to(overflow, len(numbers)), strict=True)
        ]
    code = "DIVIDE_BY_ZERO" if (zero & valid).any() else "ARITHMETIC_OVERFLOW"
    return Vector(result, pa.array(quotients, result), valid), code, zero if code == "DIVIDE_BY_ZERO" else overflow


def _unscaled(array: pa.Array) -> npt.NDArray[np.object_]:
    """Return the integers that decimals are kept as, 0 for NULL."""
    halves = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
    whole = halves[:, 1].view(np.int64).astype(object) * (1 << 64) + halves[:, 0].astype(object)
    known = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, whole, 0)


def _narrowed(vector: Vector) -> Vector:
    """Understate the digits of decimal256 values, whose sums and products of two decimal128 always fit 256 bits."""
    # Arrow refuses by type what may need 77 digits, though no sum or product of two 38-digit numbers overflows here.
    array = vector.values
    limit = _DIGITS - 1 if array.type.precision == _DIGITS else 37
    narrow = pa.decimal256(min(array.type.precision, limit), array.type.scale)
    return replace(vector, values=pa.Array.from_buffers(narrow, len(array), array.buffers(), offset=array.offset))


def fit_decimal(exact: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    """Bring decimal256 values to a decimal128 type, rounding half up; mark and empty what is too large."""
    wide, overflow = _bounded(exact.cast(pa.decimal256(_DIGITS, exact.type.scale)), target)
    if exact.type.scale > target.scale:
        # Rounding may carry into one digit more.
        wide = pc.round(wide, ndigits=target.scale, round_mode="half_towards_infinity")
        wide, carried = _bounded(wide, target)
        overflow = overflow | carried
    return wide.cast(pa.decimal256(_DIGITS, target.scale)).cast(target), overflow


def _bounded(wide: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    """Replace by NULL, and mark, what has more integer digits than the target type."""
    integer_digits = target.precision - target.scale
    if integer_digits + 1 + wide.type.scale > _DIGITS:
        # With so few integer digits to begin with, nothing can be too large.
        return wide, np.zeros(1, np.bool_)
    limit = pa.scalar(decimal.Decimal((0, (1,), integer_digits)), wide.type)
    overflow = _flags(pc.greater_equal(pc.abs(wide), limit))
    if overflow.any():
        wide = pc.if_else(pa.array(overflow), pa.scalar(None, wide.type), wide)
    return wide, overflow


def rescale(values: Any, unit: str, target_unit: str) -> tuple[Any, Bools]:
    """Bring temporal values from one unit to another, rounding down; return which no longer fit 64 bits."""
    ratio = _PER_SECOND[target_unit] // _PER_SECOND[unit]
    if ratio == 0:
        return np.floor_divide(values, _PER_SECOND[unit] // _PER_SECOND[target_unit]), np.zeros(1, np.bool_)
    return _checked("multiply", values.astype(np.int64), np.full(1, ratio, np.int64))


def _temporal_arithmetic(
    operation: str, first: Vector, second: Vector, result: pa.DataType, valid: Bools
) -> tuple[Vector, str, Bools]:
    one, one_overflow = rescale(first.values, first.type.unit, result.unit)
    other, other_overflow = rescale(second.values, second.type.unit, result.unit)
    value, overflow = _checked(operation, one, other)
    return Vector(result, value, valid), "ARITHMETIC_OVERFLOW", overflow | one_overflow | other_overflow
