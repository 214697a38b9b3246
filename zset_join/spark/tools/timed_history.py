"""What came to a temporal join, epoch by epoch, and how far its watermark was after each: read from its logs by the workers.

The law: with it, what was known when an answer became final is told from what came later. It is there while the log of the join
reaches back to its first epoch, and both sides are streams.

Cost: one pass over the logs for the marks, and one per side for its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.spark.rows.schemas import spark_schema
from zset_join.stages import TemporalJoinStage

__all__ = ["MARKS", "TimedHistory", "marks_of"]

MARKS = pa.schema([("e", pa.int64()), ("mark", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class TimedHistory:
    """Hold everything that came to a temporal join.

    Args:
        stage: the join.
        left: the left changes, with `__weight`, `__epoch` and `__position`.
        right: the right ones.
        marks: pairs of an epoch and the watermark after it, where that moved.
    """

    stage: TemporalJoinStage
    left: DataFrame
    right: DataFrame
    marks: Sequence[tuple[int, int]]


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
                timed = [(tick.epoch, tick.watermark_us) for tick in ticks if tick.watermark_us is not None]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([epoch for epoch, _ in timed], pa.int64()), pa.array([mark for _, mark in timed], pa.int64())],
                    schema=MARKS,
                )
