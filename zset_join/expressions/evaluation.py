"""Check an expression against two schemas, and evaluate it over many candidate pairs at once.

The law: `evaluate` returns True for exactly those pairs for which Spark's join, under ANSI mode, finds the condition
TRUE; a NULL is no match. Where Spark raises for a pair, so does `evaluate`, and what Spark does not look at does not
raise: the right side of an AND whose left side is FALSE, of an OR whose left side is TRUE, of arithmetic and
comparisons whose left side is NULL.

Memory: the columns are not copied unless their type is widened; one array of n values per node while it is needed,
columns once each.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.shown_values import counted
from zset_join.expressions import vectors
from zset_join.expressions.conversions import convert
from zset_join.expressions.function_types import function_type
from zset_join.expressions.function_values import chosen_value, function_value
from zset_join.expressions.tree import FUNCTIONS, OPERATIONS, Call, Cast, Column, Expression, Literal, depth_of, describe, walk
from zset_join.expressions.type_rules import call_type, cast_type, common_type, kind_of, plain_type
from zset_join.expressions.vectors import Bools, Vector

__all__ = ["TypeFinder", "check", "evaluate", "result_type", "vector_of"]

_Faults = npt.NDArray[np.int32]
MOST_OPERATIONS = 250
_CACHED = frozenset({int, str, bool, bytes, type(None)})

_FAULTS = {
    "DIVIDE_BY_ZERO": "divides by zero; test the divisor first, as in (b != 0) & (a / b > 1)",
    "ARITHMETIC_OVERFLOW": "does not fit its type; cast an operand to a wider one first",
    "CAST_OVERFLOW": "meets a value that does not fit the target type; cast to a wider one, or test the value first",
    "ARRAY_INDEX": "requests an absent element; test size(...) first, or take try_element_at",
    "INVALID_DATE": "meets a year, month and day that are no date; test them first",
    "CAST_INVALID_INPUT": "meets text that is not a number; test it first, or cast the number to a string instead",
}


def check(expression: Expression, left_schema: pa.Schema, right_schema: pa.Schema) -> pa.DataType:
    """Refuse an expression that cannot be evaluated on rows of these schemas.

    Args:
        expression: the condition.
        left_schema: columns of the left rows.
        right_schema: columns of the right rows.

    Returns:
        The type of the expression, which is boolean.

    Raises:
        PlanError: a column that does not exist, operands of incompatible types, an unknown node or operation, or a result that
            is not boolean.

    Cost: O(nodes); no rows are needed.

    >>> from zset_join.expressions.tree import left, right
    >>> check(left("x") < right("y"), pa.schema({"x": pa.int32()}), pa.schema({"y": pa.int64()}))
    DataType(bool)
    """
    kind = result_type(expression, {"left": left_schema, "right": right_schema})
    if kind_of(kind) != "boolean":
        raise PlanError(
            f"the condition {describe(expression)} is of type {kind}; a condition must be boolean. Compare it with something.",
            code="NOT_BOOLEAN",
            expression=describe(expression),
            type=str(kind),
        )
    return kind


def result_type(expression: Expression, schemas: Mapping[str, pa.Schema]) -> pa.DataType:
    """Return the plain type of an expression over rows of these schemas, which are named as its columns name their sides."""
    if not isinstance(expression, Expression):
        raise PlanError(
            f"a condition must be an expression such as left('a') < right('b'), not {expression!r}.",
            code="NOT_AN_EXPRESSION",
            value=repr(expression),
        )
    for node in walk(expression):
        _check_node(node)
    if depth_of(expression) > MOST_OPERATIONS:
        raise PlanError(
            f"an expression has {depth_of(expression)} operations within each other; at most {MOST_OPERATIONS} are evaluated, "
            "a chain of AND or of OR counting as one. Compute a part of it before, as a column of a select or of a subquery.",
            code="EXPRESSION_TOO_DEEP",
        )
    kind: pa.DataType = expression.accept(TypeFinder(schemas))
    return kind


def _check_node(node: Expression) -> None:
    if type(node) not in {Column, Literal, Cast, Call}:
        raise PlanError(
            "an expression is made of col(...), left(...), right(...), lit(...), operators and functions, and holds a "
            f"{type(node).__name__}.",
            code="UNKNOWN_EXPRESSION",
            node=type(node).__name__,
        )
    if isinstance(node, Call) and node.operation in FUNCTIONS:
        least, most = FUNCTIONS[node.operation]
        if len(node.operands) < least or (most is not None and len(node.operands) > most):
            wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise PlanError(
                f"{node.operation} is given {counted(len(node.operands), 'operand')}; it takes {wanted}.",
                code="UNKNOWN_EXPRESSION",
                operation=node.operation,
            )
    elif isinstance(node, Call):
        arity = OPERATIONS.get(node.operation, (-1, ""))[0]
        if arity != len(node.operands) and not (arity is None and len(node.operands) > 1):
            raise PlanError(
                f"a condition calls {node.operation!r} with {counted(len(node.operands), 'operand')}, which is not among its "
                f"operations: {', '.join(sorted(OPERATIONS.keys() | FUNCTIONS.keys()))}.",
                code="UNKNOWN_EXPRESSION",
                operation=node.operation,
            )
        if node.operation in {"in", "starts_with"} and not all(isinstance(given, Literal) for given in node.operands[1:]):
            raise PlanError(
                f"{describe(node)}: all operands but the first must be literals.",
                code="UNKNOWN_EXPRESSION",
                operation=node.operation,
            )


class TypeFinder:
    """Compute the type of every node."""

    def __init__(self, schemas: Mapping[str, pa.Schema]) -> None:
        self.schemas = schemas

    def visit_column(self, node: Column) -> pa.DataType:
        schema = self.schemas.get(node.side)
        if schema is None or node.name not in schema.names:
            known = [] if schema is None else schema.names
            raise PlanError(
                f'{describe(node)}: the {node.side} side has no column "{node.name}"; its columns are {known}.',
                code="UNKNOWN_COLUMN",
                side=node.side,
                column=node.name,
            )
        return plain_type(schema.field(node.name).type)

    def visit_literal(self, node: Literal) -> pa.DataType:
        try:
            pa.scalar(node.value, node.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PlanError(
                f"the literal {node.value!r} is not a {node.type}; let lit(...) choose the type.", code="LITERAL"
            ) from error
        return plain_type(node.type)

    def visit_cast(self, node: Cast, operand: pa.DataType) -> pa.DataType:
        return cast_type(node, operand)

    def visit_call(self, node: Call, operands: tuple[pa.DataType, ...]) -> pa.DataType:
        return call_type(node, operands) if node.operation in OPERATIONS else function_type(node, operands)


def evaluate(
    expression: Expression,
    left_columns: Mapping[str, pa.Array],
    right_columns: Mapping[str, pa.Array],
    length: int,
) -> Bools:
    """Return for every candidate pair whether it satisfies the expression.

    Args:
        expression: a condition that `check` has admitted.
        left_columns: the columns of the left rows it reads, `length` values each.
        right_columns: the columns of the right rows, aligned with them.
        length: number of pairs.

    Returns:
        `length` bools; False where the expression is NULL. The caller owns them.

    Raises:
        BadInputError: a pair that divides by zero, overflows, or cannot be cast; names the part of the expression.
        PlanError: as `check`.

    Cost: a few array passes per node.

    >>> from zset_join.expressions.tree import left, right
    >>> evaluate(left("x") < right("y"), {"x": pa.array([1, 2, None])}, {"y": pa.array([2, 2, 2])}, 3)
    array([ True, False, False])
    """
    columns = {"left": left_columns, "right": right_columns}
    truth = vector_of(expression, columns, length, what="condition", of_what="candidate pairs")
    return np.array(np.broadcast_to(truth.values & truth.valid, length))


def vector_of(
    expression: Expression,
    columns: Mapping[str, Mapping[str, pa.Array]],
    length: int,
    *,
    what: str,
    of_what: str,
    loaded: dict[tuple[str, str], Vector] | None = None,
) -> Vector:
    """Return the value of an expression, one per row or one for all; `loaded` has columns as vectors, and gets others."""
    evaluator = _Evaluator(columns, length, loaded)
    vector: Vector = expression.accept(evaluator)
    if vector.faults is not None:
        rows = np.flatnonzero(np.broadcast_to(vector.faults, length))
        if len(rows):
            number = int(np.broadcast_to(vector.faults, length)[rows[0]])
            code, node = evaluator.faults[number - 1]
            raise BadInputError(
                f"the {what} {describe(expression)} fails for {len(rows)} of {length} {of_what}: {describe(node)} "
                f"{_FAULTS[code]}.",
                code=code,
                condition=describe(expression),
                expression=describe(node),
                pairs=len(rows),
            )
    return vector


class _Evaluator:
    """Compute every node; a fault is kept with its row until the root, where it raises if it still counts."""

    def __init__(
        self,
        columns: Mapping[str, Mapping[str, pa.Array]],
        length: int,
        loaded: dict[tuple[str, str], Vector] | None,
    ) -> None:
        self.columns = columns
        self.length = length
        self.loaded = {} if loaded is None else loaded
        self.faults: list[tuple[str, Expression]] = []

    def visit_column(self, node: Column) -> Vector:
        key = (node.side, node.name)
        if key not in self.loaded:
            try:
                array = self.columns[node.side][node.name]
            except KeyError:
                known = sorted(self.columns.get(node.side, {}))
                raise PlanError(
                    f'{describe(node)}: the {node.side} side has no column "{node.name}"; its columns are {known}.',
                    code="UNKNOWN_COLUMN",
                    side=node.side,
                    column=node.name,
                ) from None
            if len(array) != self.length:
                raise ValueError(f"{describe(node)} has {len(array)} values for {self.length} pairs")
            self.loaded[key] = vectors.from_arrow(array)
        return self.loaded[key]

    def visit_literal(self, node: Literal) -> Vector:
        if type(node.value) in _CACHED:
            return _literal(type(node.value).__name__, node.value, node.type)
        return vectors.from_arrow(pa.array([node.value], node.type))

    def visit_cast(self, node: Cast, operand: Vector) -> Vector:
        converted, code, faulty = convert(operand, cast_type(node, operand.type))
        return self._with_fault(node, code, converted, faulty, operand.faults)

    def visit_call(self, node: Call, operands: tuple[Vector, ...]) -> Vector:
        if node.operation in FUNCTIONS:
            return self._function(node, operands)
        result = call_type(node, [operand.type for operand in operands])
        first = operands[0]
        match node.operation:
            case "and" | "or":
                return _connect(node.operation, *operands)
            case "not":
                return replace(first, type=result, values=~first.values)
            case "is_null" | "is_not_null":
                values = ~first.valid if node.operation == "is_null" else first.valid
                return Vector(result, values, np.ones(1, np.bool_), first.faults)
            case "in":
                return _is_in(operands)
            case "eq_null_safe":
                return _equal_null_safe(*operands)
            case "add" | "subtract" | "multiply" | "divide" | "remainder":
                value, code, faulty = vectors.arithmetic(node.operation, first, operands[1], result)
                # Spark looks at the divisor first.
                ordered = operands[::-1] if node.operation in {"divide", "remainder"} else operands
                return self._with_fault(node, code, value, faulty, _strict_faults(*ordered))
            case "negate" | "absolute":
                value, faulty = (vectors.negate if node.operation == "negate" else vectors.absolute)(first)
                return self._with_fault(node, "ARITHMETIC_OVERFLOW", value, faulty, first.faults)
            case "length":
                return vectors.length(first)
            case "starts_with":
                prefix = node.operands[1]
                values = vectors.starts_with(first, prefix.value if isinstance(prefix, Literal) else "")
                return replace(first, type=result, values=values)
            case _:
                values = _compared(node.operation, *operands)
                return Vector(result, values, first.valid & operands[1].valid, _strict_faults(*operands))

    def _function(self, node: Call, operands: tuple[Vector, ...]) -> Vector:
        result = function_type(node, [operand.type for operand in operands])
        if node.operation in {"case", "coalesce"}:
            value, _, _ = chosen_value(node.operation, operands, result)
            return value
        before = None
        for operand in operands:
            if operand.faults is not None:
                before = operand.faults if before is None else np.where(before != 0, before, operand.faults)
        value, code, faulty = function_value(node, operands, result)
        return self._with_fault(node, code, value, faulty, before)

    def _with_fault(self, node: Expression, code: str, value: Vector, faulty: Bools, before: _Faults | None) -> Vector:
        """Mark the rows that cannot be computed, unless they are NULL or have failed before."""
        faulty = faulty & value.valid
        if not faulty.any():
            return replace(value, faults=before)
        self.faults.append((code, node))
        number = np.int32(len(self.faults))
        here = np.where(faulty, number, np.int32(0))
        return replace(value, faults=here if before is None else np.where(before != 0, before, here))


@functools.lru_cache(maxsize=1024)
def _literal(python_type: str, value: Any, kind: pa.DataType) -> Vector:  # noqa: ARG001 - True and 1 are equal and two values
    """Return a literal as a vector that nobody may write to."""
    vector = vectors.from_arrow(pa.array([value], kind))
    vector.valid.flags.writeable = False
    return vector


def _strict_faults(first: Vector, second: Vector) -> _Faults | None:
    """Combine the faults of two operands of which the second is looked at only where the first is not NULL."""
    if second.faults is None:
        return first.faults
    seen = np.where(first.valid, second.faults, np.int32(0))
    return seen if first.faults is None else np.where(first.faults != 0, first.faults, seen)


def _aligned(first: Vector, second: Vector) -> tuple[Vector, Vector]:
    """Bring two comparable vectors to one type; temporal ones keep their units."""
    if first.type == second.type:
        return first, second
    if kind_of(first.type) == kind_of(second.type) and kind_of(first.type) not in {"integer", "float", "decimal"}:
        return first, second
    common = common_type(first.type, second.type)
    return vectors.widen(first, common), vectors.widen(second, common)


def _compared(operation: str, first: Vector, second: Vector) -> Bools:
    if kind_of(first.type) == kind_of(second.type) == "null":
        return np.zeros(1, np.bool_)
    return vectors.compare(operation, *_aligned(first, second))


def _equal_null_safe(first: Vector, second: Vector) -> Vector:
    equal = _compared("eq", first, second)
    values = np.where(first.valid & second.valid, equal, ~first.valid & ~second.valid)
    faults = first.faults
    if second.faults is not None:
        faults = second.faults if faults is None else np.where(faults != 0, faults, second.faults)
    return Vector(pa.bool_(), values, np.ones(1, np.bool_), faults)


def _connect(operation: str, first: Vector, second: Vector) -> Vector:
    """Apply Kleene's AND or OR; where the first operand decides, the second is not looked at."""
    deciding = operation == "or"
    one, other = _truth(first, deciding), _truth(second, deciding)
    decided = one | other
    valid = decided | (first.valid & second.valid)
    values = decided if deciding else valid & ~decided
    faults = first.faults
    if second.faults is not None:
        seen = np.where(one, np.int32(0), second.faults)
        faults = seen if faults is None else np.where(faults != 0, faults, seen)
    return Vector(pa.bool_(), values, valid, faults)


def _truth(vector: Vector, value: bool) -> Bools:
    """Return where a vector is not NULL and has the given truth value."""
    values: Any = vector.values if value else ~vector.values
    return np.asarray(values & vector.valid)


def _is_in(operands: tuple[Vector, ...]) -> Vector:
    """Compare with every literal; NULL among them makes every miss NULL."""
    value, *candidates = operands
    known = [candidate for candidate in candidates if candidate.valid[0]]
    if known and kind_of(value.type) in {"integer", "string", "binary"} and {one.type for one in known} == {value.type}:
        listed = pa.concat_arrays([vectors.to_arrow(one) for one in known])
        matched: Bools = pc.is_in(vectors.to_arrow(value), listed).to_numpy(zero_copy_only=False)
    else:
        matched = np.zeros(1, np.bool_)
        for candidate in known:
            matched = matched | _compared("eq", value, candidate)
    complete = len(known) == len(candidates)
    return Vector(pa.bool_(), matched, value.valid & (matched if not complete else np.ones(1, np.bool_)), value.faults)
