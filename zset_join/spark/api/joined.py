"""The join of two streams, or of what other joins give: checked when it is described.

`on` follows PySpark: one name or a list of names both sides have (the output then shows them once, first), or pairs of
names when they differ. A condition over both rows beside the keys is a tree from `zset_join.expressions`; text is not
accepted, so nothing a user writes is ever evaluated as code.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.plan import InputNode, JoinNode, RouteNode, SideNode, ViewNode, needs_route
from zset_join.relation import Relation
from zset_join.shapes.join import join_type
from zset_join.spark.api.staged import as_changes, filled, staged
from zset_join.spark.planning.join_plan import JoinPlan
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import StagePlan
from zset_join.spark.planning.view_plan import ViewPlan, check_inputs, check_names
from zset_join.stages import JoinStage, expiring_stage, state_ttls

__all__ = ["join", "key_pairs"]


def join(
    left: SourceStream | ViewPlan,
    right: SourceStream | ViewPlan,
    on: Any,
    how: str = "inner",
    *,
    null_safe: bool | Sequence[bool] = False,
    condition: Expression | None = None,
    state_ttl: Any = None,
) -> ViewPlan:
    """Describe the join of two streams or views.

    Args:
        left: the left stream, or the plan of a view.
        right: the right stream, or the plan of a view.
        on: a column name, a list of names, or a list of pairs (left name, right name).
        how: any spelling PySpark accepts except cross.
        null_safe: compare with `<=>` instead of `=`, for all key columns or one flag each.
        condition: a tree from `zset_join.expressions` that a pair must satisfy as well; part of ON.
        state_ttl: how long rows are remembered: a duration or a `StateTtl` for both sides, or a pair (left, right) of them.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    if not isinstance(right, SourceStream | ViewPlan):
        raise OptionError(
            f"join expects another stream or view, got {type(right).__name__}. Wrap the DataFrame first: changes(df, name=..., "
            "keys=[...]) or appends(df, name=...).",
            code="NOT_A_STREAM",
        )
    left, right = filled(left), filled(right)
    pairs, using = key_pairs(left, right, on)
    flags = _flags(null_safe, len(pairs))
    if condition is not None and not isinstance(condition, Expression):
        raise OptionError(
            f'condition is a {type(condition).__name__}; expected a tree such as left("x") < right("y"), with left and '
            "right from zset_join.expressions.",
            code="CONDITION",
        )
    if state_ttl is not None:
        return _lasting_join(
            left, right, pairs, join_type(how), using=using, flags=flags, condition=condition, state_ttl=state_ttl
        )
    sides = [_side(source, [pair[position] for pair in pairs]) for position, source in enumerate((left, right))]
    node = JoinNode(left=sides[0], right=sides[1], how=join_type(how), null_safe=flags, using=using, residual=condition)
    joined = JoinPlan(left=left, right=right, node=node)
    check_inputs(joined)
    check_names(joined.columns)  # making the output checks the condition as well
    return joined


def _lasting_join(
    left: SourceStream | ViewPlan,
    right: SourceStream | ViewPlan,
    pairs: Sequence[tuple[str, str]],
    how: str,
    *,
    using: bool,
    flags: tuple[bool, ...],
    condition: Expression | None,
    state_ttl: Any,
) -> StagePlan:
    """Describe the join of two streams or views whose rows end by time.

    Args:
        left: the left rows.
        right: the right rows.
        pairs: of columns that must be equal.
        how: the plain name of the join type.
        using: both sides name them alike, and the output shows them once.
        flags: per pair, True for `<=>`.
        condition: what a pair must satisfy as well.
        state_ttl: for both sides, or a pair (left, right).

    Raises:
        PlanError: a side has no event time where one is needed.
        OptionError: an option that does not fit.
    """
    sides = (as_changes(left), as_changes(right))
    sources = [_source(side, tuple(pair[at] for pair in pairs)) for at, side in enumerate(sides)]
    changing = [replace(source, mode="changelog", primary_key=()) for source in sources]
    stage = JoinStage(
        left=changing[0],
        right=changing[1],
        how=how,
        null_safe=flags,
        using=using,
        residual=condition,
        row_keys=(sources[0].primary_key, sources[1].primary_key),
    )
    return staged(sides, expiring_stage(stage, sources, state_ttls(state_ttl, 2)))


def _source(rows: SourceStream | ViewPlan, join_key: tuple[str, ...]) -> Relation:
    return rows.relation(join_key) if isinstance(rows, SourceStream) else replace(rows.output, join_key=join_key)


def _side(source: SourceStream | ViewPlan, join_key: Sequence[str]) -> SideNode:
    """Describe one input of a join."""
    if isinstance(source, ViewPlan):
        rows = source.output
        relation = Relation(name=rows.name, schema=rows.schema, join_key=tuple(join_key), mode="changelog")
        return ViewNode(relation=relation, key=rows.primary_key)
    relation = source.relation(join_key)
    input_node = InputNode(relation=relation, hidden=source.hidden, has_baseline=source.baseline is not None)
    return RouteNode(source=input_node) if needs_route(relation) else input_node


def key_pairs(left: SourceStream | ViewPlan, right: SourceStream | ViewPlan, on: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return the pairs of columns that `on` names, and whether both sides name them alike.

    Raises:
        PlanError: no pair, or a column that is not there.
        OptionError: it is not understood.
    """
    if on is None or (isinstance(on, list | tuple) and not on):
        raise PlanError(
            f'the join of "{left.name}" and "{right.name}" names no key column; a cross join has no bounded change. Pass '
            'on="column", on=["a", "b"] or on=[("left column", "right column")].',
            code="CROSS_JOIN",
        )
    if isinstance(on, Column | Expression):
        raise OptionError(
            f'on={on!r} is an expression. Name the equal columns: on=[("left column", "right column")], and give what else '
            "must hold as condition=left(...) < right(...), with left and right from zset_join.expressions.",
            code="ON_EXPRESSION",
        )
    wanted = [on] if isinstance(on, str) else on
    if not isinstance(wanted, list | tuple) or not all(_is_key(entry) for entry in wanted):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, or a list of pairs of names.",
            code="ON",
        )
    using = all(isinstance(entry, str) for entry in wanted)
    pairs = [(entry, entry) if isinstance(entry, str) else (entry[0], entry[1]) for entry in wanted]
    for stream, position in ((left, 0), (right, 1)):
        missing = [pair[position] for pair in pairs if pair[position] not in stream.columns]
        if missing:
            raise PlanError(
                f'on={on!r} names {missing}, which "{stream.name}" does not have; its columns are {list(stream.columns)}.',
                code="UNKNOWN_COLUMN",
                name=stream.name,
                missing=missing,
            )
    return pairs, using


def _is_key(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    return isinstance(entry, list | tuple) and len(entry) == 2 and all(isinstance(name, str) for name in entry)


def _flags(null_safe: bool | Sequence[bool], count: int) -> tuple[bool, ...]:
    flags = (null_safe,) * count if isinstance(null_safe, bool) else tuple(null_safe)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise OptionError(
            f"null_safe={null_safe!r}; expected True, False, or one of them for each of the {count} key columns.",
            code="NULL_SAFE",
        )
    return flags
