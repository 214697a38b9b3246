"""Functions of numbers beyond those of `function_values`: powers, logarithms, bits, and the cast that gives NULL.

Edge cases, as in Spark: a logarithm of zero or less is NULL, the square root of less is NaN, `isnan` of NULL is false.
`try_cast` is NULL where the cast fails; what fails below it still does. Its second operand is a NULL of the wanted type.

Known limits: powers, roots, exponentials and logarithms may differ from Java's in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.expressions.computed import NO_FAULTS, Computed, Function, Types, all_valid, literal_value, mismatch
from zset_join.expressions.conversions import convert
from zset_join.expressions.tree import Call, Cast, Literal
from zset_join.expressions.type_rules import cast_type, common_type, kind_of
from zset_join.expressions.vectors import Vector, widen

__all__ = ["NUMBER_FUNCTIONS", "wanted_type"]


def wanted_type(call: Call) -> pa.DataType:
    """Return the type that a try_cast casts to."""
    wanted = call.operands[1]
    return wanted.type if isinstance(wanted, Literal) else pa.null()


def _doubles(call: Call, types: Types) -> pa.DataType:
    if any(kind_of(kind) not in {"integer", "float", "decimal", "null"} for kind in types):
        raise mismatch(call, types, "numbers", "Cast with .cast(...).")
    return pa.float64()


def _floats(call: Call, types: Types) -> pa.DataType:
    if kind_of(types[0]) not in {"float", "integer", "decimal", "null"}:
        raise mismatch(call, types, "a number", "Cast it with .cast(...).")
    return pa.bool_()


def _bits(call: Call, types: Types) -> pa.DataType:
    if any(kind_of(kind) not in {"integer", "null"} for kind in types):
        raise mismatch(call, types, "integers", 'Cast with .cast("bigint").')
    operand_type = types[0] if len(types) == 1 else common_type(*types)
    return pa.int64() if operand_type is None or kind_of(operand_type) == "null" else operand_type


def _computed(function: Callable[..., Any]) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    def value(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        with np.errstate(all="ignore"):
            results = function(*(widen(operand, result).values for operand in operands))
        return Vector(result, results, all_valid(*operands)), "CAST_OVERFLOW", NO_FAULTS

    return value


def _logarithm(function: Callable[..., Any]) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    def value(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        numbers = widen(operands[0], result).values
        with np.errstate(all="ignore"):
            logarithms, positive = function(numbers), ~(numbers <= 0)
        return Vector(result, np.where(positive, logarithms, 0.0), operands[0].valid & positive), "CAST_OVERFLOW", NO_FAULTS

    return value


def _is_nan(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    vector = operands[0]
    is_nan = np.isnan(vector.values) if kind_of(vector.type) == "float" else np.zeros(1, np.bool_)
    return Vector(result, is_nan & vector.valid, np.ones(1, np.bool_)), "CAST_OVERFLOW", NO_FAULTS


def _try_cast_type(call: Call, types: Types) -> pa.DataType:
    return cast_type(Cast(call.operands[0], wanted_type(call)), types[0])


def _try_cast(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    cast, _code, faulty = convert(operands[0], result)
    return Vector(result, cast.values, cast.valid & ~faulty), "CAST_OVERFLOW", NO_FAULTS


def _named(name: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"{name}({', '.join(texts)})"


def _infix(sign: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"({texts[0]} {sign} {texts[1]})"


def _duckdb_logarithm(name: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"CASE WHEN {texts[0]} > 0 THEN {name}({texts[0]}) END"


def _duckdb_sign(_: Call, texts: Sequence[str]) -> str:
    return f"CASE WHEN isnan(CAST({texts[0]} AS DOUBLE)) THEN CAST('NaN' AS DOUBLE) ELSE CAST(sign({texts[0]}) AS DOUBLE) END"


def _try_cast_text(call: Call, texts: Sequence[str]) -> str:
    # The second operand is written as CAST(NULL AS type).
    name = texts[1].removeprefix("CAST(NULL AS ").removesuffix(")") if literal_value(call.operands[1]) is None else ""
    return f"TRY_CAST({texts[0]} AS {name})"


NUMBER_FUNCTIONS = {
    "bit_and": Function(_bits, _computed(np.bitwise_and), _infix("&"), _infix("&")),
    "bit_not": Function(_bits, _computed(np.invert), lambda _, texts: f"(~ {texts[0]})", lambda _, texts: f"(~ {texts[0]})"),
    "bit_or": Function(_bits, _computed(np.bitwise_or), _infix("|"), _infix("|")),
    "bit_xor": Function(_bits, _computed(np.bitwise_xor), _infix("^"), _named("xor")),
    "exp": Function(_doubles, _computed(np.exp), _named("exp"), _named("exp")),
    "is_nan": Function(
        _floats,
        _is_nan,
        _named("isnan"),
        lambda _, texts: f"coalesce(isnan(CAST({texts[0]} AS DOUBLE)), FALSE)",
    ),
    "ln": Function(_doubles, _logarithm(np.log), _named("ln"), _duckdb_logarithm("ln")),
    "log10": Function(_doubles, _logarithm(np.log10), _named("log10"), _duckdb_logarithm("log10")),
    "power": Function(_doubles, _computed(np.power), _named("power"), _named("power")),
    "sign": Function(_doubles, _computed(lambda values: np.copysign(np.sign(values), values)), _named("signum"), _duckdb_sign),
    "sqrt": Function(
        _doubles,
        _computed(np.sqrt),
        _named("sqrt"),
        lambda _, texts: f"CASE WHEN {texts[0]} < 0 THEN CAST('NaN' AS DOUBLE) ELSE sqrt({texts[0]}) END",
    ),
    "try_cast": Function(_try_cast_type, _try_cast, _try_cast_text, _try_cast_text),
}
"""By name."""
