"""Which changes made and unmade a row of the view, found by running the engine without them.

The law: a change is listed if the rows requested had come out otherwise in its epoch without it, or without it and others of
which each would have been enough. So it works for every kind of stage, and the report is the engine's answer, not a
second opinion about it. Of several rows of which each would have moved a watermark far enough none is listed: time is the
cause.

How: epochs are replayed in order (`ReplayedEpoch`), those of a pipeline from the first one on. In an epoch that changed rows
requested, changes are omitted, half of them at a time; a half that makes no difference is left, another one is halved again.
Where only both halves together make one, each is halved without the other. Recorded external rows are used, and watermarks
where the log of a bucket has them: there a row that moved a watermark is no cause of what the watermark released.

Cost: a replay of all epochs, and about 2 k log n answers for k causes among n changes of an epoch, 2 n where each of n would
have been enough. Changes that undo each other within one epoch (the same row in and out) are no cause.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError, StateError
from zset_join.core.row_conversion import rows_having, take_rows
from zset_join.core.shown_values import counted, shown_names, shown_rows
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.rejected import without
from zset_join.runners.local.engine import Engine
from zset_join.runners.local.history import PastEpoch
from zset_join.runners.local.stage_states import MemoryStates
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.effect import EffectStage
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.stage import Stage, StageOptions
from zset_join.tools.reports import InputChange, Row, RowEvent, RowHistory, requested_values
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["FoundRows", "ReplayedEpoch", "explain_row", "found_rows", "input_change", "rows_with", "time_cause"]

_WAITING = ("current_versions", "lookup_join", "temporal_join")
_Change = tuple[str | int, int]  # an input, and the place of a row in its changes
_Rows = list[tuple[Row, int]]
Wanted = Callable[[int, ZSet], npt.NDArray[np.bool_]]
"""Returns which rows of the answer to an epoch are requested."""


@dataclass(frozen=True, kw_only=True)
class ReplayedEpoch:
    """An epoch in the state before it, that can be answered without some of its changes."""

    epoch: int
    changes: Mapping[Any, ZSet]  # by input
    answered: ZSet
    answer: Callable[[Mapping[Any, ZSet], bool], ZSet]  # given other changes; and whether time moves as it did with all
    time_cause: Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """Rows requested that an epoch emitted, and the changes without which they had come out otherwise."""

    epoch: ReplayedEpoch
    emitted: _Rows
    causes: Sequence[_Change]


def explain_row(
    plan: QueryPlan, history: Iterable[PastEpoch], options: StageOptions, row: Mapping[str, Any], *, most_changes: int
) -> RowHistory:
    """Return how the rows with given values came and went."""
    wanted = rows_with(requested_values(plan.output.schema, row))
    events = []
    for found in found_rows(_replayed(plan, history, options), wanted, row, most_changes=most_changes):
        changes = tuple(input_change(str(name), found.epoch.changes[name], at) for name, at in found.causes)
        time = "" if changes else found.epoch.time_cause()
        events.append(RowEvent(found.epoch.epoch, tuple(found.emitted), changes, time=time))
    return RowHistory(row, tuple(events), is_complete=True)


def rows_with(values: Mapping[str, Any]) -> Wanted:
    """Return what selects the rows with given values."""
    return lambda _, delta: rows_having(delta.rows, values).to_numpy(zero_copy_only=False)


def found_rows(
    epochs: Iterable[ReplayedEpoch], wanted: Wanted, row: Mapping[str, Any], *, most_changes: int
) -> Iterator[FoundRows]:
    """Yield the epochs that emitted rows requested, with what made them."""
    for one in epochs:
        emitted = _matching(one.epoch, one.answered, wanted)
        if emitted:
            causes = _Causes(past=one, wanted=wanted, row=row, emitted=emitted, most_changes=most_changes).find()
            yield FoundRows(epoch=one, emitted=emitted, causes=causes)


def input_change(name: str, delta: ZSet, at: int) -> InputChange:
    row = delta.rows.slice(at, 1)
    return InputChange(name, shown_rows(row.select(shown_names(row.schema.names)))[0], int(delta.weights[at]))


def time_cause(stages: Iterable[Stage], processing_time_us: int | None) -> str:
    """Return the effect of time on rows that no change of the epoch explains."""
    kinds, waits = set[bool](), False
    for stage in stages:
        if isinstance(stage, ExpiringStage):
            kinds |= {ttl.by_event_time for ttl in stage.ttls if ttl is not None}
        else:
            waits |= stage.kind in _WAITING
    if waits or len(kinds) != 1:
        return "a time that rows waited for was reached"
    if kinds == {True}:
        return "rows expired (state_ttl): the watermark had passed their time"
    moment = datetime.datetime.fromtimestamp((processing_time_us or 0) / 1_000_000, datetime.UTC)
    return f"rows expired (state_ttl) at {moment.isoformat()}"


def _replayed(plan: QueryPlan, history: Iterable[PastEpoch], options: StageOptions) -> Iterator[ReplayedEpoch]:
    """Yield the epochs of a pipeline; when the next one is requested, this one is folded in."""
    watermarks, states = _PastWatermarks(plan), _PastStates(plan, options)
    engine = Engine(plan, watermarks)
    stages = [node.stage for node in plan.nodes]
    try:
        for past in history:
            states.past = past
            answered = engine.answer(states, past.epoch, past.deltas, past.processing_time_us)
            others = _Answers(engine, states, watermarks, past, answered.times)
            yield ReplayedEpoch(
                epoch=past.epoch,
                changes=past.deltas,
                answered=answered.delta,
                answer=others,
                time_cause=partial(time_cause, stages, past.processing_time_us),
            )
            if others.count:
                answered = engine.answer(states, past.epoch, past.deltas, past.processing_time_us)
            states.absorb(answered.requested)
            engine.take(answered)
    finally:
        states.close()


class _PastWatermarks(Watermarks):
    """Follow the watermarks of a plan as the rows move them, or hold them."""

    held: KnownTimes | None = None

    def after(self, deltas: Mapping[str, ZSet], processing_time_us: int | None) -> KnownTimes:
        return super().after(deltas, processing_time_us) if self.held is None else self.held


class _PastStates(MemoryStates):
    """Keep the operators of a plan in memory, and replay the answers of external systems."""

    past = PastEpoch(-1, None)

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        fetched = self.past.fetched
        if fetched is None or not isinstance(self._plan.nodes[number].stage, EffectStage):
            return super().completed(number, operator, tick, fed)
        return [*fed, fetched.get(number, ZSet.empty(operator.inputs[-1].schema))]


@dataclass
class _Answers:
    """Answer an epoch of a pipeline with other changes."""

    engine: Engine
    states: MemoryStates
    watermarks: _PastWatermarks
    past: PastEpoch
    times: KnownTimes
    count: int = 0

    def __call__(self, changes: Mapping[Any, ZSet], is_held: bool) -> ZSet:
        self.count += 1
        self.watermarks.held = self.times if is_held else None
        try:
            return self.engine.answer(self.states, self.past.epoch, changes, self.past.processing_time_us).delta
        finally:
            self.watermarks.held = None


@dataclass(frozen=True, kw_only=True)
class _Causes:
    """Find the changes of one epoch without which the rows requested come out otherwise."""

    past: ReplayedEpoch
    wanted: Wanted
    row: Mapping[str, Any]
    emitted: _Rows
    most_changes: int

    def find(self) -> list[_Change]:
        changes = [(name, at) for name, delta in self.past.changes.items() for at in range(len(delta))]
        causes: list[_Change] = []
        waiting: list[tuple[list[_Change], list[_Change]]] = []  # changes that matter where others are omitted as well
        if changes and self._matters(changes):
            waiting.append((changes, []))
        while waiting:
            group, without = waiting.pop()
            if len(group) == 1:
                causes += group
                if len(causes) > self.most_changes:
                    raise OptionError(
                        f"explain_row({dict(self.row)!r}): more than {counted(self.most_changes, 'change')} of epoch "
                        f"{self.past.epoch} made these rows; select fewer, or raise most_changes (inside Spark: most_rows).",
                        code="ROW_QUESTION",
                        epoch=self.past.epoch,
                    )
                continue
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            matter = [half for half in (second, first) if self._matters([*half, *without], is_held=bool(without))]
            if matter:
                waiting += [(half, without) for half in matter]
            elif self._matters([*group, *without], is_held=True):
                waiting += [(second, [*without, *first]), (first, [*without, *second])]
        return causes

    def _matters(self, left_out: Sequence[_Change], *, is_held: bool = False) -> bool:
        """Return whether the rows come out otherwise without some changes; `is_held`: the watermarks are moved all the same."""
        deltas = {
            name: without(delta, np.array([at for one, at in left_out if one == name], np.int64))
            for name, delta in self.past.changes.items()
        }
        try:
            answered = self.past.answer(deltas, is_held)
        except BadInputError:
            return True
        except StateError as error:
            if error.code != "KEY_NOT_FETCHED":
                raise
            return True  # without these changes another key would have been requested
        return _matching(self.past.epoch, answered, self.wanted) != self.emitted


def _matching(epoch: int, delta: ZSet, wanted: Wanted) -> _Rows:
    """Return the rows requested with their weights, retractions first."""
    chosen = np.flatnonzero(wanted(epoch, delta))
    rows = shown_rows(take_rows(delta.rows, chosen))
    return sorted(zip(rows, delta.weights[chosen].tolist(), strict=True), key=lambda line: (line[1], repr(line[0])))
