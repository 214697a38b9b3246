"""A stage over streams and views, checked when it is described."""

from __future__ import annotations

from collections.abc import Sequence

from zset_join.spark.planning.row_steps import row_step
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stage_plan import StagePlan
from zset_join.spark.planning.view_plan import ViewPlan, check_inputs, check_names
from zset_join.spark.rows.names import column_named
from zset_join.stages import LatestStage, Stage

__all__ = ["as_changes", "filled", "staged", "without"]


def staged(sources: Sequence[SourceStream | ViewPlan], stage: Stage, routes: Sequence[Stage | None] = ()) -> StagePlan:
    """Return the answer of a stage as the plan of a view.

    Args:
        sources: what it is fed, one per input.
        stage: what it computes.
        routes: per input, the stage that changes of a stream go through first; none: they do not.

    Raises:
        OptionError: two inputs of the query have one name.
        PlanError: the stage does not fit what it is fed, or its answer has columns that Spark would take for one.
    """
    plan = StagePlan(sources=tuple(sources), stage=stage, routes=tuple(routes) or (None,) * len(sources))
    check_names(plan.columns)
    check_inputs(plan)
    return plan


def as_changes(rows: SourceStream | ViewPlan) -> SourceStream | ViewPlan:
    """Return a stream of upserts as the changes of its table, with old rows; other rows as they are."""
    if isinstance(rows, SourceStream) and rows.mode == "upsert":
        return staged([rows], LatestStage(source=rows.relation(()), hidden=rows.hidden, control=rows.control))
    return rows


def filled(rows: SourceStream | ViewPlan) -> SourceStream | ViewPlan:
    """Return a stream whose changes may leave columns out as the changes of its table; other rows as they are."""
    return as_changes(rows) if isinstance(rows, SourceStream) and rows.control is not None else rows


def without(plan: StagePlan, names: Sequence[str]) -> StagePlan:
    """Return the plan of a view without some of its columns."""
    kept = [name for name in plan.columns if name not in names]
    step = row_step(
        plan.session, plan.output, f"drop{tuple(names)}", lambda rows, also: rows.select(*map(column_named, [*kept, *also]))
    )
    return plan.then(step)
