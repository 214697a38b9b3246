"""Values of parsed JSON as values of columns.

The law: as `zset_join.conversions`: a JSON string is a text, a JSON number a typed value. Bytes are base64. A number is no
date, time or boolean, and no bytes. A STRING takes the text of any value, as Spark's `from_json` does: numbers with a point or
an exponent as Java writes doubles, but those that a double does not hold as they are written.

Cost: value by value; for what the fast readers cannot read.
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
import pyarrow.types as pt

from zset_join.changelog.formats.exact_numbers import holds_exactly
from zset_join.conversions import Converted, python_values
from zset_join.expressions.text_casts import java_number

__all__ = ["bytes_of_base64", "json_values", "parsed_json", "text_of_value", "within_precision"]

_QUOTED = json.JSONEncoder(ensure_ascii=False).encode
_LARGE_EXPONENT = 10**12
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class _WrittenNumber(decimal.Decimal):
    """A number that no double holds, with how it was written."""

    written: str


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
