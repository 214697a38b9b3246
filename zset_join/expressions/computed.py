"""Shared parts of expression functions: registration, declaration in one row, text operands, and evaluation row by row.

A `Function` checks the types it takes, computes whole columns, and is written in two dialects. A value that cannot be computed
is a fault: its row is marked, and raises only where nothing skips it.

    soundex = declared("soundex(col)", "Return ...", Function(types, values, spark, duckdb))

The law: nothing else names a declared function. `F.soundex`, `soundex(...)` in statements of all dialects and in texts of
expressions, its place in plans, its batch SQL and the number of its operands follow from the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import PlanError
from zset_join.expressions.operations import FUNCTIONS
from zset_join.expressions.tree import Call, Expression, Literal, col, describe, lit
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.vectors import Bools, Vector, to_arrow

__all__ = [
    "DECLARED",
    "NO_FAULTS",
    "Computed",
    "Function",
    "Types",
    "Word",
    "all_valid",
    "declared",
    "joint_length",
    "literal_value",
    "mismatch",
    "of_texts",
    "operand",
    "spread",
    "strings_only",
    "texts_of",
    "translated",
    "wants_literal",
    "word",
]

NO_FAULTS = np.zeros(1, np.bool_)
"""No row has a fault."""

Computed = tuple[Vector, str, Bools]
"""A result, the code of the fault, and the rows that have it."""

Types = Sequence[pa.DataType]
"""Plain types of operands."""


@dataclass(frozen=True)
class Function:
    type: Callable[[Call, Types], pa.DataType]  # given the plain types of the operands
    value: Callable[[Call, Sequence[Vector], pa.DataType], Computed]
    spark: Callable[[Call, Sequence[str]], str]
    duckdb: Callable[[Call, Sequence[str]], str] | None = None  # None: DuckDB has nothing that means the same


def mismatch(node: Expression, types: Types, expected: str, cure: str) -> PlanError:
    given_types = " and ".join(str(kind) for kind in types)
    return PlanError(
        f"{describe(node)} is given {given_types}; it takes {expected}. {cure}",
        code="TYPE_MISMATCH",
        expression=describe(node),
        types=[str(kind) for kind in types],
    )


def strings_only(call: Call, types: Types) -> pa.DataType:
    """Admit strings alone."""
    for kind in types:
        if kind_of(kind) not in {"string", "null"}:
            raise mismatch(call, types, "strings", 'Cast with .cast("string").')
    return pa.large_string()


def wants_literal(call: Call, types: Types, place: int, kind: type, what: str) -> Any:
    """Return the value of an operand that must be a literal."""
    value = literal_value(call.operands[place])
    if not isinstance(value, kind) or isinstance(value, bool):
        raise mismatch(call, types, what, "Write it as a literal.")
    return value


def literal_value(node: Expression) -> Any:
    """Return the value of a literal, None of anything else."""
    return node.value if isinstance(node, Literal) else None


def joint_length(*lengths: int) -> int:
    """Return the number of rows of values, each of which is one for all rows or one per row."""
    return 0 if 0 in lengths else max(lengths)


def all_valid(*vectors: Vector) -> Bools:
    """Return which rows have no NULL among their operands."""
    valid = vectors[0].valid
    for vector in vectors[1:]:
        valid = valid & vector.valid
    return valid


def spread(vector: Vector, length: int) -> Vector:
    """Return a vector with so many values, which may be shared."""
    valid = np.broadcast_to(vector.valid, length)
    if isinstance(vector.values, pa.Array):
        values = vector.values if len(vector.values) == length else pa.repeat(vector.values[0], length)
    else:
        values = np.broadcast_to(vector.values, length)
    return Vector(vector.type, values, valid)


def texts_of(vector: Vector) -> pa.Array:
    """Return strings, NULL where they are."""
    if kind_of(vector.type) == "null":
        return pa.nulls(len(vector.valid), pa.large_string())
    array = to_arrow(vector)
    if len(array) != len(vector.valid):
        array = pa.repeat(array[0], len(vector.valid)) if len(array) == 1 else array
    if vector.valid.all():
        return array
    return pc.if_else(pa.array(np.broadcast_to(vector.valid, len(array))), array, pa.scalar(None, array.type))


def of_texts(array: pa.Array, result: pa.DataType) -> Vector:
    """Return an Arrow array of strings, booleans, integers or lists as a vector."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if kind_of(result) in {"string", "array"}:
        return Vector(result, array if array.type == result else array.cast(result), valid)
    values = array.fill_null(False if kind_of(result) == "boolean" else 0).to_numpy(zero_copy_only=False)
    return Vector(result, values if kind_of(result) == "boolean" else values.astype(result.to_pandas_dtype()), valid)


def translated(texts: pa.Array, function: Callable[[str], Any], kind: pa.DataType) -> pa.Array:
    """Return a function of every string; it is called once for each distinct one."""
    coded = texts.dictionary_encode()
    results = pa.array([function(text) for text in coded.dictionary.to_pylist()], kind)
    return results.take(coded.indices)


Word = Callable[..., Expression]
"""Builds a call from columns, by name or as expressions, and literals."""


DECLARED: dict[str, Function] = {}
"""By the name of its operation, in lower case."""


def declared(signature: str, doc: str, function: Function) -> Word:
    """Declare a function, and return its word; assign it to its own name and list it in `__all__` of its family."""
    name, wanted = _parted(signature)
    least = sum(not one.endswith("=") and not one.startswith("*") for one in wanted)
    FUNCTIONS[name] = (least, None if any(one.startswith("*") for one in wanted) else len(wanted))
    DECLARED[name] = function
    return word(signature, doc)


def operand(given: object) -> Expression:
    """Return an operand; a bare str names a column, as in PySpark."""
    return col(given) if isinstance(given, str) else lit(given)


def word(signature: str, doc: str, operation: str | None = None, *leading: str) -> Word:
    """Return a function that builds a call."""
    name, wanted = _parted(signature)
    texts = {one.strip("'") for one in wanted if one.startswith("'")}
    parameters = []
    for one in wanted:
        plain = one.strip("'").removesuffix("=")
        kind = inspect.Parameter.VAR_POSITIONAL if plain.startswith("*") else inspect.Parameter.POSITIONAL_OR_KEYWORD
        value = None if one.endswith("=") else inspect.Parameter.empty
        parameters.append(inspect.Parameter(plain.lstrip("*"), kind, default=value))
    described = inspect.Signature(parameters, return_annotation=Expression)

    def function(*given: object, **named: object) -> Expression:
        try:
            bound = described.bind(*given, **named)
        except TypeError as error:
            raise TypeError(f"{name}{described}: {error}") from None
        bound.apply_defaults()
        operands: list[Expression] = [lit(one) for one in leading]
        for parameter in parameters:
            value = bound.arguments[parameter.name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                flat = value[0] if len(value) == 1 and isinstance(value[0], list | tuple) else value
                operands += map(operand, flat)
            elif value is not None or parameter.default is inspect.Parameter.empty:
                operands.append(lit(value) if parameter.name in texts else operand(value))
        return Call(operation or name, tuple(operands))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__signature__ = described  # type: ignore[attr-defined]  # what `help` and completion show
    return function


def _parted(signature: str) -> tuple[str, list[str]]:
    name, _, inner = signature.removesuffix(")").partition("(")
    return name, [one.strip() for one in inner.split(",")]
