"""`Pipeline.diff` and `Pipeline.evolve`; see `zset_join.pipeline.evolving` for what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from zset_join.connectors import sinks_of
from zset_join.core.tick import Tick
from zset_join.evolution.differences import PlanDiff
from zset_join.pipeline.contents import Contents
from zset_join.pipeline.dead_letters import dead_letters
from zset_join.pipeline.engine import AnsweredEpoch, Engine
from zset_join.pipeline.evolving import Evolution, Standing
from zset_join.pipeline.outputs import Outputs, PipelineOutputs
from zset_join.pipeline.progress import epoch_counts
from zset_join.pipeline.stage_states import MemoryStates
from zset_join.pipeline.taking import RowTaking
from zset_join.pipeline.watermarks import Watermarks
from zset_join.query import several
from zset_join.query.reading import Reading, readings_of
from zset_join.query.view import View
from zset_join.sinks.sink import Sink
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.pipeline.durable import PipelineDirectory
    from zset_join.pipeline.history import InputHistory
    from zset_join.plan.query_plan import QueryPlan
    from zset_join.stages.stage import StageOptions
    from zset_join.zset.protocol import DurableOperator

__all__ = ["QueryChanges", "plan_of_change"]


class QueryChanges:
    """What a pipeline does to come to another query. The attributes are those of `Pipeline`."""

    plan: QueryPlan
    epoch: int
    progress: Mapping[str, Any]
    dead_letters: pa.Table
    _contents: Mapping[str, Contents] | None
    _dropped_sources: frozenset[str] = frozenset()
    _engine: Engine
    _has_several: bool
    _history: InputHistory | None
    _last: Mapping[str, ZSet] | None
    _memory: MemoryStates | None
    _options: StageOptions
    _outputs: PipelineOutputs
    _processing_time_us: int | None
    _readings: Mapping[str, Reading]
    _taking: RowTaking
    _unfinished: int | None
    _watermarks: Watermarks
    _check_usable: Callable[[], None]
    _directory: PipelineDirectory | None
    _in_memory: Callable[[str], MemoryStates]
    _publish: Callable[[], None]

    def diff(self, view: View | Mapping[str, View]) -> PlanDiff:
        """Return what another query would answer otherwise over everything that was accepted so far. Nothing changes.

        Args:
            view: the new query: a view, or all views by name; a view of before that is not among them would be dropped.

        Raises:
            PlanError: the query cannot be planned.
            StateError: `EVOLVE_NO_ROWS`, `EVOLVE_BY_TIME`, `EVOLVE_SOURCE`: what it needs is not there; see `evolve`.
            BadInputError: a row that the new query cannot take.

        Cost: every row that a new stage is fed, and the rows of the views that may differ, in memory; with a directory also
        what the next epoch would begin with: the last one is folded into the local state, which is a cache.

        >>> from zset_join.expressions import col
        >>> from zset_join.pipeline import Pipeline, changes
        >>> orders = changes("orders", {"id": pa.int64(), "total": pa.int64()}, keys="id")
        >>> pipeline = Pipeline(orders.where(col("total") > 10))
        >>> _ = pipeline.step({"orders": [{"id": 1, "total": 5}, {"id": 2, "total": 20}]})
        >>> print(pipeline.diff(orders.where(col("total") > 1)))
        Traceback (most recent call last):
            ...
        zset_join.core.errors.StateError: [EVOLVE_NO_ROWS] ...
        """
        self._check_usable()
        plan = plan_of_change(view, self.plan)
        if self._directory is None:
            with closing(Evolution(self._standing(self._in_memory("diff()").states), plan)) as evolution:
                return evolution.diff()
        with self._directory.epoch(Tick(self.epoch, self._processing_time_us)) as opened:
            states = {state.number: opened.operator(state.number, opened.tick) for state in self.plan.states}
            with closing(Evolution(self._standing(states), plan)) as evolution:
                return evolution.diff()

    def evolve(
        self, view: View | Mapping[str, View], *, outputs: Outputs | Mapping[str, Sink | Sequence[Sink]] | None = None
    ) -> PlanDiff:
        """Go on with another query, and give outputs the difference once. It takes an epoch of its own, without input.

        Stages that are in both queries, over the same inputs, keep their state. Others are built from the nearest rows that are
        kept: both sides of a join, tables of upserts, the rows of a DISTINCT, groups, views, and with `keep_inputs` all inputs.

        Args:
            view: the new query: a view, or all views by name; a view that is not among them is dropped, its outputs are closed.
            outputs: new outputs by view; they get all its rows. A view that is not named keeps its outputs; one that has none
                gets none.

        Returns:
            What differs; `taken` is the epoch.

        Raises:
            PlanError: the query cannot be planned.
            StateError: `EVOLVE_NO_ROWS`: rows or columns that were never kept; `EVOLVE_BY_TIME`: a new stage whose answer hangs
                on when rows came; `EVOLVE_SOURCE`: a source that is described otherwise, or whose rows were dropped.
            SinkError: `EVOLVE_OUTPUT`: an output that stays would be given other columns.
            BadInputError: a row that the new query cannot take. After any of these nothing has changed.
            OptionError: the pipeline has a directory.
        """
        self._check_usable()
        self._outputs.settle()
        standing, plan = self._standing(self._in_memory("evolve()").states), plan_of_change(view, self.plan)
        evolution = Evolution(standing, plan)
        evolution.build()
        try:
            diff = evolution.diff()
            answers = {name.name: _answer(diff, name.name) for name in plan.views}
            given = _outputs_by_view(plan, outputs)
            before, after = ({view.name: one.output_of(view.name) for view in one.views} for one in (self.plan, plan))
            opened = self._outputs.changed(before, after, given)
        except BaseException:
            evolution.close()
            raise
        try:
            filled = {name: evolution.rows_after(name) if name in given else answer for name, answer in answers.items()}
            rejected = opened.check(self.epoch, filled)
            self._go_over(evolution, view, answers, opened)
        except BaseException:
            if self.plan is not plan:
                opened.leave(self._outputs)
                evolution.close()
            raise
        letters = dead_letters(standing.epoch, rejected)
        if standing.epoch:
            answered = AnsweredEpoch(standing.epoch, standing.processing_time_us, answers, self._watermarks.known)
            answered.rejected = rejected
            self.progress, self.dead_letters = epoch_counts({}, answered, [], {}), letters
            self._outputs.add(standing.epoch, filled)
            self._outputs.settle()
        return replace(diff, taken=standing.epoch or None)

    def _go_over(
        self, evolution: Evolution, view: View | Mapping[str, View], answers: Mapping[str, ZSet], opened: PipelineOutputs
    ) -> None:
        """Become a pipeline of the new query: everything that can fail is made first."""
        plan, standing, memory = evolution.plan, evolution.standing, self._memory
        assert memory is not None  # noqa: S101 - as `evolve` has seen
        readings = readings_of(several.bindings_of(view) if isinstance(view, Mapping) else view.bindings)
        watermarks = self._watermarks.of_plan(plan, evolution.known_times())
        taking = RowTaking(plan, readings, is_strict=self._options.on_bad_input == "error")
        engine = Engine(plan, watermarks, quarantines=self._options.on_bad_input == "quarantine")
        contents = None if self._contents is None else self._contents_after(evolution)
        states = MemoryStates(plan, self._options, known=evolution.operators())
        unused, outputs = evolution.unused(), self._outputs
        self._unfinished = self.epoch  # until all of it is taken
        self._memory, self._engine, self._taking, self._watermarks = states, engine, taking, watermarks
        self._contents, self._outputs, self._readings = contents, opened, readings
        self._has_several = isinstance(view, Mapping)
        names = {source.name for source in plan.sources}
        self._dropped_sources = (self._dropped_sources | {source.name for source in self.plan.sources}) - names
        self.plan = plan
        if standing.epoch:
            if self._history is not None:
                self._history.add(self.epoch, self._processing_time_us, {})
            self._last = answers
            self.epoch += 1
        self._publish()
        self._unfinished = None
        memory.effects.close()
        for operator in unused:
            operator.close()
        outputs.leave(opened)

    def _contents_after(self, evolution: Evolution) -> dict[str, Contents]:
        """Return what the views of the new query hold."""
        held: dict[str, Contents] = {}
        for view in evolution.plan.views:
            there = None if self._contents is None else self._contents.get(view.name)
            if there is None or not evolution.is_unchanged(view.name):
                there = Contents(evolution.plan.output_of(view.name).schema)
                there.replace(evolution.rows_after(view.name))
            held[view.name] = there
        return held

    def _standing(self, states: Mapping[int, DurableOperator]) -> Standing:
        return Standing(
            plan=self.plan,
            epoch=self.epoch,
            processing_time_us=self._processing_time_us,
            options=self._options,
            states=states,
            contents=self._contents,
            history=self._history,
            known=self._watermarks.known,
            gone=self._dropped_sources,
        )


def plan_of_change(view: View | Mapping[str, View], before: QueryPlan) -> QueryPlan:
    """Return the plan of a query; the only view of one is the only view of the other, whatever it is called."""
    if isinstance(view, Mapping):
        return several.plan_of(view, keep_state=before.keep_state)
    plan = view.plan(keep_state=before.keep_state)
    return plan if len(before.views) > 1 else replace(plan, views=(replace(plan.view(), name=before.name),))


def _answer(diff: PlanDiff, name: str) -> ZSet:
    """Return the difference of a view as an epoch answers it; under other columns all its rows are new."""
    view = diff.views[name]
    return view.added if view.status == "columns" else view.delta


def _outputs_by_view(plan: QueryPlan, outputs: Any) -> dict[str, Sequence[Sink]]:
    """Return new outputs by view.

    Raises:
        OptionError: `VIEW_NAME`: there is no view of that name, or several and none is named.
    """
    if outputs is None or (not isinstance(outputs, Mapping) and not len(outputs)):
        return {}
    names = {view.name for view in plan.views}
    if not isinstance(outputs, Mapping) or (len(plan.views) == 1 and not names & outputs.keys()):
        return {plan.view().name: sinks_of(cast("Outputs", outputs))}
    return {
        plan.view(name).name: sinks_of(given if isinstance(given, Sequence | Mapping) else (given,))
        for name, given in outputs.items()
    }
