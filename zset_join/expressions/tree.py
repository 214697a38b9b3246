"""The expression tree: columns of one row or of the left and right row, literals, and calls from two fixed lists.

An expression is a frozen value. It is built with Python's operators, as PySpark columns are, and is never made from
text and never turned into code: `check` admits the four node classes below and the operations in `OPERATIONS` and
`FUNCTIONS`, nothing else.

`==` builds a node. To check whether two expressions are the same, use `same_as`. An expression has no truth value:
`and`, `or`, `not`, `in` and chained comparisons raise, where PySpark raises too.

Edge cases: `== None` raises, because in SQL it would be NULL for every row; use `isNull()`. A naive `datetime` is a
timestamp without time zone, an aware one an instant.

Source: the names are those of `pyspark.sql.Column`.
"""

from __future__ import annotations

import datetime
import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar
from typing import Literal as OneOf

import numpy as np
import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions.operations import FUNCTIONS, OPERATIONS

__all__ = [
    "FUNCTIONS",
    "OPERATIONS",
    "Alias",
    "Call",
    "Cast",
    "Column",
    "Expression",
    "ExpressionVisitor",
    "Literal",
    "col",
    "depth_of",
    "describe",
    "folded",
    "left",
    "lit",
    "named_type",
    "references",
    "right",
    "walk",
]

_FUNCTIONS = frozenset({"absolute", "length", "starts_with"}) | (FUNCTIONS.keys() - {"like", "ilike"})

_T = TypeVar("_T")


class ExpressionVisitor(Protocol[_T]):
    """Turn a tree into something else, children first; see `Expression.accept`."""

    def visit_column(self, node: Column) -> _T:
        """Return the result for a column."""

    def visit_literal(self, node: Literal) -> _T:
        """Return the result for a literal."""

    def visit_cast(self, node: Cast, operand: _T) -> _T:
        """Return the result for a cast from the results of its operand."""

    def visit_call(self, node: Call, operands: tuple[_T, ...]) -> _T:
        """Return the result for a call from the results of its operands."""


class Expression(ABC):
    """A value computed from one row, or from the two rows of a candidate pair.

    Made by `col`, `left`, `right` and `lit`, combined by operators and `zset_join.expressions.functions`. Comparisons and `&
    | ~` follow SQL's three-valued logic; a pair for which the whole is NULL does not match.

    >>> (left("x") + 1 < right("y")) & right("y").isNotNull()
    ((left.x + 1) < right.y) AND (right.y IS NOT NULL)
    """

    __slots__ = ()

    def accept(self, visitor: ExpressionVisitor[_T]) -> _T:
        """Return the visitor's result for this tree."""
        result: _T = folded(self, lambda node, operands: node._accept(visitor, operands))
        return result

    @abstractmethod
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T: ...

    def same_as(self, other: object) -> bool:
        """Return whether the other is the same tree.

        >>> (left("x") < 1).same_as(left("x") < 1)
        True
        """
        return isinstance(other, Expression) and self._identity() == other._identity()

    def _identity(self) -> tuple[Any, ...]:
        return tuple(node._label() for node in walk(self))

    @property
    def _below(self) -> tuple[Expression, ...]:
        return ()

    @abstractmethod
    def _label(self) -> tuple[Any, ...]: ...

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return describe(self)

    def __bool__(self) -> NoReturn:
        raise PlanError(
            f"the expression {describe(self)} has no truth value; combine expressions with & | ~ instead of and, or, "
            "not (with parentheses around each comparison), write a.between(b, c) instead of b <= a <= c, "
            "and compare trees with same_as.",
            code="EXPRESSION_AS_BOOL",
            expression=describe(self),
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"the expression {describe(self)} is not iterable")

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]  # as in pyspark.sql.Column
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]  # as in pyspark.sql.Column
        return self._compare("ne", other)

    def __lt__(self, other: object) -> Expression:
        return self._compare("lt", other)

    def __le__(self, other: object) -> Expression:
        return self._compare("le", other)

    def __gt__(self, other: object) -> Expression:
        return self._compare("gt", other)

    def __ge__(self, other: object) -> Expression:
        return self._compare("ge", other)

    def _compare(self, operation: str, other: object) -> Expression:
        if other is None:
            raise PlanError(
                f"{describe(self)} is compared with None, which is NULL for every row; "
                "use isNull(), isNotNull() or eqNullSafe(None).",
                code="COMPARED_WITH_NONE",
                expression=describe(self),
            )
        return Call(operation, (self, lit(other)))

    def eq_null_safe(self, other: object) -> Expression:
        """Compare with `<=>`: NULL equals NULL, and the answer is never NULL."""
        return Call("eq_null_safe", (self, lit(other)))

    eqNullSafe = eq_null_safe  # noqa: N815 - the name PySpark users type

    def __and__(self, other: object) -> Expression:
        return Call("and", (self, lit(other)))

    def __rand__(self, other: object) -> Expression:
        return Call("and", (lit(other), self))

    def __or__(self, other: object) -> Expression:
        return Call("or", (self, lit(other)))

    def __ror__(self, other: object) -> Expression:
        return Call("or", (lit(other), self))

    def __invert__(self) -> Expression:
        return Call("not", (self,))

    def __add__(self, other: object) -> Expression:
        return Call("add", (self, lit(other)))

    def __radd__(self, other: object) -> Expression:
        return Call("add", (lit(other), self))

    def __sub__(self, other: object) -> Expression:
        return Call("subtract", (self, lit(other)))

    def __rsub__(self, other: object) -> Expression:
        return Call("subtract", (lit(other), self))

    def __mul__(self, other: object) -> Expression:
        return Call("multiply", (self, lit(other)))

    def __rmul__(self, other: object) -> Expression:
        return Call("multiply", (lit(other), self))

    def __truediv__(self, other: object) -> Expression:
        return Call("divide", (self, lit(other)))

    def __rtruediv__(self, other: object) -> Expression:
        return Call("divide", (lit(other), self))

    def __mod__(self, other: object) -> Expression:
        return Call("remainder", (self, lit(other)))

    def __rmod__(self, other: object) -> Expression:
        return Call("remainder", (lit(other), self))

    def __neg__(self) -> Expression:
        return Call("negate", (self,))

    def __abs__(self) -> Expression:
        return Call("absolute", (self,))

    def length(self) -> Expression:
        """Return the number of characters of a string, or of bytes of a binary."""
        return Call("length", (self,))

    def is_null(self) -> Expression:
        """Return whether the value is NULL."""
        return Call("is_null", (self,))

    isNull = is_null  # noqa: N815 - the name PySpark users type

    def is_not_null(self) -> Expression:
        """Return whether the value is not NULL."""
        return Call("is_not_null", (self,))

    isNotNull = is_not_null  # noqa: N815 - the name PySpark users type

    def between(self, lower: object, upper: object) -> Expression:
        """Return whether `lower <= self <= upper`."""
        return (self >= lower) & (self <= upper)

    def isin(self, *values: object) -> Expression:
        """Return whether the value equals one of the given literals; or a list, tuple or set of them."""
        flat = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset) else values
        literals = tuple(lit(value) for value in flat)
        if not literals or not all(isinstance(literal, Literal) for literal in literals):
            raise OptionError(
                f"{describe(self)}.isin(...) takes at least one literal and no expressions; "
                "write the comparisons out with == and | instead.",
                code="IN_LIST",
                expression=describe(self),
            )
        return Call("in", (self, *literals))

    def startswith(self, prefix: str | bytes) -> Expression:
        """Return whether a string or binary starts with `prefix`, a literal."""
        if not isinstance(prefix, str | bytes):
            raise OptionError(
                f"{describe(self)}.startswith(...) takes a str or bytes, not {prefix!r}.",
                code="PREFIX",
                expression=describe(self),
            )
        return Call("starts_with", (self, lit(prefix)))

    def like(self, pattern: str, escape: str = "\\") -> Expression:
        """Return whether a string matches a pattern, a literal: `%` represents any characters, `_` for one."""
        return Call("like", (self, lit(pattern), lit(escape)))

    def ilike(self, pattern: str, escape: str = "\\") -> Expression:
        """Return whether a string matches a pattern, whatever the case of its letters."""
        return Call("ilike", (self, lit(pattern), lit(escape)))

    def substr(self, start: object, length: object) -> Expression:
        """Return some characters of a string, or bytes of a binary; the first is 1, a negative start counts from the end."""
        return Call("substring", (self, lit(start), lit(length)))

    def cast(self, target: pa.DataType | str) -> Expression:
        """Convert to an Arrow type, or to one named as in Spark SQL: `int`, `double`, `decimal(10,2)`, `timestamp_ntz`.

        A value that does not fit the type fails the epoch, as in Spark's ANSI mode. For a timestamp with a time zone pass an
        Arrow type.
        """
        return Cast(self, named_type(target) if isinstance(target, str) else target)

    astype = cast

    def try_cast(self, target: pa.DataType | str) -> Expression:
        """Convert as `cast` does; NULL where it cannot be converted."""
        return Call("try_cast", (self, Literal(None, named_type(target) if isinstance(target, str) else target)))

    def contains(self, other: object) -> Expression:
        """Return whether a string contains another."""
        return Call("contains", (self, lit(other)))

    def endswith(self, suffix: object) -> Expression:
        """Return whether a string ends with another."""
        return Call("ends_with", (self, lit(suffix)))

    def rlike(self, pattern: str) -> Expression:
        """Return whether a part of a string matches a regular expression, a literal."""
        return Call("regexp_like", (self, lit(pattern)))

    def is_nan(self) -> Expression:
        """Return whether a number is NaN; false for NULL."""
        return Call("is_nan", (self,))

    isNaN = is_nan  # noqa: N815 - the name PySpark users type

    def getItem(self, key: Any) -> Expression:  # noqa: N802 - the name PySpark users type
        """Return an element of an array by its place, the first is 0; one that does not exist fails the epoch."""
        if not isinstance(key, int) or isinstance(key, bool) or key < 0:
            raise OptionError(
                f"{describe(self)}[{key!r}]: expected the place of an element, the first is 0; for a computed place use "
                "element_at, which counts from 1.",
                code="ARGUMENT",
                argument=repr(key),
            )
        return Call("element_at", (self, lit(key + 1)))

    __getitem__ = getItem

    def bitwiseAND(self, other: object) -> Expression:  # noqa: N802 - the name PySpark users type
        """Return the bits that both integers have."""
        return Call("bit_and", (self, lit(other)))

    def bitwiseOR(self, other: object) -> Expression:  # noqa: N802 - the name PySpark users type
        """Return the bits that one of two integers has."""
        return Call("bit_or", (self, lit(other)))

    def bitwiseXOR(self, other: object) -> Expression:  # noqa: N802 - the name PySpark users type
        """Return the bits in which two integers differ."""
        return Call("bit_xor", (self, lit(other)))

    def alias(self, name: str) -> Alias:
        """Name the value for `select` and `groupBy`; a name inside another expression has no effect."""
        return Alias(self, name)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expression):
    """A column of one row, or of the left or right one of a pair."""

    side: OneOf["left", "right", "row"]
    name: str

    @override
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T:
        return visitor.visit_column(self)

    @override
    def _label(self) -> tuple[Any, ...]:
        return ("column", self.side, self.name)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(Expression):
    """A constant."""

    value: Any  # None is NULL
    type: pa.DataType
    local: datetime.datetime | None = None  # of an instant written as a local time; `value` is that time in UTC

    @override
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T:
        return visitor.visit_literal(self)

    @override
    def _label(self) -> tuple[Any, ...]:
        return ("literal", str(self.type), repr(self.value))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expression):
    """A conversion the user requested."""

    operand: Expression
    type: pa.DataType

    @override
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T:
        return visitor.visit_cast(self, operands[0])

    @property
    @override
    def _below(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @override
    def _label(self) -> tuple[Any, ...]:
        return ("cast", str(self.type))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expression):
    """An operation on other expressions."""

    operation: str  # a key of `OPERATIONS` or `FUNCTIONS`
    operands: tuple[Expression, ...]

    @override
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T:
        return visitor.visit_call(self, operands)

    @property
    @override
    def _below(self) -> tuple[Expression, ...]:
        return self.operands

    @override
    def _label(self) -> tuple[Any, ...]:
        return ("call", self.operation, len(self.operands))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alias(Expression):
    """A value with the name it is shown by; the words of a query take the name off, so no plan holds one."""

    operand: Expression
    title: str

    @override
    def _accept(self, visitor: ExpressionVisitor[_T], operands: tuple[_T, ...]) -> _T:
        return operands[0]

    @property
    @override
    def _below(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @override
    def _label(self) -> tuple[Any, ...]:
        return ("alias", self.title)


def col(name: str) -> Expression:
    """Return a column of the row, for expressions over one row.

    >>> col("price") * col("units") > 100
    (price * units) > 100
    """
    return Column("row", name)


def left(name: str) -> Expression:
    """Name a column of the left row."""
    return Column("left", name)


def right(name: str) -> Expression:
    """Name a column of the right row."""
    return Column("right", name)


def lit(value: object) -> Expression:
    """Turn a Python value into a literal; an expression is returned as it is.

    Args:
        value: None, bool, int, float, Decimal, str, bytes, date, time, datetime, timedelta, or a NumPy or PyArrow
            scalar. An int is an `int` where it fits and a `bigint` otherwise, a float a `double`.

    Raises:
        OptionError: a value of another type, or a number too large for its type.

    >>> lit(5).type, lit("a").type
    (DataType(int32), DataType(string))
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, pa.Scalar):
        return Literal(value.as_py(), value.type)
    if isinstance(value, np.generic):
        return lit(value.item())
    literal_type = _literal_type(value)
    if literal_type is None:
        raise OptionError(
            f"{value!r} cannot be a literal; use None, bool, int, float, Decimal, str, bytes, date, time, datetime, "
            "timedelta or a pyarrow scalar, with integers of 64 bits and decimals of 38 digits at most.",
            code="LITERAL",
            value=repr(value),
        )
    return Literal(value, literal_type)


def _literal_type(value: object) -> pa.DataType | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return next((pa.int32() if bits == 31 else pa.int64() for bits in (31, 63) if -(1 << bits) <= value < 1 << bits), None)
    if isinstance(value, decimal.Decimal):
        return _decimal_type(value)
    if isinstance(value, datetime.datetime):
        return pa.timestamp("us", tz=None if value.tzinfo is None else "UTC")
    simple: tuple[tuple[type, pa.DataType], ...] = (
        (type(None), pa.null()),
        (bool, pa.bool_()),
        (float, pa.float64()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (datetime.date, pa.date32()),
        (datetime.time, pa.time64("us")),
        (datetime.timedelta, pa.duration("us")),
    )
    return next((arrow_type for python_type, arrow_type in simple if isinstance(value, python_type)), None)


def _decimal_type(value: decimal.Decimal) -> pa.DataType | None:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    return pa.decimal128(precision, scale) if precision <= 38 else None


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield every node of the tree, parents first."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node._below))


def folded(expression: Expression, visit: Callable[[Expression, tuple[_T, ...]], _T]) -> _T:
    """Return what `visit` returns for the root of a tree, given every node and the results of its operands, leaves first."""
    # Without recursion: a chain of thousands of operators is as deep, and a caller may be deep in its own stack.
    waiting = [(expression, False)]
    results: list[_T] = []
    while waiting:
        node, is_ready = waiting.pop()
        operands = node._below
        if operands and not is_ready:
            waiting += [(node, True), *((one, False) for one in reversed(operands))]
            continue
        begin = len(results) - len(operands)
        results[begin:] = [visit(node, tuple(results[begin:]))]
    return results[0]


def depth_of(expression: Expression) -> int:
    """Return how many operations of a tree are within each other; a chain of ANDs, or of ORs, is one.

    >>> depth_of((col("a") == 1) | (col("b") == 1) | (col("c") == 1)), depth_of(col("a") + 1 + 1)
    (3, 3)
    """

    def measured(node: Expression, operands: tuple[tuple[str, int], ...]) -> tuple[str, int]:
        chain = node.operation if isinstance(node, Call) and node.operation in {"and", "or"} else ""
        return chain, max((depth + (chain == "" or chain != inner) for inner, depth in operands), default=1)

    return folded(expression, measured)[1]


def references(expression: Expression) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the left and of the right columns an expression reads.

    >>> references(left("x") < right("y") + right("z")) == (frozenset({"x"}), frozenset({"y", "z"}))
    True
    """
    columns = [node for node in walk(expression) if isinstance(node, Column)]
    return (
        frozenset(column.name for column in columns if column.side == "left"),
        frozenset(column.name for column in columns if column.side == "right"),
    )


class _Describer:
    """Write a tree in the manner of SQL, with a pair of parentheses around every inner operation."""

    def visit_column(self, node: Column) -> str:
        name = node.name if node.name.isidentifier() else f"`{node.name.replace('`', '``')}`"
        return name if node.side == "row" else f"{node.side}.{name}"

    def visit_literal(self, node: Literal) -> str:
        if node.value is None:
            return "NULL"
        if isinstance(node.value, bool):
            return str(node.value).upper()
        if isinstance(node.value, str):
            return "'" + node.value.replace("'", "''") + "'"
        return str(node.value)

    def visit_cast(self, node: Cast, operand: str) -> str:
        return f"CAST({operand} AS {node.type})"

    def visit_call(self, node: Call, operands: tuple[str, ...]) -> str:
        pattern = OPERATIONS[node.operation][1] if node.operation in OPERATIONS else f"{node.operation}(?)"
        parts = operands
        if node.operation not in _FUNCTIONS:
            parts = tuple(
                f"({part})" if isinstance(child, Call) and child.operation not in _FUNCTIONS else part
                for part, child in zip(operands, node.operands, strict=True)
            )
        if node.operation == "in":
            return pattern.format(parts[0], ", ".join(parts[1:]))
        if node.operation == "case":
            return _described_case(parts)
        if node.operation in {"like", "ilike"}:
            escape = f" ESCAPE {parts[2]}" if len(parts) == 3 else ""
            return f"{parts[0]} {node.operation.upper()} {parts[1]}{escape}"
        if node.operation in FUNCTIONS:
            return f"{node.operation}({', '.join(parts)})"
        return pattern.format(*parts)


def _described_case(parts: tuple[str, ...]) -> str:
    branches = [f"WHEN {parts[place]} THEN {parts[place + 1]}" for place in range(0, len(parts) - 1, 2)]
    otherwise = f" ELSE {parts[-1]}" if len(parts) % 2 else ""
    return f"CASE {' '.join(branches)}{otherwise} END"


def describe(expression: Expression) -> str:
    """Return the expression as one line of SQL-like text, for `explain()` and messages.

    >>> describe(~left("name").startswith("a") | (left("x") / right("n") > 2))
    "(NOT startswith(left.name, 'a')) OR ((left.x / right.n) > 2)"
    """
    return expression.accept(_Describer())


_CAST_NAMES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}


def named_type(name: str) -> pa.DataType:
    """Return the type of a name.

    >>> named_type("decimal(10, 2)"), named_type("bigint")
    (Decimal128Type(decimal128(10, 2)), DataType(int64))
    """
    plain = "".join(name.lower().split())
    if plain in _CAST_NAMES:
        return _CAST_NAMES[plain]
    parts = plain.removeprefix("decimal(").removesuffix(")").split(",")
    if plain.startswith("decimal(") and len(parts) == 2 and all(part.isdecimal() for part in parts):
        precision, scale = int(parts[0]), int(parts[1])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    hint = ' For an instant pass an Arrow type that names its zone, as pa.timestamp("us", tz="UTC").'
    raise OptionError(
        f"cast({name!r}) names a type that is not known here; use one of {', '.join(sorted(_CAST_NAMES))}, "
        f"decimal(p,s) with p <= 38, or an Arrow type.{hint if plain == 'timestamp' else ''}",
        code="CAST_TYPE",
        type=name,
    )
