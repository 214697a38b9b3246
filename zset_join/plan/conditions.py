"""The parts of an ON condition: which expressions must be equal, and what must hold beside them.

    left.a = right.b AND left.x < right.y      ->   keys (a, b), condition left.x < right.y
    left.a = right.b AND FALSE                 ->   a key that never matches

The law: a pair of rows matches the output exactly if the condition is TRUE for it.

A condition that is constant and not TRUE matches nothing: an INNER join is empty, an outer join pads every row, and no row is
compared with another. One that is TRUE requests all pairs; that is refused, see `no_key`. An equality that is written twice
counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.expressions import Call, Column, Expression, Literal, references
from zset_join.expressions.rows import columns_read, compute, conjuncts, rewritten

__all__ = ["NEVER", "JoinCondition", "named_once", "no_key", "split_condition"]

_NULL = Literal(None, pa.int64())


@dataclass(frozen=True, eq=False)
class JoinCondition:
    """An ON condition in its parts."""

    keys: tuple[tuple[Expression, Expression], ...]
    null_safe: tuple[bool, ...]
    condition: Expression | None


NEVER = JoinCondition(((_NULL, _NULL),), (False,), None)
"""The condition that no pair fulfils: NULL = NULL."""


def split_condition(condition: Expression) -> JoinCondition:
    """Take an ON condition apart.

    >>> from zset_join.expressions import left, right
    >>> split_condition((left("a") == right("b")) & (left("x") < right("y")))
    JoinCondition(keys=((left.a, right.b),), null_safe=(False,), condition=left.x < right.y)
    """
    keys: list[tuple[Expression, Expression]] = []
    null_safe: list[bool] = []
    rest: list[Expression] = []
    equal: dict[tuple[str, str], int] = {}
    for part in conjuncts(condition):
        if not columns_read(part):
            if not _is_true(part):
                return NEVER
            continue
        pair = _key_pair(part)
        is_null_safe = isinstance(part, Call) and part.operation == "eq_null_safe"
        if pair is None:
            rest.append(part)
            continue
        one, other = map(repr, pair)
        if (one, other) in equal:
            place = equal[one, other]
            null_safe[place] = null_safe[place] and is_null_safe
        elif any(one == left or other == right for left, right in equal):
            # A key names an expression once; a second equality of it is evaluated on the pair.
            rest.append(part)
        else:
            equal[one, other] = len(keys)
            keys.append(pair)
            null_safe.append(is_null_safe)
    return JoinCondition(tuple(keys), tuple(null_safe), together(rest))


def named_once(pairs: Sequence[tuple[Expression, Expression]], null_safe: Sequence[bool] = ()) -> JoinCondition:
    """Return pairs of keys in which every key is once; a second equality of one is evaluated on the pair, as in an ON.

    >>> from zset_join.expressions.rows import named
    >>> named_once([(named("k"), named("x")), (named("k"), named("y"))])
    JoinCondition(keys=((left.k, right.x),), null_safe=(False,), condition=left.k = right.y)
    """
    flags = tuple(null_safe) or (False,) * len(pairs)
    if all(len({repr(pair[side]) for pair in pairs}) == len(pairs) for side in (0, 1)):
        return JoinCondition(tuple(pairs), flags, None)

    def equal(pair: tuple[Expression, Expression], is_null_safe: bool) -> Expression:
        one = rewritten(pair[0], lambda column: Column("left", column.name))
        other = rewritten(pair[1], lambda column: Column("right", column.name))
        return Call("eq_null_safe" if is_null_safe else "eq", (one, other))

    return split_condition(reduce(Expression.__and__, map(equal, pairs, flags)))


def together(parts: Sequence[Expression]) -> Expression | None:
    whole: Expression | None = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def no_key(left: str, right: str) -> PlanError:
    """Return the error of a join without a pair of equal expressions."""
    return PlanError(
        f'the join of "{left}" and "{right}" names no key column; a cross join has no bounded change. Pass on="column", '
        'on=[("left column", "right column")] or a condition such as left("a") == right("b").',
        code="CROSS_JOIN",
        left=left,
        right=right,
    )


def _is_true(constant: Expression) -> bool:
    return compute(constant, {}, 1)[0].as_py() is True


def _key_pair(part: Expression) -> tuple[Expression, Expression] | None:
    if not isinstance(part, Call) or part.operation not in ("eq", "eq_null_safe"):
        return None
    first, second = part.operands
    sides = [tuple(bool(columns) for columns in references(operand)) for operand in (first, second)]
    if sides == [(True, False), (False, True)]:
        return first, second
    return (second, first) if sides == [(False, True), (True, False)] else None
