"""The lines of a changelog: the chunks of one epoch's answer, checked, written down in a form, and counted.

The law: lines in = chunks out; a line is called an update only when its other half is among the same chunks. So what is to be
looked at together is given together: all chunks of an epoch, or those of one task.

Memory: one chunk for the form `weight`; for the others, when there is a key to recognise updates by, all chunks.

`NewParquetFile` is the file they are written to, and the rows of views too: counted, and on the disk once it is finished.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.changelog import ChangelogForm, encode, encoded_schema, format_named
from zset_join.sinks.sink import check_chunk
from zset_join.storage.folder import Folder
from zset_join.zset import ZSet

__all__ = ["ChangelogLines", "NewParquetFile"]


class ChangelogLines:
    """Iterate over the lines of one epoch, once.

    >>> gone = ZSet.of({"k": [1]}, [-2])
    >>> lines = ChangelogLines("log", gone.schema, "row_kind", (), [gone], epoch=3)
    >>> [line["_row_kind"] for batch in lines for line in batch.to_pylist()], lines.retractions
    (['-D', '-D'], 2)
    """

    def __init__(
        self,
        described: str,
        rows: pa.Schema,
        form: ChangelogForm,
        key: tuple[str, ...],
        chunks: Iterable[ZSet],
        *,
        epoch: int,
        committed_at_us: int | None = None,
    ) -> None:
        self.schema = encoded_schema(rows, format_named(form))
        self.rows = 0
        self.retractions = 0
        self.described = described
        self.of = rows
        self.form = form
        self._key = key
        self._chunks = chunks
        self.epoch = epoch
        self._committed_at_us = time.time_ns() // 1000 if committed_at_us is None else committed_at_us

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for delta in self._together():
            lines = encode(delta, self._key, format_named(self.form), epoch=self.epoch, committed_at_us=self._committed_at_us)
            self.rows += lines.num_rows
            self.retractions += self._retracted(delta)
            yield lines

    def _together(self) -> Iterator[ZSet]:
        """Yield the groups of chunks to examine: each chunk alone, or all when updates are detected."""
        checked = (chunk for chunk in self._chunks if self._fits(chunk))
        if self.form == "weight" or not self._key:
            yield from checked
            return
        whole = ZSet.concat(checked, schema=self.of)
        if len(whole):
            yield whole

    def _fits(self, chunk: ZSet) -> bool:
        check_chunk(self.described, self.epoch, self.of, chunk)
        return len(chunk) > 0

    def _retracted(self, delta: ZSet) -> int:
        negative = delta.weights[delta.weights < 0]
        return len(negative) if self.form == "weight" else -int(negative.sum(dtype=np.int64))


class NewParquetFile:
    """A Parquet file of a folder, being written.

    Args:
        folder: where.
        name: of the file.
        schema: of its rows.
        crc32: what its checksum starts from.
    """

    def __init__(self, folder: Folder, name: str, schema: pa.Schema, crc32: int = 0) -> None:
        self.name = name
        self.bytes = self.rows = 0
        self.crc32 = crc32
        self.metadata: list[Any] = []
        self.closed = False
        self._file = folder.create(name)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self, mode="w"),
            schema,
            compression="zstd",
            compression_level=1,
            # Dictionaries pay for texts; for numbers they cost as much as everything else together.
            use_dictionary=[column.name for column in schema if pt.is_string(column.type)],
            metadata_collector=self.metadata,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        self.rows += rows.num_rows
        self._writer.write_batch(rows)

    def write(self, data: Any) -> int:
        """Take bytes of pyarrow."""
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: what waits is written when the file is finished."""

    def close(self) -> None:
        """Do nothing: `finish` closes."""

    def finish(self) -> None:
        """Close the file; it is on the disk then."""
        self._writer.close()
        self._file.close(durable=True)
        self.closed = True

    def discard(self) -> None:
        """Give the file up."""
        self.closed = True
        self._file.discard()
