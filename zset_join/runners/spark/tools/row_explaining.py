"""Answer `query.explain_row`: the history of output rows, from what the checkpoint keeps of the join stages.

The columns that a row is given by are followed back through the steps of the view:

- a column of the join, under whatever name, narrows the search to rows of the join as it is now;
- a computed column does not show where its value came from: where nothing else is requested, every row version in the log is
  joined by Spark, and the join rows whose result has the value are explained;
- a group key leads to the rows of the join that are in the group, as they came and went.

Rows of a view that another stage makes (a join by time, a lookup join, a dedup, groups of a stream), and rows requested by what
an aggregate made, are explained as a pipeline in process explains its own: all that arrived is replayed (`past_epochs`). Where
such a view is a side of a join, its rows are reported as not followed.

Behind a union every branch is searched; a side of a join that is a view is followed down to the streams (`Tracing`).

The law: what is reported as emitted are rows that the engine answers: those whose result has the values requested, when Spark's
own expressions are applied, and for a view without groups this result.

Cost: as `RowQuestion`, per join; with steps one small Spark job, and for computed columns a batch join of all row versions in
the log. Where all that arrived is replayed: its memory on the driver, and the cost of `zset_join.runners.local.explaining`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.row_causes import frozen
from zset_join.checkpoint.row_history import InputChange, Row, RowEvent, RowHistory, requested_values, together
from zset_join.core.errors import OptionError, StateError
from zset_join.core.relation import Relation
from zset_join.runners.local.explaining import explain_row as replay_row
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.planning.placed import Placed, ends_of, feeding
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.tools.past_epochs import past_epochs, plan_of_places, why_not_replayed, why_not_whole
from zset_join.runners.spark.tools.row_branches import Branch, Question, are_of_a_stream, branches_of, unfollowed
from zset_join.stages.stage import NO_LIMIT

__all__ = ["explain_row"]

_TOO_OLD = "what made it is older than the log that is kept"
_OF_MANY = "it is made of many rows, and the view does not show which"
_OF_STAGE = "it comes from {}, which is not followed back inside Spark"
_Place = tuple[int, tuple[Any, ...]]


def explain_row(view: Placed, runner: EpochRunner, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
    wanted = requested_values(view.output.schema, row)
    stages, ends = view.planned_stages, ends_of(view.planned_stages)
    titles = unfollowed(stages, ends)
    if titles:
        return _replayed(view, runner, row, f"rows of this view come from {' and '.join(titles)}", most_rows=most_rows)
    branches = branches_of(stages, ends, view.output.schema)
    untraced = next((why for branch in branches if (why := _untraced(branch, wanted))), None)
    if untraced is not None:
        return _replayed(view, runner, row, untraced, most_rows=most_rows)
    with runner.pause():
        question = Question(
            checkpoint=_opened(runner), options=runner.operator_options, row=row, most_rows=most_rows, session=view.session
        )
        tracing = Tracing(stages, question)
        events: dict[int, RowEvent] = {}
        is_complete = True
        for branch in branches:
            values = pa.table({branch.traced[name]: value for name, value in wanted.items()})
            history = question.find_history(branch, values)
            is_complete &= history.is_complete
            for event in tracing.traced(branch, question.shown(branch, history, values).events):
                before = events.get(event.epoch)
                events[event.epoch] = event if before is None else together(before, event)
        in_order = tuple(events[epoch] for epoch in sorted(events))
        is_group = any(branch.is_grouped for branch in branches)
        return RowHistory(row, in_order, is_complete=is_complete and not tracing.is_cut_off, is_group=is_group)


def _replayed(view: Placed, runner: EpochRunner, row: Mapping[str, Any], why: str, *, most_rows: int) -> RowHistory:
    """Explain rows of any stage by what the engine would have answered without some changes, in this process."""
    plan, stages = plan_of_places(view.query_plan), view.planned_stages
    _check_replayed(why_not_replayed(plan), row, why)
    with runner.pause():
        checkpoint = _opened(runner)
        _check_replayed(why_not_whole(stages, checkpoint), row, why)
        options = replace(
            runner.operator_options, on_bad_input="quarantine", buffer_limit=NO_LIMIT, hot_budget=None, table_budget=None
        )
        history = past_epochs(stages, plan, checkpoint, options)
    return replay_row(plan, history, options, row, most_changes=most_rows)


def _check_replayed(why_not: str | None, row: Mapping[str, Any], why: str) -> None:
    if why_not is not None:
        raise OptionError(
            f"explain_row({dict(row)!r}): {why}. Such rows are explained by replaying all inputs in process, which is not "
            f"possible: {why_not}.",
            code="ROW_QUESTION",
            row=dict(row),
        )


def _opened(runner: EpochRunner) -> Checkpoint:
    if runner.checkpoint is None:
        raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
    return runner.checkpoint


def _untraced(branch: Branch, wanted: Mapping[str, Any]) -> str | None:
    """Return which column that is requested is what an aggregate makes of several rows; None where none is."""
    for name in wanted:
        if name not in branch.traced:
            cure = (
                f"request groups by their key: {sorted(branch.traced)}"
                if branch.traced
                else "the view does not show the key of its groups, so they cannot be distinguished"
            )
            return f'"{name}" is made of several rows by an aggregate, which does not remember them; {cure}'
    return None


@dataclass(slots=True)
class _Reasons:
    """Collect why rows of a view came and went."""

    causes: dict[_Place, tuple[InputChange, ...]]
    missing_reason: dict[_Place, str]


class Tracing:
    """Follow the rows of views that are sides of joins back to the streams.

    A row of a view is followed in the epoch in which it came or went. For a row of a group, the events are those of the rows of
    the join that arrived into the group or left it in that epoch, not those that were present before.
    """

    def __init__(self, stages: Sequence[PlannedStage], question: Question) -> None:
        self._stages = stages
        self._question = question
        self.is_cut_off = False
        """What made some rows of a view is older than the log that is kept."""

    def traced(self, branch: Branch, events: Sequence[RowEvent]) -> tuple[RowEvent, ...]:
        """Return events of a join with what made the rows of those of its sides that are views."""
        traced = tuple(events)
        for side, given in enumerate(branch.join.stage.inputs):
            rows = feeding(self._stages, branch.join.number, side)
            if not are_of_a_stream(rows):
                traced = self._of_side(rows, given.relation, traced)
        return traced

    def _of_side(self, rows: Sequence[PlannedStage], relation: Relation, events: Sequence[RowEvent]) -> tuple[RowEvent, ...]:
        name = relation.name
        changed = [(event.epoch, change.row) for event in events for change in event.changes if change.stream == name]
        if not changed:
            return tuple(events)
        reasons = _Reasons({}, {})
        for branch in branches_of(self._stages, rows, relation.schema):
            self._explain_changes(branch, changed, reasons)
        titles, names = unfollowed(self._stages, rows), relation.schema.names

        def caused(epoch: int, change: InputChange) -> InputChange:
            if change.stream != name:
                return change
            place = _place(epoch, change.row, names)
            causes = reasons.causes.get(place, ())
            if not causes and titles:
                return replace(change, missing_reason=_OF_STAGE.format(" and ".join(titles)))
            missing_reason = reasons.missing_reason.get(place, "" if causes else _TOO_OLD)
            self.is_cut_off |= missing_reason == _TOO_OLD
            return replace(change, causes=causes, missing_reason=missing_reason)

        return tuple(replace(event, changes=tuple(caused(event.epoch, change) for change in event.changes)) for event in events)

    def _explain_changes(self, branch: Branch, changed: Sequence[tuple[int, Row]], reasons: _Reasons) -> None:
        """Add the events that a branch of a view has for rows of it."""
        names = branch.view_schema.names
        places = {_place(epoch, row, names): row for epoch, row in changed}
        if not branch.traced:
            reasons.missing_reason.update(dict.fromkeys(places, _OF_MANY))
            return
        columns = list(branch.traced)
        values = {
            branch.traced[name]: pa.array([row[name] for row in places.values()], branch.view_schema.field(name).type)
            for name in columns
        }
        epochs = {epoch for epoch, _ in places}
        history = self._question.find_history(branch, pa.table(values), epochs=epochs)
        rows_per_event = self._question.made(branch, history)
        finder = branch.causes
        wanted = defaultdict(list)
        for place, row in places.items():
            wanted[_place(place[0], row, columns)].append(place)
        belonging: list[dict[_Place, list[int]]] = []
        needed: list[RowEvent] = []
        for event, results in zip(history.events, rows_per_event, strict=True):
            causes = finder.find([row for row, _ in event.emitted], event.changes)
            of_row: dict[_Place, set[int]] = defaultdict(set)
            for line, result in results:
                place = _place(event.epoch, result, [branch.traced[name] for name in columns])
                for one in wanted.get(place, ()):
                    of_row[one].update(causes[line])
            used = sorted({number for numbers in of_row.values() for number in numbers})
            new = {number: at for at, number in enumerate(used)}
            needed.append(replace(event, changes=tuple(event.changes[number] for number in used)))
            belonging.append({place: sorted(new[number] for number in numbers) for place, numbers in of_row.items()})
        for event, of_place in zip(self.traced(branch, needed), belonging, strict=True):
            for place, numbers in of_place.items():
                reasons.causes[place] = reasons.causes.get(place, ()) + tuple(event.changes[number] for number in numbers)
        if branch.is_grouped:  # other rows of the group may have come in a bucket that keeps a shorter log
            oldest = self._question.snapshot_epoch(branch)
            reasons.missing_reason.update({place: _TOO_OLD for place in places if place[0] <= oldest})


def _place(epoch: int, row: Row, names: Sequence[str]) -> _Place:
    return epoch, tuple(frozen(row[name]) for name in names)
