"""Kept inputs: the changes of every source, epoch by epoch, with `keep_inputs`.

The law: replayed in order through an empty pipeline they give the same answers.

Memory: all changes that ever came, as Arrow; with a directory they are in its log as well.

`input_folder`, `load_inputs`: rows in a directory besides its stages: the contents of views, and kept inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import BucketHistory, CommitRecord, read_log
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.runners.local.feeding import transforms_of
from zset_join.zset import ZSet, single_batch

__all__ = [
    "WEIGHT",
    "InputHistory",
    "PastEpoch",
    "input_folder",
    "inputs_not_kept",
    "load_inputs",
    "newest_slots",
    "part_of",
    "under_columns",
    "view_folder",
    "view_rows",
]


@dataclass(frozen=True, slots=True)
class PastEpoch:
    epoch: int
    processing_time_us: int | None
    deltas: Mapping[str, ZSet] = field(default_factory=dict)  # by source, without empty ones
    fetched: Mapping[int, ZSet] | None = None  # external rows, by stage; None: not known


class InputHistory:
    def __init__(self) -> None:
        self._epochs: list[PastEpoch] = []

    def add(
        self,
        epoch: int,
        processing_time_us: int | None,
        deltas: Mapping[str, ZSet],
        *,
        fetched: Mapping[int, ZSet] | None = None,
    ) -> None:
        kept = {name: delta for name, delta in deltas.items() if len(delta)}
        self._epochs.append(PastEpoch(epoch, processing_time_us, kept, fetched))

    def go_over(self, epochs: Sequence[PastEpoch]) -> None:
        """These epochs in place of those there were: the same ones under other columns."""
        self._epochs = list(epochs)

    def copied(self) -> InputHistory:
        """Return the input until now; later input is not in it. Cost: a pointer per epoch."""
        copy = InputHistory()
        copy._epochs = list(self._epochs)
        return copy

    def __iter__(self) -> Iterator[PastEpoch]:
        return iter(self._epochs)

    def __len__(self) -> int:
        return len(self._epochs)


def under_columns(history: Iterable[PastEpoch], changes: Iterable[ColumnChange]) -> list[PastEpoch]:
    """Return epochs as if sources had always had the columns that they change to."""
    by_source = {change.source: change for change in changes}
    if not by_source:
        return list(history)
    return [
        replace(past, deltas={name: rows_under(by_source.get(name), delta) for name, delta in past.deltas.items()})
        for past in history
    ]


def rows_under(change: ColumnChange | None, delta: ZSet) -> ZSet:
    """Return rows of a source as if it had always had the columns that it changes to."""
    if change is None:
        return delta
    for transform in transforms_of((change.step,), Relation(name=change.source, schema=change.before)):
        delta = transform(delta)
    return ZSet(pa.RecordBatch.from_arrays(delta.rows.columns, schema=change.after), delta.weights)


def part_of(history: Iterable[PastEpoch], stages: Sequence[int], sources: Sequence[str]) -> Iterator[PastEpoch]:
    """Yield the input of some sources, for a plan of some of the stages, which are numbered from 0 there."""
    wanted = set(sources)
    for past in history:
        yield replace(
            past,
            deltas={name: delta for name, delta in past.deltas.items() if name in wanted},
            fetched=None
            if past.fetched is None
            else {at: past.fetched[number] for at, number in enumerate(stages) if number in past.fetched},
        )


def inputs_not_kept(what: str) -> OptionError:
    return OptionError(
        f"{what} needs every input change, and this pipeline does not keep them. Build it with keep_inputs=True.",
        code="INPUTS_NOT_KEPT",
    )


WEIGHT = "__weight"
_VIEW = "view"


def view_folder(plan: QueryPlan, number: int) -> str:
    """Return the name of a view's log, by its place in the plan."""
    return f"{_VIEW}-{number}" if len(plan.views) > 1 else _VIEW


def input_folder(number: int) -> str:
    """Return the name of a source's log, by its place among all that the query ever had."""
    return f"input-{number}"


def view_rows(files: CheckpointFiles, history: BucketHistory, schema: pa.Schema) -> Iterator[ZSet]:
    if history.snapshot is not None:
        table = read_snapshot(files, history.snapshot)["view"]
        weights = single_batch(table.select([WEIGHT])).column(0).to_numpy()
        yield ZSet(single_batch(table.drop_columns([WEIGHT])).cast(schema), weights)
    for log in history.logs:
        for logged in read_log(files, log, schemas=[schema]):
            yield logged.deltas[0]


def newest_slots(sources: Sequence[PlanSource]) -> dict[str, int]:
    """Return by name the place of a source among all that the query ever had; one whose columns changed has several."""
    return {source.name: number for number, source in enumerate(sources)}


def load_inputs(
    files: CheckpointFiles,
    record: CommitRecord,
    sources: Sequence[PlanSource],
    history: InputHistory,
    changes: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Fill a history with everything that came up to an epoch, under the columns that its sources have now."""
    by_slot = {one["slot"]: ColumnChange.from_json(one) for one in changes}
    epochs: dict[int, tuple[Tick, dict[str, ZSet]]] = {}
    for number, source in enumerate(sources):
        logs = record.histories.get(f"{input_folder(number)}/0", BucketHistory()).logs
        for log in logs:
            for logged in read_log(files, log, schemas=[source.relation.schema]):
                deltas = epochs.setdefault(logged.tick.epoch, (logged.tick, {}))[1]
                if len(logged.deltas[0]):
                    deltas[source.name] = _of_now(logged.deltas[0], number, sources, by_slot)
    for epoch in range(record.epoch + 1):
        tick, deltas = epochs.get(epoch, (Tick(epoch), {}))
        history.add(epoch, tick.processing_time_us, deltas)


def _of_now(delta: ZSet, slot: int, sources: Sequence[PlanSource], changes: Mapping[int, ColumnChange]) -> ZSet:
    """Return rows of one slot of a source under the columns of its newest one."""
    name = sources[slot].name
    for number in range(slot, len(sources)):
        if sources[number].name == name:
            delta = rows_under(changes.get(number), delta)
    return delta
