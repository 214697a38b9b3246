"""Which types an operation takes, and the type it gives: Spark 4's rules under ANSI mode.

Types are first brought to a *plain* type: dictionaries decoded, unsigned integers widened, strings and binaries with
64-bit offsets. Implicit widening is Spark's (`int + bigint` is `bigint`, `int + float` is `double`, `int / int` is
`double`, decimals grow as in the table of Hive and SQL Server), with these exceptions, which are refused and need a
cast: a string with anything else, a date with a timestamp, a timestamp with a time zone with one without.

Known limits, refused with a message: comparing structs, lists and maps; arithmetic between a
day or longer and timestamps of a zone with daylight saving time, where Spark counts calendar days.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import PlanError
from zset_join.expressions.tree import Call, Cast, Expression, Literal, describe

__all__ = [
    "arithmetic_type",
    "call_type",
    "cast_type",
    "common_type",
    "exact_type",
    "finest",
    "is_flat",
    "kind_of",
    "plain_type",
]

_MAX_DIGITS = 38
_KNOWN_TYPES = 1024
_WIDE_DIGITS = 76
_MIN_ADJUSTED_SCALE = 6
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_UNITS = ("s", "ms", "us", "ns")
_ONE_DAY = datetime.timedelta(days=1)
_FLAT_ZONES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "+00:00", "UTC+00:00"})

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe", "in"})
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "remainder"})
_NUMBERS = frozenset({"integer", "float", "decimal"})

# Explicit casts, by kind; "timestamp" and "instant" are timestamps without and with a time zone.
_CASTS = {
    "boolean": {"boolean", "integer", "float", "string"},
    "integer": {"integer", "float", "decimal", "boolean", "string"},
    "float": {"integer", "float", "string"},
    "decimal": {"integer", "float", "decimal", "string"},
    "string": {"string", "integer", "float", "decimal", "boolean", "date", "timestamp", "instant"},
    "binary": {"binary"},
    "date": {"date", "timestamp", "instant", "string"},
    "timestamp": {"timestamp", "instant", "date", "string"},
    "instant": {"instant", "timestamp", "date", "string"},
    "time": {"time"},
    "duration": {"duration"},
}


def plain_type(declared: pa.DataType) -> pa.DataType:
    """Return the type an expression sees a column as.

    >>> plain_type(pa.dictionary(pa.int8(), pa.string())), plain_type(pa.uint8())
    (DataType(large_string), DataType(int16))
    """
    # An extension type, which is the user's, need not have a hash.
    return plain_type(declared.storage_type) if isinstance(declared, pa.BaseExtensionType) else _plain_type(declared)


@functools.lru_cache(maxsize=_KNOWN_TYPES)
def _plain_type(declared: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(declared):
        return plain_type(declared.value_type)
    if pt.is_unsigned_integer(declared):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(declared.bit_width, pa.decimal128(20, 0))
    if pt.is_string(declared) or pt.is_string_view(declared):
        return pa.large_string()
    if pt.is_binary(declared) or pt.is_binary_view(declared) or pt.is_fixed_size_binary(declared):
        return pa.large_binary()
    if pt.is_float16(declared):
        return pa.float32()
    if pt.is_date64(declared):
        return pa.date32()
    if pt.is_decimal(declared) and declared.scale >= 0 and declared.precision <= _MAX_DIGITS:
        return pa.decimal128(declared.precision, declared.scale)
    return declared


@functools.lru_cache(maxsize=_KNOWN_TYPES)
def kind_of(plain: pa.DataType) -> str:
    """Return the kind of values of a plain type; "other" is one that can only be tested for NULL."""
    kinds: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
        (pt.is_null, "null"),
        (pt.is_boolean, "boolean"),
        (pt.is_integer, "integer"),
        (pt.is_floating, "float"),
        (pt.is_decimal128, "decimal"),
        (pt.is_large_string, "string"),
        (pt.is_large_binary, "binary"),
        (pt.is_date, "date"),
        (pt.is_time, "time"),
        (pt.is_duration, "duration"),
        (pt.is_list, "array"),
        (pt.is_large_list, "array"),
    )
    if pt.is_timestamp(plain):
        return "timestamp" if plain.tz is None else "instant"
    if pt.is_decimal128(plain) and plain.scale < 0:
        return "other"
    return next((kind for belongs, kind in kinds if belongs(plain)), "other")


def finest(first: pa.DataType, second: pa.DataType) -> str:
    """Return the finer unit of two temporal types.

    >>> finest(pa.timestamp("ms"), pa.timestamp("us"))
    'us'
    """
    return _UNITS[max(_UNITS.index(first.unit), _UNITS.index(second.unit))]


def exact_type(plain: pa.DataType, node: Expression | None = None) -> pa.DataType:
    """Return the decimal that holds every value of an integer type; of an integer literal, just that value."""
    if kind_of(plain) == "decimal":
        return plain
    if isinstance(node, Literal) and node.value is not None:
        return pa.decimal128(len(str(abs(node.value))), 0)
    return pa.decimal128(_INTEGER_DIGITS[plain.bit_width], 0)


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the plain type in which two plain types are compared, or None when an explicit cast must decide.

    >>> common_type(pa.int32(), pa.float32())
    DataType(double)
    """
    # Decimals of different scale are compared as a decimal256, so that no digit is lost.
    kinds = kind_of(first), kind_of(second)
    if "other" in kinds or "array" in kinds:
        return None
    if kinds[0] == "null" or kinds[1] == "null":
        return second if kinds[0] == "null" else first
    if set(kinds) <= _NUMBERS:
        return _common_number(first, second)
    if kinds[0] != kinds[1]:
        return None
    if kinds[0] in {"timestamp", "instant"}:
        return pa.timestamp(finest(first, second), tz=first.tz)
    if kinds[0] == "duration":
        return pa.duration(finest(first, second))
    if kinds[0] == "time":
        return first if finest(first, second) == first.unit else second
    return first


def _common_number(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    kinds = {kind_of(first), kind_of(second)}
    if first == second:
        return first
    if "float" in kinds:
        return pa.float64()
    if kinds == {"integer"}:
        return first if first.bit_width > second.bit_width else second
    return pa.decimal256(_WIDE_DIGITS, max(exact_type(first).scale, exact_type(second).scale))


def call_type(call: Call, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a call, given the plain types of its operands."""
    operation = call.operation
    if operation in _COMPARISONS:
        for other in types[1:]:
            if common_type(types[0], other) is None:
                raise _mismatch(call, types, "values of one type", "Cast one side explicitly with .cast(...).")
        return pa.bool_()
    if operation in {"and", "or", "not"}:
        if any(kind_of(operand) not in {"boolean", "null"} for operand in types):
            raise _mismatch(call, types, "boolean operands", "Compare or cast first; parentheses go around each comparison.")
        return pa.bool_()
    if operation in {"is_null", "is_not_null"}:
        return pa.bool_()
    if operation in _ARITHMETIC:
        return arithmetic_type(call, types[0], types[1])
    if operation in {"negate", "absolute"}:
        if kind_of(types[0]) not in _NUMBERS | {"duration", "null"}:
            raise _mismatch(call, types, "a number or a duration", "Cast it explicitly with .cast(...).")
        return types[0]
    if operation == "length":
        if kind_of(types[0]) not in {"string", "binary", "null"}:
            raise _mismatch(call, types, "a string or a binary", 'Cast it explicitly with .cast("string").')
        return pa.int32()
    if kind_of(types[0]) not in {"string", "binary"} or kind_of(types[0]) != kind_of(types[1]):
        raise _mismatch(call, types, "a string and a str, or a binary and bytes", "Give a prefix of the same type.")
    return pa.bool_()


def arithmetic_type(call: Call, first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the type of `+ - * / %` on two plain types."""
    kinds = kind_of(first), kind_of(second)
    if kinds[0] == "null" or kinds[1] == "null":
        known = second if kinds[0] == "null" else first
        if kind_of(known) in {"integer", "float", "null"}:
            return pa.float64() if call.operation == "divide" or kind_of(known) == "null" else known
    elif set(kinds) <= {"integer", "float"}:
        if call.operation == "divide":
            return pa.float64()
        return _common_number(first, second)
    elif "decimal" in kinds and set(kinds) <= _NUMBERS:
        return pa.float64() if "float" in kinds else _decimal_result(call, first, second)
    elif call.operation in {"add", "subtract"}:
        temporal_type = _temporal_result(call, first, second)
        if temporal_type is not None:
            return temporal_type
    hint = "Cast explicitly with .cast(...): dates to timestamps, strings to numbers."
    raise _mismatch(call, (first, second), "two numbers, or a timestamp and a duration", hint)


def _decimal_result(call: Call, first: pa.DataType, second: pa.DataType) -> pa.DataType:
    one, other = exact_type(first, call.operands[0]), exact_type(second, call.operands[1])
    if call.operation == "divide":
        scale = max(_MIN_ADJUSTED_SCALE, one.scale + other.precision + 1)
        precision = one.precision - one.scale + other.scale + scale
    elif call.operation == "remainder":
        scale = max(one.scale, other.scale)
        precision = min(one.precision - one.scale, other.precision - other.scale) + scale
    elif call.operation == "multiply":
        scale = one.scale + other.scale
        precision = one.precision + other.precision + 1
    else:
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale + 1
    if precision > _MAX_DIGITS:
        # Spark keeps the integer digits and gives up decimals, down to 6 of them (DecimalType.adjustPrecisionScale).
        scale = max(_MAX_DIGITS - (precision - scale), min(scale, _MIN_ADJUSTED_SCALE))
        precision = _MAX_DIGITS
    return pa.decimal128(precision, scale)


def _temporal_result(call: Call, first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    kinds = kind_of(first), kind_of(second)
    stamps = {"timestamp", "instant"}
    if kinds == ("duration", "duration"):
        return pa.duration(finest(first, second))
    if kinds[0] in stamps and kinds[1] == kinds[0] and call.operation == "subtract":
        if not (is_flat(first) and is_flat(second)):
            hint = 'Convert both to one without zone first, as .cast("timestamp_ntz").'
            raise _mismatch(call, (first, second), "timestamps without zone or in UTC", hint)
        return pa.duration(finest(first, second))
    if kinds[0] in stamps and kinds[1] == "duration":
        stamp, length, node = first, second, call.operands[1]
    elif kinds[1] in stamps and kinds[0] == "duration" and call.operation == "add":
        stamp, length, node = second, first, call.operands[0]
    else:
        return None
    is_short = isinstance(node, Literal) and node.value is not None and abs(node.value) < _ONE_DAY
    if not (is_flat(stamp) or is_short):
        hint = 'Convert the timestamp first, as .cast("timestamp_ntz"), or use a literal shorter than a day.'
        raise _mismatch(call, (first, second), "a timestamp without zone or in UTC", hint)
    return pa.timestamp(finest(stamp, length), tz=stamp.tz)


def is_flat(stamp: pa.DataType) -> bool:
    """Return whether every day of the timestamp's zone has 24 hours."""
    return stamp.tz is None or stamp.tz in _FLAT_ZONES


def cast_type(cast: Cast, source: pa.DataType) -> pa.DataType:
    """Return the plain type of a cast from a plain type."""
    target = plain_type(cast.type)
    kinds = kind_of(source), kind_of(target)
    if kinds[0] == "null" and kinds[1] not in {"null", "other", "array"}:
        return target
    if kinds[1] not in _CASTS.get(kinds[0], set()):
        raise _mismatch(cast, (source,), "a cast that is offered", f"From {source} there is {_offered(kinds[0])}.")
    if kinds[1] == "instant" and kinds[0] != "instant" and not is_flat(target):
        raise _mismatch(
            cast, (source,), "a target in UTC", "What a local time means as an instant changes with the zone's rules."
        )
    return target


def _offered(kind: str) -> str:
    offered = sorted(_CASTS.get(kind, set()))
    return "a cast to " + " or ".join(offered) if offered else "no cast"


def _mismatch(node: Call | Cast, types: Sequence[pa.DataType], expected: str, cure: str) -> PlanError:
    given_types = " and ".join(str(operand) for operand in types)
    return PlanError(
        f"{describe(node)} is given {given_types}; it takes {expected}. {cure}",
        code="TYPE_MISMATCH",
        expression=describe(node),
        types=[str(operand) for operand in types],
    )
