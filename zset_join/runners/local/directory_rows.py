"""Rows in a directory besides its stages: the contents of views, and kept inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.epochs import Tick
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.runners.local.history import InputHistory, rows_under
from zset_join.zset import ZSet, single_batch

__all__ = ["WEIGHT", "input_folder", "load_inputs", "newest_slots", "view_folder", "view_rows"]

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
