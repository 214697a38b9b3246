"""A pipeline in memory whose views can be added and dropped while it runs: one plan, one epoch.

    late = ChangingPipeline({"by_day": by_day})         reads what the tables hold, on its own
    late.step({"orders": what_orders_hold})
    pipeline.take_over(late)                            from the next epoch on the views are answered together
    other = ChangingPipeline({"by_hour": by_hour})
    other.begin_from([(pipeline, ["by_day"])], tables=...)     a query that reads, or follows, a view, beside it as it was
    pipeline.drop("by_city")

The law: after every epoch each view holds what it would hold in a pipeline of its own, given the same rows. Stages that a view
shares with those before it are kept once: their state is that of the view which was present first (`zset_join.plan.merging`).

Cost: of taking a view over or dropping one, the stages of the plan; of `begin_from` a copy of the state that is kept, what is
built, and the rows of the view. Known limits: in memory, and without `keep_inputs`: rows before a view are no epoch of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.evolution.changed_columns import no_words
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.merging import are_mergeable, merged_plan, plan_without
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import Reading
from zset_join.query.several import planned
from zset_join.query.view import View
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.dead_letters import dead_letters
from zset_join.runners.local.engine import AnsweredEpoch, Engine
from zset_join.runners.local.evolving import Evolution, EvolutionStart
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.runners.local.progress import epoch_counts
from zset_join.runners.local.stage_states import MemoryStates
from zset_join.runners.local.taking import RowTaking
from zset_join.runners.local.watermarks import KnownTimes
from zset_join.stages.effect import EffectStage
from zset_join.stages.own_options import own_of
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side import SideState
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["ChangingPipeline"]


def _merged(one: EvolutionStart, other: EvolutionStart) -> EvolutionStart:
    """Return the place of the views of two pipelines."""
    plan, places = merged_plan(one.plan, other.plan)
    times = {**{places[number]: time for number, time in enumerate(other.known.stages)}, **dict(enumerate(one.known.stages))}
    processed = [at for at in (one.processing_time_us, other.processing_time_us) if at is not None]
    return replace(
        one,
        plan=plan,
        epoch=max(one.epoch, other.epoch),
        processing_time_us=max(processed, default=None),
        states={**{places[number]: operator for number, operator in other.states.items()}, **one.states},
        contents={**(other.contents or {}), **(one.contents or {})},
        known=KnownTimes({**other.known.sources, **one.known.sources}, tuple(times[at] for at in range(len(plan.nodes)))),
    )


@dataclass(frozen=True)
class _Parts:
    operators: Mapping[int, DurableOperator]
    known: KnownTimes
    readings: Mapping[str, Reading]
    contents: Mapping[str, Contents]


class ChangingPipeline(Pipeline[dict[str, ZSet]]):
    """Run several views in this process, and others later; the tables of the sources in `whole` hold all rows."""

    def __init__(
        self,
        views: Mapping[str, View],
        *,
        options: StageOptions | None = None,
        idle_timeout_seconds: float | None = None,
        keep_inputs: bool = False,
        whole: Collection[str] = (),
    ) -> None:
        query = planned(views, whole=whole)
        super().__init__(query, options=options, idle_timeout_seconds=idle_timeout_seconds, keep_inputs=keep_inputs)
        self._views = views

    def can_take_over(self, other: ChangingPipeline) -> bool:
        """Return whether the views of another pipeline may be answered with its own."""
        # They are not where both describe a source in two ways, name a view alike, or have other options; where one reads an
        # external table, whose answers are kept by epoch; or where one keeps its inputs.
        mine, its = self._readings, other._readings
        return (
            are_mergeable(self.plan, other.plan)
            and (self._options, self._watermarks.idle_timeout_us) == (other._options, other._watermarks.idle_timeout_us)
            and all(mine[name].is_of_versions == its[name].is_of_versions for name in mine.keys() & its.keys())
            and not any(isinstance(node.stage, EffectStage) for plan in (self.plan, other.plan) for node in plan.nodes)
            and self._history is None
            and other._history is None
            and not self._begins_later(self.epoch, other)
        )

    def take_over(self, other: ChangingPipeline, *, untouched: Collection[str] = ()) -> None:
        """Answer the views of another pipeline from now on; that one is of no use afterwards.

        Both have taken the same rows of their sources; those that are `untouched` have had none.
        """
        if not self.can_take_over(other):
            raise PlanError(
                f"the views {list(other.views)} cannot be answered together with {list(self.views)}: they describe a source in "
                "another way, have other options, have the same name, or read an external table. Use a pipeline for each.",
                code="NOT_MERGEABLE",
                views=other.views,
            )
        with self._watching.lock, other._watching.lock:
            self._take_over(other, untouched)

    def _take_over(self, other: ChangingPipeline, untouched: Collection[str]) -> None:
        theirs = other._given_away()
        plan, places = merged_plan(self.plan, other.plan, untouched=untouched)
        mine = self._given_away()
        times = [*mine.known.stages, *[None] * (len(plan.nodes) - len(self.plan.nodes))]
        operators, is_new = dict(mine.operators), set(range(len(self.plan.nodes), len(plan.nodes)))
        for state in other.plan.states:
            place = places[state.number]
            if place in is_new:
                operators[place] = theirs.operators[state.number]
            else:
                theirs.operators[state.number].close()
        for number, place in places.items():
            times[place] = theirs.known.stages[number] if place in is_new else times[place]
        self.epoch = max(self.epoch, other.epoch)
        earlier = [one for one in (self._processing_time_us, other._processing_time_us) if one is not None]
        self._processing_time_us = max(earlier, default=None)
        sources = {**theirs.known.sources, **mine.known.sources}
        readings = {**theirs.readings, **mine.readings}
        self._go_on_with(plan, readings, operators, KnownTimes(sources, tuple(times)), {**mine.contents, **theirs.contents})

    def begin_from(
        self, origins: Sequence[tuple[ChangingPipeline, Collection[str]]], *, tables: Mapping[str, Pipeline]
    ) -> tuple[PlanDiff, PreparedEpoch]:
        """Let the only view begin with the state of views of other pipelines, which stay as they are."""
        # It is `Pipeline.evolve(as_now=True)`: state of equal stages continues, as a copy, and rows that have ended stay so.
        # Other stages are built from the nearest rows that are kept, there or in the tables: by source, all its rows. Of a
        # source without one no row has come.
        with ExitStack() as stack:
            for other, _ in origins:
                stack.enter_context(other._watching.lock)
            starts = [other._start_of(names, self, tables) for other, names in origins]
            origin, letters = starts[0]
            is_change = len(origin.plan.views) == 1 and self.views == (origin.plan.views[0].name,)
            for more, _ in starts[1:]:
                origin = _merged(origin, more)
            if not (is_change and origin.plan.shared):  # joins that look up in one table here have one each there
                self.plan = replace(self.plan, shared=())
            return self._begin_as(origin, letters)

    def _start_of(
        self, names: Collection[str], new: ChangingPipeline, tables: Mapping[str, Pipeline]
    ) -> tuple[EvolutionStart, pa.Table]:
        """Return where some of the views are, with the tables that a new query reads, and rows of these that it cannot read."""
        plan, mine = self.plan, self._given_away()
        places = {node.number: node.number for node in plan.nodes}
        for other in [view.name for view in plan.views if view.name not in names]:
            plan, moved = plan_without(plan, other)
            places = {number: moved[place] for number, place in places.items() if place in moved}
        nodes = []
        for node in plan.nodes:  # with the options that they have in the new query; the latest rows are of no query
            own = node.own or own_of(self._options)
            is_known = own == own_of(new._options) or node.stage.kind == "latest"
            nodes.append(replace(node, own=None if is_known else own))
        plan = replace(plan, nodes=tuple(nodes))
        there = {one: kept for one, kept in tables.items() if one in new.sources}
        epoch = max(self.epoch, 1)  # the tables may have had rows before a query read them
        rows, unread, far = new._taking.deltas({one: kept.contents() for one, kept in there.items()}, epoch, mine.known)
        empty = {one.name: ZSet.empty(one.relation.schema) for one in new.plan.sources}
        times = {one: time for kept in there.values() for one, time in kept._watermarks.known.sources.items()}
        start = EvolutionStart(
            plan=plan,
            epoch=epoch,
            processing_time_us=self._processing_time_us,
            options=self._options,
            states={places[number]: operator for number, operator in mine.operators.items() if number in places},
            contents={name: mine.contents[name] for name in names},
            history=self._history,
            known=KnownTimes({**times, **mine.known.sources}, tuple(mine.known.stages[number] for number in places)),
            as_now=True,
            words=no_words(),
            options_after=new._options,
            tables={**empty, **rows},
            is_copied=True,
        )
        return start, dead_letters(epoch, far, unread)

    def _begin_as(self, origin: EvolutionStart, letters: pa.Table) -> tuple[PlanDiff, PreparedEpoch]:
        """Hold what the query holds at a place; return what differs from there, and the epoch of the change."""
        (name,) = self.views
        with closing(Evolution(origin, self.plan)) as evolution:
            evolution.build()
            diff, times = evolution.diff(), evolution.known_times()
            assert origin.contents is not None  # noqa: S101 - it keeps its views
            held = Contents(self.plan.output_of(name).schema)
            is_there = name in origin.contents and evolution.is_unchanged(name)
            held.replace(origin.contents[name].rows() if is_there else evolution.rows_after(name))
            for unused in self._in_memory("continued()").states.values():
                unused.close()
            operators, evolution.built = evolution.operators(), {}
        if self._history is not None:
            past = [] if evolution.columns else list(origin.history or ())
            before = set() if evolution.columns else {source.name for source in origin.plan.sources}
            self._history.go_over(past)
            first = {source: rows for source, rows in origin.tables.items() if source not in before}
            self._history.add(origin.epoch, origin.processing_time_us, first)
        change = diff.views[name]
        answers = {name: change.added if change.status == "columns" else change.delta}
        answered = AnsweredEpoch(origin.epoch, origin.processing_time_us, answers, times)
        self.epoch, self._processing_time_us = origin.epoch + 1, origin.processing_time_us
        self.progress, self.dead_letters = epoch_counts({}, answered, [], {}, last=self.progress), letters
        self._go_on_with(self.plan, self._readings, operators, times, {name: held})
        return diff, PreparedEpoch(answered, {}, [], None)

    def hold_with(self, tables: Mapping[str, Pipeline]) -> None:
        """Hold the rows of sources together with pipelines of their tables, as far as keys allow; under the locks of all.

        These take every epoch of their table before this one does.
        """
        if self._memory is None or not self._takes_all():
            return
        writers: dict[str, SideState] = {}
        for source in self.plan.sources:
            kept = tables.get(source.name)
            if kept is not None and kept._memory is not None and kept._takes_all() and source.max_watermark_jump is None:
                writers.update(zip([source.name], kept._memory.fed_alike().get(source.name, []), strict=False))
        self._memory.share(writers)

    def drop(self, name: str) -> None:
        """Release a view, and the state only it uses."""
        if len(self.plan.views) == 1:
            self.plan.view(name)
            self.close()
            return
        with self._settled_views():
            self._drop(name)

    def _drop(self, name: str) -> None:
        plan, places = plan_without(self.plan, name)
        mine = self._given_away()
        operators: dict[int, DurableOperator] = {}
        for number, operator in mine.operators.items():
            if number in places:
                operators[places[number]] = operator
            else:
                operator.close()
        left = {source.name for source in plan.sources}
        known = KnownTimes(
            {source: one for source, one in mine.known.sources.items() if source in left},
            tuple(mine.known.stages[number] for number in places),
        )
        readings = {source: one for source, one in mine.readings.items() if source in left}
        contents = {view: held for view, held in mine.contents.items() if view != name}
        self._go_on_with(plan, readings, operators, known, contents)

    def _leave_views(self) -> set[int]:
        """Keep nothing: who has dropped the last view does not read it."""
        return set()

    def _begins_later(self, epoch: int, other: ChangingPipeline) -> bool:
        """Return whether a row that is present before any other would be missed: one of the two has not had its first epoch."""
        waiting = [plan for plan, at in ((self.plan, epoch), (other.plan, other.epoch)) if at == 0]
        return epoch != other.epoch and any(node.stage.emits_without_input for plan in waiting for node in plan.nodes)

    def _given_away(self) -> _Parts:
        memory, contents = self._in_memory("take_over()"), self._contents
        assert contents is not None  # noqa: S101 - it keeps its views
        return _Parts(memory.states, self._watermarks.known, self._readings, contents)

    def _go_on_with(
        self,
        plan: QueryPlan,
        readings: Mapping[str, Reading],
        operators: dict[int, DurableOperator],
        known: KnownTimes,
        contents: dict[str, Contents],
    ) -> None:
        """Answer another plan from the next epoch on; under the lock of the pipeline."""
        self.plan, self._readings, self._contents, self._last = plan, dict(readings), contents, None
        self._watermarks = self._watermarks.of_plan(plan, known)
        self._taking = RowTaking(plan, self._readings, is_strict=self._options.on_bad_input == "error")
        self._engine = Engine(plan, self._watermarks, quarantines=self._options.on_bad_input == "quarantine")
        self._memory = MemoryStates(plan, self._options, operators, self._in_memory("take_over()").workers)
        self._memory.share()
        self._list_views(self._options)
        self._publish()
