"""A snapshot: the live rows of one bucket of one stage after some epoch.

The law: restoring a snapshot and absorbing the logged epochs after it gives the state of the operator.

One Parquet file per table the operator names. The Arrow schema is kept in the file, so types come back exactly.

Memory: a row group of 16 MB while it is written, and when it is read the compressed files and two parts of 65,536 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.checkpoint.files import CheckpointFiles, FileEntry, attempt_name
from zset_join.state.rows.side_snapshot import counted_reader

__all__ = ["SnapshotEntry", "open_snapshot", "read_snapshot", "write_snapshot"]

_GROUP_BYTES = 16 << 20
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """List one snapshot."""

    through_epoch: int
    identity: str
    tables: Mapping[str, FileEntry]
    live_bytes: int = 0

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.tables.values())


def write_snapshot(
    files: CheckpointFiles,
    folder: str,
    tables: Mapping[str, pa.Table | pa.RecordBatchReader],
    *,
    through_epoch: int,
    identity: str,
) -> SnapshotEntry:
    entries = {}
    live_bytes = 0
    for name, table in tables.items():
        rows = 0
        options: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
        batches = table.to_batches() if isinstance(table, pa.Table) else table
        with (
            files.create(f"{folder}/{attempt_name(through_epoch, f'-{name}.parquet')}") as file,
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), table.schema, **options) as writer,
        ):
            for group in _row_groups(batches, table.schema):
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
                live_bytes += group.nbytes
        entries[name] = file.entry(rows)
    return SnapshotEntry(through_epoch, identity, entries, live_bytes)


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(each.nbytes for each in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)


def open_snapshot(files: CheckpointFiles, entry: SnapshotEntry) -> dict[str, pa.RecordBatchReader]:
    """Return readers of the tables of a snapshot, part by part."""
    readers = {}
    for name, file in entry.tables.items():
        opened = pq.ParquetFile(pa.BufferReader(files.read(file)))
        parts = opened.iter_batches(batch_size=_ROWS_AT_ONCE)
        parts = _read_ahead(parts) if file.rows > _ROWS_AT_ONCE else parts
        readers[name] = counted_reader(pa.RecordBatchReader.from_batches(opened.schema_arrow, parts), file.rows)
    return readers


def _read_ahead(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield parts, of which the next one is decoded in a thread of its own meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="zset_join-snapshot") as decoding:
        coming = decoding.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = decoding.submit(next, parts, None)
            yield part


def read_snapshot(files: CheckpointFiles, entry: SnapshotEntry) -> dict[str, pa.Table]:
    return {name: pq.read_table(pa.BufferReader(files.read(file))) for name, file in entry.tables.items()}
