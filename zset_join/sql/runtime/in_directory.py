"""What sessions in a directory have in common: where their queries lie, what those write, and statements that insert once.

    with session.once("statement-1"):
        execute(session, statement)

    shop/session.lock                           held as long as the session is open
    shop/session.json                           how the directory is laid out
    shop/tables/orders/000000000001-statement-1.parquet      rows of a table, a file of the name of their statement
    shop/once/statement-1                       under which id a statement wrote outside
    shop/queries/into_revenue/                  a query: its checkpoint and its state

The law: what a statement of some name inserts is there once, however often the statement is run, and wherever a run was killed:
rows of a table are a file of that name, and a sink outside is written under an id that lies in the directory before the first
row does, so the sink itself records whether it has them. One session holds a directory at a time; a second one is refused.

Known limit: what writes without knowing what it has written (`print`, `blackhole`) writes again.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError, StateError
from zset_join.sinks.sink import Sink
from zset_join.sql.dml.writing import TableWriter
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.stored_tables import StoredTables, StoredTableSink
from zset_join.storage import local
from zset_join.storage.local import FileLock
from zset_join.storage.sealed import UnknownFormatError, seal, unseal
from zset_join.zset import ZSet, single_batch

__all__ = ["InDirectory", "claim_directory"]

_LAYOUT = "session.json"
_LOCK = "session.lock"


def claim_directory(directory: Path, layout: int) -> FileLock:
    """Take a directory for a session, and make it where it is missing.

    Args:
        directory: it.
        layout: how it is laid out: 1, files of tables and a checkpoint for each query, inside Spark; 2, one pipeline.

    Raises:
        OptionError: it cannot be made or locked.
        StateError: another session has it, in this process or another; or it is laid out otherwise.
    """
    try:
        local.make_directories(directory)
        lock = local.lock_file(directory / _LOCK)
    except OSError as error:
        raise OptionError(
            f"the directory {directory} cannot be used: {error}. Give one where this process may write.",
            code="DIRECTORY",
            directory=str(directory),
        ) from error
    if lock is None:
        raise StateError(
            f"{directory} is in use by another session, in this process or another one: two would not see each other's "
            "INSERTs. Close that session first.",
            code="DIRECTORY_IN_USE",
            directory=str(directory),
        )
    try:
        _check_layout(directory, layout)
    except BaseException:
        lock.release()
        raise
    return lock


def _check_layout(directory: Path, layout: int) -> None:
    data = local.read_bytes(directory / _LAYOUT)
    if data is None and not any(local.list_directory(directory / name) for name in ("tables", "pipeline")):
        local.write_atomic(directory / _LAYOUT, seal({}, version=layout, name=_LAYOUT))
        return
    try:
        unseal(data or b"", version=layout, name=_LAYOUT)
    except UnknownFormatError as error:
        raise StateError(
            f"{directory} is laid out for a session of another kind, inside Spark or in this process, or by an earlier "
            "version, which kept files of each table and a checkpoint of each query. Open it with what made it; or begin with "
            "a new directory, run the statements there, and insert the rows of tables/ (Parquet files) again.",
            code="OLD_SESSION",
            directory=str(directory),
        ) from error
    except ValueError as error:
        raise StateError(
            f"{directory} has tables, and {_LAYOUT} is missing or cannot be used ({error}): the directory was written by "
            "another version, or copied in part. Restore the whole directory, or begin with a new one.",
            code="DAMAGED_FILE",
            file=str(directory / _LAYOUT),
        ) from error


class InDirectory(ABC):
    """A part of a session whose rows and queries lie in a directory.

    Attributes:
        statement: the name of the statement that runs; None where it may run again.
        running: its queries.
    """

    statement: str | None = None
    running: list[Running]
    _directory: Path
    _tables: StoredTables

    @contextmanager
    def once(self, name: str) -> Iterator[None]:
        """Let INSERTs within it change nothing where they were run before; see `Session.once`."""
        before, self.statement = self.statement, name
        try:
            yield
        finally:
            self.statement = before

    def writer_id(self) -> str | None:
        """Return under which id the statement that runs writes outside, the same whenever it runs; None where there is none."""
        if self.statement is None:
            return None
        place = self._directory / "once" / file_name(self.statement)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f"{place.name}.{uuid.uuid4().hex}")
            new.write_text(str(uuid.uuid4()), encoding="utf-8")
            new.rename(place)
        return place.read_text(encoding="utf-8")

    @abstractmethod
    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of a table."""

    @abstractmethod
    def _add(self, table: Table, rows: Any, once: str | None, digest: str = "") -> None:
        """Write rows of a table, once where they have a name."""

    def _sink(self, output: object) -> Sink | None:
        """Return the sink that an output is; None for a function, or nothing."""
        if isinstance(output, SinkWriter):
            return output.sink
        if isinstance(output, Sink):
            return output
        if not isinstance(output, TableWriter):
            return None
        table = output.table

        def insert(rows: pa.Table | ZSet, once: str, digest: str) -> None:
            given = pa.Table.from_batches([rows.rows]) if isinstance(rows, ZSet) else rows
            completed = self._all_columns(table, given)
            self._add(table, ZSet(single_batch(completed), rows.weights) if isinstance(rows, ZSet) else completed, once, digest)

        self._tables.make(table)
        return StoredTableSink(table, self._tables, insert, output.rows)

    def _free_name(self, output: object) -> str:
        """Return the name of a query that has none: after where it writes, for its checkpoint, or a number."""
        table = output.table.name if isinstance(output, TableWriter) else getattr(output, "table_name", None)
        taken = {running.name for running in self.running}
        base = "query" if table is None else f"into_{table}"
        number = 1
        while (name := f"{base}_{number}" if number > 1 or table is None else base) in taken:
            number += 1
        return name

    def _place(self, name: str) -> Path:
        return self._directory / "queries" / file_name(name)
