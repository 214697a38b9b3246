"""The logs of a query on executors: the input of a stage as a DataFrame, and `explain_row` over those of all stages.

The law: the changes of a key are those that its bucket was given, in order by `__epoch` and `__position`; what a stage has set
aside is not among them.

Cost: one pass over the snapshots and logs of a stage per DataFrame, by the workers; of `explain_row` that of
`explaining_logs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import BucketHistory, read_log
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.errors import PlanError, StateError
from zset_join.runners.local.explaining import LoggedStage, explain_from_logs
from zset_join.runners.local.feeding import transforms_of
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.rows.schemas import spark_schema
from zset_join.stages.stage import NO_LIMIT
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.tools.reports import RowHistory, requested_values

__all__ = ["changes_of_input", "explain_row", "has_snapshot", "logged_changes", "stage_histories"]

_CHANGE_FIELDS = [
    pa.field("__weight", pa.int64()),
    pa.field("__epoch", pa.int64()),
    pa.field("__position", pa.int64()),
    pa.field("__bucket", pa.int64()),
]


def changes_of_input(
    session: SparkSession, checkpoint: Checkpoint, planned: PlannedStage, side: int, *, table: str | None
) -> DataFrame:
    """Return the rows of an input of a stage, under the names that it has for it."""
    histories = stage_histories(checkpoint, planned.state_name)
    schemas = [given.fed.schema for given in planned.state_stage.inputs]
    changes = logged_changes(session, checkpoint, histories, schemas, planned.state_input(side), table=table)
    names = planned.stage.inputs[side].fed.schema.names
    return changes.toDF(*names, *changes.columns[len(names) :])


def has_snapshot(checkpoint: Checkpoint, planned: PlannedStage) -> bool:
    """Return whether the log of a stage no longer reaches back to its first epoch."""
    return any(history.snapshot is not None for history in stage_histories(checkpoint, planned.state_name))


def stage_histories(checkpoint: Checkpoint, stage: str) -> list[BucketHistory]:
    """Return the histories of the state of each bucket of a stage, after the last epoch."""
    return [history for key, history in sorted(checkpoint.histories.items()) if key.partition("/")[0] == stage]


def logged_changes(
    session: SparkSession,
    checkpoint: Checkpoint,
    histories: Sequence[BucketHistory],
    schemas: Sequence[pa.Schema],
    position: int,
    *,
    table: str | None,
) -> DataFrame:
    """Return snapshot rows and logged changes of one input as a DataFrame, read by the workers."""
    schema = pa.schema([*schemas[position], *_CHANGE_FIELDS])
    if not histories:
        return session.createDataFrame([], spark_schema(schema))
    read = _ReadChanges(checkpoint.files, tuple(histories), tuple(schemas), position, table)
    return session.range(0, len(histories), 1, len(histories)).mapInArrow(read, spark_schema(schema))


@dataclass(frozen=True)
class _ReadChanges:
    """Read one bucket's snapshot and log in a task."""

    files: CheckpointFiles
    histories: tuple[BucketHistory, ...]
    schemas: tuple[pa.Schema, ...]
    position: int
    table: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if context is None:
            raise PlanError("this function runs inside a Spark task", code="NOT_A_TASK")
        for number in numbers:
            yield from self._bucket(self.histories[number], number)

    def _bucket(self, history: BucketHistory, number: int) -> Iterator[pa.RecordBatch]:
        if history.snapshot is not None and self.table is not None:
            table = read_snapshot(self.files, history.snapshot)[self.table]
            weights = table.column(SNAPSHOT_WEIGHT).to_numpy()
            for field in self.schemas[self.position]:
                if field.name not in table.column_names:  # a control column: rows of a snapshot are whole
                    table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
            rows = table.select(self.schemas[self.position].names).filter(pa.array(weights > 0))
            for batch in rows.cast(self.schemas[self.position]).combine_chunks().to_batches():
                # Another bucket's log may still hold the delete of a row that moved here before this snapshot was taken.
                yield self._with_order(batch, weights[weights > 0], history.snapshot.through_epoch, number)
        for log in history.logs:
            for logged in read_log(self.files, log, schemas=self.schemas):
                delta = logged.deltas[self.position]
                if len(delta):
                    yield self._with_order(delta.rows, delta.weights, logged.tick.epoch, number)

    def _with_order(self, rows: pa.RecordBatch, weights: Any, epoch: int, bucket: int) -> pa.RecordBatch:
        count = rows.num_rows
        added = [weights, np.full(count, epoch), np.arange(count), np.full(count, bucket)]
        schema = pa.schema([*self.schemas[self.position], *_CHANGE_FIELDS])
        return pa.RecordBatch.from_arrays([*rows.columns, *map(pa.array, added)], schema=schema)


def explain_row(runner: EpochRunner, view: str | None, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
    query, checkpoint = runner.query, runner.checkpoint
    query = query if view is None or len(query.outputs) == 1 else query.of_view(view)
    requested_values(query.output.schema, row)
    if checkpoint is None:
        raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
    # Rows in quarantine are in the log; they are omitted here as they were omitted then.
    options = replace(
        runner.operator_options, on_bad_input="quarantine", buffer_limit=NO_LIMIT, hot_budget=None, table_budget=None
    )
    with runner.pause():
        stages = [_logged_stage(one, at, checkpoint) for one in query.planned_stages for at in range(len(one.uses))]
        return explain_from_logs(stages, query.output.schema, checkpoint.files, options, row, most_changes=most_rows)


def _logged_stage(one: PlannedStage, at: int, checkpoint: Checkpoint) -> LoggedStage:
    shared, use = one.shared, one.uses[at]
    stage = LoggedStage(
        number=one.number,
        stage=one.stage,
        owner=one.state_stage,
        histories=stage_histories(checkpoint, one.state_name),
        output=one.rows[at].schema,
        transforms=transforms_of(use.steps, one.stage.output),
        target=None if use.target is None else (use.target, use.side),
        streams=frozenset(one.streams),
        owner_input=one.state_input,
    )
    return stage if shared is None else replace(stage, reader=shared.read_by, own_deltas=shared.deltas_of)
