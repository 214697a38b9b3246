"""A cold store in a DuckDB file: one file for all stores of a bucket, one table per run.

A page is a line of a table: its number and its bytes, uncompressed, in the order of the numbers and without an index.
Reading pages by number makes DuckDB pass over the groups of rows that hold none of them.

The database is a closed box: no access to files or network beside its own file and its temporary directory, no extensions, a
locked configuration, one thread, memory and temporary disk space within the limits given. Names become identifiers in one
place (`quoted`), and a store's name is made unambiguous first (`identifier`): DuckDB takes `A` and `a` for one name.

Crash safety: nothing is logged and nothing is synced. What was written since the last `commit` is gone when the process dies;
the manifest of the store, which is unclean then, says so.

Memory: DuckDB's, at most `memory_bytes`. When the file is larger, reading pages at many places reads most of the file: a
block of DuckDB has 256 KiB. `docs/decisions/0009-cold-store.md` has the numbers; plain files are faster by far there.

Limits: one process at a time. Space of dropped runs is used again; the file shrinks only by what is free at its end.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here went through `quoted`.

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spill.cold_store import Int64s
from spill.pages import ReadPages
from spill.run_store import RunStore
from zset_join.errors import OptionError, StateError

__all__ = ["DuckDBColdStore", "DuckDBFile", "DuckDBPages", "identifier", "quoted", "quoted_text"]

_LEAST_MEMORY_BYTES = 16 << 20
_NAME_CHARACTERS = 40
_INCOMING = "incoming"
_WANTED = "wanted"


def quoted(name: str) -> str:
    """Return a name as one SQL identifier, whatever characters it has.

    >>> print(quoted('runs"; DROP TABLE x'))
    "runs""; DROP TABLE x"

    Raises:
        OptionError: a name that no identifier can have: an empty one, or one with a NUL character.
    """
    if not name or "\0" in name:
        raise OptionError(
            f"{name!r} cannot be a name in DuckDB; give one that is not empty and has no NUL character.",
            code="SQL_NAME",
            name=name,
        )
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as one SQL literal.

    >>> print(quoted_text("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return an SQL identifier that no other name gets: names that differ only by case are two names here.

    >>> identifier("orders") == identifier("Orders")
    False
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = name[:_NAME_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")
    return quoted(f"{readable}#{digest}")


class DuckDBFile:
    """Open a DuckDB file for the stores of one bucket.

    Args:
        path: the file; made when it is not there. A directory beside it, with `.temporary` added, takes what does not fit
        memory. memory_bytes: the most memory DuckDB may take; at least 16 MiB. temporary_bytes: the most disk space for what
        does not fit memory.

    Raises:
        OptionError: less memory than DuckDB needs.
        StateError: the file is none of DuckDB's, or another process has it.
    """

    def __init__(self, path: str | Path, *, memory_bytes: int, temporary_bytes: int = 1 << 33) -> None:
        if memory_bytes < _LEAST_MEMORY_BYTES:
            raise OptionError(
                f"a DuckDB file of cold rows was given {memory_bytes} bytes of memory; the least is {_LEAST_MEMORY_BYTES}.",
                code="COLD_STORE_MEMORY",
                memory_bytes=memory_bytes,
                least=_LEAST_MEMORY_BYTES,
            )
        self.path = str(path)
        config: dict[str, Any] = {
            "threads": 1,
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": f"{self.path}.temporary",
            "max_temp_directory_size": f"{temporary_bytes}B",
            "arrow_large_buffer_size": True,
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "fsync_mode": "NONE",
        }
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            self._connection.execute(f"ATTACH {quoted_text(self.path)} AS cold (RECOVERY_MODE no_wal_writes)")
            for setting in ("enable_external_access = false", "lock_configuration = true"):
                self._connection.execute(f"SET GLOBAL {setting}")
        except duckdb.Error as error:
            self._connection.close()
            raise StateError(
                f"the cold rows in {self.path} cannot be opened ({error}). The file is a cache: make sure that no other "
                "process has it, or remove it, and it is built anew from the checkpoint.",
                code="COLD_STORE_DAMAGED",
                path=self.path,
            ) from error
        self._unsaved = False

    def execute(self, statement: str) -> None:
        """Run a statement.

        Raises:
            OSError: the disk is full or cannot be written, or memory does not do.
        """
        with self._as_os_errors():
            self._connection.execute(statement)

    def insert(self, table: str, lines: pa.Table) -> None:
        """Append lines to a table; after an error, `rollback` is all that can be done."""
        self._unsaved = True
        self._connection.register(_INCOMING, lines)
        self.execute(f"INSERT INTO {table} SELECT * FROM {_INCOMING}")
        self._connection.unregister(_INCOMING)

    def rollback(self) -> None:
        """Undo the transaction that was begun."""
        # A COMMIT that failed has rolled back already.
        with contextlib.suppress(duckdb.TransactionException):
            self.execute("ROLLBACK")
        self._connection.unregister(_INCOMING)

    def select(self, query: str, wanted: pa.Table | None = None) -> pa.Table:
        """Return the answer to a query, which may read the table `wanted`."""
        with self._as_os_errors():
            if wanted is None:
                return self._connection.sql(query).to_arrow_table()
            self._connection.register(_WANTED, wanted)
            found = self._connection.sql(query).to_arrow_table()
            self._connection.unregister(_WANTED)
            return found

    def save(self) -> None:
        """Write everything to the file."""
        if self._unsaved:
            self.execute("CHECKPOINT cold")
            self._unsaved = False

    def changed(self) -> None:
        """Note that there is something to save."""
        self._unsaved = True

    def file_bytes(self) -> int:
        """Return the size of the file."""
        return Path(self.path).stat().st_size

    def resident_bytes(self) -> int:
        """Return the memory DuckDB takes now."""
        used = self.select("SELECT coalesce(sum(memory_usage_bytes), 0)::BIGINT AS bytes FROM duckdb_memory()")
        return int(used.column("bytes")[0].as_py())

    def close(self) -> None:
        """Close the file without saving."""
        self._connection.close()

    @contextlib.contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            raise OSError(f"DuckDB: {error}") from error


class DuckDBColdStore(RunStore):
    """Keep cold rows in a DuckDB file.

    Args:
        directory: of this store alone, for its manifest and its index; made when it is not there.
        file: shared by the stores of a bucket; whoever opened it closes it.
        name: of the store, any text.
        owner: whose rows they are and what their bytes depend on; compared when the store is opened again.
        with_subcodes: whether rows are also found by subcode; without, subcodes are not kept.

    Raises:
        StateError: the directory holds something else, or a store that was being changed when its process died.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        file: DuckDBFile,
        name: str,
        owner: Mapping[str, str | int],
        with_subcodes: bool = True,
    ) -> None:
        super().__init__(directory, pages=DuckDBPages(file, name), owner=owner, with_subcodes=with_subcodes)


class DuckDBPages:
    """Keep the pages of one store in a DuckDB file.

    Args:
        file: shared by the stores of a bucket; whoever opened it closes it.
        name: of the store, any text.
    """

    kind = "duckdb"

    def __init__(self, file: DuckDBFile, name: str) -> None:
        self._file = file
        self._schema = f"cold.{identifier(name)}"
        file.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")

    def _table(self, run: int) -> str:
        return f"{self._schema}.{quoted(f'run_{run:d}')}"

    def write(self, run: int) -> _TableWriter:
        """Begin a run."""
        return _TableWriter(self._file, self._table(run))

    def read(
        self,
        runs: Sequence[int],
        page_runs: Int64s,
        pages: Int64s,
        begins: Int64s,
        ends: Int64s,
        *,
        reuse: ReadPages | None = None,  # noqa: ARG002 - DuckDB's memory is its own
        may_map: bool = False,  # noqa: ARG002 - and nothing of it is mapped
    ) -> ReadPages:
        """Return some pages, with one query per run."""
        parts = []
        for at in np.unique(page_runs).tolist():
            of_run = page_runs == at
            parts.append(self._read_run(runs[at], pages[of_run], (ends - begins)[of_run]))
        addresses = np.concatenate([part.addresses for part in parts])
        return ReadPages(addresses, [part.owner for part in parts], sum(part.read_bytes for part in parts))

    def _read_run(self, run: int, pages: Int64s, expected: Int64s) -> ReadPages:
        first, last = int(pages[0]), int(pages[-1])
        adjacent = last - first == len(pages) - 1
        condition = f"BETWEEN {first:d} AND {last:d}" if adjacent else f"IN (SELECT page FROM {_WANTED})"
        query = f"SELECT page, content FROM {self._table(run)} WHERE page {condition}"
        try:
            found = self._file.select(query, None if adjacent else pa.table({"page": pages}))
        except duckdb.CatalogException as error:
            raise self._missing(run, "it is not there") from error
        numbers = found.column("page").to_numpy()
        if len(numbers) != len(pages):
            raise self._missing(run, f"{len(pages) - len(numbers)} pages are not there")
        addresses, sizes = np.empty(len(pages), np.int64), np.empty(len(pages), np.int64)
        begin = 0
        for chunk in found.column("content").chunks:
            end = begin + len(chunk)
            offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            addresses[begin:end] = chunk.buffers()[2].address + offsets[:-1]
            sizes[begin:end] = np.diff(offsets)
            begin = end
        order = np.argsort(numbers)
        if not (numbers[order] == pages).all() or not (sizes[order] == expected).all():
            raise self._missing(run, "its pages have other sizes than were written")
        return ReadPages(addresses[order], found, int(sizes.sum()))

    def check(self, run: int, *, pages: int, size: int) -> None:  # noqa: ARG002 - the table keeps pages whole
        """Raise StateError if the table has not as many pages as the directory."""
        try:
            found = self._file.select(f"SELECT count(*) AS pages FROM {self._table(run)}")
        except duckdb.CatalogException as error:
            raise self._missing(run, "it is not there") from error
        count = int(found.column("pages")[0].as_py())
        if count != pages:
            raise self._missing(run, f"it has {count} pages instead of {pages}")

    def drop(self, run: int) -> None:
        """Drop the table of a run; its space is free after the next `commit`."""
        self._file.changed()
        self._file.execute(f"DROP TABLE IF EXISTS {self._table(run)}")

    def commit(self) -> None:
        """Write everything to the file."""
        self._file.save()

    def disk_bytes(self) -> int:
        """Return the size of the file, which the stores of a bucket share."""
        return self._file.file_bytes()

    def resident_bytes(self) -> int:
        """Return DuckDB's memory, which the stores of a bucket share."""
        return self._file.resident_bytes()

    def close(self) -> None:
        """Do nothing: the file is closed by whoever opened it."""

    def _missing(self, run: int, what: str) -> StateError:
        return StateError(
            f"run {run} of the cold rows in {self._file.path} is damaged: {what}. The file is a cache: remove it and the "
            "store's directory, and they are built anew from the checkpoint.",
            code="COLD_STORE_DAMAGED",
            path=self._file.path,
            run=run,
        )


class _TableWriter:
    def __init__(self, file: DuckDBFile, table: str) -> None:
        self._file = file
        self._table = table
        self._pages = 0
        file.changed()
        file.execute("BEGIN TRANSACTION")
        file.execute(f"CREATE TABLE {table} (page BIGINT, content BLOB USING COMPRESSION uncompressed)")

    def append(self, content: npt.NDArray[np.uint8], ends: Int64s) -> None:
        """Insert the pages behind the others."""
        offsets = np.zeros(len(ends) + 1, np.int64)
        offsets[1:] = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        pages = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)
        numbers = pa.array(np.arange(self._pages, self._pages + len(ends)))
        self._file.insert(self._table, pa.table({"page": numbers, "content": pages}))
        self._pages += len(ends)

    def finish(self) -> None:
        """Commit the run."""
        self._file.execute("COMMIT")

    def discard(self) -> None:
        """Undo the run."""
        self._file.rollback()
