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

`RetractedRows`, `StoredRowsChange`: the net change of an epoch against the rows that a view holds in files: which of them go,
and whether the change fits.

The law: after the rows that `match` names are gone and the insertions are present, the files hold the sum of all deltas; or the
change is refused and names the row or key it cannot be made with.

Without a key the identity of a row is the whole row, and of several equal rows those that lie first go. With a key, at most one
live row may hold it, and a retraction must name the very row that is held: `verify` compares the rest of it when the row is
read. Equality is Spark's (NaN, 0.0 and -0.0, NULL, nested values) and by value; nothing is left to a hash.

Memory: the change, and the identity of the rows that look like its rows.

Cost: per stored row one look into a hash table per identity column, as far as the columns before it matched; then linear in the
change.

`DeltaChangelogSink`: the changelog as a Delta table: every epoch appends its lines, in one commit.

Columns: those of the output, those of the form (see `changelog.formats`), and `_epoch`. In the form `weight` the sum of the
weights of each row up to an epoch is the output at the end of that epoch.

The law: see `delta_log`; an epoch is one commit that carries its number. An epoch that changes nothing is an empty commit.

Memory: one chunk for the form `weight`, the whole epoch for the others.

Limits: files that were written and not committed are seen by no reader and stay until VACUUM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from typing_extensions import override

from zset_join.changelog import AppendFormat, ChangelogForm, RowKindFormat, UpsertFormat, encode, encoded_schema, format_named
from zset_join.changelog.encoding import comparable_values, group_keys
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.core.hidden_settings import shown
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.core.shown_values import shown_value
from zset_join.sinks.changelog_directory import ChangelogLines
from zset_join.sinks.delta_files import DataFile, delta_schema, read_data_file, write_data_files
from zset_join.sinks.delta_log import DeltaSink
from zset_join.sinks.epoch_sink import check_names, claimed_key, given_key, unheld_row
from zset_join.sinks.sink import beside
from zset_join.zset import ZSet

__all__ = ["DeltaChangelogSink", "DeltaViewSink", "RetractedRows", "StoredRowsChange"]

_Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetractedRows:
    """The rows of one file that go."""

    positions: _Int64s
    retractions: _Int64s


class StoredRowsChange:
    """The net change of one epoch."""

    def __init__(self, described: str, epoch: int, delta: ZSet, key: tuple[str, ...]) -> None:
        self.delta = delta
        self.identity = key or tuple(delta.schema.names)
        self._described = described
        self._epoch = epoch
        self._key = key
        self._looked_for = np.arange(len(delta)) if key else np.flatnonzero(delta.weights < 0)
        rows = delta.rows.take(pa.array(self._looked_for))
        self._columns = [comparable_values(rows.column(name)) for name in self.identity]

    @property
    def is_blind(self) -> bool:
        """Return whether the stored rows need not be looked at."""
        return not len(self._looked_for)

    def insertions(self) -> pa.RecordBatch:
        """Return the rows to add, as often as their weights."""
        coming = np.flatnonzero(self.delta.weights > 0)
        return encode(ZSet(self.delta.rows.take(pa.array(coming)), self.delta.weights[coming]), (), AppendFormat())

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return, per identity column of whole numbers or dates without NULL, the least and the most that is looked for."""
        ranges = {}
        for name, column in zip(self.identity, self._columns, strict=True):
            if (pt.is_integer(column.type) or pt.is_date(column.type)) and len(column) and not column.null_count:
                limits = pc.min_max(column)
                try:
                    ranges[name] = (limits["min"].as_py(), limits["max"].as_py())
                except OverflowError:  # a date outside Python's years 1 to 9999 leaves the column without bounds
                    continue
        return ranges

    def candidates(self, stored: pa.Table) -> tuple[_Int64s, list[pa.Array]]:
        """Return the rows of a file that may be meant by the change."""
        positions = np.arange(stored.num_rows)
        for name, wanted in zip(self.identity, self._columns, strict=True):
            column = comparable_values(_one_chunk(stored.column(name)))
            if len(positions) < stored.num_rows:
                column = column.take(pa.array(positions))
            hit = pc.is_in(column, value_set=wanted).to_numpy(zero_copy_only=False)
            positions = positions[hit]
            if not len(positions):
                return positions, []
        chosen = pa.array(positions)
        return positions, [comparable_values(_one_chunk(stored.column(name)).take(chosen)) for name in self.identity]

    def match(self, files: Sequence[tuple[_Int64s, list[pa.Array]]]) -> list[RetractedRows]:
        filled = [(number, file) for number, file in enumerate(files) if len(file[0])]
        joined = [
            pa.concat_arrays([own, *(file[1][position] for _, file in filled)]) for position, own in enumerate(self._columns)
        ]
        groups = group_keys(joined)
        requested = len(self._looked_for)
        mine, theirs = groups[:requested], groups[requested:]
        count = int(mine.max(initial=-1)) + 1
        weights = self.delta.weights[self._looked_for]
        needed, held = _added_up(mine, np.maximum(-weights, 0), count), np.bincount(theirs[theirs < count], minlength=count)
        self._refuse_absent(mine, needed, held)
        if self._key:
            self._refuse_second(mine, _added_up(mine, np.maximum(weights, 0), count) + held - needed)
        retraction_of = np.zeros(count, np.int64)
        retraction_of[mine[weights < 0]] = self._looked_for[weights < 0]
        goes = _first_of_each(theirs, needed, count)
        matches = [RetractedRows(np.zeros(0, np.int64), np.zeros(0, np.int64)) for _ in files]
        start = 0
        for number, (positions, _) in filled:
            chosen = goes[start : start + len(positions)]
            of = theirs[start : start + len(positions)][chosen]
            matches[number] = RetractedRows(positions[chosen], retraction_of[of])
            start += len(positions)
        return matches

    def verify(self, retracted: RetractedRows, rows: pa.Table) -> None:
        """Compare the rows that go with the retractions that take them, all columns."""
        emitted = self.delta.rows.take(pa.array(retracted.retractions))
        both = [pa.concat_arrays([emitted.column(name), _one_chunk(rows.column(name))]) for name in emitted.schema.names]
        groups = group_keys(both)
        different = np.flatnonzero(groups[: len(retracted.positions)] != groups[len(retracted.positions) :])
        if len(different):
            row = int(different[0])
            held = {name: shown_value(rows.column(name), row) for name in rows.schema.names}
            raise self._absent(int(retracted.retractions[row]), f"its key holds {held}", len(different))

    def _refuse_absent(self, mine: _Int64s, needed: _Int64s, held: _Int64s) -> None:
        short = np.flatnonzero((self.delta.weights[self._looked_for] < 0) & (needed > held)[mine])
        if len(short):
            first = int(short[0])
            raise self._absent(int(self._looked_for[first]), f"the view holds it {int(held[mine[first]])} times", len(short))

    def _absent(self, row: int, instead: str, count: int) -> SinkError:
        weight = int(self.delta.weights[row])
        named = self._named(row, self.delta.schema.names)
        return unheld_row(self._described, self._epoch, named, weight, instead, key=self._key, retractions=count)

    def _refuse_second(self, mine: _Int64s, live: _Int64s) -> None:
        doubled = np.flatnonzero((live > 1)[mine] & (self.delta.weights[self._looked_for] > 0))
        if len(doubled):
            key = self._named(int(self._looked_for[doubled[0]]), self._key)
            raise claimed_key(self._described, self._epoch, key)

    def _named(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        return {name: shown_value(self.delta.rows.column(name), row) for name in names}


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, copied only when it has several chunks."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _added_up(groups: _Int64s, amounts: _Int64s, count: int) -> _Int64s:
    total = np.zeros(count, np.int64)
    np.add.at(total, groups, amounts)
    return total


def _first_of_each(groups: _Int64s, needed: _Int64s, count: int) -> npt.NDArray[np.bool_]:
    """Mark the first rows of each group, as many as are needed; groups from `count` on need none."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    known = ordered < count
    chosen = np.zeros(len(groups), np.bool_)
    chosen[order[known]] = (np.arange(len(groups)) - starts)[known] < needed[ordered[known]]
    return chosen


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

    @override
    def _take(self, output: Relation) -> None:
        check_names(self._described, output.schema.names, self._key)
        super()._take(output)
        self.written_as = self._key, UpsertFormat() if self._key else RowKindFormat()

    @override
    def _stored(self, output: Relation) -> pa.Schema:
        return delta_schema(self._described, output.schema)

    @override
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


EPOCH_COLUMN = "_epoch"
_LOG_FILE_BYTES = 128 << 20


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

    @override
    def _stored(self, output: Relation) -> pa.Schema:
        if EPOCH_COLUMN in output.schema.names:
            raise PlanError(
                f'{self.log} adds the column "{EPOCH_COLUMN}", and the rows have one of that name; rename it.',
                code="DUPLICATE_COLUMN",
                columns=[EPOCH_COLUMN],
            )
        lines = encoded_schema(output.schema, format_named(self.form))
        return delta_schema(self._described, pa.schema([*lines, pa.field(EPOCH_COLUMN, pa.int64())]))

    @override
    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        lines = ChangelogLines(self._described, self._opened().schema, self.form, self._key, chunks, epoch=epoch)
        numbered = (batch.append_column(EPOCH_COLUMN, pa.array(np.full(batch.num_rows, epoch, np.int64))) for batch in lines)
        files = write_data_files(self.log.folder, f"part-{epoch:08d}", self._columns, numbered, target_bytes=_LOG_FILE_BYTES)
        # New lines contradict nothing, so the files stay what they are in every attempt.
        return (lines.rows, lines.retractions) if self._committed(epoch, link, lambda: (files, ())) else None
