"""JSON in texts: records that DuckDB's parser reads without a loss, and values as values of a column.

The law: a record means the same before and after, as Spark's parser reads it: numbers that no double holds are marked, and of a
name that an object has twice the last value counts. A value is read as `zset_join.sources.json_values` reads the parsed one; a
text in quotes is a string, one without is no string. Where a format counts times, a whole number is days since 1970 for a date,
and units since 1970 for a timestamp; elsewhere a number is no time.

Cost: of records a regular expression, and one pass of DuckDB's parser for the names; of values a few passes in Arrow, and value
by value what is written out of the ordinary: escapes, integers with a point, lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.changelog.formats import RecordFormat
from zset_join.changelog.formats.exact_numbers import LONG_FRACTION, ODD_NUMBER, holds_fractions, with_marks
from zset_join.changelog.formats.record_sql import FIRST_DAY, LAST_DAY, first_and_last
from zset_join.conversions import Converted, convert_values, read_texts, whole
from zset_join.core.extras import needed_for
from zset_join.sources.json_values import json_values, parsed_json

__all__ = ["ExactRecords", "NestedValues", "read_json_texts"]

# ruff: noqa: S608 - every name in the statements is ours.


with needed_for("reading records of JSON"):
    import duckdb


_TEXTS = "texts_to_check"
_TRAILING = r",[ \t\r\n]*[\]}]"


class ExactRecords:
    def __init__(self, connection: Any, record: RecordFormat) -> None:
        self._connection = connection
        rows = [".".join(path) for path in dict.fromkeys([record.row, record.deleted, record.old, record.moved]) if path]
        places = [
            start + row
            for start in (["$", "$.payload"] if record.enveloped else ["$"])
            for row in ["", *(f".{row}" for row in rows)]
        ]
        if record.is_list:
            lists = [f"json_keys(text, '$.{row}[*]')" for row in rows]
            self._names = " || ".join(["[json_keys(text)]", *(f"coalesce({one}, [])" for one in lists)])
        else:
            self._names = f"json_keys(text, [{', '.join(map(repr, places))}])"

    def __call__(self, texts: pa.Array) -> tuple[pa.Array, bool]:
        """Return texts of JSON, and whether there are marks in them."""
        may_trail = np.asarray(pc.match_substring_regex(texts, _TRAILING).fill_null(False))
        texts, _ = _changed(texts, np.flatnonzero(may_trail), _without_json)
        has_odd, has_long = (
            np.asarray(pc.match_substring_regex(texts, one).fill_null(False)) for one in (ODD_NUMBER, LONG_FRACTION)
        )
        marked, has_marks = _changed(texts, np.flatnonzero(has_odd), with_marks)
        marked, has_fractions = _changed(marked, np.flatnonzero(has_long & ~has_odd), _with_marked_fractions)
        once, has_doubles = _changed(marked, self._with_doubles(marked), _with_names_once)
        return once, has_marks or has_fractions or has_doubles

    def _with_doubles(self, texts: pa.Array) -> np.ndarray:
        """Return the places of texts in which an object has a name twice."""
        places = pa.array(np.arange(len(texts)))
        self._connection.register(_TEXTS, pa.table({"place": places, "text": texts}))
        names = f"SELECT place, {self._names} AS names FROM {_TEXTS}"
        lists = "SELECT any_value(names), CAST(names AS VARCHAR) FROM ({}) WHERE names IS NOT NULL GROUP BY 2"
        try:
            try:
                found = self._connection.sql(lists.format(names)).fetchall()
            except (duckdb.Error, UnicodeDecodeError):  # a text is no JSON; the message may cut a character of it in two
                names = f"SELECT place, CASE WHEN json_valid(text) THEN {self._names} END AS names FROM {_TEXTS}"
                found = self._connection.sql(lists.format(names)).fetchall()
            doubled = [shown for lists, shown in found if _has_double(lists)]
            if not doubled:
                return np.zeros(0, np.int64)
            rows = self._connection.sql(
                f"SELECT place FROM ({names}) WHERE list_contains(?, CAST(names AS VARCHAR))", params=[doubled]
            ).fetchall()
        finally:
            self._connection.unregister(_TEXTS)
        return np.array([place for (place,) in rows], np.int64)


def _has_double(lists: Any) -> bool:
    """Return whether a list of names, however deep it lies, has one twice."""
    if any(isinstance(one, list) for one in lists):
        return any(_has_double(one) for one in lists if one is not None)
    return len(set(lists)) < len(lists)


def _changed(texts: pa.Array, places: np.ndarray, change: Callable[[str], str]) -> tuple[pa.Array, bool]:
    """Return texts of which those at some places are changed, and whether one differs."""
    if not len(places):
        return texts, False
    given = texts.take(pa.array(places)).to_pylist()
    after = [change(one) for one in given]
    if after == given:
        return texts, False
    is_changed = np.zeros(len(texts), np.bool_)
    is_changed[places] = True
    return pc.replace_with_mask(texts, pa.array(is_changed), pa.array(after, texts.type)), True


def _with_marked_fractions(text: str) -> str:
    return text if holds_fractions(text) else with_marks(text)


def _without_json(text: str) -> str:
    """Return a text that is no JSON as one that DuckDB finds to be none: it allows commas before ends."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    return text


def _with_names_once(text: str) -> str:
    """Return JSON in which every name occurs once in its object, with its last value."""
    try:
        return json.dumps(json.loads(with_marks(text, keeps_exact=False)))
    except (ValueError, RecursionError):
        return text  # no JSON, which its reader finds


_WHOLE = r"^-?[0-9]+$"


def read_json_texts(
    texts: pa.Array,
    kind: pa.DataType,
    *,
    counts_days: bool = False,
    unit: Literal["s", "ms", "us", "ns"] | None = None,
) -> Converted:
    """Return JSON texts as values of a type.

    >>> read_json_texts(pa.array(['3.0', '"3.0"', '"3"', 'true']), pa.int64()).values.to_pylist()
    [3, None, 3, None]
    """
    is_string = pc.starts_with(texts, '"').fill_null(False)
    strings, others = np.flatnonzero(is_string), np.flatnonzero(pc.and_not(texts.is_valid(), is_string))
    parts = []
    if len(strings):
        parts.append((strings, _strings(texts.take(pa.array(strings)), kind)))
    if len(others):
        rest = texts.take(pa.array(others))
        if pt.is_date(kind) or pt.is_timestamp(kind):
            read = _times(rest, kind, unit, counts_days=counts_days)
        else:
            read = _plain(rest, kind)
        parts.append((others, read))
    return parts[0][1] if len(parts) == 1 and len(parts[0][0]) == len(texts) else whole(parts, len(texts), kind)


def _strings(texts: pa.Array, kind: pa.DataType) -> Converted:
    if pt.is_nested(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return _parsed(texts, kind)
    inside = pc.utf8_slice_codeunits(texts, 1, -1)
    if not pc.any(pc.match_substring(inside, "\\")).as_py():
        return read_texts(inside, kind)
    return _parsed(texts, kind)


def _parsed(texts: pa.Array, kind: pa.DataType) -> Converted:
    values = []
    for text in texts.to_pylist():
        try:
            values.append(parsed_json(text))
        except ValueError:
            values.append(object())  # converts to nothing
    return json_values(values, kind)


def _plain(texts: pa.Array, kind: pa.DataType) -> Converted:
    if pt.is_nested(kind) or pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_string(kind) or pt.is_large_string(kind):
        return _parsed(texts, kind)
    if pt.is_integer(kind) or pt.is_floating(kind):
        try:
            return Converted(texts.cast(kind))  # JSON has no number that Arrow would read as another, as hexadecimal
        except pa.ArrowInvalid:
            pass  # a number that does not fit, or no number
    if pt.is_boolean(kind):
        return _if(pc.is_in(texts, pa.array(["true", "false"], texts.type)), texts, kind, read_texts)
    if pt.is_floating(kind):
        return _if(pc.match_substring_regex(texts, r"^-?([0-9]|NaN|Inf)"), texts, kind, read_texts)
    if pt.is_integer(kind) and pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
        return read_texts(texts, kind)
    if pt.is_decimal(kind):
        return read_texts(texts, kind)
    return _parsed(texts, kind)


def _if(fits: pa.Array, texts: pa.Array, kind: pa.DataType, read: Callable[[pa.Array, pa.DataType], Converted]) -> Converted:
    return read(pc.if_else(fits, texts, "none"), kind)


def _times(texts: pa.Array, kind: pa.DataType, unit: str | None, *, counts_days: bool) -> Converted:
    is_date = pt.is_date(kind)
    is_counted = counts_days if is_date else unit is not None
    first, last = (FIRST_DAY, LAST_DAY) if is_date else first_and_last(unit or "us")
    numbers = _plain(texts, pa.int64()).values if is_counted else pa.nulls(len(texts), pa.int64())
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    numbers = pc.if_else(inside, numbers, pa.scalar(None, pa.int64()))
    if is_date:
        values = numbers.cast(pa.int32()).cast(pa.date32()).cast(kind)
    elif unit == "ns" and kind.unit == "us":
        values = _micros(numbers, kind)
    else:
        values = convert_values(numbers.cast(pa.timestamp(unit or "us", kind.tz)), kind).values
    unfit = values.is_null().to_numpy(zero_copy_only=False) & texts.is_valid().to_numpy(zero_copy_only=False)
    return Converted(values, unfit if unfit.any() else None)


def _micros(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return nanoseconds as microseconds, rounded down: Debezium counts them, and no column of Spark has them."""
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    micros = np.floor_divide(numbers.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    return pa.array(micros, mask=~valid).cast(kind)


class NestedValues:
    """The nested values of one type that a query has read; a text that holds no value, and NULL, have no place.

    >>> lists = NestedValues(pa.list_(pa.int64()))
    >>> lists.at(lists(pa.array(["[1]", "no list", "[2,null]"]))).to_pylist()
    [[1], None, [2, None]]
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._read: list[pa.Array] = []
        self._count = 0

    def __call__(self, texts: Any) -> pa.Array:
        array = pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
        values = read_json_texts(array, self._kind).values
        places = np.arange(self._count, self._count + len(values))
        self._read.append(values)
        self._count += len(values)
        return pa.array(places, mask=np.asarray(pc.is_null(values)))

    def at(self, places: pa.Array) -> pa.Array:
        values = pa.concat_arrays(self._read) if self._read else pa.nulls(0, self._kind)
        return values.take(places)

    def clear(self) -> None:
        self._read, self._count = [], 0
