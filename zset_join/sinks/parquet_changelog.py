"""The changelog itself as Parquet files, one directory per epoch.

The law: readers see every epoch whole or not at all, exactly once, and an epoch that is present is final: writing it again
writes nothing. Two attempts never share a file name. How that is done on a local disk and on an object store, and what protects
the files, is in `changelog_directory`.

Two ways to write, and both may be used in one changelog: the process that holds the answer calls `ParquetChangelogSink.write`;
a job of many tasks calls `write_part` in each task and `commit_epoch` where the task results come together. An update whose
retraction and insertion are in different parts is written as `-D` and `+I`.

Memory: one chunk for the form `weight`, the whole epoch (of a part: the whole part) for the others, which look for updates.

Readers that follow Hive partitioning (Spark, DuckDB, polars) make a column `epoch` of the names of the directories, which would
hide one of that name in the rows; so such a column is refused, and durations, which Parquet keeps as plain numbers, are too.

Limits: a directory per epoch, for ever; who writes thousands a day takes a Delta table instead. On an object store read
`committed_files`, not whatever is in the directories.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.core.epochs import ChainLink, short_mark
from zset_join.core.errors import SinkError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.sinks.changelog_directory import (
    ChangelogDirectory,
    ChangelogLines,
    Header,
    NewParquetFile,
    PartFile,
    first_checksum,
)
from zset_join.sinks.epoch_sink import EpochSink, Position, check_layout
from zset_join.sinks.sink import SinkProgress, StoredEpochs, beside, holds_duration
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds
from zset_join.zset import ZSet

__all__ = [
    "EPOCH_PARTITION",
    "ParquetChangelogSink",
    "PartFile",
    "are_staged",
    "commit_epoch",
    "committed_epochs",
    "committed_files",
    "read_changelog",
    "stored_epochs",
    "write_part",
]

EPOCH_PARTITION = "epoch"
"""What the directories of epochs are called: `epoch=00000012`."""


class ParquetChangelogSink(EpochSink):
    """Write every delta down, one directory per epoch.

    Args:
        directory: where the changelog lies, a path or URI; created if it does not exist.
        form: see `changelog.formats`; with the key of the output relation, retraction and insertion of one key are an update.

    >>> import tempfile
    >>> from zset_join.core.relation import Relation
    >>> from zset_join.zset import ZSet
    >>> delta = ZSet.of({"k": [1, 2]}, [-1, 1])
    >>> directory = tempfile.mkdtemp()
    >>> changelog = ParquetChangelogSink(directory)
    >>> changelog.open(Relation(name="answer", schema=delta.schema, mode="changelog"), "doctest")
    >>> changelog.write(0, [delta]).retractions
    1
    >>> read_changelog(directory).column("_weight").to_pylist()
    [-1, 1]
    """

    def __init__(self, directory: str | Path, form: ChangelogForm = "weight") -> None:
        self.written_as = (), format_named(form)
        self.form: ChangelogForm = form
        self._files = ChangelogDirectory(directory)

    @property
    def location(self) -> str:
        """Return the directory, as a path or URI."""
        return self._files.location

    def __repr__(self) -> str:
        return f"ParquetChangelogSink({shown(self._files.location)!r}, {self.form!r})"

    def beside(self, name: str) -> ParquetChangelogSink:
        return ParquetChangelogSink(beside(self.location, name), self.form)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, within_microseconds)

    def read(self) -> pa.Table:
        """Return all lines; see `read_changelog`."""
        self._opened()
        return read_changelog(self._files.location)

    @property
    @override
    def _described(self) -> str:
        return str(self._files)

    def check_altered(self, output: Relation) -> None:
        self._check_growth(output)

    def alter(self, output: Relation) -> None:
        self._grow(output)

    @override
    def _check_columns(self, output: Relation) -> None:
        _check_columns(str(self._files), output.schema)
        encoded_schema(output.schema, format_named(self.form))

    @override
    def _take(self, output: Relation) -> None:
        self._check_columns(output)
        self._header = Header(self._query_id, self.form, self._key, output.schema.remove_metadata())

    @override
    def _attach(self) -> None:
        self._files.make(self._header)
        stored, wanted = self._files.header(), self._header
        check_layout(str(self._files), stored.layout(), wanted.layout(), may_lack_columns=self._may_lack_columns)
        if len(stored.schema) == len(wanted.schema):
            self._header, self._may_lack_columns = stored, False  # columns that were added may be NULL there
        else:
            self._header = replace(wanted, schema=with_added_nullable(len(stored.schema), wanted.schema))
        self._files.folder.sync_names("")  # an epoch that a dead driver named may be built upon: it survives a power cut now
        self._last_epoch = max(self._files.epochs(), default=None)
        self._files.clear(self._last_epoch)

    @override
    def _position(self) -> Position:
        return self._last_epoch, lambda epoch: self._files.digest_of(self._header, epoch)

    @override
    def _is_there(self, epoch: int, link: ChainLink | None) -> bool:
        is_there = self._files.has(self._header, epoch, link)
        if is_there:
            self._last_epoch = epoch if self._last_epoch is None else max(self._last_epoch, epoch)
        return is_there

    @override
    def _add_columns(self) -> None:
        # Before there are files that have them: a reader takes NULL for what is missing.
        self._files.replace_header(self._header)
        self._may_lack_columns = False

    @override
    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        part = _write_part(self._files, self._header, epoch, f"part-00000-{uuid.uuid4().hex}", chunks)
        is_ours = self._files.publish(self._header, epoch, [part], link)
        self._last_epoch = epoch
        return (part.rows, part.retractions) if is_ours else None


def write_part(
    directory: str | Path,
    epoch: int,
    attempt: str,
    part: int,
    chunks: Iterable[ZSet],
    *,
    committed_at_us: int | None = None,
) -> PartFile:
    """Write one task's share of an epoch; nothing is visible before `commit_epoch`."""
    files = ChangelogDirectory(directory)
    with files.failures():
        return _write_part(files, files.header(), epoch, f"part-{part:05d}-{attempt}", chunks, committed_at_us=committed_at_us)


def are_staged(directory: str | Path, epoch: int, parts: Sequence[PartFile]) -> bool:
    """Return whether parts that were written still wait for their commit, in their full length."""
    files = ChangelogDirectory(directory)
    with files.failures():
        return all(files.has_staged(epoch, part) for part in parts)


def commit_epoch(
    directory: str | Path, epoch: int, parts: Sequence[PartFile], *, link: ChainLink | None = None
) -> SinkProgress:
    """Make an epoch visible: the given parts and nothing else. An epoch that is present already is left alone."""
    # A commit that fails halfway leaves the epoch absent; write its parts again.
    started = time.perf_counter()
    files = ChangelogDirectory(directory)
    with files.failures():
        is_ours = files.publish(files.header(), epoch, parts, link)
    counts = [(part.rows, part.retractions) for part in parts] if is_ours else []
    rows, retractions = (sum(column) for column in zip((0, 0), *counts, strict=True))
    return SinkProgress(epoch, rows, retractions, time.perf_counter() - started, replayed=not is_ours)


def committed_epochs(directory: str | Path) -> list[int]:
    """Return the epochs of a changelog, in order."""
    files = ChangelogDirectory(directory)
    with files.failures():
        return files.epochs()


def committed_files(directory: str | Path, up_to_epoch: int | None = None) -> list[str]:
    """Return the paths or URIs of the files of a changelog, in the order of their epochs."""
    files = ChangelogDirectory(directory)
    with files.failures():
        manifests = files.manifests(files.header(), up_to_epoch)
        return [files.part_uri(manifest.epoch, part) for manifest in manifests for part in manifest.files]


def read_changelog(directory: str | Path, up_to_epoch: int | None = None) -> pa.Table:
    """Return the lines of a changelog, in the order of their epochs, with the epoch in the last column, `epoch`."""
    files = ChangelogDirectory(directory)
    header = files.header()
    schema = encoded_schema(_nullable(header.schema), format_named(header.form))
    with files.failures():
        tables = [
            _with_epoch(
                _conformed(pq.ParquetFile(pa.BufferReader(files.read_part(header, manifest.epoch, part))).read(), schema),
                manifest.epoch,
            )
            for manifest in files.manifests(header, up_to_epoch)
            for part in manifest.files
        ]
    return pa.concat_tables([_with_epoch(schema.empty_table(), 0), *tables])


def stored_epochs(directory: str | Path) -> StoredEpochs:
    """Return which epochs a changelog holds; it is only read."""
    files = ChangelogDirectory(directory)
    header = files.header()

    def mark_of(epoch: int) -> str | None:
        with files.failures():
            digest = files.digest_of(header, epoch)
        return None if digest is None else short_mark(epoch, digest)

    with files.failures():
        return StoredEpochs(header.query_id, max(files.epochs(), default=None), mark_of, detail=header.form)


def _conformed(lines: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return lines with the columns that the changelog has now; NULL in those that arrived later."""
    have = set(lines.schema.names)
    columns = [lines.column(field.name) if field.name in have else pa.nulls(lines.num_rows, field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return columns that may be NULL: a changed query may insert NULL, or retract it."""
    return with_added_nullable(0, schema)


def _with_epoch(lines: pa.Table, epoch: int) -> pa.Table:
    return lines.append_column(EPOCH_PARTITION, pa.array(np.full(lines.num_rows, epoch, np.int64)))


def _check_columns(described: str, schema: pa.Schema) -> None:
    for field in schema:
        if field.name.lower() == EPOCH_PARTITION:
            raise SinkError(
                f'{described} cannot have a column "{field.name}": its directories are called {EPOCH_PARTITION}=..., and '
                "Spark, DuckDB and others would show their number in its place. Rename the column of the output, or write "
                "a Delta table.",
                code="SINK_COLUMNS",
                column=field.name,
            )
        if holds_duration(field.type):
            raise SinkError(
                f'{described} cannot keep column "{field.name}" of type {field.type}: Parquet keeps a duration as a plain '
                "number, and readers would not see that it is one. Cast it to a whole number of microseconds in the query.",
                code="SINK_TYPE",
                column=field.name,
                type=str(field.type),
            )


def _write_part(
    files: ChangelogDirectory,
    header: Header,
    epoch: int,
    name: str,
    chunks: Iterable[ZSet],
    *,
    committed_at_us: int | None = None,
) -> PartFile:
    name = f"{name}.parquet"
    schema = _nullable(header.schema)
    lines = ChangelogLines(str(files), schema, header.form, header.key, chunks, epoch=epoch, committed_at_us=committed_at_us)
    first = first_checksum(header.query_id, epoch, name)
    file = NewParquetFile(files.folder, files.staged(epoch, name), lines.schema, first)
    try:
        for batch in lines:
            file.add(pa.RecordBatch.from_arrays(batch.columns, schema=lines.schema))
        file.finish()
    except BaseException:
        file.discard()
        raise
    return PartFile(name, lines.rows, lines.retractions, file.bytes, file.crc32)
