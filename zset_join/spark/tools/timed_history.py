"""What came to a dedup or a join by time, epoch by epoch, and how far its watermark was after each, read from its logs.

The law: with it, arrival breaks ties, and what was known when an answer became final is told from what came later. It is there
while the log of the stage reaches back to its first epoch and all its inputs are streams: what an earlier stage answered is
never an input of a comparison.

Cost: one pass over the logs per side, and of a temporal join one more for its marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.spark.planning.placed import Placed
from zset_join.spark.rows.schemas import spark_schema
from zset_join.spark.tools.logged_changes import changes_of_input, has_snapshot, stage_histories
from zset_join.spark.tools.sampling import Sample
from zset_join.stages import AsOfJoinStage, DeduplicateStage, Stage, TemporalJoinStage

__all__ = ["MARKS", "TimedHistory", "marks_of", "timed_histories"]

MARKS = pa.schema([("e", pa.int64()), ("mark", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class TimedHistory:
    """Hold everything that came to a stage whose answer depends on arrival.

    Args:
        stage: a dedup, an as-of join or a temporal join.
        changes: per input its changes, with `__weight`, `__epoch` and `__position`.
        marks: pairs of an epoch and the watermark after it, where that moved; of a temporal join.
    """

    stage: Stage
    changes: Sequence[DataFrame]
    marks: Sequence[tuple[int, int]] = ()


def timed_histories(
    session: SparkSession,
    checkpoint: Checkpoint,
    joined: Placed,
    chosen: Sample | None,
    *,
    given: Collection[str] = (),
) -> dict[int, TimedHistory]:
    """Return, by `id` of a stage over streams whose log is whole, everything that came to it.

    Args:
        session: reads the logs.
        checkpoint: of the query.
        joined: its view.
        chosen: the share of the rows to read; None for all.
        given: streams whose tables are known from elsewhere, so that their logs are not read.
    """
    by_stage = {}
    for planned in joined.planned_stages:
        stage = planned.stage
        if not isinstance(stage, AsOfJoinStage | DeduplicateStage | TemporalJoinStage):
            continue
        if len(planned.streams) < len(stage.inputs) or has_snapshot(checkpoint, planned):
            continue
        if any(stream.name in given for stream in planned.streams.values()):
            continue
        changes = [changes_of_input(session, checkpoint, planned, side, table=None) for side in range(len(stage.inputs))]
        if chosen is not None:
            changes = [chosen.of_input(one, planned.streams[side].name) for side, one in enumerate(changes)]
        marks: Sequence[tuple[int, int]] = ()
        if isinstance(stage, TemporalJoinStage):
            schemas = [one.fed.schema for one in planned.state_stage.inputs]
            marks = marks_of(session, checkpoint.files, stage_histories(checkpoint, planned.state_name), schemas)
        by_stage[id(stage)] = TimedHistory(stage=stage, changes=changes, marks=marks)
    return by_stage


def marks_of(
    session: SparkSession, files: CheckpointFiles, histories: Sequence[BucketHistory], schemas: Sequence[pa.Schema]
) -> list[tuple[int, int]]:
    """Return the epochs after which the watermark of a stage stood higher than before, and where.

    Args:
        session: reads them.
        files: of the checkpoint.
        histories: of the buckets of the stage.
        schemas: of its inputs.
    """
    if not histories:
        return []
    read = _ReadMarks(files, tuple(histories), tuple(schemas))
    rows = session.range(0, len(histories), 1, len(histories)).mapInArrow(read, spark_schema(MARKS)).distinct().collect()
    highest: dict[int, int] = {}
    for row in rows:
        highest[row["e"]] = max(row["mark"], highest.get(row["e"], row["mark"]))
    return list(_rising(highest))


def _rising(marks: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield those that are higher than all before."""
    last: int | None = None
    for epoch in sorted(marks):
        if last is None or marks[epoch] > last:
            last = marks[epoch]
            yield epoch, last


@dataclass(frozen=True)
class _ReadMarks:
    """Read the times of the epochs of buckets in a task."""

    files: CheckpointFiles
    histories: tuple[BucketHistory, ...]
    schemas: tuple[pa.Schema, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                ticks = [
                    logged.tick
                    for log in self.histories[number].logs
                    for logged in read_log(self.files, log, schemas=self.schemas)
                ]
                reached = [(tick.epoch - 1, tick.watermark_before_us) for tick in ticks]  # nothing may be logged of that one
                reached += [(tick.epoch, tick.watermark_us) for tick in ticks]
                timed = [(epoch, mark) for epoch, mark in reached if mark is not None]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([epoch for epoch, _ in timed], pa.int64()), pa.array([mark for _, mark in timed], pa.int64())],
                    schema=MARKS,
                )
