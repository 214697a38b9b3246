"""Rows as JSON objects, and values of parsed JSON as values of columns.

    rows, unread = part_json_rows([b'{"id": 1, "day": "2024-01-02"}'], schema)

The law: what our JSON files and topics are written as is read as the same rows, by the rules of `zset_join.conversions`: a JSON
string is a text, a JSON number a typed value. Bytes are base64. As in Spark, a name that is missing is NULL, one that is more
is passed over, and a number may be in a text. A STRING takes the text of any value, as Spark's `from_json` does: numbers with a
point or an exponent as Java writes doubles, but those that a double does not hold as they are written. A number is no boolean
and no bytes, nor a time: it may count seconds, milliseconds or microseconds. Every text is a row, or is listed as unread.

Cost: one pass in pyarrow; where it cannot read a text (numbers in texts, NaN, bytes), text by text, some microseconds each.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from zset_join.changelog.formats.exact_numbers import holds_exactly
from zset_join.conversions import Converted, convert_values, python_values
from zset_join.expressions.conversions import java_number
from zset_join.sources.source import UnreadText, wanted_text

__all__ = [
    "bytes_of_base64",
    "json_values",
    "parsed_json",
    "part_json_rows",
    "read_json_objects",
    "text_of_value",
    "within_precision",
]

_QUOTED = json.JSONEncoder(ensure_ascii=False).encode
_LARGE_EXPONENT = 10**12
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class _WrittenNumber(decimal.Decimal):
    """A number that no double holds, with how it was written."""

    written = ""


def _number(text: str) -> decimal.Decimal:
    if holds_exactly(text):
        return decimal.Decimal(text)
    try:
        number = _WrittenNumber(text)
    except decimal.InvalidOperation:  # a decimal has no such exponent, and nothing else reads one that is as large
        mantissa, sign = text.lower().split("e")[0], "-" if "e-" in text.lower() else ""
        number = _WrittenNumber(f"{mantissa}e{sign}{_LARGE_EXPONENT}")
    number.written = text
    return number


def parsed_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, its numbers with a point exactly."""
    given = text.decode() if isinstance(text, bytes) else text
    try:
        return json.loads(given, parse_float=_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_values(values: Sequence[Any], kind: pa.DataType) -> Converted:
    """Return values that `parsed_json` gave as values of a type.

    >>> json_values([3.0, "3.0", True, None], pa.int64()).values.to_pylist()
    [3, None, None, None]
    """
    return python_values(values, kind, _leaf)


def text_of_value(value: Any) -> str:
    """Return the text of a value that is no JSON string, as Spark writes it.

    >>> text_of_value(parsed_json('{"a": [1, 2.50, 1e18], "b": true}'))
    '{"a":[1,2.5,1.0E18],"b":true}'
    """
    pieces: list[str] = []
    rest: list[tuple[bool, Any]] = [(False, value)]  # a value may be nested as deeply as parsers follow
    while rest:
        is_text, one = rest.pop()
        if is_text:
            pieces.append(one)
        elif isinstance(one, list):
            pieces.append("[")
            rest.append((True, "]"))
            for place in range(len(one) - 1, -1, -1):
                rest += [(False, one[place]), (True, "," if place else "")]
        elif isinstance(one, dict):
            pieces.append("{")
            rest.append((True, "}"))
            for place, (name, inner) in reversed([*enumerate(one.items())]):
                rest += [(False, inner), (True, f"{',' if place else ''}{_QUOTED(name)}:")]
        else:
            pieces.append(_text_of_plain(one))
    return "".join(pieces)


def _text_of_plain(value: Any) -> str:
    if isinstance(value, str):
        return _QUOTED(value)
    if isinstance(value, _WrittenNumber):
        return java_number(float(value)) if value == 0 else value.written
    if isinstance(value, decimal.Decimal | float):
        return java_number(float(value))
    return json.dumps(value)


def _leaf(values: Sequence[Any], kind: pa.DataType) -> Converted:
    if pt.is_string(kind) or pt.is_large_string(kind):
        values = [value if value is None or isinstance(value, str) else text_of_value(value) for value in values]
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        read = [bytes_of_base64(value) for value in values]
        unfit = np.array([one is None and value is not None for one, value in zip(read, values, strict=True)], np.bool_)
        return Converted(pa.array(read, kind), unfit if unfit.any() else None)
    elif any(isinstance(value, _WrittenNumber) for value in values):
        values = [decimal.Decimal(value) if isinstance(value, _WrittenNumber) else value for value in values]
    return python_values(values, kind)


def bytes_of_base64(value: Any) -> bytes | None:
    """Return the bytes of base64, of which the padding may be missing; None of anything else."""
    if not isinstance(value, str):
        return None
    plain = "".join(value.split())
    if not _BASE64.fullmatch(plain) or ("=" in plain and len(plain) % 4):
        return None
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4))
    except binascii.Error:
        return None


def within_precision(numbers: pa.Array) -> pa.Array:
    """Return which decimals that Arrow read from JSON have no more digits than their type; NULL for NULL."""
    # Arrow counts the digits before it adds those of the scale: it reads 123456 as a decimal(7, 2).
    kind: pa.Decimal128Type = numbers.type
    most = pa.scalar(decimal.Decimal(f"{'9' * kind.precision}E{-kind.scale}"), kind)
    return pc.less_equal(pc.abs(numbers), most)


_ODD = re.compile(rb"(?:\A|\})\s*null|\A\xef\xbb\xbf|-0[\s,\]}]")
"""What pyarrow reads in its own way: `null` for an object, on which it may crash, a byte order mark, the integer -0."""


def part_json_rows(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    """Return the rows of JSON texts, and the texts that are no rows.

    >>> rows, unread = part_json_rows([b'{"n": 7}', b'{"n": "x"}'], pa.schema({"n": pa.int32()}))
    >>> rows.to_pylist(), unread[0].number, unread[0].reason
    ([{'n': 7}], 1, 'the value of "n" cannot be read as int32')
    """
    if not texts:
        return schema.empty_table(), []
    rows = read_json_objects(b"\n".join(text.replace(b"\n", b" ") for text in texts), schema)
    return (rows, []) if rows is not None and rows.num_rows == len(texts) else _read_each(texts, schema)


def read_json_objects(text: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return the rows of JSON objects behind each other; None where a value is not written as its type is."""
    if not all(_is_plain(field.type) or _is_in_text(field.type) for field in schema) or _ODD.search(text):
        return None
    written = pa.schema([field.with_type(pa.string()) if _is_in_text(field.type) else field for field in schema])
    try:
        pa.array([text], pa.large_binary()).cast(pa.large_string())  # pyarrow.json takes what is no UTF-8
        options = pj.ParseOptions(explicit_schema=written, unexpected_field_behavior="ignore")
        rows = pj.read_json(pa.BufferReader(text), parse_options=options).select(schema.names)
    except pa.ArrowException:
        return None
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if pt.is_decimal(column.type) and not pc.all(within_precision(column), min_count=0).as_py():
            return None
        converted = convert_values(column, field.type)
        if converted.unfit is not None or (converted.values.null_count and not field.nullable):
            return None
        columns.append(converted.values)
    return pa.table(columns, schema=schema)


def _is_in_text(kind: pa.DataType) -> bool:
    """Return whether JSON has values of a type in texts."""
    return bool(pt.is_date(kind) or pt.is_timestamp(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether pyarrow reads values of a type from JSON as they are, and refuses others."""
    if pt.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pt.is_list(kind):
        return _is_plain(kind.value_type)
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal128(kind)
    return bool(is_number or pt.is_boolean(kind) or pt.is_string(kind))


def _read_each(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    objects: list[dict[str, object]] = []
    is_object = np.ones(len(texts), np.bool_)
    for number, text in enumerate(texts):
        try:
            value = parsed_json(text)
        except ValueError:
            value = None
        is_object[number] = isinstance(value, dict)
        objects.append(value if isinstance(value, dict) else {})
    columns, bad = [], {}
    for field in schema:
        converted = json_values([one.get(field.name) for one in objects], field.type)
        columns.append(converted.values)
        if converted.unfit is not None:
            bad[field.name] = converted.unfit
        if not field.nullable:
            lacks = converted.values.is_null().to_numpy(zero_copy_only=False)
            bad[field.name] = bad.get(field.name, np.zeros(len(texts), np.bool_)) | lacks
    is_good = is_object & ~np.logical_or.reduce([np.zeros(len(texts), np.bool_), *bad.values()])
    unread = []
    for number in np.flatnonzero(~is_good).tolist():
        column = next((name for name, unfit in bad.items() if unfit[number]), None)
        expected = "JSON object" if column is None else wanted_text(schema.field(column))
        unread.append(UnreadText(number, texts[number], expected, column))
    return pa.table(columns, schema=schema).filter(pa.array(is_good)), unread
