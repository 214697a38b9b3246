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

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.changelog import RowKindFormat, UpsertFormat
from zset_join.core.added_columns import with_added_nullable
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation
from zset_join.sinks.altering import beside, check_adds_columns
from zset_join.sinks.delta_files import DataFile, delta_schema, read_data_file, write_data_files
from zset_join.sinks.delta_log import ChangedTableError, DeltaLog
from zset_join.sinks.delta_sink import DeltaSink
from zset_join.sinks.sink import SinkProgress, check_chunk, check_output
from zset_join.sinks.stored_rows import RetractedRows, StoredRowsChange
from zset_join.zset import ZSet

__all__ = ["DeltaViewSink"]

_ATTEMPTS = 5
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

    def __init__(
        self,
        location: str | Path,
        key: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        vacuum_hours: int | None = None,
        target_bytes: int = _TARGET_BYTES,
    ) -> None:
        if isinstance(key, str) or target_bytes < 1 or (vacuum_hours is not None and vacuum_hours < 1):
            raise OptionError(
                f"key={key!r}, vacuum_hours={vacuum_hours!r}, target_bytes={target_bytes!r}: a key is a list of column names, "
                "hours and bytes are positive.",
                code="SINK_OPTION",
                key=key,
                vacuum_hours=vacuum_hours,
                target_bytes=target_bytes,
            )
        self.key = None if key is None else tuple(key)
        super().__init__(DeltaLog(str(location), storage_options))
        self._vacuum_hours = vacuum_hours
        self._target_bytes = target_bytes

    def __repr__(self) -> str:
        return f"DeltaViewSink({shown(self.log.location)!r}, key={self.key!r})"

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(str(self.log), output)
        self._key = self.key if self.key is not None else output.primary_key
        missing = [name for name in self._key if name not in output.schema.names]
        if missing:
            raise SinkError(
                f"{self.log}: key={list(self._key)} names {missing}, which is not among the columns {output.schema.names}.",
                code="SINK_COLUMNS",
                table=self.log.location,
                missing=missing,
            )
        self.written_as = self._key, UpsertFormat() if self._key else RowKindFormat()
        self._schema = delta_schema(str(self.log), output.schema)
        properties = {"kind": "view", "key": json.dumps(self._key)}
        self.log.open(self._schema, query_id, properties, may_lack_columns=may_lack_columns)
        self._attached(output)

    def beside(self, name: str) -> DeltaViewSink:
        return DeltaViewSink(
            beside(self.log.location, name),
            self.key,
            storage_options=self.log.storage_options,
            vacuum_hours=self._vacuum_hours,
            target_bytes=self._target_bytes,
        )

    def check_altered(self, output: Relation) -> None:
        before = self._opened()
        key = self.key if self.key is not None else output.primary_key
        check_adds_columns(str(self.log), before.schema, output.schema, self._key, key)
        delta_schema(str(self.log), output.schema)

    def alter(self, output: Relation) -> None:
        super().alter(output)
        self._schema = delta_schema(str(self.log), self._opened().schema)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        output = self._opened()
        is_there = self.log.has(epoch, link)
        self._last_epoch = self.log.last_epoch()
        if is_there:
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        if self._lacks_columns:
            self.log.add_columns(self._schema)
            self._lacks_columns = False
        net = ZSet.concat(self._checked(epoch, chunks), schema=output.schema).consolidated()
        delta = ZSet(net.rows.cast(self._schema), net.weights)
        change = StoredRowsChange(str(self.log), epoch, delta, self._key)
        is_ours = self._commit(epoch, change, link)
        self._last_epoch = self.log.last_epoch()
        if self._vacuum_hours is not None and epoch % _VACUUM_EVERY == _VACUUM_EVERY - 1:
            self.log.vacuum(self._vacuum_hours)
        rows, retractions = (len(delta), int(np.count_nonzero(delta.weights < 0))) if is_ours else (0, 0)
        return SinkProgress(epoch, rows, retractions, time.perf_counter() - started, replayed=not is_ours)

    def read(self) -> pa.Table:
        """Return the rows of the view, with the types of the output and in no particular order."""
        schema = with_added_nullable(0, self._opened().schema)
        with self.log.failures("read"):
            tables = [read_data_file(self.log.folder, file, schema) for file in self.log.files()]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _checked(self, epoch: int, chunks: Iterable[ZSet]) -> Iterator[ZSet]:
        for chunk in chunks:
            check_chunk(str(self.log), epoch, self._opened().schema, chunk)
            yield chunk

    def _commit(self, epoch: int, change: StoredRowsChange, link: ChainLink | None) -> bool:
        """Rewrite the touched files and commit them; again, when others changed the table meanwhile."""
        # Files of a commit that failed in any other way are left for VACUUM: it may have reached the log all the same.
        conflict: ChangedTableError | None = None
        for _ in range(_ATTEMPTS):
            if self.log.has(epoch, link):
                return False
            with self.log.failures(f"written in epoch {epoch}"):
                added, removed = self._rewrite(epoch, change)
            try:
                return self.log.commit(epoch, added, removed, link=link)
            except ChangedTableError as error:
                self._discard(added)
                conflict = error
        raise SinkError(
            f"{self.log} was changed by others in each of {_ATTEMPTS} attempts to write epoch {epoch}: {conflict}. Run "
            "OPTIMIZE and other jobs on this table less often, and restart the query; it continues with this epoch.",
            code="SINK_CONFLICT",
            table=self.log.location,
            epoch=epoch,
        ) from conflict

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
        columns = pa.schema([self._schema.field(name) for name in change.identity])
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
        rows = read_data_file(self.log.folder, file, self._schema)
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
        return write_data_files(self.log.folder, prefix, self._schema, pieces, target_bytes=self._target_bytes)

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
