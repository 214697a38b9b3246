"""What another query would answer over a directory whose pipeline does not run; of its own query the plan is there.

The law: no file of the checkpoint is written, and outputs are not looked at. The directory belongs to this process meanwhile.

Known limits: the operators are opened with the options of a pipeline that was given none, but that bad input is put aside: rows
that either query cannot take are counted, and left out of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from zset_join.checkpoint.plan import query_plan
from zset_join.checkpoint.reading import stored_description
from zset_join.core.tick import Tick
from zset_join.evolution.differences import PlanDiff
from zset_join.pipeline.contents import Contents
from zset_join.pipeline.durable import PipelineDirectory
from zset_join.pipeline.evolving import Evolution, Standing
from zset_join.pipeline.history import InputHistory
from zset_join.pipeline.query_changes import plan_of_change
from zset_join.pipeline.watermarks import Watermarks
from zset_join.query.view import View
from zset_join.stages.stage import StageOptions

__all__ = ["diff_of_directory"]

_SNAPSHOT_AFTER_BYTES = 64 * 1024 * 1024


def diff_of_directory(directory: str | Path, view: View | Mapping[str, View]) -> PlanDiff:
    """Return what another query would answer otherwise over what a directory holds.

    Args:
        directory: of a pipeline that does not run.
        view: the other query: a view, or all views by name.

    Raises:
        StateError: there is no pipeline, it is in use or damaged; or what the query needs is not there, as `Pipeline.diff`.
        PlanError: the query cannot be planned.
    """
    location = str(Path(directory).absolute())
    plan, described = query_plan(location), stored_description(location) or {}
    watermarks, options = Watermarks(plan), StageOptions(on_bad_input="quarantine")
    contents = {one.name: Contents(plan.output_of(one.name).schema) for one in plan.views} if described["keeps_view"] else None
    history = InputHistory() if described["keeps_inputs"] else None
    place = PipelineDirectory(
        location, plan, options, watermarks, contents, history, snapshot_after_bytes=_SNAPSHOT_AFTER_BYTES
    )
    with closing(place):
        last = place.last
        tick = Tick(0) if last is None else Tick(last.epoch + 1, last.processing_time_us)
        with place.epoch(tick) as opened:
            standing = Standing(
                plan=plan,
                epoch=tick.epoch,
                processing_time_us=tick.processing_time_us,
                options=options,
                states={state.number: opened.operator(state.number, tick) for state in plan.states},
                contents=contents,
                history=history,
                known=watermarks.known,
            )
            with closing(Evolution(standing, plan_of_change(view, plan))) as evolution:
                return evolution.diff()
