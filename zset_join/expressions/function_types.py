"""Which types the functions of `functions` take, and the type each gives: Spark's rules under ANSI mode.

The values of CASE, COALESCE, GREATEST and LEAST are brought to one type: the wider number, decimals with room for all digits
(38 at most), a date beside a timestamp becomes a timestamp.

Refused, and need a cast: a string beside anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa

from zset_join.expressions.calendar_functions import CALENDAR_FUNCTIONS
from zset_join.expressions.computed import DECLARED, Function, mismatch
from zset_join.expressions.nested_functions import NESTED_FUNCTIONS
from zset_join.expressions.number_functions import NUMBER_FUNCTIONS
from zset_join.expressions.text_functions import TEXT_FUNCTIONS
from zset_join.expressions.tree import Call, Literal
from zset_join.expressions.type_rules import common_type, exact_type, is_flat, kind_of

__all__ = ["FIELDS", "LIBRARY", "UNITS", "function_type", "one_type"]

LIBRARY: dict[str, Function] = {
    **TEXT_FUNCTIONS,
    **NUMBER_FUNCTIONS,
    **CALENDAR_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **DECLARED,
}
"""By name."""


FIELDS = ("year", "quarter", "month", "week", "day", "dayofweek", "dayofyear", "hour", "minute", "second")
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
_MAX_DIGITS = 38
_DATES = frozenset({"date", "timestamp", "instant", "null"})

_Types = Sequence[pa.DataType]


def one_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the plain type that holds the values of two plain types, or None when a cast must decide.

    >>> one_type(pa.decimal128(4, 2), pa.int32())
    Decimal128Type(decimal128(12, 2))
    """
    kinds = kind_of(first), kind_of(second)
    if set(kinds) == {"date", "timestamp"} or set(kinds) == {"date", "instant"}:
        return second if kinds[0] == "date" else first
    if "decimal" in kinds and set(kinds) <= {"decimal", "integer"}:
        one, other = exact_type(first), exact_type(second)
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(min(whole + scale, _MAX_DIGITS), min(scale, _MAX_DIGITS))
    if first == second:
        return first
    if set(kinds) == {"null", "array"}:
        return first if kinds[0] == "array" else second
    return common_type(first, second)


def function_type(call: Call, types: _Types) -> pa.DataType:
    """Return the plain type of a call of one of `tree.FUNCTIONS`, given the plain types of its operands."""
    rule = _RULES.get(call.operation)
    return rule(call, types) if rule is not None else LIBRARY[call.operation].type(call, types)


def _common(call: Call, types: _Types) -> pa.DataType:
    shared_type = reduce(lambda one, other: None if one is None else one_type(one, other), types)
    if shared_type is None:
        raise mismatch(call, types, "values of one type", "Cast them to one type with .cast(...).")
    return shared_type


def _case(call: Call, types: _Types) -> pa.DataType:
    paired = len(types) - len(types) % 2
    if any(kind_of(kind) not in {"boolean", "null"} for kind in types[0:paired:2]):
        raise mismatch(call, types[0:paired:2], "boolean conditions", "Compare with something after WHEN.")
    values = [*types[1:paired:2], *types[paired:]]
    return _common(call, values)


def _nullif(call: Call, types: _Types) -> pa.DataType:
    if one_type(*types) is None:
        raise mismatch(call, types, "values of one type", "Cast one of them with .cast(...).")
    return types[0]


def _string(call: Call, types: _Types) -> pa.DataType:
    for kind in types:
        if kind_of(kind) not in {"string", "null"}:
            raise mismatch(call, types, "strings", 'Cast with .cast("string").')
    return pa.large_string()


def _substring(call: Call, types: _Types) -> pa.DataType:
    if kind_of(types[0]) not in {"string", "null"} or any(kind_of(kind) != "integer" for kind in types[1:]):
        raise mismatch(call, types, "a string and integers", "Cast with .cast(...).")
    for operand in call.operands[1:]:
        if isinstance(operand, Literal) and isinstance(operand.value, int) and not -(2**31) <= operand.value < 2**31:
            raise mismatch(call, types, "places that fit an INT", "Texts are shorter.")
    return pa.large_string()


def _like(call: Call, types: _Types) -> pa.DataType:
    _string(call, types)
    for operand in call.operands[1:]:
        if not isinstance(operand, Literal) or not isinstance(operand.value, str):
            raise mismatch(call, types, "a pattern that is a literal", "Write the pattern as text.")
    escape = call.operands[2].value if len(call.operands) == 3 and isinstance(call.operands[2], Literal) else "\\"
    pattern = call.operands[1].value if isinstance(call.operands[1], Literal) else ""
    if len(escape) != 1:
        raise mismatch(call, types, "one character after ESCAPE", "Give one character that escapes % and _.")
    place = 0
    while place < len(pattern):
        if pattern[place] == escape and pattern[place + 1 : place + 2] not in {"%", "_", escape}:
            raise mismatch(call, types, f"a pattern where {escape} is before %, _ or {escape}", "Double it to mean itself.")
        place += 2 if pattern[place] == escape else 1
    return pa.bool_()


def _round(call: Call, types: _Types) -> pa.DataType:
    scale = call.operands[1] if len(call.operands) == 2 else Literal(0, pa.int32())
    if not isinstance(scale, Literal) or not isinstance(scale.value, int) or abs(scale.value) > _MAX_DIGITS:
        raise mismatch(call, types, "a number of decimals that is a literal from -38 to 38", "Write it as a number.")
    kind = kind_of(types[0])
    if kind in {"integer", "float", "null"}:
        return pa.float64() if kind == "null" else types[0]
    if kind != "decimal":
        raise mismatch(call, types, "a number", "Cast it with .cast(...).")
    whole = types[0].precision - types[0].scale + 1
    if scale.value < 0:
        return pa.decimal128(min(max(whole, 1 - scale.value), _MAX_DIGITS), 0)
    digits = min(types[0].scale, scale.value)
    return pa.decimal128(min(whole + digits, _MAX_DIGITS), digits)


def _whole(call: Call, types: _Types) -> pa.DataType:
    kind = kind_of(types[0])
    if kind == "decimal":
        return pa.decimal128(min(types[0].precision - types[0].scale + (types[0].scale > 0), _MAX_DIGITS), 0)
    if kind not in {"integer", "float", "null"}:
        raise mismatch(call, types, "a number", "Cast it with .cast(...).")
    return pa.int64()


def _unit(call: Call, types: _Types, known: Sequence[str]) -> str:
    unit = call.operands[0]
    if not isinstance(unit, Literal) or unit.value not in known:
        raise mismatch(call, types, f"one of {', '.join(known)}", "Write the unit as a literal.")
    return str(unit.value)


def _date_trunc(call: Call, types: _Types) -> pa.DataType:
    _unit(call, types, UNITS)
    kind = kind_of(types[1])
    if kind == "instant" and not is_flat(types[1]):
        raise mismatch(call, types, "a timestamp without zone or in UTC", 'Convert it first, as .cast("timestamp_ntz").')
    if kind not in _DATES:
        raise mismatch(call, types, "a date or a timestamp", "Cast it with .cast(...).")
    return types[1] if kind in {"timestamp", "instant"} else pa.timestamp("us")


def _extract(call: Call, types: _Types) -> pa.DataType:
    _unit(call, types, FIELDS)
    if kind_of(types[1]) not in _DATES:
        raise mismatch(call, types, "a date or a timestamp", "Cast it with .cast(...).")
    return pa.int32()


def _date_add(call: Call, types: _Types) -> pa.DataType:
    if kind_of(types[0]) not in {"date", "null"} or kind_of(types[1]) not in {"integer", "null"} or types[1] == pa.int64():
        raise mismatch(call, types, "a date and an int", "Cast the first to a date, the second to an int.")
    return pa.date32()


def _date_diff(call: Call, types: _Types) -> pa.DataType:
    if any(kind_of(kind) not in {"date", "null"} for kind in types):
        raise mismatch(call, types, "two dates", 'Cast with .cast("date").')
    return pa.int32()


def _add_months(call: Call, types: _Types) -> pa.DataType:
    kind = kind_of(types[0])
    is_zoned = kind == "instant" and not is_flat(types[0])
    if kind not in _DATES or is_zoned or kind_of(types[1]) not in {"integer", "null"} or types[1] == pa.int64():
        raise mismatch(call, types, "a date or a timestamp (without zone or in UTC) and an int", "Cast with .cast(...).")
    return pa.date32() if kind == "null" else types[0]


_RULES: dict[str, Callable[[Call, _Types], pa.DataType]] = {
    "add_months": _add_months,
    "case": _case,
    "ceil": _whole,
    "coalesce": _common,
    "concat": _string,
    "date_add": _date_add,
    "date_diff": _date_diff,
    "date_trunc": _date_trunc,
    "extract": _extract,
    "floor": _whole,
    "greatest": _common,
    "ilike": _like,
    "least": _common,
    "like": _like,
    "lower": _string,
    "ltrim": _string,
    "nullif": _nullif,
    "round": _round,
    "rtrim": _string,
    "substring": _substring,
    "trim": _string,
    "upper": _string,
}
