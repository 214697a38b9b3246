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

`LoggedStage`: how rows of a view came and went, from what the buckets of its stages keep: snapshots, and logs of what each was
fed.

From the last stage to the first, every bucket is replayed from its oldest kept snapshot, one at a time. What made rows
requested is found by `explaining`: changes of a stream are reported, and rows of a stage before are requested of that, in
the epoch in which they came or went.

The law: what is reported as emitted is what the buckets emitted, and a replay reads nothing else: external rows, times and
watermarks are in the logs.

Memory: one bucket of one stage. Cost: the snapshots and logs of all buckets of the stages between the view and the streams.

Limits: what happened before the snapshot of a bucket is reported as the rows that were live then, where the state still
has them. Where sums instead of rows were logged, they are matched with the rows of the stage before by the columns that
both have.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from typing_extensions import override

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import BucketHistory, read_log
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError, StateError
from zset_join.core.row_conversion import rows_having, take_rows
from zset_join.core.shown_values import counted, shown_names, shown_rows
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.rejected import without
from zset_join.runners.common.stage_bucket import StageBucket
from zset_join.runners.local.engine import Engine, MemoryStates
from zset_join.runners.local.feeding import Transform
from zset_join.runners.local.history import PastEpoch
from zset_join.runners.local.stored_rows import ListedGroups
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.stages.effect import EffectStage
from zset_join.stages.expiring import ExpiringStage
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.tools.reports import InputChange, Row, RowEvent, RowHistory, requested_values
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import DurableOperator, ListingOperator

__all__ = ["LoggedStage", "explain_from_logs", "explain_row"]

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

    @override
    def after(self, deltas: Mapping[str, ZSet], processing_time_us: int | None) -> KnownTimes:
        return super().after(deltas, processing_time_us) if self.held is None else self.held


class _PastStates(MemoryStates):
    """Keep the operators of a plan in memory, and replay the answers of external systems."""

    past = PastEpoch(-1, None)

    @override
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


_Place = tuple[int, int]  # a stage, and which of its inputs


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class LoggedStage:
    """A stage of a query with what its buckets keep, and one place where its rows go."""

    number: int  # in the order of an epoch
    stage: Stage
    owner: Stage  # of the state that it reads
    histories: Sequence[BucketHistory]
    output: pa.Schema  # behind the steps
    transforms: Sequence[Transform] = ()
    target: _Place | None = None  # None: the view
    streams: frozenset[int] = frozenset()  # inputs that a stream feeds
    # Where several stages have one state: the operator that answers for this one, its deltas among those logged, its inputs.
    reader: Callable[[DurableOperator], DurableOperator] = _itself
    own_deltas: Callable[[Sequence[ZSet]], Sequence[ZSet]] = _itself
    owner_input: Callable[[int], int] = _itself

    def passed_on(self, chunks: Iterable[ZSet]) -> ZSet:
        rows = ZSet.concat(list(chunks), schema=self.stage.output.schema)
        for transform in self.transforms:
            rows = transform(rows) if len(rows) else ZSet.empty(self.output)
        return rows.consolidated()


def explain_from_logs(
    stages: Sequence[LoggedStage],
    view: pa.Schema,
    files: CheckpointFiles,
    options: StageOptions,
    row: Mapping[str, Any],
    *,
    most_changes: int,
) -> RowHistory:
    """Return how the rows of a view with given values came and went."""
    search = _Search(files, options, row, rows_with(requested_values(view, row)), most_changes)
    numbered = {one.number: one.stage for one in stages}
    for one in reversed(stages):
        if one.target is None or one.target[0] in numbered:  # others lead to another view
            search.stage(one, None if one.target is None else numbered[one.target[0]].inputs[one.target[1]])
    return search.history(stages)


@dataclass
class _Epoch:
    """Collect what is found of an epoch."""

    emitted: list[tuple[Row, int]] = field(default_factory=list)
    changes: list[InputChange] = field(default_factory=list)
    is_snapshot: bool = False
    time: str = ""


@dataclass
class _Search:
    files: CheckpointFiles
    options: StageOptions
    row: Mapping[str, Any]
    wanted: Wanted
    most_changes: int
    epochs: defaultdict[int, _Epoch] = field(default_factory=lambda: defaultdict(_Epoch))
    # Rows of an input that stages before made, by epoch and by the columns that both have; what is found is removed.
    requests: defaultdict[_Place, dict[int, dict[str, InputChange]]] = field(default_factory=lambda: defaultdict(dict))
    unfound: defaultdict[_Place, dict[tuple[int, str], InputChange]] = field(default_factory=lambda: defaultdict(dict))

    def stage(self, one: LoggedStage, fed: StageInput | None) -> None:
        """Find what a stage emitted of what is requested, and what made it; `fed`: the input that its rows are for."""
        if one.target is not None and one.target not in self.requests:
            return
        requested = None if one.target is None else self.requests[one.target]
        names = [] if fed is None else _names(fed)

        def is_requested(epoch: int, rows: ZSet) -> npt.NDArray[np.bool_]:
            keys = (requested or {}).get(epoch, {})
            mask = _may_be_among(rows.rows, [change.row for change in keys.values()], names)
            few = shown_rows(take_rows(rows.rows, np.flatnonzero(mask)))
            mask[mask] = [key in keys for key in _keys(few, names)]
            return mask

        wanted = self.wanted if requested is None else is_requested
        for history in one.histories:
            replayed = self._replayed(one, history, requested)
            for found in found_rows(replayed, wanted, self.row, most_changes=self.most_changes):
                self._add(one, found)
                if one.target is not None:
                    for key in _keys([row for row, _ in found.emitted], names):
                        self.unfound[one.target].pop((found.epoch.epoch, key), None)

    def _replayed(
        self, one: LoggedStage, history: BucketHistory, requested: Mapping[int, object] | None
    ) -> Iterator[ReplayedEpoch]:
        """Yield the epochs of a bucket, or those that are requested; when the next one is, this one is folded in."""
        operator = one.owner.build(self.options, None)
        schemas = [relation.schema for relation in operator.inputs]
        fed = [given.fed.schema for given in one.stage.inputs]
        try:
            if history.snapshot is not None:
                tables = read_snapshot(self.files, history.snapshot)
                operator.restore(tables)
                if requested is None:
                    self._add_live(self._live(one, operator, tables), history.snapshot.through_epoch)
            for tick, logged in _epochs(self.files, history, schemas, operator.absorbed_epoch):
                if requested is None or tick.epoch in requested:
                    deltas = [
                        delta.with_schema(fed[side]) if side < len(fed) else delta
                        for side, delta in enumerate(one.own_deltas(logged))
                    ]
                    answer = _Answer(one, one.reader(operator), tick, deltas)
                    changes = {side: delta for side, delta in enumerate(deltas[: len(fed)]) if len(delta)}
                    yield ReplayedEpoch(
                        epoch=tick.epoch,
                        changes=changes,
                        answered=answer(changes, True),
                        answer=answer,
                        time_cause=partial(time_cause, [one.stage], tick.processing_time_us),
                    )
                operator.absorb(tick, logged)
        finally:
            operator.close()

    def _live(self, one: LoggedStage, operator: DurableOperator, tables: Mapping[str, pa.Table]) -> ZSet:
        """Return the rows that a state holds of the answer; none where it does not hold them."""
        reader = one.reader(operator)
        if isinstance(reader, ListingOperator):
            copies = one.stage.lists_input and not one.stage.answers_distinct_rows
            return one.passed_on(ListedGroups(lambda: reader, one.stage.output, keeps_copies=copies).chunks())
        whole = {key.of_input: name for name, key in one.owner.state_tables.items() if key.is_whole}
        inputs = [one.owner_input(side) for side in range(len(one.stage.inputs))]
        if not one.stage.without_expiry.follows_from_rows or not {*inputs} <= whole.keys():
            return ZSet.empty(one.output)
        deltas = [
            _live_rows(tables[whole[at]], one.owner.inputs[at].fed.schema).with_schema(given.fed.schema)
            for at, given in zip(inputs, one.stage.inputs, strict=True)
        ]
        empty = one.stage.build(self.options, None)
        try:
            return one.passed_on(StageBucket.of(one.stage).answer(empty, Tick(0), deltas))
        finally:
            empty.close()

    def _add_live(self, rows: ZSet, epoch: int) -> None:
        chosen = np.flatnonzero(self.wanted(epoch, rows))
        if len(chosen):
            lines = zip(shown_rows(take_rows(rows.rows, chosen)), rows.weights[chosen].tolist(), strict=True)
            self.epochs[epoch].emitted += lines
            self.epochs[epoch].is_snapshot = True

    def _add(self, one: LoggedStage, found: FoundRows) -> None:
        epoch = found.epoch.epoch
        if one.target is None:
            self.epochs[epoch].emitted += found.emitted
        if not found.causes:
            self.epochs[epoch].time = found.epoch.time_cause()
        for name, at in found.causes:
            side = int(name)
            given = one.stage.inputs[side]
            change = input_change(given.relation.name, found.epoch.changes[side], at)
            if side in one.streams:
                known = self.epochs[epoch].changes
                known += [] if change in known else [change]  # a stage may be used several times
                continue
            (key,) = _keys([change.row], _names(given))
            self.requests[one.number, side].setdefault(epoch, {})[key] = change
            self.unfound[one.number, side][epoch, key] = change

    def history(self, stages: Sequence[LoggedStage]) -> RowHistory:
        """Return what was found, in order: retractions and deletes first."""
        unfound = [(epoch, change) for changes in self.unfound.values() for (epoch, _), change in changes.items()]
        for epoch, change in unfound:  # what made it is older than the log of the stage before
            self.epochs[epoch].changes.append(change)
        is_complete = not any(history.snapshot for one in stages if one.target is None for history in one.histories)
        order = {given.relation.name: (one.number, side) for one in stages for side, given in enumerate(one.stage.inputs)}
        events = []
        for number, one in sorted(self.epochs.items()):
            emitted = _net(one.emitted)
            if emitted:
                changes = sorted(one.changes, key=lambda change: (order[change.stream], change.weight > 0))
                events.append(RowEvent(number, tuple(emitted), tuple(changes), one.is_snapshot, "" if changes else one.time))
        return RowHistory(self.row, tuple(events), is_complete=is_complete and not unfound)


@dataclass(frozen=True)
class _Answer:
    """Answer an epoch of a bucket with other changes."""

    one: LoggedStage
    operator: DurableOperator
    tick: Tick
    deltas: Sequence[ZSet]

    def __call__(self, changes: Mapping[Any, ZSet], is_held: bool) -> ZSet:  # noqa: ARG002 - times are those of the log
        count = len(self.one.stage.inputs)  # behind them: external rows
        fed = [changes.get(side, ZSet.empty(delta.schema)) for side, delta in enumerate(self.deltas[:count])]
        answer = StageBucket.of(self.one.stage).answer(self.operator, self.tick, [*fed, *self.deltas[count:]])
        return self.one.passed_on(answer)


def _epochs(
    files: CheckpointFiles, history: BucketHistory, schemas: Sequence[pa.Schema], after: int
) -> Iterator[tuple[Tick, tuple[ZSet, ...]]]:
    for log in history.logs:
        for logged in read_log(files, log, schemas=schemas):
            if logged.tick.epoch > after:
                yield logged.tick, logged.deltas


def _live_rows(table: pa.Table, schema: pa.Schema) -> ZSet:
    """Return the rows of a table of a snapshot; columns that it lacks, as they were added since, are NULL."""
    weights = table.column(SNAPSHOT_WEIGHT).to_numpy().astype(np.int64)
    there = table.schema.names
    columns = [table.column(one.name) if one.name in there else pa.nulls(len(table), one.type) for one in schema]
    rows = pa.table(columns, names=schema.names).cast(schema).filter(pa.array(weights > 0))
    return ZSet(single_batch(rows), weights[weights > 0])


def _names(given: StageInput) -> list[str]:
    """Return the columns by which the rows of an input are matched with those of the stage before."""
    names = set(given.relation.schema.names)
    return [name for name in shown_names(given.fed.schema.names) if name in names]


def _may_be_among(rows: pa.RecordBatch, wanted: Sequence[Row], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have integers of wanted ones, before rows are compared in Python."""
    mask = np.ones(rows.num_rows, np.bool_)
    for name in names:
        column = rows.column(name)
        if pt.is_integer(column.type):
            values = pa.array([row[name] for row in wanted], column.type)
            mask &= pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False)
    return mask


def _keys(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    return [repr([row[name] for name in names]) for row in rows]


def _net(emitted: Sequence[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """Return rows with their sum in all buckets, retractions first."""
    sums: dict[str, tuple[Row, int]] = {}
    for row, weight in emitted:
        sums[repr(row)] = row, weight + sums.get(repr(row), (row, 0))[1]
    return sorted((line for line in sums.values() if line[1]), key=lambda line: line[1] > 0)
