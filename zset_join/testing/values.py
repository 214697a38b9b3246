"""Values worth testing with, by Arrow type: few, so that they meet, and among them those that go wrong.

NULL, two NaNs with different bits, both zeros, the empty string, strings that differ only in a trailing blank or after the
twelfth byte, the ends of a range, dates before 1970, empty lists and structs with NULLs inside.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

__all__ = ["NEGATIVE_NAN", "other_bits", "value_pool"]

NEGATIVE_NAN: float = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
_NAN = float("nan")
_LONG_A = "the same first twelve bytes, then A"
_LONG_B = "the same first twelve bytes, then B"
_MOMENTS = (dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC))


def value_pool(kind: pa.DataType) -> tuple[Any, ...]:
    """Return values of a type, the plainest first and NULL among them.

    >>> value_pool(pa.float64())
    (1.5, None, 0.0, -0.0, nan, nan)
    """
    if pt.is_boolean(kind):
        return (True, None, False)
    if pt.is_integer(kind):
        least = 0 if pt.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return (1, None, 0, 2, 3, 2 ** (kind.bit_width - (1 if least else 0)) - 1, least)
    if pt.is_floating(kind):
        return (1.5, None, 0.0, -0.0, _NAN, NEGATIVE_NAN)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ("a", None, "", "a ", _LONG_A, _LONG_B)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return (b"a", None, b"", b"\x00", b"z" * 20, b"z" * 19 + b"y")
    if pt.is_date(kind):
        return (dt.date(2024, 2, 29), None, dt.date(1970, 1, 1), dt.date(1969, 12, 31))
    if pt.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        return (_MOMENTS[0].replace(tzinfo=zone), None, _MOMENTS[1].replace(tzinfo=zone))
    if pt.is_decimal(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        return (unit, None, Decimal(0).scaleb(-kind.scale), -unit, 2 * unit)
    if pt.is_struct(kind):
        pools = [value_pool(kind.field(at).type) for at in range(kind.num_fields)]
        names = [kind.field(at).name for at in range(kind.num_fields)]
        first = {name: pool[0] for name, pool in zip(names, pools, strict=True)}
        return (first, None, dict.fromkeys(names), {name: pool[-1] for name, pool in zip(names, pools, strict=True)})
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = value_pool(kind.value_type)
        return ([inner[0]], None, [], [None], list(inner[:3]))
    if pt.is_dictionary(kind):
        return value_pool(kind.value_type)
    raise TypeError(f"there are no values of type {kind} to draw from; pass values={{column: [...]}} for its column")


def other_bits(value: Any) -> Any:
    """Return an equal value with other bits where there is one: the other zero, the other NaN."""
    if isinstance(value, float):
        return NEGATIVE_NAN if value != value else (-value if value == 0 else value)
    return value
