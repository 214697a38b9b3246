"""Where a task leaves its piece of an epoch's answer.

A task does not send its answer through Spark; it writes a part file and reports it. The driver collects the reports of
the attempts that won, so the answer is computed once, is durable enough to be handed out again, and a twin attempt leaves
nothing but a file that nobody lists.

`ArrowParts` are for outputs on the driver, `ParquetParts` for a user's function on a DataFrame, `ChangelogParts` and
`DeltaParts` are the files of a changelog themselves. Parts of the first two are not synced: when they are lost, the epoch is
answered again from the same state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.changelog import ChangelogForm
from zset_join.checkpoint.files import CheckpointFiles, FileEntry, attempt_name
from zset_join.checkpoint.record import PartEntry
from zset_join.sinks.changelog_lines import ChangelogLines
from zset_join.sinks.delta_files import DataFile
from zset_join.sinks.delta_parts import write_delta_part
from zset_join.sinks.parquet_changelog import write_part
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = [
    "MOST_MERGED_BYTES",
    "ArrowParts",
    "ChangelogParts",
    "DeltaParts",
    "ParquetParts",
    "PartWriter",
    "merged",
    "read_arrow_parts",
]

MOST_MERGED_BYTES = 256 << 20
_WEIGHT_FIELD = pa.field("__weight", pa.int64(), nullable=False)


class PartWriter(Protocol):
    """What writes a task's piece of the answer; it travels to the worker."""

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks, retractions first, and return what to report; nothing for an empty answer."""
        ...


class ArrowParts:
    """Write one Arrow IPC stream per bucket, with the weight as last column."""

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks as they come."""
        counted = _Counted(chunks)
        first = next(counted, None)
        if first is None:
            return []
        whole = pa.schema([*schema, _WEIGHT_FIELD])
        with (
            files.create(f"delta/{bucket}/{attempt_name(tick.epoch, '.arrows')}", durable=False) as file,
            pa.ipc.new_stream(pa.PythonFile(file, mode="w"), whole) as writer,
        ):
            for chunk in _chain(first, counted):
                writer.write_batch(pa.RecordBatch.from_arrays([*chunk.rows.columns, pa.array(chunk.weights)], schema=whole))
        return [PartEntry(bucket, file.entry(counted.rows), counted.retractions, "arrow")]


@dataclass(frozen=True, slots=True)
class ParquetParts:
    """Write one Parquet file per bucket, in the form a user's function asked for.

    Args:
        form: how weights are shown.
        key: columns that identify a row of the output, to recognise updates.
    """

    form: ChangelogForm = "weight"
    key: tuple[str, ...] = ()

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks; all at once where updates must be recognised."""
        counted = _Counted(chunks)
        first = next(counted, None)
        if first is None:
            return []
        answer = f"the answer in bucket {bucket}"
        lines = ChangelogLines(
            answer,
            schema,
            self.form,
            self.key,
            _chain(first, counted),
            epoch=tick.epoch,
            committed_at_us=tick.processing_time_us or 0,
        )
        with (
            files.create(f"delta/{bucket}/{attempt_name(tick.epoch, '.parquet')}", durable=False) as file,
            pq.ParquetWriter(
                pa.PythonFile(file, mode="w"),
                lines.schema,
                compression="lz4",
                use_dictionary=[field.name for field in lines.schema if pa.types.is_string(field.type)],
                write_statistics=False,
            ) as writer,
        ):
            for batch in lines:
                writer.write_batch(batch)
        return [PartEntry(bucket, file.entry(lines.rows), lines.retractions, "parquet")]


@dataclass(frozen=True, slots=True)
class ChangelogParts:
    """Write the files of a Parquet changelog.

    Args:
        directory: the changelog.
    """

    directory: str

    def write(
        self,
        files: CheckpointFiles,  # noqa: ARG002 - the changelog knows its own place
        bucket: int,
        tick: Tick,
        schema: pa.Schema,  # noqa: ARG002 - the changelog knows its own schema
        chunks: Iterable[ZSet],
    ) -> list[PartEntry]:
        """Write the chunks into the staging area of the changelog."""
        counted = _Counted(chunks)
        first = next(counted, None)
        if first is None:
            return []
        made = write_part(
            self.directory,
            tick.epoch,
            uuid.uuid4().hex,
            bucket,
            _chain(first, counted),
            committed_at_us=tick.processing_time_us,
        )
        return [PartEntry(bucket, FileEntry(made.name, made.bytes, made.rows, made.crc32), made.retractions, "changelog")]


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """Write the files of a Delta changelog.

    Args:
        location: the table.
        form: how weights are shown.
        key: columns that identify a row of the output, to recognise updates.
    """

    location: str
    form: ChangelogForm = "weight"
    key: tuple[str, ...] = ()

    def write(
        self,
        files: CheckpointFiles,  # noqa: ARG002 - the table has its own place
        bucket: int,
        tick: Tick,
        schema: pa.Schema,
        chunks: Iterable[ZSet],
    ) -> list[PartEntry]:
        """Write the chunks into the table's directory; no reader sees them before the driver commits them."""
        counted = _Counted(chunks)
        first = next(counted, None)
        if first is None:
            return []
        made = write_delta_part(
            self.location,
            schema,
            self.form,
            self.key,
            _chain(first, counted),
            epoch=tick.epoch,
            part=bucket,
            committed_at_us=tick.processing_time_us,
        )
        return [] if made is None else [PartEntry(bucket, _listed(made.file), made.retractions, "delta")]


def read_arrow_parts(files: CheckpointFiles, parts: Iterable[PartEntry]) -> Iterator[ZSet]:
    """Yield the whole answer of an epoch: the retractions of all buckets, then the insertions.

    Raises:
        StateError: a part is missing or damaged.

    Memory: local files are mapped, not read; others are in memory until the last row was taken.
    """
    found = [files.view(part.file) for part in parts]
    for wanted_sign in (-1, 1):
        for part in found:
            for batch in pa.ipc.open_stream(part):
                weights = np.asarray(batch.column(batch.num_columns - 1), dtype=np.int64)
                retractions = int(np.count_nonzero(weights < 0))
                begin, end = (0, retractions) if wanted_sign < 0 else (retractions, len(weights))
                if end > begin:
                    schema = pa.schema(list(batch.schema)[:-1])
                    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
                    yield ZSet(rows.slice(begin, end - begin), weights[begin:end])


class _Counted:
    """Pass chunks on, counting; empty ones are left out."""

    def __init__(self, chunks: Iterable[ZSet]) -> None:
        self.rows = 0
        self.retractions = 0
        self._chunks = iter(chunks)

    def __iter__(self) -> Iterator[ZSet]:
        return self

    def __next__(self) -> ZSet:
        chunk = next(self._chunks)
        while not len(chunk):
            chunk = next(self._chunks)
        self.rows += len(chunk)
        self.retractions += int(np.count_nonzero(chunk.weights < 0))
        return chunk


def merged(chunks: Iterable[ZSet], rows: int) -> Iterator[ZSet]:
    """Put small chunks together, in their order, until each has `rows` rows: files and their readers like large batches.

    None is made that has more than `MOST_MERGED_BYTES`, beyond which an array of strings may not hold it.
    """
    waiting: list[ZSet] = []
    count = size = 0
    for chunk in chunks:
        if waiting and size + chunk.rows.nbytes > MOST_MERGED_BYTES:
            yield ZSet.concat(waiting, schema=chunk.schema)
            waiting, count, size = [], 0, 0
        waiting.append(chunk)
        count += len(chunk)
        size += chunk.rows.nbytes
        if count >= rows:
            yield ZSet.concat(waiting, schema=chunk.schema)
            waiting, count, size = [], 0, 0
    if waiting:
        yield ZSet.concat(waiting, schema=waiting[0].schema)


def _listed(file: DataFile) -> FileEntry:
    """Return the entry of a file whose commit does not need a checksum: its name is unique, and Delta has none."""
    return FileEntry(file.name, file.bytes, file.rows or 0, 0)


def _chain(first: ZSet, rest: Iterable[ZSet]) -> Iterator[ZSet]:
    yield first
    yield from rest
