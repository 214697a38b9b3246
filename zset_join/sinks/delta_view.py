"""A materialized view as a Delta table.

The law: after epoch N the table holds every row of the sum of the answers 0..N as often as its weight. One commit of the
Delta log swaps files and carries the epoch (see `delta_log`), so readers see the view at the end of an epoch, a crash leaves it
there, and an epoch that arrives again changes nothing.

Without a key the identity of a row is the whole row, and equal rows are in the table several times; with one, at most one
live row may hold it. `stored_rows` defines equality, and what is refused: a retraction of a row that does not exist, a
second row for a key. A refused epoch leaves the table as it was.

Delta files cannot be changed: a file that loses rows is written again without them. So an epoch costs its own rows, the
identity columns of the files that may hold its rows, and all of every file that does hold one. Whole numbers and dates as first
key columns narrow the search by the bounds in the log; keys that arrive and go together (new orders, today's flights) are in
few files, random ones in all. Small files are merged on the way: into the new file when they lose rows, or once there are 16.

Memory: the change of the epoch, one file, and 128k rows on their way to the disk.

Limits: files that are no longer part of the table stay on the disk for those who still read an older version, until VACUUM.
`vacuum_hours` runs it now and then. Who else changes rows of the table breaks its promise; OPTIMIZE and VACUUM do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.changelog import RowKindFormat, UpsertFormat
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.sinks.delta_files import DataFile, delta_schema, read_data_file, write_data_files
from zset_join.sinks.delta_log import DeltaSink
from zset_join.sinks.epoch_sink import check_names, given_key
from zset_join.sinks.sink import beside
from zset_join.sinks.stored_rows import RetractedRows, StoredRowsChange
from zset_join.zset import ZSet

__all__ = ["DeltaViewSink"]

_MOST_SMALL_FILES = 16
_SMALL_PART = 4
_TARGET_BYTES = 16 << 20
_VACUUM_EVERY = 64


class DeltaViewSink(DeltaSink):
    """Keep a Delta table equal to the sum of all answers.

    Args:
        location: the table, a path or URI; created if it does not exist.
        key: columns that identify a row; at most one live row may hold a key, NULL being a value like any other. Default: the
            primary key of the output relation, else none (the view is a bag).
        storage_options: of delta-rs, to access the table.
        vacuum_hours: every 64 epochs, remove the files that no version of the last so many hours needs; None: never.
        target_bytes: size of a file.

    >>> import tempfile
    >>> from zset_join.core.relation import Relation
    >>> from zset_join.zset import ZSet
    >>> ones = ZSet.of({"k": [1, 1, 2]})
    >>> view = DeltaViewSink(tempfile.mkdtemp())
    >>> view.open(Relation(name="answer", schema=ones.schema, mode="changelog"), "doctest")
    >>> view.write(0, [ones]).rows
    2
    >>> sorted(view.read().column("k").to_pylist())
    [1, 1, 2]
    """

    kind = "view"
    attempts = 5

    def __init__(
        self,
        location: str | Path,
        key: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        vacuum_hours: int | None = None,
        target_bytes: int = _TARGET_BYTES,
    ) -> None:
        if target_bytes < 1 or (vacuum_hours is not None and vacuum_hours < 1):
            raise OptionError(
                f"vacuum_hours={vacuum_hours!r}, target_bytes={target_bytes!r}: hours and bytes are positive.",
                code="SINK_OPTION",
                vacuum_hours=vacuum_hours,
                target_bytes=target_bytes,
            )
        super().__init__(location, storage_options)
        self.key = given_key(key)
        self._vacuum_hours = vacuum_hours
        self._target_bytes = target_bytes

    def __repr__(self) -> str:
        return f"DeltaViewSink({shown(self.log.location)!r}, key={self.key!r})"

    def beside(self, name: str) -> DeltaViewSink:
        return DeltaViewSink(
            beside(self.log.location, name),
            self.key,
            storage_options=self.log.storage_options,
            vacuum_hours=self._vacuum_hours,
            target_bytes=self._target_bytes,
        )

    def read(self) -> pa.Table:
        """Return the rows of the view, with the types of the output and in no particular order."""
        schema = with_added_nullable(0, self._opened().schema)
        with self.log.failures("read"):
            tables = [read_data_file(self.log.folder, file, schema) for file in self.log.files()]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _take(self, output: Relation) -> None:
        check_names(self._described, output.schema.names, self._key)
        super()._take(output)
        self.written_as = self._key, UpsertFormat() if self._key else RowKindFormat()

    def _stored(self, output: Relation) -> pa.Schema:
        return delta_schema(self._described, output.schema)

    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        net = self._delta(epoch, chunks).consolidated()
        delta = ZSet(net.rows.cast(self._columns), net.weights)
        change = StoredRowsChange(str(self.log), epoch, delta, self._key)
        is_ours = self._committed(epoch, link, lambda: self._rewrite(epoch, change), self._discard)
        if self._vacuum_hours is not None and epoch % _VACUUM_EVERY == _VACUUM_EVERY - 1:
            self.log.vacuum(self._vacuum_hours)
        return (len(delta), int(np.count_nonzero(delta.weights < 0))) if is_ours else None

    def _rewrite(self, epoch: int, change: StoredRowsChange) -> tuple[list[DataFile], list[DataFile]]:
        """Write the changed content of the touched files; return the new files, and those they replace."""
        if not len(change.delta):
            return [], []
        files = self.log.files()
        retracted = self._retracted(change, files)
        merged = self._merged(files, retracted)
        added: list[DataFile] = []
        try:
            for file in files:
                if file.name in retracted and file.name not in merged:
                    added += self._written(epoch, self._kept(change, file, retracted))
            added += self._written(epoch, self._small_and_new(change, [f for f in files if f.name in merged], retracted))
        except BaseException:
            self._discard(added)
            raise
        return added, [file for file in files if file.name in retracted or file.name in merged]

    def _retracted(self, change: StoredRowsChange, files: Sequence[DataFile]) -> dict[str, RetractedRows]:
        """Return, per file that loses rows, which."""
        if change.is_blind:
            return {}
        bounds = change.bounds()
        looked_at = [file for file in files if _may_hold(file, bounds)]
        columns = pa.schema([self._columns.field(name) for name in change.identity])
        candidates = [change.candidates(read_data_file(self.log.folder, file, columns)) for file in looked_at]
        return {
            file.name: retracted
            for file, retracted in zip(looked_at, change.match(candidates), strict=True)
            if len(retracted.positions)
        }

    def _merged(self, files: Sequence[DataFile], retracted: Mapping[str, RetractedRows]) -> set[str]:
        """Return the small files that become part of the new one: those that lose rows, or all when there are many."""
        small = {file.name for file in files if file.bytes < self._target_bytes // _SMALL_PART}
        return small if len(small) >= _MOST_SMALL_FILES else small & retracted.keys()

    def _kept(
        self, change: StoredRowsChange, file: DataFile, retracted: Mapping[str, RetractedRows]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that stay."""
        rows = read_data_file(self.log.folder, file, self._columns)
        gone = retracted.get(file.name)
        if gone is not None:
            if self._key:
                change.verify(gone, rows.take(pa.array(gone.positions)))
            stays = np.ones(rows.num_rows, np.bool_)
            stays[gone.positions] = False
            rows = rows.filter(pa.array(stays))
        yield from rows.to_batches()

    def _small_and_new(
        self, change: StoredRowsChange, merged: Sequence[DataFile], retracted: Mapping[str, RetractedRows]
    ) -> Iterator[pa.RecordBatch]:
        for file in merged:
            yield from self._kept(change, file, retracted)
        yield change.insertions()

    def _written(self, epoch: int, pieces: Iterable[pa.RecordBatch]) -> list[DataFile]:
        prefix = f"view-{epoch:08d}"
        return write_data_files(self.log.folder, prefix, self._columns, pieces, target_bytes=self._target_bytes)

    def _discard(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self.log.folder.remove(file.name)


def _may_hold(file: DataFile, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Return whether a file may hold a row between the bounds, by its statistics in the log."""
    for name, (least, most) in bounds.items():
        lowest, highest = file.least.get(name), file.most.get(name)
        if lowest is not None and highest is not None and (highest < least or lowest > most):
            return False
    return True
