"""Explicit casts between plain types, as Spark does them under ANSI mode.

What does not fit is a fault, never a NULL or a wrapped number. A float is cut towards zero, a decimal is rounded half
up to fewer decimals and cut towards zero to an integer, a timestamp is rounded down. An instant becomes a date or a
local timestamp in the zone its type names. `type_rules.cast_type` lists the casts.

Known limits: text is read as a number only in plain notation (no hexadecimal); `text_casts` lists what else is read and
written.

`from_text`, `into_text`: casts between text and other types, as Spark does them under ANSI mode.

Read: numbers as decimals, `true/t/yes/y/1` and their opposites, dates `2024-2-9` (a year or a month alone is its first day,
what follows a space or T is not looked at), timestamps `2024-02-09 7:05:01.25` with `Z`, `UTC` or `+02:00` behind them;
spaces at the ends do not count. Written: decimals plainly, timestamps without zeros at the end of the fraction, floats as
Java does.

Known limits: years have four digits, zones are not read by name, and a time alone is not a timestamp.

Cost: decimals and floats go value by value, the rest a few array passes.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.expressions.type_rules import exact_type, kind_of
from zset_join.expressions.vectors import Bools, Vector, fit_decimal, rescale, to_arrow, widen

__all__ = ["convert", "java_number", "names_zone"]

_BLANKS = "".join(map(chr, [*range(33), 127]))
_NO_FAULTS = np.zeros(1, np.bool_)
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_DATE = r"^(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?$"
_STAMP = (
    r"^(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[ T](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{0,9}))?)?"
    r" ?(?P<zone>Z|UTC|GMT|[+-][0-9]{1,2}(?::[0-9]{2})?)?)?)?)?$"
)


def names_zone(value: Any) -> bool:
    """Return whether a value is the text of a timestamp with its zone behind it."""
    found = re.match(_STAMP, value.strip()) if isinstance(value, str) else None
    return found is not None and found["zone"] is not None


def from_text(vector: Vector, target: pa.DataType) -> tuple[Vector, Bools]:
    """Read strings as booleans, decimals, dates or timestamps."""
    text = pc.utf8_trim(vector.values, characters=_BLANKS)
    kind = kind_of(target)
    if kind == "boolean":
        small = pc.utf8_lower(text)
        is_true = pc.is_in(small, pa.array(_TRUE, pa.large_string()))
        is_false = pc.is_in(small, pa.array(_FALSE, pa.large_string()))
        values = is_true.to_numpy(zero_copy_only=False)
        invalid = pc.invert(pc.or_(is_true, is_false)).to_numpy(zero_copy_only=False)
        return replace(vector, type=target, values=values), invalid
    if kind == "decimal":
        read = [_decimal(value, target) for value in text.to_pylist()]
        invalid = np.array([number is None for number in read], np.bool_)
        return replace(vector, type=target, values=pa.array(read, target)), invalid
    if kind == "date":
        days, invalid = _days(pc.extract_regex(text, _DATE))
        return replace(vector, type=target, values=days.astype(np.int32)), invalid
    values, invalid = _stamps(pc.extract_regex(text, _STAMP), target)
    return replace(vector, type=target, values=values), invalid


def _decimal(text: str | None, target: pa.DataType) -> decimal.Decimal | None:
    if text is None or "_" in text:
        return None
    try:
        with decimal.localcontext(prec=400):
            number = decimal.Decimal(text)
            if not number.is_finite() or number.adjusted() > target.precision:
                return None
            number = number.quantize(decimal.Decimal(1).scaleb(-target.scale), rounding=decimal.ROUND_HALF_UP)
    except decimal.InvalidOperation:
        return None
    return number if len(number.as_tuple().digits) <= target.precision or number == 0 else None


def _numbers(fields: pa.StructArray, name: str, default: int) -> Any:
    """Return one group of a pattern as numbers; the default where it is not in the text."""
    group = fields.field(name) if fields.null_count == 0 else pc.struct_field(fields, name)
    filled = pc.if_else(pc.equal(group, ""), str(default), group).fill_null(str(default))
    return filled.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _days(fields: pa.StructArray) -> tuple[Any, Bools]:
    year, month, day = (_numbers(fields, name, default) for name, default in (("year", 1970), ("month", 1), ("day", 1)))
    months = (year - 1970) * 12 + month - 1
    begin = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    size = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - begin
    unmatched = fields.is_null().to_numpy(zero_copy_only=False)
    return begin + day - 1, unmatched | (month < 1) | (month > 12) | (day < 1) | (day > size)


def _stamps(fields: pa.StructArray, target: pa.DataType) -> tuple[Any, Bools]:
    days, invalid = _days(fields)
    hour, minute, second = (_numbers(fields, name, 0) for name in ("hour", "minute", "second"))
    # Six digits count; what is behind is cut off.
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(fields, "fraction").fill_null(""), 6, "0"), 0, 6)
    microseconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    microseconds = microseconds * 10**6 + fraction.cast(pa.int64()).to_numpy(zero_copy_only=False)
    invalid = invalid | (hour > 23) | (minute > 59) | (second > 59)
    if kind_of(target) == "instant":
        microseconds = microseconds - _offsets(pc.struct_field(fields, "zone"))
    values, overflow = rescale(microseconds, "us", target.unit)
    return values, invalid | overflow


def _offsets(zones: pa.Array) -> Any:
    parts = pc.extract_regex(zones, r"^(?P<sign>[+-])(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))?$")
    size = (_numbers(parts, "hour", 0) * 60 + _numbers(parts, "minute", 0)) * 60 * 10**6
    is_negative = pc.equal(pc.struct_field(parts, "sign"), "-").fill_null(False).to_numpy(zero_copy_only=False)
    return np.where(is_negative, -size, size)


def into_text(vector: Vector, target: pa.DataType) -> Vector:
    """Write booleans, numbers, dates and timestamps as strings."""
    kind = kind_of(vector.type)
    array = to_arrow(vector)
    if kind == "instant":
        array = pc.local_timestamp(array)
    if kind in {"timestamp", "instant"}:
        text = array.cast(pa.timestamp("us")).cast(pa.large_string())
        # A fraction that is all zeros goes with its point.
        text = pc.replace_substring_regex(text, r"(\.[0-9]*[1-9])0+$|\.0+$", r"\1")
    elif kind == "decimal":
        text = pa.array([None if number is None else f"{number:f}" for number in array.to_pylist()], pa.large_string())
    elif kind == "float":
        text = pa.array([java_number(value) for value in vector.values], pa.large_string())
    else:
        text = array.cast(pa.large_string())
    if kind in {"date", "timestamp", "instant"}:
        text = pc.replace_substring_regex(text, r"^([0-9]{5})", r"+\1")  # years behind 9999
    return replace(vector, type=target, values=text)


def java_number(value: Any) -> str:
    """Write a float as Java's `toString`: plainly from 0.001 to 10,000,000, else as a power of ten."""
    if not np.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = np.format_float_positional(value, unique=True, trim="0")
        return str(plain)
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"


_SECONDS_PER_DAY = 86_400
_WIDE = pa.decimal256(76, 0)
_INTEGER_TEXT = r"^[+-]?0*[0-9]{1,70}$"
_FLOAT_TEXT = r"(?i)^([+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[df]?|inf|infinity)|nan)$"


def convert(vector: Vector, target: pa.DataType) -> tuple[Vector, str, Bools]:
    """Cast a vector to a plain type."""
    kind, target_kind = kind_of(vector.type), kind_of(target)
    if vector.type == target or kind == "null":
        return widen(vector, target), "CAST_OVERFLOW", _NO_FAULTS
    if target_kind == "string":
        return into_text(vector, target), "CAST_OVERFLOW", _NO_FAULTS
    if kind == "string" and target_kind not in {"integer", "float"}:
        converted, invalid = from_text(vector, target)
        return converted, "CAST_INVALID_INPUT", invalid
    if kind == "string":
        return _from_text(vector, target)
    if target_kind == "decimal":
        exact = exact_type(vector.type)
        wide = widen(vector, pa.decimal256(exact.precision, exact.scale)).values
        values, overflow = fit_decimal(wide, target)
        return replace(vector, type=target, values=values), "CAST_OVERFLOW", overflow
    if target_kind == "integer":
        values, overflow = _to_integer(vector, target)
        return replace(vector, type=target, values=values), "CAST_OVERFLOW", overflow
    if target_kind == "float" and kind == "decimal":
        return widen(vector, target), "CAST_OVERFLOW", _NO_FAULTS
    if target_kind == "float":
        with np.errstate(over="ignore"):
            values = vector.values.astype(target.to_pandas_dtype())
        return replace(vector, type=target, values=values), "CAST_OVERFLOW", _NO_FAULTS
    if target_kind == "boolean":
        return replace(vector, type=target, values=vector.values != 0), "CAST_OVERFLOW", _NO_FAULTS
    values, overflow = _to_temporal(vector, target)
    return replace(vector, type=target, values=values), "CAST_OVERFLOW", overflow


def _to_integer(vector: Vector, target: pa.DataType) -> tuple[Any, Bools]:
    dtype = np.dtype(target.to_pandas_dtype())
    limits = np.iinfo(dtype)
    if kind_of(vector.type) == "decimal":
        return _decimal_to_integer(vector.values, dtype)
    values = vector.values
    if values.dtype.kind != "f":
        overflow = np.asarray((values < limits.min) | (values > limits.max)) if values.dtype.kind == "i" else _NO_FAULTS
        return values.astype(dtype), overflow
    overflow = ~((np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min)))
    cut = np.trunc(np.where(overflow, 0.0, values))
    # 2**63 passes the test above, as it does in Spark, and becomes the largest integer.
    too_large = cut >= float(limits.max)
    return np.where(too_large, limits.max, np.where(too_large, 0.0, cut).astype(dtype)).astype(dtype), overflow


def _decimal_to_integer(values: pa.Array, dtype: np.dtype[Any]) -> tuple[Any, Bools]:
    limits = np.iinfo(dtype)
    scale = values.type.scale
    wide = values.cast(pa.decimal256(76, scale))
    cut = pc.round(wide, ndigits=0, round_mode="towards_zero").cast(_WIDE)
    lower, upper = (pa.scalar(decimal.Decimal(int(limit)), _WIDE) for limit in (limits.min, limits.max))
    out_of_range = pc.or_(pc.less(cut, lower), pc.greater(cut, upper)).fill_null(False)
    fitting = pc.if_else(pc.or_(out_of_range, cut.is_null()), pa.scalar(decimal.Decimal(0), _WIDE), cut)
    return fitting.cast(pa.int64()).to_numpy().astype(dtype), out_of_range.to_numpy(zero_copy_only=False)


def _from_text(vector: Vector, target: pa.DataType) -> tuple[Vector, str, Bools]:
    text = pc.utf8_trim(vector.values, characters=_BLANKS)
    is_integer = kind_of(target) == "integer"
    malformed = pc.invert(pc.match_substring_regex(text, _INTEGER_TEXT if is_integer else _FLOAT_TEXT)).fill_null(False)
    zero = pa.scalar("0", pa.large_string())
    readable = pc.if_else(pc.or_(malformed, text.is_null()), zero, text)
    readable = pc.replace_substring_regex(readable, r"^\+", "")
    invalid: Bools = malformed.to_numpy(zero_copy_only=False)
    if is_integer:
        readable = pc.replace_substring_regex(readable, r"^(-?)0*([0-9])", r"\1\2")
        values, overflow = _decimal_to_integer(readable.cast(_WIDE), np.dtype(target.to_pandas_dtype()))
        invalid = invalid | overflow
    else:
        readable = pc.replace_substring_regex(readable, r"([0-9.])[dDfF]$", r"\1")
        values = readable.cast(target).to_numpy()
    return replace(vector, type=target, values=values), "CAST_INVALID_INPUT", invalid


def _to_temporal(vector: Vector, target: pa.DataType) -> tuple[Any, Bools]:
    source, values = vector.type, vector.values
    if kind_of(source) == "date":
        seconds = values.astype(np.int64) * _SECONDS_PER_DAY
        return rescale(seconds, "s", target.unit)
    if kind_of(source) == "instant" and kind_of(target) != "instant":
        local = pc.local_timestamp(to_arrow(vector))
        source, values = local.type, local.cast(pa.int64()).fill_null(0).to_numpy()
    if kind_of(target) == "date":
        seconds, overflow = rescale(values, source.unit, "s")
        return np.floor_divide(seconds, _SECONDS_PER_DAY).astype(np.int32), overflow
    return rescale(values, source.unit, target.unit)
