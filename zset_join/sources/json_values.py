"""Values of parsed JSON as values of columns.

The law: as `zset_join.conversions`: a JSON string is a text, a JSON number a typed value. Bytes are base64, and a STRING takes
the text of any value, as Spark's `from_json` does. A number is no date, time or boolean.

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
import pyarrow.types as pt

from zset_join.conversions import Converted, python_values
from zset_join.expressions.text_casts import java_number

__all__ = ["json_values", "parsed_json", "text_of_value"]

_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def parsed_json(text: bytes | str) -> Any:
    """Return what a JSON text says, its numbers with a point exactly.

    Raises:
        ValueError: it is no JSON, or not in UTF-8.
    """
    given = text.decode() if isinstance(text, bytes) else text
    try:
        return json.loads(given, parse_float=decimal.Decimal)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_values(values: Sequence[Any], kind: pa.DataType) -> Converted:
    """Return values that `parsed_json` gave as values of a type.

    >>> json_values([3.0, "3.0", True, None], pa.int64()).values.to_pylist()
    [3, None, None, None]
    """
    return python_values(values, kind, _leaf)


def text_of_value(value: Any) -> str:
    """Return the text of a value that is no JSON string, as Spark writes it."""
    if isinstance(value, decimal.Decimal | float):
        return java_number(float(value))
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)


def _leaf(values: Sequence[Any], kind: pa.DataType) -> Converted:
    if pt.is_string(kind) or pt.is_large_string(kind):
        values = [value if value is None or isinstance(value, str) else text_of_value(value) for value in values]
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        read = [_bytes(value) for value in values]
        unfit = np.array([one is None and value is not None for one, value in zip(read, values, strict=True)], np.bool_)
        return Converted(pa.array(read, kind), unfit if unfit.any() else None)
    return python_values(values, kind)


def _bytes(value: Any) -> bytes | None:
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
