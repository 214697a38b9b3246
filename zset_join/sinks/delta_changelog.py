"""The changelog as a Delta table: every epoch appends its lines, in one commit.

Columns: those of the output, those of the form (see `changelog.formats`), and `_epoch`. In the form `weight` the sum of the
weights of each row up to an epoch is the output at the end of that epoch.

The law: see `delta_log`; an epoch is one commit that carries its number. An epoch that changes nothing is an empty commit.

Memory: one chunk for the form `weight`, the whole epoch for the others.

Limits: files that were written and not committed are seen by no reader and stay until VACUUM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import PlanError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.sinks.changelog_lines import ChangelogLines
from zset_join.sinks.delta_files import delta_schema, read_data_file, write_data_files
from zset_join.sinks.delta_log import DeltaSink
from zset_join.sinks.sink import beside
from zset_join.zset import ZSet

__all__ = ["EPOCH_COLUMN", "DeltaChangelogSink"]

EPOCH_COLUMN = "_epoch"
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

    kind = "changelog"
    attempts = 15

    def __init__(
        self,
        location: str | Path,
        form: ChangelogForm = "weight",
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.written_as = (), format_named(form)
        self.form: ChangelogForm = form
        super().__init__(location, storage_options)

    def __repr__(self) -> str:
        return f"DeltaChangelogSink({shown(self.log.location)!r}, {self.form!r})"

    def beside(self, name: str) -> DeltaChangelogSink:
        return DeltaChangelogSink(beside(self.log.location, name), self.form, storage_options=self.log.storage_options)

    def read(self) -> pa.Table:
        """Return all lines, in no particular order."""
        schema = with_added_nullable(0, self._stored(self._opened()))
        tables = [read_data_file(self.log.folder, file, schema) for file in self.log.files()]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _stored(self, output: Relation) -> pa.Schema:
        if EPOCH_COLUMN in output.schema.names:
            raise PlanError(
                f'{self.log} adds the column "{EPOCH_COLUMN}", and the rows have one of that name; rename it.',
                code="DUPLICATE_COLUMN",
                columns=[EPOCH_COLUMN],
            )
        lines = encoded_schema(output.schema, format_named(self.form))
        return delta_schema(self._described, pa.schema([*lines, pa.field(EPOCH_COLUMN, pa.int64())]))

    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        lines = ChangelogLines(self._described, self._opened().schema, self.form, self._key, chunks, epoch=epoch)
        numbered = (batch.append_column(EPOCH_COLUMN, pa.array(np.full(batch.num_rows, epoch, np.int64))) for batch in lines)
        files = write_data_files(self.log.folder, f"part-{epoch:08d}", self._columns, numbered, target_bytes=_TARGET_BYTES)
        # New lines contradict nothing, so the files stay what they are in every attempt.
        return (lines.rows, lines.retractions) if self._committed(epoch, link, lambda: (files, ())) else None
