"""Which changes made and unmade a row of the view, found by running the engine without them.

The law: a change is listed if the rows requested had come out otherwise in its epoch without it, or without it and others of
which each would have been enough. So it works for every kind of stage, and the report is the engine's answer, not a
second opinion about it. Of several rows of which each would have moved a watermark far enough none is listed: time is the
cause.

How: everything that arrived is replayed through an empty pipeline in memory. In an epoch that changed rows requested, changes
are omitted, half of them at a time; a half that makes no difference is left, another one is halved again. Where only both
halves together make one, each is halved without the other. Recorded external rows and watermarks are used where there are any:
a row that moved a watermark is no cause of what the watermark released.

Cost: a replay of all epochs, and about 2 k log n answers for k causes among n changes of an epoch, 2 n where each of n would
have been enough. Changes that undo each other within one epoch (the same row in and out) are no cause.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zset_join.checkpoint.row_history import InputChange, RowEvent, RowHistory
from zset_join.core.errors import BadInputError, OptionError, StateError
from zset_join.core.shown_values import counted, shown_names, shown_rows
from zset_join.core.tick import Tick
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.rejected import without
from zset_join.runners.local.engine import Engine
from zset_join.runners.local.history import PastEpoch
from zset_join.runners.local.stage_states import MemoryStates
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.effect import EffectStage
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["explain_row"]

_WAITING = ("current_versions", "lookup_join", "temporal_join")
_Change = tuple[str, int]
_Rows = list[tuple[dict[str, Any], int]]


def explain_row(
    plan: QueryPlan, history: Iterable[PastEpoch], options: StageOptions, row: Mapping[str, Any], *, most_changes: int
) -> RowHistory:
    """Return how the rows with given values came and went."""
    unknown = [name for name in row if name not in plan.output.schema.names]
    if unknown or not row:
        raise OptionError(
            f"explain_row({dict(row)!r}): name columns of the view, with values; its columns are {plan.output.schema.names}.",
            code="ROW_QUESTION",
            columns=unknown,
        )
    watermarks, states = _PastWatermarks(plan), _PastStates(plan, options)
    engine = Engine(plan, watermarks)
    events = []
    try:
        for past in history:
            watermarks.past = states.past = past
            answered = engine.answer(states, past.epoch, past.deltas, past.processing_time_us)
            emitted = _matching(answered.delta, row)
            if emitted:
                causes = _Causes(
                    engine=engine,
                    watermarks=watermarks,
                    states=states,
                    past=past,
                    row=row,
                    emitted=emitted,
                    times=answered.times,
                    most_changes=most_changes,
                ).find()
                explained = tuple(_input_change(past, cause) for cause in causes)
                events.append(
                    RowEvent(past.epoch, tuple(emitted), explained, time="" if explained else _time_cause(plan, past))
                )
                answered = engine.answer(states, past.epoch, past.deltas, past.processing_time_us)
            states.absorb(answered.requested)
            engine.take(answered)
    finally:
        states.close()
    return RowHistory(row, tuple(events), is_complete=True)


class _PastWatermarks(Watermarks):
    """Follow the watermarks of a plan as they are held or were recorded; else as the rows move them."""

    past = PastEpoch(-1, None)
    held: KnownTimes | None = None

    def after(self, deltas: Mapping[str, ZSet], processing_time_us: int | None) -> KnownTimes:
        if self.held is not None:
            return self.held
        recorded = self.past.watermarks
        if recorded is None:
            return super().after(deltas, processing_time_us)
        return KnownTimes(self.known.sources, tuple(recorded.get(at, before) for at, before in enumerate(self.known.stages)))


class _PastStates(MemoryStates):
    """Keep the operators of a plan in memory, and replay the answers of external systems."""

    past = PastEpoch(-1, None)

    def completed(self, number: int, operator: DurableOperator, tick: Tick, fed: list[ZSet]) -> list[ZSet]:
        fetched = self.past.fetched
        if fetched is None or not isinstance(self._plan.nodes[number].stage, EffectStage):
            return super().completed(number, operator, tick, fed)
        return [*fed, fetched.get(number, ZSet.empty(operator.inputs[-1].schema))]


@dataclass(frozen=True, kw_only=True)
class _Causes:
    """Find the changes of one epoch without which the rows requested come out otherwise."""

    engine: Engine
    watermarks: _PastWatermarks
    states: MemoryStates
    past: PastEpoch
    row: Mapping[str, Any]
    emitted: _Rows
    times: KnownTimes
    most_changes: int

    def find(self) -> list[_Change]:
        changes = [(name, at) for name, delta in self.past.deltas.items() for at in range(len(delta))]
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
                        f"{self.past.epoch} made these rows; select fewer rows, or raise most_changes.",
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
        past = self.past
        deltas = {
            name: without(delta, np.array([at for one, at in left_out if one == name], np.int64))
            for name, delta in past.deltas.items()
        }
        self.watermarks.held = self.times if is_held else None
        try:
            answered = self.engine.answer(self.states, past.epoch, deltas, past.processing_time_us)
        except BadInputError:
            return True
        except StateError as error:
            if error.code != "KEY_NOT_FETCHED":
                raise
            return True  # without these changes another key would have been requested
        finally:
            self.watermarks.held = None
        return _matching(answered.delta, self.row) != self.emitted


def _matching(delta: ZSet, row: Mapping[str, Any]) -> _Rows:
    rows = list(zip(shown_rows(delta.rows), delta.weights.tolist(), strict=True))
    rows = [(one, weight) for one, weight in rows if all(_is_same(one[name], value) for name, value in row.items())]
    return sorted(rows, key=lambda line: (line[1], repr(line[0])))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)


def _time_cause(plan: QueryPlan, past: PastEpoch) -> str:
    """Return the effect of time on rows that no change of the epoch explains."""
    lives = [ttl for node in plan.nodes if isinstance(node.stage, ExpiringStage) for ttl in node.stage.ttls if ttl is not None]
    kinds = {ttl.by_event_time for ttl in lives}
    waits = any(not isinstance(node.stage, ExpiringStage) and node.stage.kind in _WAITING for node in plan.nodes)
    if waits or len(kinds) != 1:
        return "a time that rows waited for was reached"
    if kinds == {True}:
        return "rows expired (state_ttl): the watermark had passed their time"
    moment = datetime.datetime.fromtimestamp((past.processing_time_us or 0) / 1_000_000, datetime.UTC)
    return f"rows expired (state_ttl) at {moment.isoformat()}"


def _input_change(past: PastEpoch, cause: _Change) -> InputChange:
    name, at = cause
    delta = past.deltas[name]
    row = delta.rows.slice(at, 1)
    return InputChange(name, shown_rows(row.select(shown_names(row.schema.names)))[0], int(delta.weights[at]))
