"""The join of two views: the forms of `on=`, and the request for the stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.expressions.rows import is_plain, named, value_type
from zset_join.plan.conditions import named_once, no_key, split_condition, together
from zset_join.query.columns import condition_over
from zset_join.query.rows import Rows
from zset_join.shapes.join import join_type
from zset_join.stages.expiring import lasting
from zset_join.stages.join import JoinRequest

__all__ = ["equal_pairs", "join"]

_Pair = tuple[Expression, Expression]
_R = TypeVar("_R", bound=Rows)


def join(
    left: _R,
    right: Rows,
    on: Any,
    how: str = "inner",
    *,
    null_safe: bool | Sequence[bool] = False,
    condition: Expression | str | None = None,
    state_ttl: Any = None,
) -> _R:
    """Describe the join of two views; see `View.join`."""
    pairs, flags, using, more = equal_pairs(left, right, on, null_safe, condition)
    kind = join_type(how)
    names = (left.name, right.name if right.name != left.name else f"{right.name}_2")
    request = JoinRequest(pairs, kind, flags, using=using, condition=more, names=names)
    return left.operate(lasting(request, state_ttl, 2), right).alias(f"{left.name}_{kind}_{names[1]}")


def equal_pairs(
    left: Rows, right: Rows, on: Any, null_safe: bool | Sequence[bool], condition: Expression | str | None
) -> tuple[tuple[_Pair, ...], tuple[bool, ...], bool, Expression | None]:
    """Return the pairs of keys of a join, their flags, whether they are shown once, and the residual condition."""
    if not isinstance(right, Rows):
        raise OptionError(
            f"join expects another view, got {type(right).__name__}. Describe the source first: changes(name, schema, "
            "keys=[...]) or appends(name, schema).",
            code="NOT_A_VIEW",
        )
    if condition is not None and not isinstance(condition, Expression | str):
        raise OptionError(
            f'condition is a {type(condition).__name__}; expected a tree such as left("x") < right("y"), with left and '
            "right from zset_join.expressions.",
            code="CONDITION",
        )
    if isinstance(on, list | tuple) and on and all(isinstance(entry, Expression) for entry in on):
        on = together(list(on))
    if isinstance(on, Expression):
        parts = split_condition(on if is_plain(on) else condition_over(on, left, right))
        using = False
    else:
        pairs, using = _pairs(left, right, on)
        parts = named_once(pairs, _flags(null_safe, len(pairs)))
    if not parts.keys:
        raise no_key(left.name, right.name)
    for side, view in enumerate((left, right)):
        for pair in parts.keys:
            value_type(pair[side], view.arrow_schema)
    residual: Any = condition
    if condition is not None and not is_plain(condition):
        residual = condition_over(condition, left, right)
    more = together([one for one in (parts.condition, residual) if one is not None])
    return parts.keys, parts.null_safe, using, more


def _pairs(left: Rows, right: Rows, on: Any) -> tuple[list[_Pair], bool]:
    if on is None or (isinstance(on, list | tuple) and not on):
        raise no_key(left.name, right.name)
    wanted = list(on) if isinstance(on, list | tuple) else [on]
    if all(isinstance(entry, str) for entry in wanted):
        return [_pair(left, right, (entry, entry), on) for entry in wanted], True
    return [_pair(left, right, (entry, entry) if isinstance(entry, str) else entry, on) for entry in wanted], False


def _pair(left: Rows, right: Rows, entry: Any, on: Any) -> _Pair:
    if not isinstance(entry, list | tuple) or len(entry) != 2 or not all(isinstance(one, str | Expression) for one in entry):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, a list of pairs (left, right) of names or "
            'expressions, or a condition such as left("a") == right("b").',
            code="ON",
        )
    keys = []
    for view, one in zip((left, right), entry, strict=True):
        if isinstance(one, str) and one not in view.columns:
            raise PlanError(
                f'on={on!r} names "{one}", which "{view.name}" does not have; its columns are {view.columns}.',
                code="UNKNOWN_COLUMN",
                name=view.name,
                missing=[one],
            )
        keys.append(named(one) if isinstance(one, str) else view._expression(one, "join"))
    return keys[0], keys[1]


def _flags(null_safe: bool | Sequence[bool], count: int) -> tuple[bool, ...]:
    flags = (null_safe,) * count if isinstance(null_safe, bool) else tuple(null_safe)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise OptionError(
            f"null_safe={null_safe!r}; expected True, False, or one of them for each of the {count} key columns.",
            code="NULL_SAFE",
        )
    return flags
