"""The outputs of the miniature: a Parquet changelog whose parts the tasks write, and every sink of `sinks`, which takes parts.

They do what the outputs of the Spark runner do, with the product's own sinks and checkpoint files, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from faults.sinks import weighted_lines
from zset_join.checkpoint.files import CheckpointFiles, FileEntry, attempt_name
from zset_join.checkpoint.record import CommitRecord, PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.sinks.parquet_changelog import (
    ParquetChangelogSink,
    PartFile,
    commit_epoch,
    committed_epochs,
    read_changelog,
    write_part,
)
from zset_join.sinks.sink import has_epoch, write_epoch
from zset_join.testing.reference import Counts, total
from zset_join.zset import ZSet

__all__ = ["ChangelogOutput", "Output", "SinkOutput", "read_parts"]

_WEIGHT = pa.field("__weight", pa.int64(), nullable=False)


class Output(Protocol):
    """Interface of an output of the miniature."""

    def open(self, relation: Relation, query_id: str) -> None:
        """Attach it to the query."""
        ...

    def last_epoch(self) -> int | None:
        """Return the last epoch in it."""
        ...

    def has(self, record: CommitRecord) -> bool:
        """Return whether a committed epoch is in it."""
        ...

    def write_part(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write a task's piece of the answer; nothing is visible yet."""
        ...

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        """Return whether the parts of a committed epoch are still there."""
        ...

    def publish(self, files: CheckpointFiles, record: CommitRecord) -> None:
        """Take the answer of a committed epoch."""
        ...

    def contents(self) -> Counts:
        """Return the sum of everything in it, as the oracle writes it."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class ChangelogOutput:
    """Let tasks write the files of a Parquet changelog.

    Args:
        directory: the changelog.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sink = ParquetChangelogSink(directory)

    def open(self, relation: Relation, query_id: str) -> None:
        """Make or check the changelog; what was staged and never committed is gone afterwards."""
        self._sink.open(relation, query_id)

    def last_epoch(self) -> int | None:
        """Return the last epoch of the changelog."""
        return max(committed_epochs(self._directory), default=None)

    def has(self, record: CommitRecord) -> bool:
        """Look into the changelog."""
        return self._sink.has(record.epoch, record.link)

    def write_part(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks into the staging area of the changelog."""
        kept = [chunk for chunk in chunks if len(chunk)]
        if not kept:
            return []
        made = write_part(self._directory, tick.epoch, uuid.uuid4().hex, bucket, kept)
        return [PartEntry(bucket, FileEntry(made.name, made.bytes, made.rows, made.crc32), made.retractions, "changelog")]

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        """Return False when there are parts: staged files are cleared when the changelog is opened."""
        return not record.parts

    def publish(self, files: CheckpointFiles, record: CommitRecord) -> None:
        """Make the epoch visible."""
        parts = [
            PartFile(part.file.name, part.file.rows, part.retractions, part.file.bytes, part.file.crc32)
            for part in record.parts
        ]
        commit_epoch(self._directory, record.epoch, parts, link=record.link)

    def contents(self) -> Counts:
        """Read all epochs."""
        if not committed_epochs(self._directory):
            return {}
        lines = read_changelog(self._directory).to_pylist()
        return total((tuple(line.values())[:-2], line["_weight"]) for line in lines)

    def close(self) -> None:
        """Close the changelog."""
        self._sink.close()


class SinkOutput:
    """Pass epochs to a sink; the parts wait in the checkpoint, not synced, until it has them.

    Args:
        sink: the sink.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._schema = pa.schema([])

    def open(self, relation: Relation, query_id: str) -> None:
        """Open the sink."""
        self._schema = relation.schema
        self._sink.open(relation, query_id)

    def last_epoch(self) -> int | None:
        """Return the last epoch in the sink."""
        last: int | None = self._sink.last_epoch()
        return last

    def has(self, record: CommitRecord) -> bool:
        """Delegate to the sink."""
        return has_epoch(self._sink, record.epoch, record.link)

    def write_part(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks as one Arrow stream."""
        answer = ZSet.concat(chunks, schema=schema)
        if not len(answer):
            return []
        whole = pa.schema([*schema, _WEIGHT])
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, whole) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([*answer.rows.columns, pa.array(answer.weights)], schema=whole))
        with files.create(f"delta/{bucket}/{attempt_name(tick.epoch, '.arrows')}", durable=False) as file:
            file.write(stream.getvalue())
        return [PartEntry(bucket, file.entry(len(answer)), int(np.count_nonzero(answer.weights < 0)), "arrow")]

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        """Look whether all parts are whole."""
        try:
            for part in record.parts:
                files.check(part.file)
        except StateError:
            return False
        return True

    def publish(self, files: CheckpointFiles, record: CommitRecord) -> None:
        """Write the epoch."""
        write_epoch(self._sink, record.epoch, read_parts(files, record), record.link)

    def contents(self) -> Counts:
        """Read the sink."""
        return total(weighted_lines(self._sink, self._schema))

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


def read_parts(files: CheckpointFiles, record: CommitRecord) -> Iterator[ZSet]:
    """Yield the answer of an epoch: retractions first."""
    batches = [batch for part in record.parts for batch in pa.ipc.open_stream(files.view(part.file))]
    for sign in (-1, 1):
        for batch in batches:
            weights = np.asarray(batch.column(batch.num_columns - 1), dtype=np.int64)
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=pa.schema(list(batch.schema)[:-1]))
            chosen = np.flatnonzero(weights * sign > 0)
            yield ZSet(rows.take(pa.array(chosen)), weights[chosen])
