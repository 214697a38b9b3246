"""How rows of a view came and went, from what the buckets of its stages keep: snapshots, and logs of what each was fed.

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

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import shown_names, shown_rows
from zset_join.runners.common.stage_bucket import StageBucket
from zset_join.runners.local.explaining import FoundRows, ReplayedEpoch, Wanted, found_rows, input_change, rows_with, time_cause
from zset_join.runners.local.feeding import Transform
from zset_join.runners.local.listed_answers import ListedGroups
from zset_join.stages.stage import Stage, StageInput, StageOptions
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.tools.reports import InputChange, Row, RowEvent, RowHistory, requested_values
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import DurableOperator, ListingOperator

__all__ = ["LoggedStage", "explain_from_logs"]

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
        """Return what the steps make of the rows of the stage."""
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
