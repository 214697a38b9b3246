"""A step that was written for Spark, as a step of the plan: what Spark makes of an expression is read as SQL text.

Spark's analyser writes every implicit cast down, so the text means in this library what the Column means in Spark: the texts of
`zset_join.sql_expressions` are Spark's dialect under ANSI mode. A step whose columns would have other types is left to Spark.

Limits: the user's functions, functions this library does not have, and expressions that depend on a time zone other than UTC.
"""

from __future__ import annotations

from zset_join.core.errors import ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.zones import expression_in_zone
from zset_join.plan.row_steps import OpaqueStep, SelectStep, WhereStep
from zset_join.runners.spark.planning.placement import BoundStep
from zset_join.runners.spark.planning.row_steps import RowStep

__all__ = ["translated"]


def translated(step: OpaqueStep, bound: BoundStep, before: Relation) -> WhereStep | SelectStep | str:
    """Return a step of Spark's own as a step of a plan; else why it cannot be one."""
    written = bound.step
    if written.tree is not None:
        return written.tree
    if written.is_zoned and written.zone != "UTC":
        return f"it depends on the time zone, and the session's is {written.zone}"
    try:
        done = _step(written, before)
        if done is None:
            return "it is more than one filter or one selection"
        after = done.output(before).schema
    except ZsetJoinError as error:
        return error.message.splitlines()[0]
    wanted = step.output(before).schema
    if after.names != wanted.names:
        return f"its columns would be {after.names}"
    for ours, theirs in zip(after, wanted, strict=True):
        if not ours.type.equals(theirs.type):
            return f'its column "{ours.name}" would be of type {ours.type}, and is of type {theirs.type} in Spark'
    return done


def _step(written: RowStep, before: Relation) -> WhereStep | SelectStep | None:
    from zset_join.sql_expressions.texts import bound_text, with_between

    sides = {"row": (before.name, before.schema)}

    def tree(text: str) -> Expression:
        found = bound_text(with_between(text), sides).tree
        if found is None:
            raise ZsetJoinError(f"{text} is not an expression")
        return expression_in_zone(found, {"row": before.schema}, "UTC")  # Spark writes instants so

    if written.condition is not None:
        return WhereStep(tree(written.condition))
    if written.selected is None:
        return None
    return SelectStep(tuple((name, tree(text)) for name, text in written.selected))
