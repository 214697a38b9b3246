"""Derivation of the rows after one chain of row steps from those after another chain over the same origin.

    have:    where total > 0; select id, customer, total * 2 AS twice
    want:    where total > 0 and customer <> 'x'; select customer, total * 2 AS amount
    derived: where customer <> 'x'; select customer, twice AS amount

The law: where there are steps, they make of the rows after `have` the rows after `want`, retractions included. Conditions of
`have` must all be among those of `want`; every column that is read must be there, or the very expression that was computed.

Known limit: conditions are compared as they are written; `x > 1` does not follow from `x > 2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zset_join.expressions import Expression
from zset_join.expressions.rows import conjuncts, named, rewritten
from zset_join.expressions.tree import Call, Cast, Column, Literal, folded, walk
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep

__all__ = ["columns_wanted", "derived_steps", "null_rejected", "unmet_conditions"]

_NULL_REJECTING = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "is_not_null"})
_Columns = Mapping[str, Expression] | None


class _Chain:
    """A chain of steps as conditions and columns over the rows of its origin; columns are None where all pass."""

    def __init__(self, steps: Sequence[RowStep]) -> None:
        self.conditions: list[Expression] = []
        self.columns: _Columns = None
        for step in steps:
            match step:
                case WhereStep():
                    self.conditions += conjuncts(self._over_origin(step.condition))
                case SelectStep():
                    self.columns = {name: self._over_origin(expression) for name, expression in step.columns}
                case OpaqueStep():
                    raise step.refusal()

    def _over_origin(self, expression: Expression) -> Expression:
        columns = self.columns
        if columns is None:
            return rewritten(expression, lambda column: named(column.name))
        return rewritten(expression, lambda column: columns[column.name])


def derived_steps(
    have: Sequence[RowStep], want: Sequence[RowStep], columns: Sequence[str], origin: Sequence[str]
) -> tuple[RowStep, ...] | None:
    """Return the steps from rows after one chain to rows after another one; None where something is absent."""
    if tuple(have) == tuple(want[: len(have)]):
        rest = tuple(want[len(have) :])
        return rest if _reads(rest, columns) else None
    had, wanted = _Chain(have), _Chain(want)
    if unmet_conditions(have, want):
        return None
    shown = {name: named(name) for name in origin} if wanted.columns is None else wanted.columns
    there = {name: had.columns[name] if had.columns is not None else named(name) for name in columns}
    left = [one for one in wanted.conditions if not any(one.same_as(other) for other in had.conditions)]
    conditions = [_over(one, there) for one in left]
    selected = [(name, _over(expression, there)) for name, expression in shown.items()]
    steps: list[RowStep] = []
    for condition in conditions:
        if condition is None:
            return None
        steps.append(WhereStep(condition))
    kept = [(name, expression) for name, expression in selected if expression is not None]
    if len(kept) < len(selected):
        return None
    return (*steps, SelectStep(tuple(kept)))


def unmet_conditions(have: Sequence[RowStep], want: Sequence[RowStep]) -> list[Expression]:
    """Return the conditions under which rows were kept that `want` does not request: rows it needs may be gone."""
    wanted = _Chain(want).conditions
    return [one for one in _Chain(have).conditions if not any(one.same_as(other) for other in wanted)]


def null_rejected(steps: Sequence[RowStep], without: Sequence[str]) -> set[str]:
    """Return the columns, before some steps, in which NULL removes a row: a condition or its reader drops it."""
    chain = _Chain(steps)
    found = {
        operand.name
        for condition in chain.conditions
        if isinstance(condition, Call) and condition.operation in _NULL_REJECTING
        for operand in condition.operands
        if isinstance(operand, Column)
    }
    for name in without:
        expression = named(name) if chain.columns is None else chain.columns.get(name)
        if isinstance(expression, Column):
            found.add(expression.name)
    return found


def columns_wanted(want: Sequence[RowStep]) -> set[str] | None:
    """Return the columns of the origin that a chain reads; None: all."""
    chain = _Chain(want)
    if chain.columns is None:
        return None
    trees = [*chain.conditions, *chain.columns.values()]
    return {node.name for tree in trees for node in walk(tree) if isinstance(node, Column)}


def _reads(steps: Sequence[RowStep], columns: Sequence[str]) -> bool:
    """Return whether steps find their columns; rows whose columns all pass must have them all, which the caller sees."""
    wanted = columns_wanted(steps)
    if wanted is not None:
        return wanted <= set(columns)
    read = {node.name for tree in _Chain(steps).conditions for node in walk(tree) if isinstance(node, Column)}
    return read <= set(columns)


def _over(expression: Expression, there: Mapping[str, Expression]) -> Expression | None:
    """Return an expression over the origin as one over the columns that there are; None where it cannot be."""

    def over(node: Expression, operands: tuple[Expression | None, ...]) -> Expression | None:
        for name, one in there.items():
            if not isinstance(node, Literal) and one.same_as(node):
                return named(name)
        known = tuple(operand for operand in operands if operand is not None)
        match node:
            case Literal():
                return node
            case Cast() if known:
                return Cast(known[0], node.type)
            case Call() if len(known) == len(operands):
                return Call(node.operation, known)
            case _:
                return None

    return folded(expression, over)
