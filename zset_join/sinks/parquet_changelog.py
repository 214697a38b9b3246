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
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.core.added_columns import adds_columns, with_added_nullable
from zset_join.core.epoch_chain import ChainLink, short_mark
from zset_join.core.errors import SinkError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation
from zset_join.sinks.altering import beside, check_adds_columns
from zset_join.sinks.changelog_directory import ChangelogDirectory, Header, Manifest, PartFile, first_checksum
from zset_join.sinks.changelog_lines import ChangelogLines
from zset_join.sinks.sink import SinkProgress, check_output, holds_duration, is_same_epoch
from zset_join.sinks.stored_epochs import StoredEpochs
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds
from zset_join.storage.folder import FolderFile
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


class ParquetChangelogSink:
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
        self.form = form
        self._files = ChangelogDirectory(directory)
        self._opened: Header | None = None
        self._last_epoch: int | None = None
        self._lacks: Header | None = None

    @property
    def location(self) -> str:
        """Return the directory, as a path or URI."""
        return self._files.location

    def __repr__(self) -> str:
        return f"ParquetChangelogSink({shown(self._files.location)!r}, {self.form!r})"

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(str(self._files), output)
        self._check(output)
        wanted = self._wanted(output, query_id)
        with self._files.failures():
            self._files.make(wanted)
            stored = self._files.header()
            if may_lack_columns and _lacks_columns(stored, wanted):
                wanted = self._lacks = replace(wanted, schema=with_added_nullable(len(stored.schema), wanted.schema))
            else:
                self._lacks = None
                _check_header(self._files, wanted)
                wanted = stored  # columns that were added may be NULL there
            self._files.folder.sync_names(
                ""
            )  # an epoch that a dead driver named may be built upon: it survives a power cut now
            self._last_epoch = max(self._files.epochs(), default=None)
            self._files.clear(self._last_epoch)
        self._opened = wanted

    def _check(self, output: Relation) -> None:
        _check_columns(str(self._files), output.schema)
        encoded_schema(output.schema, format_named(self.form))

    def _wanted(self, output: Relation, query_id: str) -> Header:
        return Header(query_id, self.form, output.primary_key, output.schema.remove_metadata())

    def beside(self, name: str) -> ParquetChangelogSink:
        return ParquetChangelogSink(beside(self.location, name), self.form)

    def check_altered(self, output: Relation) -> None:
        header = self._header()
        check_adds_columns(str(self._files), header.schema, output.schema, header.key, output.primary_key)
        self._check(output)

    def alter(self, output: Relation) -> None:
        header = self._header()
        wanted = self._wanted(output, header.query_id)
        self._lacks = self._opened = replace(wanted, schema=with_added_nullable(len(header.schema), wanted.schema))

    def last_epoch(self) -> int | None:
        self._header()
        return self._last_epoch

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        with self._files.failures():
            return _is_there(self._files, self._header(), epoch, link)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, within_microseconds)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        header = self._header()
        with self._files.failures():
            if _is_there(self._files, header, epoch, link):
                self._last_epoch = epoch if self._last_epoch is None else max(self._last_epoch, epoch)
                return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
            if self._lacks is not None:  # before the files that have them: a reader takes NULL for what is missing
                self._files.replace_header(self._lacks)
                self._lacks = None
        part = _write_part(self._files, header, epoch, uuid.uuid4().hex, 0, chunks, None)
        progress = _commit_epoch(self._files, header, epoch, [part], link)
        self._last_epoch = epoch
        seconds = time.perf_counter() - started
        return SinkProgress(epoch, progress.rows, progress.retractions, seconds, replayed=progress.replayed)

    def read(self) -> pa.Table:
        """Return all lines; see `read_changelog`."""
        self._header()
        return read_changelog(self._files.location)

    def close(self) -> None:
        self._opened = None
        self._last_epoch = None

    def _header(self) -> Header:
        if self._opened is None:
            raise SinkError(f"{self._files} is closed; call open first.", code="SINK_CLOSED")
        return self._opened


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
    return _write_part(files, files.header(), epoch, attempt, part, chunks, committed_at_us)


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
    files = ChangelogDirectory(directory)
    return _commit_epoch(files, files.header(), epoch, parts, link)


def committed_epochs(directory: str | Path) -> list[int]:
    """Return the epochs of a changelog, in order."""
    files = ChangelogDirectory(directory)
    with files.failures():
        return files.epochs()


def committed_files(directory: str | Path, up_to_epoch: int | None = None) -> list[str]:
    """Return the paths or URIs of the files of a changelog, in the order of their epochs."""
    files = ChangelogDirectory(directory)
    with files.failures():
        manifests = _manifests(files, files.header(), up_to_epoch)
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
            for manifest in _manifests(files, header, up_to_epoch)
            for part in manifest.files
        ]
    return pa.concat_tables([_with_epoch(schema.empty_table(), 0), *tables])


def stored_epochs(directory: str | Path) -> StoredEpochs:
    """Return which epochs a changelog holds; it is only read."""
    files = ChangelogDirectory(directory)
    header = files.header()

    def mark_of(epoch: int) -> str | None:
        with files.failures():
            digest = _digest_of(files, header, epoch) if files.is_committed(epoch) else None
        return None if digest is None else short_mark(epoch, digest)

    with files.failures():
        return StoredEpochs(header.query_id, max(files.epochs(), default=None), mark_of, detail=header.form)


def _conformed(lines: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return lines with the columns that the changelog has now; NULL in those that arrived later."""
    have = set(lines.schema.names)
    columns = [lines.column(field.name) if field.name in have else pa.nulls(lines.num_rows, field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def _lacks_columns(stored: Header, wanted: Header) -> bool:
    known, now = (stored.query_id, stored.form, stored.key), (wanted.query_id, wanted.form, wanted.key)
    return known == now and adds_columns(stored.schema, wanted.schema)


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
    attempt: str,
    part: int,
    chunks: Iterable[ZSet],
    committed_at_us: int | None,
) -> PartFile:
    name = f"part-{part:05d}-{attempt}.parquet"
    lines = ChangelogLines(
        str(files), _nullable(header.schema), header.form, header.key, chunks, epoch=epoch, committed_at_us=committed_at_us
    )
    with files.failures():
        first = first_checksum(header.query_id, epoch, name)
        file = _CountedFile(files.folder.create(files.staged(epoch, name)), first)
        try:
            with pq.ParquetWriter(
                pa.PythonFile(file, mode="w"),
                lines.schema,
                compression="zstd",
                compression_level=1,
                # Dictionaries pay for texts; for numbers they cost as much as everything else together.
                use_dictionary=[field.name for field in lines.schema if pt.is_string(field.type)],
            ) as writer:
                for batch in lines:
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=lines.schema))
            file.finish()
        except BaseException:
            file.discard()
            raise
    return PartFile(name, lines.rows, lines.retractions, file.bytes, file.crc32)


def _commit_epoch(
    files: ChangelogDirectory, header: Header, epoch: int, parts: Sequence[PartFile], link: ChainLink | None
) -> SinkProgress:
    started = time.perf_counter()
    digest = None if link is None else link.digest
    with files.failures():
        if _is_there(files, header, epoch, link):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        if not files.publish(header, epoch, parts, digest, begins=link is not None and link.begins):
            _is_there(files, header, epoch, link)
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
    rows, retractions = sum(part.rows for part in parts), sum(part.retractions for part in parts)
    return SinkProgress(epoch, rows, retractions, time.perf_counter() - started)


def _is_there(files: ChangelogDirectory, header: Header, epoch: int, link: ChainLink | None) -> bool:
    """Return whether an epoch is present; refuse one that would leave a hole, and one of another chain."""
    if files.is_committed(epoch):
        last: int | None = epoch
    elif epoch == 0 or files.is_committed(epoch - 1):
        last = epoch - 1 if epoch else None
    else:
        last = max(files.epochs(), default=None)
    return is_same_epoch(str(files), last, lambda number: _digest_of(files, header, number), epoch, link)


def _digest_of(files: ChangelogDirectory, header: Header, epoch: int) -> str | None:
    return files.manifest(header, epoch).digest if files.is_committed(epoch) else None


def _manifests(files: ChangelogDirectory, header: Header, up_to_epoch: int | None) -> Iterator[Manifest]:
    epochs = [epoch for epoch in files.epochs() if up_to_epoch is None or epoch <= up_to_epoch]
    first = epochs[0] if epochs and files.manifest(header, epochs[0]).begins else 0
    if epochs != list(range(first, first + len(epochs))):
        raise SinkError(
            f"{files} has the epochs {epochs}; some in between are missing. Restore their directories.",
            code="SINK_EPOCH_GAP",
            directory=files.location,
            epochs=epochs,
        )
    return (files.manifest(header, epoch) for epoch in epochs)


def _check_header(files: ChangelogDirectory, wanted: Header) -> None:
    stored = files.header()
    if stored.query_id != wanted.query_id:
        raise SinkError(
            f'{files} belongs to query "{stored.query_id}", not to "{wanted.query_id}". Write to another directory, or delete '
            "this one to start over.",
            code="SINK_QUERY_ID",
            directory=files.location,
            expected=stored.query_id,
            actual=wanted.query_id,
        )
    same_columns = stored.schema.names == wanted.schema.names and stored.schema.types == wanted.schema.types
    if (stored.form, stored.key) != (wanted.form, wanted.key) or not same_columns:
        raise SinkError(
            f"{files} was made with form={stored.form!r}, key {list(stored.key)} and columns {_columns(stored)}; the query now "
            f"has form={wanted.form!r}, key {list(wanted.key)} and columns {_columns(wanted)}. Restore the query, or start "
            "a new changelog and checkpoint.",
            code="SINK_SCHEMA",
            directory=files.location,
        )


def _columns(header: Header) -> str:
    return "[" + ", ".join(f"{field.name}: {field.type}" for field in header.schema) + "]"


class _CountedFile:
    """A file for pyarrow to write to, counting bytes and checksum."""

    def __init__(self, file: FolderFile, first: int) -> None:
        self.bytes = 0
        self.crc32 = first
        self.closed = False
        self._file = file

    def write(self, data: Any) -> int:
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
        self._file.close(durable=True)
        self.closed = True

    def discard(self) -> None:
        self.closed = True
        self._file.discard()
