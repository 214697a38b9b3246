"""The changelog as a Delta table: every epoch appends its lines, in one commit.

Columns: those of the output, those of the form (see `changelog.formats`), and `_epoch`. In the form `weight` the sum of the
weights of each row up to an epoch is the output at the end of that epoch.

The law: see `delta_log`; an epoch is one commit that carries its number. An epoch that changes nothing is an empty commit.

Two ways to write, as in the Parquet changelog: the process that holds the answer calls `write`; a job of many tasks calls
`write_delta_part` in each task, and `commit_parts` where the results come together. Files that were written and not committed
are seen by no reader and stay until VACUUM; a commit may still take them after a restart.

Memory: one chunk for the form `weight`, the whole epoch (of a part: the whole part) for the others.

Limits: only `_epoch` has statistics in the log where tasks wrote the files; OPTIMIZE adds those of the other columns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from zset_join.changelog import ChangelogForm, format_named
from zset_join.core.added_columns import with_added_nullable
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation
from zset_join.sinks.altering import beside, check_adds_columns
from zset_join.sinks.changelog_lines import ChangelogLines
from zset_join.sinks.delta_files import DataFile, read_data_file
from zset_join.sinks.delta_log import ChangedTableError, DeltaLog
from zset_join.sinks.delta_parts import EPOCH_COLUMN, delta_line_schema, write_delta_lines
from zset_join.sinks.delta_sink import DeltaSink
from zset_join.sinks.sink import SinkProgress, check_output
from zset_join.zset import ZSet

__all__ = ["DeltaChangelogSink"]

_ATTEMPTS = 15
_TARGET_BYTES = 128 << 20


class DeltaChangelogSink(DeltaSink):
    """Append every delta to a Delta table.

    Args:
        location: the table, a path or URI; created if it does not exist.
        form: how a line shows its kind of change; with the key of the output relation, retraction and insertion of one key are
            an update.
        storage_options: of delta-rs, to access the table.

    >>> import tempfile
    >>> from zset_join.core.relation import Relation
    >>> from zset_join.zset import ZSet
    >>> delta = ZSet.of({"k": [1, 2]}, [-1, 1])
    >>> changelog = DeltaChangelogSink(tempfile.mkdtemp())
    >>> changelog.open(Relation(name="answer", schema=delta.schema, mode="changelog"), "doctest")
    >>> changelog.write(0, [delta]).retractions
    1
    >>> changelog.read().to_pylist()
    [{'k': 1, '_weight': -1, '_epoch': 0}, {'k': 2, '_weight': 1, '_epoch': 0}]
    """

    def __init__(
        self,
        location: str | Path,
        form: ChangelogForm = "weight",
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.written_as = (), format_named(form)
        self.form = form
        super().__init__(DeltaLog(str(location), storage_options))

    def __repr__(self) -> str:
        return f"DeltaChangelogSink({shown(self.log.location)!r}, {self.form!r})"

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(str(self.log), output)
        schema = delta_line_schema(str(self.log), output.schema, self.form)
        properties = {"kind": "changelog", "form": self.form, "key": json.dumps(output.primary_key)}
        self.log.open(schema, query_id, properties, may_lack_columns=may_lack_columns)
        self._attached(output)

    def beside(self, name: str) -> DeltaChangelogSink:
        return DeltaChangelogSink(beside(self.log.location, name), self.form, storage_options=self.log.storage_options)

    def check_altered(self, output: Relation) -> None:
        before = self._opened()
        check_adds_columns(str(self.log), before.schema, output.schema, before.primary_key, output.primary_key)
        delta_line_schema(str(self.log), output.schema, self.form)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        output = self._opened()
        if self.log.has(epoch, link):
            self._last_epoch = self.log.last_epoch()
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        if self._lacks_columns:
            self.log.add_columns(delta_line_schema(str(self.log), output.schema, self.form))
            self._lacks_columns = False
        lines = ChangelogLines(str(self.log), output.schema, self.form, output.primary_key, chunks, epoch=epoch)
        with self.log.failures(f"written in epoch {epoch}"):
            files = write_delta_lines(self.log.folder, lines, part=0, target_bytes=_TARGET_BYTES)
        is_ours = self._commit(epoch, files, link)
        rows, retractions = (lines.rows, lines.retractions) if is_ours else (0, 0)
        return SinkProgress(epoch, rows, retractions, time.perf_counter() - started, replayed=not is_ours)

    def commit_parts(self, epoch: int, files: Sequence[DataFile], *, link: ChainLink | None = None) -> SinkProgress:
        """Make an epoch visible: the given files and nothing else. An epoch that is present already is left alone."""
        started = time.perf_counter()
        self._opened()
        if self.log.has(epoch, link):
            self._last_epoch = self.log.last_epoch()
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        for file in files:
            self._check_file(epoch, file)
        bounds, none = {EPOCH_COLUMN: epoch}, {EPOCH_COLUMN: 0}
        files = [DataFile(file.name, file.bytes, file.rows, bounds, bounds, none) for file in files]
        is_ours = self._commit(epoch, files, link)
        rows = sum(file.rows or 0 for file in files) if is_ours else 0
        return SinkProgress(epoch, rows, 0, time.perf_counter() - started, replayed=not is_ours)

    def read(self) -> pa.Table:
        """Return all lines, in no particular order."""
        output = self._opened()
        schema = with_added_nullable(0, delta_line_schema(str(self.log), output.schema, self.form))
        tables = [read_data_file(self.log.folder, file, schema) for file in self.log.files()]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _commit(self, epoch: int, files: Sequence[DataFile], link: ChainLink | None) -> bool:
        """Append the files; again, when others committed meanwhile: new lines contradict nothing."""
        conflict: ChangedTableError | None = None
        for _ in range(_ATTEMPTS):
            try:
                is_ours = self.log.commit(epoch, files, link=link)
            except ChangedTableError as error:
                conflict = error
            else:
                self._last_epoch = self.log.last_epoch()
                return is_ours
        raise SinkError(
            f"{self.log} was changed by others in each of {_ATTEMPTS} attempts to add epoch {epoch}: {conflict}. Run "
            "other jobs on this table less often, and restart the query; it continues with this epoch.",
            code="SINK_CONFLICT",
            table=self.log.location,
            epoch=epoch,
        ) from conflict

    def _check_file(self, epoch: int, file: DataFile) -> None:
        with self.log.failures("read"):
            size = self.log.folder.size(file.name)
        if size != file.bytes:
            raise SinkError(
                f'{self.log}: file "{file.name}" of epoch {epoch} should have {file.bytes} bytes and '
                + ("is missing" if size is None else f"has {size}")
                + ". Restart the query; it writes the epoch again.",
                code="SINK_PART",
                table=self.log.location,
                epoch=epoch,
                file=file.name,
                expected=file.bytes,
                actual=size,
            )
