"""The answer of an epoch as files of the checkpoint, from which it can be given out again until the outputs have it for good.

One Arrow IPC stream per bucket, with the weight as last column; retractions come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.files import CheckpointFiles, attempt_name
from zset_join.checkpoint.record import PartEntry
from zset_join.core.epochs import Tick
from zset_join.zset import ZSet

__all__ = ["ArrowParts", "CountedChunks", "read_arrow_parts", "with_first"]

_WEIGHT_FIELD = pa.field("__weight", pa.int64(), nullable=False)


class ArrowParts:
    """Write one Arrow IPC stream per bucket, with the weight as last column."""

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        counted = CountedChunks(chunks)
        first = next(counted, None)
        if first is None:
            return []
        whole = pa.schema([*schema, _WEIGHT_FIELD])
        with (
            files.create(f"delta/{bucket}/{attempt_name(tick.epoch, '.arrows')}", durable=self._durable) as file,
            pa.ipc.new_stream(pa.PythonFile(file, mode="w"), whole) as writer,
        ):
            for chunk in with_first(first, counted):
                writer.write_batch(pa.RecordBatch.from_arrays([*chunk.rows.columns, pa.array(chunk.weights)], schema=whole))
        return [PartEntry(bucket, file.entry(counted.rows), counted.retractions, "arrow")]


def read_arrow_parts(files: CheckpointFiles, parts: Iterable[PartEntry]) -> Iterator[ZSet]:
    """Yield the whole answer of an epoch: the retractions of all buckets, then the insertions."""
    views = [files.view(part.file) for part in parts]
    for wanted_sign in (-1, 1):
        for part in views:
            for batch in pa.ipc.open_stream(part):
                weights = np.asarray(batch.column(batch.num_columns - 1), dtype=np.int64)
                retractions = int(np.count_nonzero(weights < 0))
                begin, end = (0, retractions) if wanted_sign < 0 else (retractions, len(weights))
                if end > begin:
                    schema = pa.schema(list(batch.schema)[:-1])
                    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
                    yield ZSet(rows.slice(begin, end - begin), weights[begin:end])


class CountedChunks:
    """Pass chunks on, counting; empty ones are omitted."""

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


def with_first(first: ZSet, rest: Iterable[ZSet]) -> Iterator[ZSet]:
    """Put a chunk that was taken already before the others."""
    yield first
    yield from rest
