"""Explicit casts between plain types, as Spark does them under ANSI mode.

What does not fit is a fault, never a NULL or a wrapped number. A float is cut towards zero, a decimal is rounded half
up to fewer decimals and cut towards zero to an integer, a timestamp is rounded down. An instant becomes a date or a
local timestamp in the zone its type names. `type_rules.cast_type` lists the casts.

Known limits: text is read as a number only in plain notation (no hexadecimal); `text_casts` lists what else is read and
written.
"""

from __future__ import annotations

import decimal
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.expressions.text_casts import from_text, into_text
from zset_join.expressions.type_rules import exact_type, kind_of
from zset_join.expressions.vectors import Bools, Vector, fit_decimal, rescale, to_arrow, widen

__all__ = ["convert"]

_SECONDS_PER_DAY = 86_400
_WIDE = pa.decimal256(76, 0)
_BLANKS = "".join(map(chr, [*range(33), 127]))
_INTEGER_TEXT = r"^[+-]?0*[0-9]{1,70}$"
_FLOAT_TEXT = r"(?i)^([+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[df]?|inf|infinity)|nan)$"
_NO_FAULTS = np.zeros(1, np.bool_)


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
