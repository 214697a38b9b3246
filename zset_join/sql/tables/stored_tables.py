"""Rows that INSERT puts into the tables of a session with a directory: Parquet files per table, which its queries read.

    tables/orders/000000000000.parquet      no rows: the first epoch of every query
    tables/orders/000000000001.parquet      an INSERT
    tables/orders/000000000002-statement-1.parquet      an INSERT that is run once, under the name of its statement
    tables/orders/000000000003-query-5f0c...-000000000007.parquet      epoch 7 of a query that writes into the table

The law: a file is there whole or not at all, and one of a name is written once: a statement or an epoch that comes again after
a restart changes nothing. A file is one epoch of every query that reads the table. The number in its name is its place in the
order, and nothing else is: a directory may be copied by any tool. Numbers have no holes; a table with one is refused.

Spark reads files in the order of their times, so each is given a time a second after the one before it, when it is written and,
where a copy lost it, when the table is opened.

Memory: the names of the files. Cost of an INSERT and of a look for new ones: constant; of opening a table: one listing.

Known limits: inserted rows are never thrown away; a local directory, with one session at a time.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import PlanError, SinkError, StateError
from zset_join.core.relation import Relation
from zset_join.sinks.sink import SinkProgress
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.file_names import file_name
from zset_join.storage import local
from zset_join.zset import ZSet, single_batch

__all__ = ["STORED_WEIGHT", "StoredTableSink", "StoredTables", "refuse_our_columns"]

_FIRST_TIME = 1_600_000_000
_DIGEST = b"zset_join.epoch_digest"
_NAME = re.compile(r"(\d{12})(?:-.+)?\.parquet")
STORED_WEIGHT = "_stored_weight"
"""The column with the weight of a row, as `zset_join.runners.spark.api.table_streams` reads it."""


_OURS = re.compile(
    r"_stored_weight|_unread_reason|_file_order_\d+|__(time|value|place|corrupt|(value_|text|of_)\d+)", re.IGNORECASE
)


def refuse_our_columns(table: Table) -> None:
    """Refuse columns of a user that are named as those that say how a row was read, or how many of it there are.

    Raises:
        PlanError: `RESERVED_COLUMN`.
    """
    columns = [name for name in table.schema.names if _OURS.fullmatch(name)]
    if columns:
        raise PlanError(
            f'the table "{table.name}" has columns {columns}, names that the library keeps for itself beside the rows of a '
            "table; rename them.",
            code="RESERVED_COLUMN",
            name=table.name,
            columns=columns,
        )


@dataclass(slots=True)
class _Files:
    """The files of a table.

    Args:
        names: in their order.
        named: name of a statement or epoch to that of its file.
    """

    names: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)

    def next_name(self, once: str | None) -> str:
        """Return the name of the file that follows."""
        return f"{len(self.names):012d}.parquet" if once is None else f"{len(self.names):012d}-{file_name(once)}.parquet"

    def add(self, name: str) -> None:
        """Add the file that follows."""
        once = name[13 : -len(".parquet")]
        if once:
            self.named[once] = name
        self.names.append(name)


class StoredTables:
    """Keep the rows of tables in files.

    Args:
        directory: of all tables; made when it is needed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, _Files] = {}
        self._lock = threading.RLock()

    def directory_of(self, name: str) -> Path:
        """Return where the files of a table are."""
        return self._directory / file_name(name)

    def make(self, table: Table) -> Path:
        """Make the directory of a table, with a file of no rows; return it.

        Raises:
            StateError: files of the table are missing, or are none of a session's.
            PlanError: `RESERVED_COLUMN`.
        """
        with self._lock:
            if not self._files_of(table.name).names:
                refuse_our_columns(table)
                self.write(table, table.schema.empty_table())
            return self.directory_of(table.name)

    def digest_of(self, table: Table, once: str) -> str | None:
        """Return the digest that a file of this name was written with, "" for none; None where there is no such file."""
        with self._lock:
            name = self._files_of(table.name).named.get(file_name(once))
        if name is None:
            return None
        digest: bytes = (pq.read_schema(self.directory_of(table.name) / name).metadata or {}).get(_DIGEST, b"")
        return digest.decode()

    def count(self, name: str) -> int:
        """Return how many files a table has.

        Raises:
            StateError: as `make`.
        """
        with self._lock:
            return len(self._files_of(name).names)

    def size(self, name: str) -> int:
        """Return the bytes of the files of a table. Cost: a look at each."""
        with self._lock:
            directory = self.directory_of(name)
            return sum(local.file_size(directory / one) or 0 for one in self._files_of(name).names)

    def inserted(self, table: Table) -> pa.Table | ZSet | None:
        """Return the keys of the rows that statements wrote and deleted, in order; None where there are none.

        Cost: the key columns of all files that no query wrote.
        """
        with self._lock:
            directory = self.directory_of(table.name)
            files = [directory / one for one in self._files_of(table.name).names if not one[13:].startswith("query-")]
        columns = [*table.primary_key, *([] if table.delta_column is None else [table.delta_column]), STORED_WEIGHT]
        rows = pa.concat_tables([pq.read_table(file, columns=columns) for file in files]) if files else None
        if rows is None or not rows.num_rows:
            return None
        weights = rows.column(STORED_WEIGHT).to_numpy()
        plain = rows.drop_columns([STORED_WEIGHT])
        return plain if (weights == 1).all() else ZSet(single_batch(plain), weights)

    def file(self, name: str, number: int) -> Path:
        """Return a file of a table, by its place in the order."""
        with self._lock:
            return self.directory_of(name) / self._files_of(name).names[number]

    def write(
        self,
        table: Table,
        rows: pa.Table | ZSet,
        *,
        once: str | None = None,
        digest: str = "",
    ) -> None:
        """Add a file to those of a table; it is on the disk when this returns.

        Args:
            table: it.
            rows: all its columns; a Z-set has weights.
            once: what the file is known by; where it is there, nothing is written. None: its number alone.
            digest: of the epoch whose rows they are.
        """
        given, weights = _weighted(rows)
        if isinstance(rows, ZSet) and table.delta_column is not None:
            place = given.schema.get_field_index(table.delta_column)
            given = given.set_column(place, table.delta_column, weights.cast(given.schema.field(place).type))
            weights = _ones(given.num_rows)
        with self._lock:
            files = self._files_of(table.name)
            if once is not None and file_name(once) in files.named:
                return
            name = files.next_name(once)
            directory = self.directory_of(table.name)
            about = {_DIGEST: digest}
            stored, encoded = given.append_column(STORED_WEIGHT, weights), pa.BufferOutputStream()
            pq.write_table(stored.replace_schema_metadata(about), encoded)
            local.make_directories(directory)
            hidden = local.LocalFile(directory / f".{name}")
            try:
                hidden.write(encoded.getvalue())
                hidden.sync()
                hidden.close()
                self._publish(files, directory, name)
            except BaseException:
                hidden.close(discard=True)
                local.remove_file(hidden.path)
                raise

    def adopt(self, table: Table, written: Path, *, once: str) -> None:
        """Take the one file that Spark has written as a file of a table, with weights; what it was written to is gone then.

        Args:
            table: it.
            written: the directory that Spark wrote to.
            once: what the file is known by; where it is there, nothing changes.
        """
        with self._lock:
            files = self._files_of(table.name)
            if file_name(once) not in files.named:
                (file,) = written.glob("*.parquet")
                name = files.next_name(once)
                directory = self.directory_of(table.name)
                local.rename(file, directory / f".{name}")
                self._publish(files, directory, name)
        shutil.rmtree(written)

    def _publish(self, files: _Files, directory: Path, name: str) -> None:
        hidden = directory / f".{name}"
        local.touch(hidden, at_seconds=_FIRST_TIME + len(files.names))
        local.rename(hidden, directory / name)
        files.add(name)  # before anything else can fail: the file can be seen
        local.sync_directory(directory)

    def _files_of(self, name: str) -> _Files:
        """Return the files of a table; they are listed once.

        Raises:
            StateError: one is missing, or is none of a session's.
        """
        files = self._files.get(name)
        if files is None:
            files = self._files[name] = self._listed(name)
        return files

    def _listed(self, name: str) -> _Files:
        directory, files = self.directory_of(name), _Files()
        for one in local.list_directory(directory):
            if not one.endswith(".parquet"):
                continue
            if one.startswith("."):
                local.remove_file(directory / one)  # half a file, of a process that was killed while it wrote
                continue
            number = len(files.names)
            match = _NAME.fullmatch(one)
            if match is None or int(match[1]) != number:
                raise StateError(
                    f'the files of table "{name}" are numbered from 0 on without holes, and {directory} has {one} where '
                    f"{number:012d} was expected: a file was lost or added by another program, or the directory was written "
                    "by an early version. Restore the whole directory of the session, or begin with a new one.",
                    code="DAMAGED_FILE",
                    table=name,
                    file=str(directory / one),
                    expected=number,
                )
            if local.modified_at(directory / one) != _FIRST_TIME + number:
                local.touch(directory / one, at_seconds=_FIRST_TIME + number)  # copied without its time
            files.add(one)
        return files

    def forget(self, name: str) -> None:
        """Throw the rows of a table away."""
        with self._lock:
            self._files.pop(name, None)
            local.remove_tree(self.directory_of(name))


class StoredTableSink:
    """Write the answers of a query into a table of the session, an epoch at most once.

    Args:
        table: where they go.
        insert: completes rows and adds them, under the name of the epoch and with its digest.
        tables: the files.
        rows_of: makes a delta what the table takes.
    """

    def __init__(
        self,
        table: Table,
        tables: StoredTables,
        insert: Callable[[pa.Table | ZSet, str, str], None],
        rows_of: Callable[[ZSet], pa.Table | ZSet],
    ) -> None:
        self._table = table
        self._tables = tables
        self._insert = insert
        self._rows_of = rows_of
        self._query = ""
        self._last: int | None = None

    def __repr__(self) -> str:
        return f'table "{self._table.name}"'

    def open(self, output: Relation, query_id: str) -> None:  # noqa: ARG002 - the session has checked the columns
        """Begin, or go on."""
        self._query = query_id

    def last_epoch(self) -> int | None:
        """Return the last epoch it was given."""
        return self._last

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        """Return whether the rows of an epoch are there; one without rows never is.

        Raises:
            SinkError: other rows are there under its number: an older checkpoint was restored beside a newer table.
        """
        digest = self._tables.digest_of(self._table, self._name(epoch))
        if digest is None or link is None or digest == link.digest:
            return digest is not None
        raise SinkError(
            f"{self!r} holds the epoch {epoch} of this query, and it is another one than the checkpoint's: an older checkpoint "
            "was restored beside it, or the other way round. Restore the session's whole directory, or begin with a "
            "new one.",
            code="SINK_OTHER_CHAIN",
            sink=repr(self),
            epoch=epoch,
            digest=digest,
            expected=link.digest,
        )

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        """Insert the rows of an epoch; an epoch of none is none of the table's.

        Raises:
            SinkError: see `has`.
        """
        started = time.perf_counter()
        if self.has(epoch, link):
            return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
        parts = [one for one in chunks if len(one)]
        delta = ZSet.concat(parts, schema=parts[0].schema) if parts else None
        if delta is not None:
            self._insert(self._rows_of(delta), self._name(epoch), "" if link is None else link.digest)
        self._last = epoch
        rows, retractions = (0, 0) if delta is None else (len(delta), int((delta.weights < 0).sum()))
        return SinkProgress(epoch, rows, retractions, time.perf_counter() - started)

    def close(self) -> None:
        """Do nothing: what was written stays."""

    def _name(self, epoch: int) -> str:
        return f"query-{self._query}-{epoch:012d}"


def _weighted(rows: pa.Table | ZSet) -> tuple[pa.Table, pa.Array]:
    if isinstance(rows, ZSet):
        return pa.Table.from_batches([rows.rows]), pa.array(rows.weights)
    return rows, _ones(rows.num_rows)


def _ones(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), count)
