"""The stages of a plan at work in one process: an epoch is answered stage by stage, then folded into all of them.

The law: after every epoch the sum of the answers of a view is its query over the sum of the inputs. `answer` changes nothing:
called twice with the same rows and times it gives the same twice. An epoch that raises in `answer` has changed nothing.

A stage runs when it has input, when it is due by watermark or processing time, and in the first epoch where it has
rows to emit without rows. All others cost nothing. A stage that several views are made of answers once, and an error names
the views that cannot be answered.

`StageStates`: operators of an epoch, from memory or from the directory of a pipeline.

Joins that look up in one table (`zset_join.plan.passes.share_nodes`) have one state: each answers by its own number, and their
epoch is folded in once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.operators.shared_table import SharedTable
from zset_join.plan.passes.share_nodes import source_of, without_renaming
from zset_join.plan.query_plan import PlanView, QueryPlan, StateNode, emits_distinct_rows
from zset_join.runners.common.bucketed import in_buckets, why_in_one_bucket
from zset_join.runners.common.parting import parted_when_large
from zset_join.runners.common.rejected import RejectedRows
from zset_join.runners.common.stage_bucket import GLOBAL_BUCKET, StageBucket
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.feeding import Feeding, Filters
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.effect import EffectPlace, Effects, EffectStage, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.stages.written import text_of
from zset_join.state.rows.directories import choose_seed
from zset_join.state.rows.side import SideState, hold_once, shared_sides
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, corrections_of, due_of, is_timed
from zset_join.zset.zset import RowSums, ZSet

__all__ = [
    "AnsweredEpoch",
    "Engine",
    "MemoryStates",
    "StageStates",
    "StageWork",
    "built",
    "held_sides",
    "operators_of",
    "shapes_of",
    "why_together",
    "with_long_chunks",
]

_CHUNK_ROWS = 1 << 20  # as many as a join makes at once: what is one chunk is not copied


def with_long_chunks(options: StageOptions) -> StageOptions:
    """Return options with larger chunks, since the engine concatenates them; given options are kept."""
    return replace(options, chunk_rows=_CHUNK_ROWS) if options.chunk_rows == StageOptions().chunk_rows else options


class StageStates(Protocol):
    """Return the operators of one epoch, each in the state before it."""

    def operator(self, number: int, tick: Tick) -> DurableOperator:
        """Return the operator of a stage."""

    def next_due(self, number: int) -> NextDue:
        """Return when a stage must next run without input."""

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        """Return the deltas for the operator of a stage, external rows among them."""


class MemoryStates:
    def __init__(
        self,
        plan: QueryPlan,
        options: StageOptions,
        known: Mapping[int, DurableOperator] | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.states: dict[int, DurableOperator] = dict(known or {})
        self.operators: dict[int, DurableOperator] = {}
        self.effects = Effects()
        options = replace(options, hash_seed=choose_seed(options.hash_seed, None))  # one, so that joins find rows of each other
        self._plan, self._options = plan, options
        self.workers = Workers(1) if workers is None else workers
        try:
            for state in plan.states:
                if state.number not in self.states:
                    self.states[state.number] = built(state, options, None, self.workers)
                self.operators |= operators_of(state, self.states[state.number])
        except BaseException:
            self.close()
            raise
        self._is_timed = {number: is_timed(operator) for number, operator in self.operators.items()}

    def share(self, *, over_files: bool = False) -> None:
        """Let stages that are fed the same upserts hold them once, while no thread reads them."""
        for sides in self.fed_alike(over_files=over_files).values():
            hold_once(sides)

    def fed_alike(self, *, over_files: bool = False) -> dict[str, list[SideState]]:
        """Return sides by what they are fed, whatever its columns are called; by its name for a source without steps."""
        fed: dict[str, list[SideState]] = {}
        for state in self._plan.states:
            sides = shared_sides(self.states[state.number], over_files=over_files)
            for feeds, side in zip(self._plan.nodes[state.number].feeds, sides, strict=False):
                (first, *others), _ = without_renaming(self._plan, feeds)
                is_source = isinstance(first.origin, str) and not (first.steps or others)
                text = str(first.origin) if is_source else text_of([one.to_json() for one in (first, *others)])
                fed.setdefault(text, []).append(side)
        return fed

    def operator(self, number: int, tick: Tick) -> DurableOperator:  # noqa: ARG002 - as the protocol has it
        return self.operators[number]

    def next_due(self, number: int) -> NextDue:
        return due_of(self.operators[number]) if self._is_timed[number] else NOTHING_DUE

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        node = self._plan.nodes[number]
        if not has_effect(node.stage):
            return fed
        place = EffectPlace(options=self._options, name=node.name)
        return self.effects.opened(node.stage, place).completed(operator, tick, fed)

    def absorb(self, requested: Mapping[int, tuple[Tick, Sequence[ZSet]]]) -> None:
        """Fold an epoch in: the ticks and deltas of the stages that ran, by number."""
        fed = {number: deltas for number, (_, deltas) in requested.items()}
        for state in self._plan.states:
            first = next((number for number in state.readers if number in requested), None)
            if first is not None:
                self.states[state.number].absorb(requested[first][0], state.fed(fed))

    def close(self, *, keeping: Collection[int] = ()) -> None:
        """Release all state but that which is still read, and the clients of lookup sources."""
        self.effects.close()
        for number, operator in self.states.items():
            if number not in keeping:
                operator.close()


def built(state: StateNode, options: StageOptions, directory: str | None, workers: Workers) -> DurableOperator:
    """Return the operator of a state, in one bucket per thread if its rows can be partitioned."""
    # In memory it is in buckets while its epochs are large; over a directory, where an epoch costs more, always.
    options = state.options(options)
    if workers.threads == 1 or why_together(state, options) is not None:
        return state.stage.build(options, directory)
    if directory is None:
        return parted_when_large(state.stage, options, workers)
    return in_buckets(state.stage, options, directory, workers)


def held_sides(plan: QueryPlan, options: StageOptions, workers: Workers) -> dict[int, dict[int, tuple[int, int]]]:
    """Return by state, for its sides that are fed what a side before them is, the state and the place of that one."""
    states = MemoryStates(plan, options, workers=workers)
    try:
        states.share(over_files=True)
        sides = {number: shared_sides(one) for number, one in states.states.items()}
        places = {id(side): (number, at) for number, held in sides.items() for at, side in enumerate(held)}
        found = {
            number: {at: places[id(side.writer)] for at, side in enumerate(held) if side.follows}
            for number, held in sides.items()
        }
        return {number: held for number, held in found.items() if held}
    finally:
        states.close()


def why_together(state: StateNode, options: StageOptions) -> str | None:
    """Return why the rows of a state stay in one bucket; None where they are partitioned by key."""
    return "several joins look up in it" if state.is_shared else why_in_one_bucket(state.stage, state.options(options))


def operators_of(state: StateNode, built: DurableOperator) -> dict[int, DurableOperator]:
    """Return the operators of the stages of a state, by the numbers of the stages."""
    if isinstance(built, SharedTable):
        return dict(zip(state.readers, built.readers, strict=True))
    return {state.number: built}


def shapes_of(plan: QueryPlan, options: StageOptions, held: ExitStack) -> dict[int, DurableOperator]:
    """Return operators of a plan without rows, by the number of their state; they are closed with the stack."""
    shapes = {}
    for node in plan.states:
        operator = node.stage.build(node.options(options), None)
        held.callback(operator.close)
        shapes[node.number] = operators_of(node, operator)[node.number]
    return shapes


@dataclass(frozen=True, slots=True)
class StageWork:
    seconds: float  # wall clock, lookups included
    rows_in: int  # after reductions
    rows_out: int
    inputs: tuple[int, ...] = ()


@dataclass(slots=True)
class AnsweredEpoch:
    """An epoch that is answered and not absorbed."""

    epoch: int
    processing_time_us: int | None
    answers: Mapping[str, ZSet]
    times: KnownTimes
    requested: dict[int, tuple[Tick, list[ZSet]]] = field(default_factory=dict)  # the stages that ran, with their deltas
    rejected: list[RejectedRows] = field(default_factory=list)
    corrections: dict[str, int] = field(default_factory=dict)  # earlier answers that were retracted, by stage
    work: dict[str, StageWork] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def delta(self) -> ZSet:
        """Return the change of the only view."""
        (delta,) = self.answers.values()
        return delta

    def fetched(self, plan: QueryPlan) -> dict[int, ZSet]:
        """Return, by number of each stage with a fetch step, its external rows."""
        return {
            number: fed[-1] for number, (_, fed) in self.requested.items() if isinstance(plan.nodes[number].stage, EffectStage)
        }


class _View:
    """Bring the change of a view together: every row once, retractions first."""

    def __init__(self, plan: QueryPlan, view: PlanView, filters: dict[str | int, Filters]) -> None:
        schema, origin = plan.output_of(view.name).schema, view.feeds[0].origin
        self._rows = Feeding(plan, view.feeds, schema, filters)
        stage = plan.nodes[origin].stage if len(view.feeds) == 1 and isinstance(origin, int) else None
        self._is_ordered = stage is not None  # steps leave the order of an answer as it is
        self._is_distinct = stage is not None and emits_distinct_rows(stage, view.feeds[0].steps)
        self.empty, self._sums = ZSet.empty(schema), RowSums(schema)
        self.place = self._rows.places[0] if len(view.feeds) == 1 else None

    def delta(self, known: dict[str | int, ZSet]) -> ZSet:
        delta = self._rows.collect(known)
        if not len(delta) or self._is_distinct:
            return delta
        consolidated = delta.consolidated(self._sums if delta.schema.equals(self._sums.schema) else None)
        if self._is_ordered and consolidated is delta:
            return delta
        return next(consolidated.retractions_first(len(delta)), self.empty)


class Engine:
    def __init__(self, plan: QueryPlan, watermarks: Watermarks, *, quarantines: bool = False) -> None:
        self.plan = plan
        self._quarantines = quarantines
        self.watermarks = watermarks
        self._inputs: list[list[Feeding]] = []
        filters: dict[str | int, Filters] = {}
        for node in plan.nodes:
            schemas = [one.relation.schema for one in node.stage.inputs]
            feedings = [Feeding(plan, feeds, schema, filters) for feeds, schema in zip(node.feeds, schemas, strict=True)]
            state = plan.state_of[node.number]
            if state.is_shared and node.number != state.number:
                feedings[1] = self._inputs[state.number][1]  # the readers of a table are given one and the same delta of it
            self._inputs.append(feedings)
        reductions = [[one.reduce for one in node.stage.inputs] for node in plan.nodes]
        self._reduced = [list(zip(*both, strict=True)) for both in zip(self._inputs, reductions, strict=True)]
        self._names = [node.name for node in plan.nodes]
        self._given = [[source_of(plan, feeds) or "" for feeds in node.feeds] for node in plan.nodes]
        self._has_effect = [has_effect(node.stage) for node in plan.nodes]
        self._views = {view.name: _View(plan, view, filters) for view in plan.views}
        self._filters, self._nothing = filters, {name: view.empty for name, view in self._views.items()}
        self._conditions = {origin: dict[int, str]() for origin in filters}  # the views with one feed, by place
        for name, view in self._views.items():
            if view.place is not None:
                self._conditions[view.place[0]][view.place[1]] = name
        self._others = {name for name, view in self._views.items() if view.place is None}
        self._buckets = [StageBucket.of(node.stage) for node in plan.nodes]

    def answer(
        self, states: StageStates, epoch: int, deltas: Mapping[str, ZSet], processing_time_us: int | None
    ) -> AnsweredEpoch:
        """Return the change of every view, and what folding the epoch in takes."""
        failing: int | str = 0  # the stage or view that is being answered
        before, times = self.watermarks.known, self.watermarks.after(deltas, processing_time_us)
        known: dict[str | int, ZSet] = dict(deltas.items())
        requested: dict[int, tuple[Tick, list[ZSet]]] = {}
        rejected: list[RejectedRows] = []
        corrections: dict[str, int] = {}
        work: dict[str, StageWork] = {}
        started = time.perf_counter()
        collected: dict[Feeding, ZSet] = {}
        try:
            for number, feedings in enumerate(self._reduced):
                failing, begun = number, time.perf_counter()
                fed = []
                for feeding, reduction in feedings:
                    delta = collected.get(feeding)
                    if delta is None:
                        delta = collected[feeding] = feeding.collect(known)
                    fed.append(delta if reduction is None else reduction.reduce(delta))
                tick = Tick(epoch, processing_time_us, before.stages[number], times.stages[number])
                if not any(map(len, fed)) and not self._is_due(states, number, tick):
                    continue
                operator = states.operator(number, tick)
                if self._has_effect[number]:
                    fed = states.completed(number, operator, tick, fed)
                requested[number] = tick, fed
                bucket = self._buckets[number]
                chunks = list(bucket.answer(operator, tick, fed))
                rows_out = sum(map(len, chunks))
                if chunks:
                    known[number] = chunks[0] if len(chunks) == 1 else ZSet.concat_freeing(chunks, schema=bucket.shown)
                corrected = corrections_of(operator)
                if corrected is not None:
                    corrections[self._names[number]] = corrected
                if self._quarantines or bucket.is_timed:  # what is late is set aside under either policy
                    rejected += bucket.rejected(operator, tick, fed, self._given[number])
                work[self._names[number]] = _work(time.perf_counter() - begun, fed, rows_out)
            answers = dict(self._nothing)
            for failing in self._reached(known):
                answers[failing] = self._views[failing].delta(known)
        except ZsetJoinError as error:
            self._name_views(error, failing)
            raise
        seconds = time.perf_counter() - started
        return AnsweredEpoch(epoch, processing_time_us, answers, times, requested, rejected, corrections, work, seconds)

    def _reached(self, known: dict[str | int, ZSet]) -> Sequence[str]:
        """Return the views that have rows, as far as their first conditions decide it, in order."""
        reached = set(self._others)
        for origin, views in self._conditions.items():
            delta = known.get(origin)
            if delta is not None and len(delta) and views:
                passing = self._filters[origin].passing(delta)
                reached.update(views.values() if passing is None else (views[at] for at in passing if at in views))
        return [name for name in self._views if name in reached]

    def _name_views(self, error: ZsetJoinError, failing: int | str) -> None:
        """Add to an error which of several views cannot be answered: those a stage serves, or the one whose own rows fail."""
        if len(self._views) == 1 or "views" in error.facts:
            return
        names = self.plan.views_of(failing) if isinstance(failing, int) else (failing,)
        shown = ", ".join(f'"{name}"' for name in names)
        error.message = f"{'view' if len(names) == 1 else 'views'} {shown}: {error.message}"
        error.facts = {**error.facts, "views": names}

    def take(self, answered: AnsweredEpoch) -> None:
        """Go on from an epoch that counts."""
        self.watermarks.known = answered.times

    def _is_due(self, states: StageStates, number: int, tick: Tick) -> bool:
        if self._buckets[number].begins(GLOBAL_BUCKET, is_first=tick.epoch == 0):
            return True
        due = states.next_due(number)
        return due.is_due(watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us)


def _work(seconds: float, fed: Sequence[ZSet], rows_out: int) -> StageWork:
    inputs = tuple(map(len, fed))
    return StageWork(seconds, sum(inputs), rows_out, inputs)
