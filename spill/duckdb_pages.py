"""A cold store in a DuckDB file: one file for all stores of a bucket, one table per run.

A page is a line of a table: its number and its bytes, uncompressed, in the order of the numbers and without an index.
Reading pages by number makes DuckDB pass over the groups of rows that hold none of them. Pages of all runs come by one query.

The database is a closed box: no access to files or network beside its own file and its temporary directory, no extensions, a
locked configuration, one thread, memory and temporary disk space within the limits given. Names become identifiers in one
place (`quoted`), and a store's name is made unambiguous first (`identifier`): DuckDB takes `A` and `a` for one name.

Crash safety: nothing is logged and nothing is synced. What was written since the last `commit` is gone when the process dies;
the manifest of the store, which is then marked unclean.

Memory: DuckDB's, at most `memory_bytes`. When the file is larger, reading pages at many places reads most of the file: a
block of DuckDB has 256 KiB. `docs/decisions/0009-cold-store.md` has the numbers; plain files are faster by far there.

Processes: DuckDB locks a file for as long as it is open. The stores of a bucket (`DuckDBStores`) have a lock of their own,
which is free between epochs, and so that another process can take the bucket over while this one keeps it open, they give
DuckDB's away (`keeps_lock`). A process that comes back finds out whether the file is still as it was left (`is_current`); if it
finds another one, it closes it, which writes nothing. Nor does a process attach a file twice: opening it again takes its
directory, so the one that was left open is closed.

Limits: one process at a time. Space of dropped runs is used again; the file shrinks only by what is free at its end.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here went through `quoted`.

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from spill.cold_store import Int64s, Pages, ReadPages
from spill.cold_stores import ColdStores
from spill.run_store import RunStore
from zset_join.core.errors import OptionError, ResourceError, StateError
from zset_join.core.extras import needed_for
from zset_join.storage.operations import perform

with needed_for("cold_store='duckdb'"):
    import duckdb

__all__ = ["COLD_FILE", "DuckDBColdStore", "DuckDBFile", "DuckDBPages", "DuckDBStores", "identifier", "quoted", "quoted_text"]

_Result = TypeVar("_Result")
_LEAST_MEMORY_BYTES = 16 << 20
_READ_PART = 16
_UNSAVED_PART = 4
_MEMORY_PER_RUN = 16 << 20  # of those that are read by one query
_LEAST_GROUP_BYTES = 1 << 20
_MOST_GROUP_BYTES = 8 << 20
_NAME_CHARACTERS = 40
_INCOMING = "incoming"
_WANTED = "wanted"
_CORRUPT = "corrupt"
COLD_FILE = "cold.duckdb"
"""The file of a directory's stores."""
_AT_SHIFT = 40  # a page of a run among several is one number
_DENSE = 4  # pages between the wanted ones that are read with them, for each


def quoted(name: str) -> str:
    """Return a name as one SQL identifier, whatever characters it has.

    >>> print(quoted('runs"; DROP TABLE x'))
    "runs""; DROP TABLE x"
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


_lent: WeakValueDictionary[str, DuckDBFile] = WeakValueDictionary()
"""Files whose lock was given away, by path."""
_inherited: list[duckdb.DuckDBPyConnection] = []
"""What a process has from the one it was forked from: closing it would wait for threads that do not exist."""


class DuckDBFile:
    """Open a DuckDB file for the stores of one bucket; what does not fit memory goes to `<path>.temporary`."""

    def __init__(self, path: str | Path, *, memory_bytes: int, temporary_bytes: int = 1 << 33, keeps_lock: bool = True) -> None:
        if memory_bytes < _LEAST_MEMORY_BYTES:
            raise OptionError(
                f"a DuckDB file of cold rows was given {memory_bytes} bytes of memory; the minimum is {_LEAST_MEMORY_BYTES}.",
                code="COLD_STORE_MEMORY",
                memory_bytes=memory_bytes,
                least=_LEAST_MEMORY_BYTES,
            )
        self.path = str(path)
        self.memory_bytes = memory_bytes
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
        left_open = None if keeps_lock else _lent.pop(self.path, None)
        if left_open is not None:
            left_open.close()
        self._is_closed = self._is_within = False
        self._process = os.getpid()
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            self._perform("database_open", self._attach)
            if not keeps_lock:
                self._give_lock_away()
                _lent[self.path] = self
        except OSError as error:
            self._connection.close()
            raise ResourceError(
                f"the cold rows in {self.path} cannot be opened ({error}). Look after that disk, and start again: local state "
                "is a cache and is rebuilt from the checkpoint.",
                code="COLD_STORE_IO",
                path=self.path,
            ) from error
        except duckdb.Error as error:
            self._connection.close()
            raise self._damaged(error) from error
        self._unsaved, self._unsaved_bytes = False, 0
        self._left = self._signature()

    def _attach(self) -> None:
        self._connection.execute(f"ATTACH {quoted_text(self.path)} AS cold (RECOVERY_MODE no_wal_writes)")
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            self._connection.execute(f"SET GLOBAL {setting}")

    def _give_lock_away(self) -> None:
        """Let others open the file: a process has one lock for all its descriptors of a file, and closing any frees it."""
        os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))

    def _signature(self) -> tuple[int, int, int] | None:
        """Return a signature that changes when another process writes or replaces the file."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - Path.stat() is slower
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def is_current(self) -> bool:
        """Return whether the file is as it was when it was opened or saved last; another process may have changed it."""
        is_usable = not (self._unsaved or self._is_closed) and os.getpid() == self._process
        return is_usable and self._signature() == self._left

    def _perform(self, kind: str, act: Callable[[], _Result]) -> _Result:
        """Do something to the file, through the observer of file operations."""
        return perform(kind, self.path, act)

    def execute(self, statement: str) -> None:
        with self._as_os_errors():
            self._perform("database_write", lambda: self._connection.execute(statement))

    def insert(self, table: str, lines: pa.Table) -> None:
        """Append lines to a table; after an error, `rollback` is all that can be done."""
        self._unsaved = True
        self._unsaved_bytes += lines.nbytes
        self._connection.register(_INCOMING, lines)
        self.execute(f"INSERT INTO {table} SELECT * FROM {_INCOMING}")
        self._connection.unregister(_INCOMING)

    def begin(self) -> None:
        if self._is_within:
            self.rollback()
        self.execute("BEGIN TRANSACTION")
        self._is_within = True

    def end(self) -> None:
        self.execute("COMMIT")
        self._is_within = False

    def rollback(self) -> None:
        # A COMMIT that failed has rolled back already.
        with contextlib.suppress(duckdb.TransactionException):
            self.execute("ROLLBACK")
        self._is_within = False
        self._connection.unregister(_INCOMING)

    def select(self, query: str, wanted: pa.Table | None = None) -> pa.Table:
        """Return the answer to a query, which may read the table `wanted`."""
        with self._as_os_errors():
            if wanted is not None:
                self._connection.register(_WANTED, wanted)
            try:
                return self._perform("database_read", lambda: self._connection.sql(query).to_arrow_table())
            finally:
                if wanted is not None:
                    self._connection.unregister(_WANTED)

    def save_some(self) -> None:
        """Write everything to the file where it takes much of DuckDB's memory, which has it until then."""
        if self._unsaved_bytes > self.memory_bytes // _UNSAVED_PART:
            self.save()

    def save(self) -> None:
        if self._unsaved:
            self.execute("CHECKPOINT cold")
            self._unsaved, self._unsaved_bytes = False, 0
            self._left = self._signature()

    def changed(self) -> None:
        """Note that there is something to save."""
        self._unsaved = True

    def file_bytes(self) -> int:
        return Path(self.path).stat().st_size

    def resident_bytes(self) -> int:
        """Return the memory DuckDB takes now."""
        used = self.select("SELECT coalesce(sum(memory_usage_bytes), 0)::BIGINT AS bytes FROM duckdb_memory()")
        return int(used.column("bytes")[0].as_py())

    def close(self) -> None:
        """Close the file without saving; closed already is no error."""
        if os.getpid() != self._process:
            _inherited.append(self._connection)
        elif not self._is_closed:
            self._connection.close()
        self._is_closed = True

    @contextlib.contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException) as error:
            raise self._damaged(error) from error
        except duckdb.Error as error:
            if _CORRUPT in str(error).lower():
                raise self._damaged(error) from error
            if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException):
                raise OSError(f"DuckDB: {error}") from error
            raise

    def _damaged(self, error: duckdb.Error) -> StateError:
        return StateError(
            f"the cold rows in {self.path} cannot be read ({error}). The file is a cache: make sure that no other process has "
            "it, or remove it, and it is rebuilt from the checkpoint.",
            code="COLD_STORE_DAMAGED",
            path=self.path,
        )


class DuckDBColdStore(RunStore):
    """Keep cold rows in a DuckDB file."""

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


class DuckDBStores(ColdStores):
    """Keep the pages of all stores of a directory in one DuckDB file there."""

    def __init__(self, directory: Path, *, memory_bytes: int) -> None:
        super().__init__(directory)
        self._file = DuckDBFile(directory / COLD_FILE, memory_bytes=memory_bytes, keeps_lock=False)

    @override
    def _pages(self, name: str) -> Pages:
        return DuckDBPages(self._file, name)

    @override
    def is_current(self) -> bool:
        return self._file.is_current()

    @override
    def close(self) -> None:
        self._file.close()


class DuckDBPages:
    """Keep the pages of one store in a DuckDB file."""

    kind = "duckdb"

    def __init__(self, file: DuckDBFile, name: str) -> None:
        self._file = file
        # What is read is in DuckDB's memory for a moment, beside the blocks that it is read from.
        self.group_bytes = min(max(file.memory_bytes // _READ_PART, _LEAST_GROUP_BYTES), _MOST_GROUP_BYTES)
        self._schema = f"cold.{identifier(name)}"
        file.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")

    def _table(self, run: int) -> str:
        return f"{self._schema}.{quoted(f'run_{run:d}')}"

    def write(self, run: int) -> _TableWriter:
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
        ats, firsts = np.unique(page_runs, return_index=True)
        bounds = [*firsts.tolist(), len(pages)]
        queries = [
            self._query(runs[at], at, pages[begin:end])
            for at, begin, end in zip(ats.tolist(), bounds, bounds[1:], strict=False)
        ]
        requested, wanted = [runs[at] for at in ats], pa.table({"place": page_runs, "page": pages})
        at_once = max(1, self._file.memory_bytes // _MEMORY_PER_RUN)
        together = [" UNION ALL ".join(queries[begin : begin + at_once]) for begin in range(0, len(queries), at_once)]
        try:
            parts = [self._file.select(query, wanted) for query in together]
        except duckdb.CatalogException as error:
            raise self._missing(requested, "a table is missing") from error
        return self._checked(pa.concat_tables(parts), page_runs << _AT_SHIFT | pages, ends - begins, requested)

    def _query(self, run: int, at: int, pages: Int64s) -> str:
        """Return the query for some pages of a run, which is the one at a place among several."""
        # Lines were inserted in the order of their pages, so the number of a line in its table, by which DuckDB finds it, is
        # that of its page. Where many of the pages between the first and the last are wanted, passing over the others costs
        # more than they do.
        first, last = int(pages[0]), int(pages[-1])
        select = f"SELECT page + {at << _AT_SHIFT:d} AS number, content FROM {self._table(run)}"
        if last - first < _DENSE * len(pages):
            return f"{select} WHERE rowid BETWEEN {first:d} AND {last:d}"
        return f"{select} WHERE rowid IN (SELECT page FROM {_WANTED} WHERE place = {at:d})"

    def _checked(self, selected: pa.Table, pages: Int64s, expected: Int64s, runs: Sequence[int]) -> ReadPages:
        """Return of the pages that were found those that are wanted, in their order."""
        lines = selected.num_rows
        numbers, addresses, sizes = np.empty((3, lines), np.int64)
        begin = 0
        for batch in selected.to_batches():
            content = batch.column(1)
            end = begin + batch.num_rows
            numbers[begin:end] = batch.column(0).to_numpy()
            offsets = np.frombuffer(content.buffers()[1], np.int64)[content.offset : content.offset + len(content) + 1]
            addresses[begin:end] = content.buffers()[2].address + offsets[:-1]
            sizes[begin:end] = np.diff(offsets)
            begin = end
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers)
            numbers, addresses, sizes = numbers[order], addresses[order], sizes[order]
        places = np.searchsorted(numbers, pages)
        there = numbers[np.minimum(places, lines - 1)] == pages if lines else np.zeros(len(pages), np.bool_)
        if not there.all():
            raise self._missing(runs, f"{np.count_nonzero(~there)} pages are missing")
        if not (sizes[places] == expected).all():
            raise self._missing(runs, "their pages have other sizes than were written")
        return ReadPages(addresses[places], selected, int(expected.sum()))

    def check(self, run: int, *, pages: int, size: int) -> None:  # noqa: ARG002 - the table keeps pages whole
        try:
            counted = self._file.select(f"SELECT count(*) AS pages FROM {self._table(run)}")
        except duckdb.CatalogException as error:
            raise self._missing([run], "it is missing") from error
        count = int(counted.column("pages")[0].as_py())
        if count != pages:
            raise self._missing([run], f"it has {count} pages instead of {pages}")

    def drop(self, run: int) -> None:
        self._file.changed()
        self._file.execute(f"DROP TABLE IF EXISTS {self._table(run)}")

    def commit(self) -> None:
        self._file.save()

    def disk_bytes(self) -> int:
        return self._file.file_bytes()

    def resident_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: its opener closes the file."""

    def _missing(self, runs: Sequence[int], what: str) -> StateError:
        return StateError(
            f"runs {', '.join(map(str, runs))} of the cold rows in {self._file.path} are damaged: {what}. The file is a cache: "
            "remove it and the store's directory, and they are rebuilt from the checkpoint.",
            code="COLD_STORE_DAMAGED",
            path=self._file.path,
            runs=list(runs),
        )


class _TableWriter:
    def __init__(self, file: DuckDBFile, table: str) -> None:
        self._file = file
        self._table = table
        self._pages = 0
        file.changed()
        file.begin()
        file.execute(f"CREATE TABLE {table} (page BIGINT, content BLOB USING COMPRESSION uncompressed)")

    def append(self, content: npt.NDArray[np.uint8], ends: Int64s) -> None:
        offsets = np.zeros(len(ends) + 1, np.int64)
        offsets[1:] = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        pages = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)
        numbers = pa.array(np.arange(self._pages, self._pages + len(ends)))
        self._file.insert(self._table, pa.table({"page": numbers, "content": pages}))
        self._pages += len(ends)

    def finish(self) -> None:
        self._file.end()
        self._file.save_some()

    def discard(self) -> None:
        self._file.rollback()
