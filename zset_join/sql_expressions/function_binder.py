"""Binding of SQL functions; functions declared in one row need no code of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from zset_join.core.errors import SqlError
from zset_join.expressions import Call, Expression
from zset_join.expressions.declared import DECLARED
from zset_join.expressions.operations import FUNCTIONS
from zset_join.sql_expressions.consumed import argument

__all__ = ["Binder", "declared_call"]


class Binder(Protocol):
    """Binder of the operands of a function."""

    @property
    def dialect(self) -> str:
        """Whose SQL it is."""
        ...

    @property
    def stamp(self) -> pa.DataType:
        """The type that TIMESTAMP names."""
        ...

    def bind(self, node: exp.Expr) -> Expression:
        """Return the tree of a node."""
        ...

    def condition(self, node: exp.Expr) -> Expression:
        """Return the tree of a condition."""
        ...

    def type_of(self, tree: Expression) -> pa.DataType:
        """Return the type of a tree."""
        ...

    def text(self, node: exp.Expr) -> Expression:
        """Return the tree of a node, as text."""
        ...

    def timed(self, node: exp.Expr) -> Expression:
        """Return the tree of a node, as a date or a timestamp."""
        ...

    def case(self, branches: Sequence[tuple[Expression, Expression]], otherwise: Expression | None) -> Expression:
        """Return a CASE whose values have one type."""
        ...

    def compared(self, operation: str, first: exp.Expr, second: exp.Expr) -> Expression:
        """Return a comparison of two nodes."""
        ...

    def refused(self, node: exp.Expr, why: str) -> SqlError:
        """Return the refusal of a node."""
        ...


def declared_call(binder: Binder, node: exp.Func) -> Expression | None:
    """Return the call of a function that is declared in one row; None where it is none."""
    name = (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
    if name not in DECLARED:
        return None
    operands = node.expressions
    if not isinstance(node, exp.Anonymous):
        given = [argument(node, one) for one in node.arg_types if node.args.get(one) is not None]
        operands = [one for some in given for one in (some if isinstance(some, list) else [some])]
    least, most = FUNCTIONS[name]
    if len(operands) < least or (most is not None and len(operands) > most):
        wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise binder.refused(node, f"{name} takes {wanted} {'operand' if wanted == '1' else 'operands'}, not {len(operands)}")
    return Call(name, tuple(map(binder.bind, operands)))
