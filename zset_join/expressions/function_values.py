"""The values of the functions of `functions`, on whole columns.

The law: what `function_type` admits is computed as Spark computes it. Faults of operands are the caller's business, except for
those that choose (CASE, COALESCE): a fault counts only in a row that chooses it.

Memory: one array of n values per operand and one for the result. Cost: a few array passes; the exact rounding of doubles that
lie near a tie, months, and substrings at computed places go row by row.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.expressions.computed import NO_FAULTS, Computed, joint_length, literal_value, of_texts, texts_of
from zset_join.expressions.conversions import convert
from zset_join.expressions.function_types import LIBRARY, one_type
from zset_join.expressions.tree import Call, Literal
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.vectors import Bools, Vector, compare, fit_decimal, to_arrow, widen

__all__ = ["chosen_value", "function_value"]


def chosen_value(operation: str, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    """Compute a function that does not look at all its operands: case or coalesce. The vector carries its own faults."""
    if operation == "coalesce":
        first, *others = (_as(operand, result) for operand in operands)
        for other in others:
            first = _choose(first.valid, first, other)
        return first, "CAST_OVERFLOW", NO_FAULTS
    paired = len(operands) - len(operands) % 2
    chosen = operands[-1] if len(operands) % 2 else Vector(pa.null(), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    chosen = _as(chosen, result)
    for place in range(paired - 2, -1, -2):
        condition = operands[place]
        is_true = np.asarray(condition.values & condition.valid)
        chosen = _choose(is_true, _as(operands[place + 1], result), chosen)
        if condition.faults is not None:
            before = chosen.faults if chosen.faults is not None else np.zeros(1, np.int32)
            chosen = replace(chosen, faults=np.where(condition.faults != 0, condition.faults, before))
    return chosen, "CAST_OVERFLOW", NO_FAULTS


def function_value(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    """Compute any other function."""
    compute = _VALUES.get(call.operation) or LIBRARY[call.operation].value
    return compute(call, operands, result)


def _as(vector: Vector, target: pa.DataType) -> Vector:
    if vector.type == target:
        return vector
    if kind_of(target) == "decimal" or kind_of(vector.type) in {"date", "timestamp", "instant", "duration", "time"}:
        return replace(convert(vector, target)[0], faults=vector.faults)
    return widen(vector, target)


def _flat(vector: Vector, length: int) -> Any:
    """Return the values as an array of so many, which may be shared."""
    if isinstance(vector.values, pa.Array):
        return vector.values if len(vector.values) == length else pa.repeat(vector.values[0], length)
    return np.broadcast_to(vector.values, length)


def _choose(mask: Bools, first: Vector, second: Vector) -> Vector:
    """Return the first where the mask is true, else the second; both of one type."""
    length = joint_length(len(mask), len(first.valid), len(second.valid), len(first.values), len(second.values))
    flags = np.broadcast_to(mask, length)
    valid = np.where(flags, first.valid, second.valid)
    one, other = _flat(first, length), _flat(second, length)
    values = pc.if_else(pa.array(flags), one, other) if isinstance(one, pa.Array) else np.where(flags, one, other)
    faults = None
    if first.faults is not None or second.faults is not None:
        none = np.zeros(1, np.int32)
        faults = np.where(
            flags, none if first.faults is None else first.faults, none if second.faults is None else second.faults
        ).astype(np.int32)
    return Vector(first.type, values, valid, faults)


def _extreme(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    operation = "gt" if call.operation == "greatest" else "lt"
    first, *others = (replace(_as(operand, result), faults=None) for operand in operands)
    for other in others:
        better = compare(operation, other, first)
        first = _choose(other.valid & (better | ~first.valid), other, first)
    return first, "CAST_OVERFLOW", NO_FAULTS


def _nullif(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    common = one_type(operands[0].type, operands[1].type)
    equal = compare("eq", *(_as(operand, common) for operand in operands)) if kind_of(common) != "null" else NO_FAULTS
    valid = operands[0].valid & ~(equal & operands[0].valid & operands[1].valid)
    return Vector(result, _flat(operands[0], len(valid)), valid), "CAST_OVERFLOW", NO_FAULTS


def _by_arrow(function: Callable[[pa.Array], pa.Array]) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    def compute(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        return of_texts(function(texts_of(operands[0])), result), "CAST_OVERFLOW", NO_FAULTS

    return compute


_LETTERS_END = 0x20000  # no script with large and small letters is behind it


def _letters(function: Callable[..., pa.Array], of_text: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    """Arrow converts one letter to one letter; texts with others, as with the German sharp s, are converted one by one."""

    @cache
    def others() -> str:
        letters = [chr(code) for code in range(0x80, _LETTERS_END) if not 0xD800 <= code < 0xE000]
        by_arrow = function(pa.array(letters)).to_pylist()
        differing = [letter for letter, one in zip(letters, by_arrow, strict=True) if of_text(letter) != one]
        return "[\N{GREEK CAPITAL LETTER SIGMA}" + "".join(differing) + "]"  # a sigma is written otherwise where a word ends

    def convert(texts: pa.Array) -> pa.Array:
        is_plain = pc.fill_null(pc.string_is_ascii(texts), True)
        if pc.all(is_plain, min_count=0).as_py():
            return function(texts)
        converted, has_others = function(texts), pc.fill_null(pc.match_substring_regex(texts, others()), False)
        one_by_one = [of_text(text) for text in texts.filter(has_others).to_pylist()]
        return pc.replace_with_mask(converted, has_others, pa.array(one_by_one, converted.type))

    return convert


def _trim_spaces(function: Callable[..., pa.Array]) -> Callable[[pa.Array], pa.Array]:
    # Spark trims the space alone, not every white space.
    return lambda texts: function(texts, characters=" ")


def _concat(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    texts = [texts_of(operand) for operand in operands]
    length = joint_length(*map(len, texts))
    texts = [text if len(text) == length else pa.repeat(text[0], length) for text in texts]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()), null_handling="emit_null")
    return of_texts(joined, result), "CAST_OVERFLOW", NO_FAULTS


def _like(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    pattern, escape = literal_value(call.operands[1]), literal_value(call.operands[2]) if len(call.operands) == 3 else "\\"
    texts = texts_of(operands[0])
    if call.operation == "ilike":
        texts, pattern = pc.utf8_lower(texts), pattern.lower()
    matched = pc.match_substring_regex(texts, _regex(pattern, escape))
    return of_texts(matched, result), "CAST_OVERFLOW", NO_FAULTS


def _regex(pattern: str, escape: str) -> str:
    parts, place = [], 0
    while place < len(pattern):
        letter = pattern[place]
        if letter == escape:
            place += 1
            parts.append(_quoted(pattern[place]))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or _quoted(letter))
        place += 1
    return rf"(?s)\A{''.join(parts)}\z"


def _quoted(letter: str) -> str:
    return re.escape(letter) if letter.isascii() and letter != "\0" else letter if letter != "\0" else r"\x00"


def _substring(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    texts = texts_of(operands[0])
    bounds = operands[1:]
    if all(isinstance(operand, Literal) and operand.value is not None for operand in call.operands[1:]):
        numbers = [int(literal_value(operand)) for operand in call.operands[1:]]
        start, stop = _slice(numbers[0], numbers[1] if len(numbers) == 2 else None)
        empty = stop is not None and (stop <= start and (start < 0) == (stop < 0))
        substrings = _emptied(texts) if empty else pc.utf8_slice_codeunits(texts, start, stop)
        return of_texts(substrings, result), "CAST_OVERFLOW", NO_FAULTS
    length = joint_length(len(texts), *(len(bound.valid) for bound in bounds))
    valid = np.ones(length, np.bool_)
    for bound in bounds:
        valid &= np.broadcast_to(bound.valid, length)
    columns = [np.broadcast_to(bound.values, length).tolist() for bound in bounds]
    if len(texts) != length:
        texts = pa.repeat(texts[0], length)
    values = [
        None if text is None or not known else _sliced(text, *numbers)
        for text, known, *numbers in zip(texts.to_pylist(), valid.tolist(), *columns, strict=True)
    ]
    return of_texts(pa.array(values, pa.large_string()), result), "CAST_OVERFLOW", NO_FAULTS


def _emptied(texts: pa.Array) -> pa.Array:
    return pc.if_else(texts.is_valid(), pa.scalar("", pa.large_string()), pa.scalar(None, pa.large_string()))


def _slice(start: int, length: int | None) -> tuple[int, int | None]:
    """Return a Python slice for SQL's place and length."""
    begin = start - 1 if start > 0 else start
    if length is None:
        return begin, None
    end = begin + max(length, 0)
    return begin, None if begin < 0 <= end else end


def _sliced(text: str, start: int, length: int | None = None) -> str:
    begin, end = _slice(start, length)
    if length is not None and length <= 0:
        return ""
    return text[begin:end]


def _round(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    vector, scale = operands[0], int(literal_value(call.operands[1])) if len(call.operands) == 2 else 0
    kind = kind_of(vector.type)
    if kind == "null":
        return widen(vector, result), "CAST_OVERFLOW", NO_FAULTS
    if kind == "decimal":
        wide = vector.values.cast(pa.decimal256(76, vector.type.scale))
        if scale < vector.type.scale:
            wide = pc.round(wide, ndigits=scale, round_mode="half_towards_infinity")
        values, overflow = fit_decimal(wide, result)
        return Vector(result, values, vector.valid), "ARITHMETIC_OVERFLOW", overflow
    if kind == "integer":
        return _rounded_integers(vector, scale, result)
    return Vector(result, _rounded_floats(vector.values, scale), vector.valid), "CAST_OVERFLOW", NO_FAULTS


def _rounded_integers(vector: Vector, scale: int, result: pa.DataType) -> Computed:
    if scale >= 0:
        return Vector(result, vector.values, vector.valid), "CAST_OVERFLOW", NO_FAULTS
    limits = np.iinfo(vector.values.dtype)
    if -scale > len(str(limits.max)):
        return Vector(result, np.zeros_like(vector.values), vector.valid), "CAST_OVERFLOW", NO_FAULTS
    unit = 10**-scale
    exact = vector.values.astype(object)
    rounded = np.array([(abs(int(one)) + unit // 2) // unit * unit * (1 if one >= 0 else -1) for one in exact], dtype=object)
    overflow = np.array([not limits.min <= one <= limits.max for one in rounded], np.bool_)
    values = np.where(overflow, 0, rounded).astype(vector.values.dtype)
    return Vector(result, values, vector.valid), "ARITHMETIC_OVERFLOW", overflow


def _rounded_floats(values: Any, scale: int) -> Any:
    """Round the shortest decimal that represents each float, halves away from zero."""
    # Far from a tie the binary product gives the same; only what lies near one is looked at digit by digit.
    with np.errstate(all="ignore"):
        unit = float(10 ** abs(scale))
        scaled = np.abs(values.astype(np.float64)) * unit if scale >= 0 else np.abs(values.astype(np.float64)) / unit
        whole = np.floor(scaled)
        rest = scaled - whole
        rounded = whole + (rest > 0.5)
        results = np.copysign(rounded / unit if scale >= 0 else rounded * unit, values)
        unsure = (np.abs(rest - 0.5) < 1e-6) | (scaled >= 2.0**40)
    results = np.where(np.isfinite(values), results, values).astype(values.dtype)
    for row in np.flatnonzero(unsure & np.isfinite(values)):
        exact = decimal.Decimal(str(values[row]))
        with decimal.localcontext(prec=400):
            results[row] = float(exact.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP))
    # Spark goes through a decimal, which has no -0.0.
    return results + values.dtype.type(0.0)


def _whole(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    vector = operands[0]
    kind = kind_of(vector.type)
    if kind == "decimal":
        rounded = (pc.floor if call.operation == "floor" else pc.ceil)(vector.values.cast(pa.decimal256(76, vector.type.scale)))
        values, overflow = fit_decimal(rounded, result)
        return Vector(result, values, vector.valid), "ARITHMETIC_OVERFLOW", overflow
    if kind != "float":
        return widen(vector, result), "CAST_OVERFLOW", NO_FAULTS
    rounded = (np.floor if call.operation == "floor" else np.ceil)(vector.values.astype(np.float64))
    overflow = (rounded >= 2.0**63) | (rounded < -(2.0**63))
    values = np.where(np.isnan(rounded) | overflow, 0.0, rounded).astype(np.int64)
    return Vector(result, values, vector.valid), "ARITHMETIC_OVERFLOW", overflow & vector.valid


def _local(vector: Vector) -> pa.Array:
    """Return a date, or a timestamp as its zone shows it."""
    array = to_arrow(vector)
    if kind_of(vector.type) == "instant":
        return pc.local_timestamp(array)
    return array


def _extract(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    field, vector = literal_value(call.operands[0]), operands[1]
    if kind_of(vector.type) == "null":
        return widen(vector, result), "CAST_OVERFLOW", NO_FAULTS
    array = _local(vector)
    if kind_of(vector.type) == "date" and field in {"hour", "minute", "second"}:
        return Vector(result, np.zeros(1, np.int32), vector.valid), "CAST_OVERFLOW", NO_FAULTS
    if field == "dayofweek":
        parts = pc.day_of_week(array, count_from_zero=False, week_start=7)
    else:
        names = {"dayofyear": "day_of_year", "week": "iso_week"}
        parts = getattr(pc, names.get(field, field))(array)
    values = parts.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    return Vector(result, values, vector.valid), "CAST_OVERFLOW", NO_FAULTS


def _date_trunc(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    unit, vector = literal_value(call.operands[0]), operands[1]
    if kind_of(vector.type) == "null":
        return widen(vector, result), "CAST_OVERFLOW", NO_FAULTS
    array = to_arrow(vector)
    if kind_of(vector.type) == "date":
        array = array.cast(pa.timestamp("s")).cast(result)
    floored = pc.floor_temporal(array.view(pa.timestamp(result.unit)), unit=unit, week_starts_monday=True)
    values = floored.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return Vector(result, values, vector.valid), "CAST_OVERFLOW", NO_FAULTS


def _date_add(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    days = widen(operands[0], pa.date32()).values.astype(np.int64) + widen(operands[1], pa.int32()).values
    valid = operands[0].valid & operands[1].valid
    limits = np.iinfo(np.int32)
    overflow = np.asarray((days < limits.min) | (days > limits.max))
    return Vector(result, days.astype(np.int32), valid), "ARITHMETIC_OVERFLOW", overflow


def _date_diff(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    one, other = (widen(operand, pa.date32()).values.astype(np.int64) for operand in operands)
    days = one - other
    overflow = np.asarray(np.abs(days) > np.iinfo(np.int32).max)
    return Vector(result, days.astype(np.int32), operands[0].valid & operands[1].valid), "ARITHMETIC_OVERFLOW", overflow


def _add_months(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    vector, months = operands
    valid = vector.valid & months.valid
    length = joint_length(len(vector.values), len(months.values), len(valid))
    stamps = np.broadcast_to(vector.values if kind_of(vector.type) != "null" else np.zeros(1, np.int64), length).astype(
        np.int64
    )
    counts = np.broadcast_to(months.values if kind_of(months.type) != "null" else np.zeros(1, np.int64), length).astype(
        np.int64
    )
    per_day = 1 if kind_of(result) == "date" else 86_400 * {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[result.unit]
    days, rest = np.divmod(stamps, per_day)
    dates = days.astype("datetime64[D]")
    month_numbers = dates.astype("datetime64[M]").astype(np.int64)
    in_month = days - dates.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    moved = month_numbers + counts
    begin = moved.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    size = (moved + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - begin
    results = (begin + np.minimum(in_month, size - 1)) * per_day + rest
    values = results.astype(np.int32) if kind_of(result) == "date" else results
    overflow = np.asarray(np.abs(counts) > 12 * 300_000)
    return Vector(result, values, valid), "ARITHMETIC_OVERFLOW", overflow


_VALUES: dict[str, Callable[[Call, Sequence[Vector], pa.DataType], Computed]] = {
    "add_months": _add_months,
    "ceil": _whole,
    "concat": _concat,
    "date_add": _date_add,
    "date_diff": _date_diff,
    "date_trunc": _date_trunc,
    "extract": _extract,
    "floor": _whole,
    "greatest": _extreme,
    "ilike": _like,
    "least": _extreme,
    "like": _like,
    "lower": _by_arrow(_letters(pc.utf8_lower, str.lower)),
    "ltrim": _by_arrow(_trim_spaces(pc.utf8_ltrim)),
    "nullif": _nullif,
    "round": _round,
    "rtrim": _by_arrow(_trim_spaces(pc.utf8_rtrim)),
    "substring": _substring,
    "trim": _by_arrow(_trim_spaces(pc.utf8_trim)),
    "upper": _by_arrow(_letters(pc.utf8_upper, str.upper)),
}
