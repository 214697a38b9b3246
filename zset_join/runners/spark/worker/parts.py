"""Part files: a task's share of an epoch's answer.

A task does not send its answer through Spark; it writes a part file and reports it. The driver collects the reports of
the attempts that won, so the answer is computed once, is durable enough to be given out again, and a twin attempt leaves
nothing but a file that nobody lists.

`ArrowParts` are for outputs on the driver, `ParquetParts` for a user's function on a DataFrame, `ChangelogParts` are the files
of a changelog. Parts of the first two are not synced: when they are lost, the epoch is answered again from the same state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.changelog import ChangelogForm
from zset_join.checkpoint.answer_parts import ArrowParts, CountedChunks, read_arrow_parts, with_first
from zset_join.checkpoint.files import CheckpointFiles, FileEntry, attempt_name
from zset_join.checkpoint.record import PartEntry
from zset_join.core.epochs import Tick
from zset_join.runners.common.rejected import Rejected, add_unfit, unfit_flags, without
from zset_join.runners.spark.worker.quarantine import DeadLetters
from zset_join.sinks.changelog_directory import ChangelogLines
from zset_join.sinks.parquet_changelog import write_part
from zset_join.sinks.unfit_values import check_fits, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = [
    "MOST_MERGED_BYTES",
    "MOST_TIDY_ROWS",
    "ArrowParts",
    "ChangelogParts",
    "FittingParts",
    "ParquetParts",
    "PartWriter",
    "file_unfit_flags",
    "merged",
    "read_arrow_parts",
    "tidied",
]

MOST_MERGED_BYTES = 256 << 20
MOST_TIDY_ROWS = 1 << 20


class PartWriter(Protocol):
    """Writer of a task's share of the answer; sent to the worker."""

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        """Write the chunks, retractions first, and return the report; none for an empty answer."""


@dataclass(frozen=True, slots=True)
class ParquetParts:
    """Write one Parquet file per bucket, in the form a user's function requested."""

    form: ChangelogForm = "weight"
    key: tuple[str, ...] = ()

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        counted = CountedChunks(chunks)
        first = next(counted, None)
        if first is None:
            return []
        answer = f"the answer in bucket {bucket}"
        lines = ChangelogLines(
            answer,
            schema,
            self.form,
            self.key,
            with_first(first, counted),
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
    """Write the files of a Parquet changelog."""

    directory: str

    def write(
        self,
        files: CheckpointFiles,  # noqa: ARG002 - the changelog has its own place
        bucket: int,
        tick: Tick,
        schema: pa.Schema,  # noqa: ARG002 - the changelog has its own schema
        chunks: Iterable[ZSet],
    ) -> list[PartEntry]:
        counted = CountedChunks(chunks)
        first = next(counted, None)
        if first is None:
            return []
        part = write_part(
            self.directory,
            tick.epoch,
            uuid.uuid4().hex,
            bucket,
            with_first(first, counted),
            committed_at_us=tick.processing_time_us,
        )
        return [PartEntry(bucket, FileEntry(part.name, part.bytes, part.rows, part.crc32), part.retractions, "changelog")]


def merged(chunks: Iterable[ZSet], rows: int) -> Iterator[ZSet]:
    """Put small chunks together, in their order, until each has `rows` rows: files and their readers like large batches."""
    # None is made that has more than `MOST_MERGED_BYTES`, beyond which an array of strings may not hold it.
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


def tidied(pieces: Iterator[ZSet], chunk_rows: int) -> Iterator[ZSet]:
    """Yield every distinct row once, retractions first; an answer too large to be held, as it comes."""
    held: list[ZSet] = []
    count = size = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        size += piece.rows.nbytes
        if count > MOST_TIDY_ROWS or size > MOST_MERGED_BYTES:
            yield from held
            yield from pieces
            return
    if held:
        yield from ZSet.concat(held, schema=held[0].schema).tidy_chunks(chunk_rows)


# As of `zset_join.sinks.unfit_values`: what a task refuses is in no commit record; what it sets aside is listed in that of the
# epoch, beside its parts. Cost: one pass over the text columns of the answer.
@dataclass(frozen=True, slots=True, repr=False)
class FittingParts:
    """Write the rows that an output can hold."""

    writer: PartWriter
    output: str
    letters: DeadLetters | None

    def __repr__(self) -> str:
        return repr(self.writer)

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        rejected = Rejected()
        parts = self.writer.write(files, bucket, tick, schema, self._fitting(chunks, rejected, tick.epoch))
        return parts if self.letters is None else [*parts, *self.letters.write(tick, bucket, {self.output: rejected})]

    def _fitting(self, chunks: Iterable[ZSet], rejected: Rejected, epoch: int) -> Iterator[ZSet]:
        for chunk in chunks:
            unfit = unfit_values(chunk.rows, within_microseconds)
            if not unfit:
                yield chunk
                continue
            if self.letters is None:
                check_fits(self.output, chunk, unfit, epoch=epoch)
            else:
                add_unfit(rejected, chunk, unfit)
            kept = without(chunk, np.flatnonzero(unfit_flags(chunk.rows, unfit)))
            if len(kept):
                yield kept


def file_unfit_flags(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return unfit_flags(rows, unfit_values(rows, within_microseconds))
