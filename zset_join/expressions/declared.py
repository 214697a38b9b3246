"""Functions that are in one row: the word of the fluent API, the name in SQL, types, values, and a text for each dialect.

    soundex = declared("soundex(col)", "Return ...", Function(types, values, spark, duckdb))

The law: nothing else names such a function. `F.soundex`, `soundex(...)` in statements of all dialects and in texts of
expressions, its place in plans, its batch SQL and the number of its operands follow from the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from zset_join.expressions.computed import Function
from zset_join.expressions.operations import FUNCTIONS
from zset_join.expressions.tree import Call, Expression, col, lit

__all__ = ["DECLARED", "Word", "declared", "operand", "word"]

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
