"""Rows that INSERT puts into the tables of a session with a directory: Parquet files per table, which its queries read.

    tables/orders/000000000000.parquet      no rows: the first epoch of every query
    tables/orders/000000000001.parquet      an INSERT
    tables/orders/query-5f0c...-000000000007.parquet      epoch 7 of a query that writes into the table

The law: a file is there whole or not at all, and one of a name is written once: a statement or an epoch that comes again after
a restart changes nothing. A file is one epoch of whoever reads the table; files are taken in the order of their times, as Spark
does, so each is a second younger than the one before it.

Known limits: inserted rows are never thrown away; a local directory, with one session at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.epoch_chain import ChainLink
from zset_join.errors import SinkError
from zset_join.relation import Relation
from zset_join.sinks.sink import SinkProgress
from zset_join.sql.catalog import Table
from zset_join.zset import ZSet

__all__ = ["STORED_WEIGHT", "StoredTableSink", "StoredTables", "file_name", "put_aside_of"]

_FIRST_TIME = 1_600_000_000
_DIGEST = b"zset_join.epoch_digest"
_ASIDE = b"zset_join.put_aside"
STORED_WEIGHT = "_stored_weight"
"""The column with the weight of a row, as `zset_join.spark.api.table_streams` reads it."""


class StoredTables:
    """Keep the rows of tables in files.

    Args:
        directory: of all tables; made when it is needed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, int] = {}
        self._lock = threading.RLock()

    def directory_of(self, name: str) -> Path:
        """Return where the files of a table are."""
        return self._directory / file_name(name)

    def make(self, table: Table) -> Path:
        """Make the directory of a table, with a file of no rows; return it."""
        with self._lock:
            directory = self.directory_of(table.name)
            if not directory.exists():
                directory.mkdir(parents=True)
                self.write(table, table.schema.empty_table())
            return directory

    def digest_of(self, table: Table, once: str) -> str | None:
        """Return the digest that a file of this name was written with, "" for none; None where there is no such file."""
        path = self.directory_of(table.name) / f"{once}.parquet"
        if not path.exists():
            return None
        digest: bytes = (pq.read_schema(path).metadata or {}).get(_DIGEST, b"")
        return digest.decode()

    def files(self, table: Table) -> list[Path]:
        """Return the files of a table in their order."""
        paths = [one for one in self.directory_of(table.name).glob("*.parquet") if not one.name.startswith(".")]
        return sorted(paths, key=lambda one: (one.stat().st_mtime_ns, one.name))

    def write(
        self,
        table: Table,
        rows: pa.Table | ZSet,
        *,
        once: str | None = None,
        digest: str = "",
        aside: Mapping[str, pa.Table] | None = None,
    ) -> None:
        """Add a file to those of a table.

        Args:
            table: it.
            rows: all its columns; a Z-set has weights.
            once: the name of the file; where it is there, nothing is written. None: a number.
            digest: of the epoch whose rows they are.
            aside: by query, what was put aside of the rows because the query cannot evaluate it.
        """
        given, weights = _weighted(rows)
        if isinstance(rows, ZSet) and table.delta_column is not None:
            place = given.schema.get_field_index(table.delta_column)
            given = given.set_column(place, table.delta_column, weights.cast(given.schema.field(place).type))
            weights = _ones(given.num_rows)
        directory = self.directory_of(table.name)
        with self._lock:
            number = self._count(table)
            path = directory / f"{once or f'{number:012d}'}.parquet"
            if path.exists():
                return
            hidden = path.with_name(f".{path.name}")
            about = {_DIGEST: digest, **({_ASIDE: _written(aside)} if aside else {})}
            pq.write_table(given.append_column(STORED_WEIGHT, weights).replace_schema_metadata(about), hidden)
            self._publish(table, hidden, path, number)

    def adopt(self, table: Table, written: Path, *, once: str) -> None:
        """Take the one file that Spark has written as a file of a table, with weights; what it was written to is gone then.

        Args:
            table: it.
            written: the directory that Spark wrote to.
            once: the name of the file; where it is there, nothing changes.
        """
        directory = self.directory_of(table.name)
        with self._lock:
            number = self._count(table)
            path = directory / f"{once}.parquet"
            if not path.exists():
                (file,) = written.glob("*.parquet")
                hidden = path.with_name(f".{path.name}")
                file.rename(hidden)
                self._publish(table, hidden, path, number)
        shutil.rmtree(written)

    def _count(self, table: Table) -> int:
        """Return how many files a table has; half a file, of a process that was killed while it wrote, goes."""
        directory = self.directory_of(table.name)
        if table.name not in self._files:
            for half in directory.glob(".*.parquet"):
                half.unlink()
            self._files[table.name] = len(list(directory.glob("*.parquet")))
        return self._files[table.name]

    def _publish(self, table: Table, hidden: Path, path: Path, number: int) -> None:
        os.utime(hidden, (_FIRST_TIME + number, _FIRST_TIME + number))
        hidden.rename(path)
        self._files[table.name] = number + 1

    def forget(self, name: str) -> None:
        """Throw the rows of a table away."""
        with self._lock:
            self._files.pop(name, None)
            shutil.rmtree(self.directory_of(name), ignore_errors=True)


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
        """Say whether the rows of an epoch are there; one without rows never is.

        Raises:
            SinkError: other rows are there under its number: an older checkpoint was restored beside a newer table.
        """
        digest = self._tables.digest_of(self._table, self._name(epoch))
        if digest is None or link is None or digest == link.digest:
            return digest is not None
        raise SinkError(
            f"{self!r} holds the epoch {epoch} of this query, and it is another one than the checkpoint's: an older checkpoint "
            "was restored beside it, or the other way round. Bring back the session's directory as a whole, or begin with a "
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


def put_aside_of(rows: pa.Table, query: str) -> pa.Table | None:
    """Return what a file of a table lists as put aside for a query; None for nothing."""
    lines = json.loads((rows.schema.metadata or {}).get(_ASIDE, b"{}")).get(query)
    return None if lines is None else pa.Table.from_pylist(lines)


def _written(aside: Mapping[str, pa.Table]) -> str:
    return json.dumps({query: rows.to_pylist() for query, rows in aside.items()})


def _weighted(rows: pa.Table | ZSet) -> tuple[pa.Table, pa.Array]:
    if isinstance(rows, ZSet):
        return pa.Table.from_batches([rows.rows]), pa.array(rows.weights)
    return rows, _ones(rows.num_rows)


def _ones(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), count)


def file_name(name: str) -> str:
    """Return a name that no file system minds, another one for every name.

    >>> file_name("orders"), file_name("a/b")
    ('orders', 'a%2Fb')
    """
    return "".join(one if one.isalnum() or one in "_-" else f"%{ord(one):02X}" for one in name)
