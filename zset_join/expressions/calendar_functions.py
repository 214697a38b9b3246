"""Functions of dates and times beyond those of `function_values`: written by a pattern, as numbers, apart by whole units.

    date_format(at, 'yyyy-MM-dd HH:mm')     unix_time('second', at)       timestamp_of('millisecond', n)
    time_between('minute', start, end)      duration_of(60000000, n)      last_day(day)      make_date(2024, 2, 29)

Edge cases, as in Spark: whole units are cut towards zero, months count when day and time of day are reached; seconds since 1970
are rounded down; an instant is written as UTC shows it; `make_date` of what is no date is a fault.

Known limits: a pattern holds yyyy, yy, MM, MMM, MMMM, dd, HH, hh, mm, ss, a, E, EEEE and what is no letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import PlanError
from zset_join.expressions.computed import (
    NO_FAULTS,
    Computed,
    Function,
    Types,
    all_valid,
    joint_length,
    literal_value,
    mismatch,
    of_texts,
    spread,
    wants_literal,
)
from zset_join.expressions.tree import Call
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.vectors import Vector, to_arrow, widen

__all__ = ["CALENDAR_FUNCTIONS", "PATTERN_LETTERS"]

PATTERN_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MMMM": "%B", "MMM": "%b", "MM": "%m", "dd": "%d", "HH": "%H", "hh": "%I", "mm": "%M", "ss": "%S",
    "a": "%p", "EEEE": "%A", "EEE": "%a", "EE": "%a", "E": "%a",
}  # fmt: skip
"""Letters of Spark's patterns, with C's."""

_PARTS = {"microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
          "day": 86_400 * 10**6, "week": 7 * 86_400 * 10**6}  # fmt: skip
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SINCE = {"second": "seconds", "millisecond": "millis", "microsecond": "micros"}
_STAMPS = frozenset({"date", "timestamp", "instant", "null"})
_UTC = pa.timestamp("us", tz="UTC")


def _pattern_parts(pattern: str) -> list[str] | None:
    """Return a pattern in C's letters, or None where it holds others."""
    parts = re.findall(r"([A-Za-z])(\1*)|'([^']*)'|([^A-Za-z'])", pattern)
    directives = []
    for first, more, quoted, other in parts:
        if first and first + more not in PATTERN_LETTERS:
            return None
        directives.append(PATTERN_LETTERS[first + more] if first else (quoted or other).replace("%", "%%"))
    return directives


def _format_rule(call: Call, types: Types) -> pa.DataType:
    if kind_of(types[0]) not in _STAMPS:
        raise mismatch(call, types, "a date or a timestamp", "Cast it with .cast(...).")
    if _pattern_parts(wants_literal(call, types, 1, str, "a pattern that is a literal")) is None:
        raise mismatch(
            call, types, f"a pattern of {', '.join(PATTERN_LETTERS)}", "Write letters that mean themselves in '...'."
        )
    return pa.large_string()


def _format(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    vector = operands[0]
    if kind_of(vector.type) == "null":
        return widen(vector, result), "CAST_OVERFLOW", NO_FAULTS
    array = to_arrow(vector)
    array = pc.local_timestamp(array) if kind_of(vector.type) == "instant" else array
    pattern = "".join(_pattern_parts(str(literal_value(call.operands[1]))) or [])
    # Whole seconds: %S would show the fraction.
    whole = pc.floor_temporal(array.cast(pa.timestamp("us")), unit="second").cast(pa.timestamp("s"))
    formatted = pc.strftime(whole, format=pattern).cast(result)
    return of_texts(pc.if_else(pa.array(vector.valid), formatted, pa.scalar(None, result)), result), "CAST_OVERFLOW", NO_FAULTS


def _unit_rule(units: Sequence[str], kinds: frozenset[str], result: pa.DataType) -> Callable[[Call, Types], pa.DataType]:
    def rule(call: Call, types: Types) -> pa.DataType:
        if literal_value(call.operands[0]) not in units:
            raise mismatch(call, types, f"one of {', '.join(units)}", "Write the unit as a literal.")
        if any(kind_of(kind) not in kinds for kind in types[1:]):
            raise mismatch(call, types, f"values of {', '.join(sorted(kinds))}", "Cast with .cast(...).")
        known = [kind_of(kind) for kind in types[1:] if kind_of(kind) != "null"]
        if len(set(known)) > 1 and "instant" in known:
            raise mismatch(call, types, "timestamps of one kind", "Cast one of them with .cast(...).")
        return result

    return rule


def _microseconds(vector: Vector) -> Any:
    if kind_of(vector.type) == "null":
        return np.zeros(len(vector.valid), np.int64)
    if kind_of(vector.type) == "date":
        return vector.values.astype(np.int64) * _PARTS["day"]
    parts = {"s": 10**6, "ms": 1000, "us": 1}.get(vector.type.unit)
    return vector.values // 1000 if parts is None else vector.values * parts


def _unix_time(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    unit = _PARTS[str(literal_value(call.operands[0]))]
    return Vector(result, _microseconds(operands[1]) // unit, operands[1].valid), "CAST_OVERFLOW", NO_FAULTS


def _timestamp_of(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    unit = _PARTS[str(literal_value(call.operands[0]))]
    return _times(operands[1], unit, result)


def _times(vector: Vector, unit: int, result: pa.DataType) -> Computed:
    numbers = widen(vector, pa.int64()).values
    overflow = np.asarray(np.abs(numbers.astype(np.float64)) * unit >= 2.0**63)
    return Vector(result, np.where(overflow, 0, numbers) * unit, vector.valid), "ARITHMETIC_OVERFLOW", overflow


def _duration_rule(call: Call, types: Types) -> pa.DataType:
    wants_literal(call, types, 0, int, "microseconds that are a literal")
    if kind_of(types[1]) not in {"integer", "null"}:
        raise mismatch(call, types, "a whole number", 'Cast with .cast("bigint").')
    return pa.duration("us")


def _duration_of(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    return _times(operands[1], int(literal_value(call.operands[0])), result)


def _time_between(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    unit = str(literal_value(call.operands[0]))
    valid = all_valid(*operands[1:])
    start, end = _microseconds(operands[1]), _microseconds(operands[2])
    if unit in _PARTS:
        apart = end - start
        return Vector(result, np.sign(apart) * (np.abs(apart) // _PARTS[unit]), valid), "CAST_OVERFLOW", NO_FAULTS
    months = _months_between(start, end)
    count = _MONTHS[unit]
    return Vector(result, np.sign(months) * (np.abs(months) // count), valid), "CAST_OVERFLOW", NO_FAULTS


def _months_between(start: Any, end: Any) -> Any:
    """Return whole months: a day of which the time is not reached does not count, then days in their months are compared."""
    first, begin_time = np.divmod(start, _PARTS["day"])
    last, end_time = np.divmod(end, _PARTS["day"])
    last = last - ((last > first) & (end_time < begin_time)) + ((last < first) & (end_time > begin_time))
    packed = _packed(last) - _packed(first)
    return np.sign(packed) * (np.abs(packed) // 32)


def _packed(days: Any) -> Any:
    """Return months since 1970 times 32, and the day in its month."""
    months = days.astype("datetime64[D]").astype("datetime64[M]")
    return months.astype(np.int64) * 32 + days - months.astype("datetime64[D]").astype(np.int64)


def _date_rule(call: Call, types: Types) -> pa.DataType:
    if kind_of(types[0]) not in {"date", "null"}:
        raise mismatch(call, types, "a date", 'Cast it with .cast("date").')
    return pa.date32()


def _last_day(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    days = widen(operands[0], result).values.astype("datetime64[D]").astype("datetime64[M]")
    last_days = (days + 1).astype("datetime64[D]").astype(np.int64) - 1
    return Vector(result, last_days.astype(np.int32), operands[0].valid), "CAST_OVERFLOW", NO_FAULTS


def _parts_rule(call: Call, types: Types) -> pa.DataType:
    if any(kind_of(kind) not in {"integer", "null"} for kind in types):
        raise mismatch(call, types, "year, month and day as whole numbers", 'Cast with .cast("int").')
    return pa.date32()


def _make_date(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    length = joint_length(*(len(operand.valid) for operand in operands))
    year, month, day = (spread(widen(one, pa.int64()), length).values for one in operands)
    safe = np.clip(month, 1, 12)
    months = (np.clip(year, -100_000, 100_000) - 1970) * 12 + safe - 1
    begin = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    size = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - begin
    invalid = (month != safe) | (day < 1) | (day > size) | (np.abs(year) > 9999)
    dates = np.where(invalid, 0, begin + day - 1).astype(np.int32)
    return Vector(result, dates, np.broadcast_to(all_valid(*operands), length)), "INVALID_DATE", np.asarray(invalid)


def _word(call: Call) -> str:
    return str(literal_value(call.operands[0]))


def _duckdb_pattern(call: Call, texts: Sequence[str]) -> str:
    pattern = "".join(_pattern_parts(str(literal_value(call.operands[1]))) or []).replace("'", "''")
    return f"strftime({texts[0]}, '{pattern}')"


def _duckdb_since(call: Call, texts: Sequence[str]) -> str:
    return f"CAST(floor(epoch_us({texts[1]}) / {_PARTS[_word(call)]}.0) AS BIGINT)"


def _duckdb_between(call: Call, texts: Sequence[str]) -> str:
    if _word(call) in _MONTHS:
        raise PlanError("DuckDB counts months in its own way, so it verifies no view with them.", code="UNKNOWN_EXPRESSION")
    return f"date_sub('{_word(call)}', {texts[1]}, {texts[2]})"


def _spark_duration(call: Call, texts: Sequence[str]) -> str:
    whole, rest = divmod(int(literal_value(call.operands[0])), 10**6)
    return f"(CAST({texts[1]} AS BIGINT) * make_dt_interval(0, 0, 0, CAST('{whole}.{rest:06d}' AS DECIMAL(18,6))))"


def _named(name: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"{name}({', '.join(texts)})"


CALENDAR_FUNCTIONS = {
    "date_format": Function(_format_rule, _format, _named("date_format"), _duckdb_pattern),
    "duration_of": Function(
        _duration_rule,
        _duration_of,
        _spark_duration,
        lambda call, texts: f"to_microseconds(CAST({texts[1]} AS BIGINT) * {literal_value(call.operands[0])})",
    ),
    "last_day": Function(_date_rule, _last_day, _named("last_day"), _named("last_day")),
    "make_date": Function(_parts_rule, _make_date, _named("make_date"), _named("make_date")),
    "time_between": Function(
        _unit_rule((*_PARTS, *_MONTHS), _STAMPS, pa.int64()),
        _time_between,
        lambda call, texts: f"timestampdiff({_word(call).upper()}, {texts[1]}, {texts[2]})",
        _duckdb_between,
    ),
    "timestamp_of": Function(
        _unit_rule(tuple(_SINCE), frozenset({"integer", "null"}), _UTC),
        _timestamp_of,
        lambda call, texts: f"timestamp_{_SINCE[_word(call)]}({texts[1]})",
        lambda call, texts: f"make_timestamptz(CAST({texts[1]} AS BIGINT) * {_PARTS[_word(call)]})",
    ),
    "unix_time": Function(
        _unit_rule(tuple(_SINCE), _STAMPS, pa.int64()),
        _unix_time,
        lambda call, texts: f"unix_{_SINCE[_word(call)]}(CAST({texts[1]} AS TIMESTAMP))",
        _duckdb_since,
    ),
}
"""By name."""
