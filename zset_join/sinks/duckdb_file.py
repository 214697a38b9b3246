"""A DuckDB file that is given back between uses, so that other processes can read it while a query runs.

DuckDB lets one process write a file, or several read it. So a writer opens it for its epoch and closes it after; who wants to
read opens it in between, with `read_only=True`, and tries again when it is busy.

The law: outside of `held` the file is closed at most `hold_seconds` after its last use. Inside it is ours alone. A reader
that holds it longer keeps us waiting, not failing: opening is tried again, with growing pauses, a warning in the log after a
second, and an error after `patience_seconds`.

Closing makes DuckDB write its log into the file. That costs little after a small epoch and as much as the epoch after a large
one, so epochs that follow each other fast share one opening.

Memory: one thread that waits, while the file is open and not in use.

`ViewStatements`: the SQL of a materialized view in DuckDB, made once per view.

A view `t` is kept as a *base table* `_zset_join.t` and a SQL view `main.t` over it. The base table has the columns
`c0`, `c1`, ... in the order of the output, so that no column name of a user meets a name of ours, and the bookkeeping
columns

| column     | type    | holds                                                                                |
|------------|---------|--------------------------------------------------------------------------------------|
| `weight`   | BIGINT  | how often the row is in the view, at least 1; with a key always 1                |
| `row_hash` | UBIGINT | DuckDB's hash of all columns                                                         |
| `key_hash` | UBIGINT | DuckDB's hash of the key columns; only with a key                                    |

The same row may be on several lines; the view shows each line `weight` times. Temporary tables of one epoch:
`delta` (the net change, one line per row), `candidate` (lines of the base table with the hash of a changed row),
`matched` (those that a retraction takes away).

Identity is DuckDB's `IS NOT DISTINCT FROM`, which is Spark's: NaN = NaN, 0.0 = -0.0, NULL = NULL, nested values
included. A hash only finds candidates. Limits: a calendar interval of 1 month equals one of 30 days.

Every name of a user goes through `quote`; values never become part of the text.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError, SinkError
from zset_join.core.extras import needed_for
from zset_join.sinks.sink import holds_duration

__all__ = ["CHUNK", "FIND_NAME", "HOLD_SECONDS", "PATIENCE_SECONDS", "DuckDBFile", "ViewStatements", "quote"]

with needed_for("a DuckDB output"):
    import duckdb


HOLD_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5
_WARN_AFTER_SECONDS = 1.0
_BUSY = ("conflicting lock", "could not set lock", "different configuration", "being used by another process")
_LEAST_LOG_BYTES = 4 << 20
_LOG_PER_FILE = 4
_log = logging.getLogger(__name__)


class DuckDBFile:
    """A file for short times.

    >>> with DuckDBFile(":memory:").held() as connection:
    ...     connection.execute("SELECT 1").fetchall()
    [(1,)]
    """

    def __init__(
        self,
        path: str,
        prepare: Callable[[duckdb.DuckDBPyConnection], None] = lambda _connection: None,
        *,
        hold_seconds: float | None = HOLD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        read_only: bool = False,
    ) -> None:
        if patience_seconds < 0 or (hold_seconds is not None and hold_seconds < 0):
            raise OptionError(
                f"hold_seconds={hold_seconds!r}, patience_seconds={patience_seconds!r}: a time in seconds is not negative.",
                code="SINK_OPTION",
                hold_seconds=hold_seconds,
                patience_seconds=patience_seconds,
            )
        self.path = path
        self._prepare = prepare
        self._read_only = read_only
        self._hold_seconds = None if path == ":memory:" else hold_seconds
        self._patience_seconds = patience_seconds
        self._lock = threading.RLock()
        self._users = 0
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._closer: threading.Timer | None = None

    @property
    def is_open(self) -> bool:
        """Return whether this process has the file open now."""
        return self._connection is not None

    def _make_directory(self) -> None:
        if self.path == ":memory:":
            return
        try:
            Path(self.path).absolute().parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(
                f'the directory of the DuckDB file "{self.path}" cannot be made: {error}. Check the path and its rights.',
                code="SINK_IO",
                path=self.path,
            ) from error

    @contextmanager
    def held(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Have the file open, for one thread at a time; nested use is the same use."""
        with self._lock:
            self._users += 1
            try:
                if self._closer is not None:
                    self._closer.cancel()
                    self._closer = None
                if self._connection is None:
                    self._connection = self._opened()
                yield self._connection
            finally:
                self._users -= 1
                if not self._users:
                    self._give_back_soon()

    def close(self) -> None:
        """Close the file now; closing twice is allowed."""
        with self._lock:
            if self._closer is not None:
                self._closer.cancel()
                self._closer = None
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def shorten_log(self) -> None:
        """Write the log into the file once it is several times as long, inside of `held` and after a commit."""
        # Rows that were deleted since, and old values of updated ones, stay in memory until then, and every scan meets them.
        try:
            if Path(f"{self.path}.wal").stat().st_size <= max(_LEAST_LOG_BYTES, _LOG_PER_FILE * Path(self.path).stat().st_size):
                return
        except OSError:  # in memory, or without a log
            return
        if self._connection is not None:
            try:
                self._connection.execute("CHECKPOINT")
            except duckdb.Error as error:  # others read it now, or the next use of the file fails as well
                _log.info("the log of %s stays as long as it is until the next epoch (%s)", self.path, error)

    def _give_back_soon(self) -> None:
        if self._connection is None or self._hold_seconds is None:
            return
        if not self._hold_seconds:
            self.close()
            return
        self._closer = threading.Timer(self._hold_seconds, self._close_if_unused)
        self._closer.name, self._closer.daemon = "zset_join-duckdb", True
        self._closer.start()

    def _close_if_unused(self) -> None:
        with self._lock:
            if self._closer is not None and self._closer is threading.current_thread():
                self.close()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if not self._read_only:
            self._make_directory()
        started, pause, is_warned = time.monotonic(), _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                connection = duckdb.connect(self.path, read_only=self._read_only)
                break
            except (duckdb.IOException, duckdb.ConnectionException, duckdb.BinderException) as error:
                if not any(word in str(error).lower() for word in _BUSY):
                    raise
                waited = time.monotonic() - started
                if waited + pause > self._patience_seconds:
                    raise self._busy(error) from error
                if waited > _WARN_AFTER_SECONDS and not is_warned:
                    is_warned = True
                    _log.warning("%s", f"waiting for {self.path}, which somebody else has open: {error}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _busy(self, error: Exception) -> SinkError:
        return SinkError(
            f'the DuckDB file "{self.path}" was open elsewhere for {self._patience_seconds:g} seconds: {error}. Close it there '
            "(a reader opens it with read_only=True, reads and closes), and start the query again: it continues with "
            "this epoch. "
            "Or set patience_seconds higher.",
            code="SINK_BUSY",
            path=self.path,
            patience_seconds=self._patience_seconds,
        )


# ruff: noqa: S608 - names cannot be parameters of a statement; each one here is ours or went through `quote`.


_BASE_SCHEMA = '"_zset_join"'
CHUNK = "_zset_join_chunk"
FIND_NAME = "SELECT table_type FROM information_schema.tables WHERE table_schema = 'main' AND lower(table_name) = lower(:view)"

_DELTA = 'temp."_zset_join_delta"'
_NET = 'temp."_zset_join_net"'
_CANDIDATE = 'temp."_zset_join_candidate"'
_MATCHED = 'temp."_zset_join_matched"'


def quote(name: str) -> str:
    """Return a name as one SQL identifier, whatever characters it has.

    >>> print(quote('my "table"; --'))
    "my ""table""; --"
    """
    return '"' + name.replace('"', '""') + '"'


class ViewStatements:
    """The statements that make, change and read one view."""

    def __init__(self, table: str, schema: pa.Schema, key: Sequence[int], *, hash_bits: int = 64) -> None:
        self.view = f"main.{quote(table)}"
        self.base = f"{_BASE_SCHEMA}.{quote(table)}"
        self.has_key = bool(key)
        count = len(schema)
        self.columns = [f"c{index}" for index in range(count)]
        self._listed = ", ".join(self.columns)
        self._key_columns = [f"c{index}" for index in key]
        mask = (1 << hash_bits) - 1
        self._hashes = [f"hash({self._listed}) & {mask} AS row_hash"]
        self._hash_names = "row_hash"
        self._match_hash = "row_hash"
        if key:
            self._hashes.append(f"hash({', '.join(self._key_columns)}) & {mask} AS key_hash")
            self._hash_names = "row_hash, key_hash"
            self._match_hash = "key_hash"
        self._names = ", ".join(quote(name) for name in schema.names)
        self._exported = ", ".join(_exported(f"c{index}", field.type) + f" AS c{index}" for index, field in enumerate(schema))

    # -- making and removing ------------------------------------------------------------------------------------------

    def create(self) -> list[str]:
        """Return the statements that make the base table, typed like the registered chunk, and the view."""
        hashes = ", ".join(self._hashes)
        return [
            f"CREATE SCHEMA IF NOT EXISTS {_BASE_SCHEMA}",
            f"CREATE TABLE {self.base} AS SELECT {self._listed}, weight, {hashes} FROM {CHUNK} LIMIT 0",
            f"CREATE VIEW {self.view} ({self._names}) AS {self._shown()}",
        ]

    def _shown(self) -> str:
        once = f"SELECT {self._listed} FROM {self.base}"
        repeated = f"SELECT {self._listed}, unnest(range(1, weight)) FROM {self.base} WHERE weight > 1"
        again = f"SELECT {self._listed} FROM ({repeated})"
        return once if self.has_key else f"{once} UNION ALL {again}"

    def types(self) -> str:
        """Return the query for DuckDB's types of the columns of the registered chunk, in their order."""
        return f"SELECT column_type FROM (DESCRIBE SELECT {self._listed} FROM {CHUNK})"

    def add_columns(self, types: Sequence[str], lacking: int) -> list[str]:
        """Return the statements that give the base table its last columns, and show them in the view."""
        first = len(self.columns) - lacking
        added = zip(self.columns[first:], types[first:], strict=True)
        return [
            *(f"ALTER TABLE {self.base} ADD COLUMN {name} {kind}" for name, kind in added),
            self.rehash(),
            f"CREATE OR REPLACE VIEW {self.view} ({self._names}) AS {self._shown()}",
        ]

    def rehash(self) -> str:
        """Return the statement that computes the hashes again, after DuckDB changed its version."""
        assignments = ", ".join(f"{name} = {value}" for value, name in (pair.split(" AS ") for pair in self._hashes))
        return f"UPDATE {self.base} SET {assignments}"

    def read(self) -> str:
        """Return the query for the lines of the base table and their weights; durations come as microseconds."""
        return f"SELECT {self._exported}, weight FROM {self.base}"

    # -- the net change of an epoch -----------------------------------------------------------------------------------

    def load(self, *, first: bool) -> str:
        """Return the statement that puts the registered chunk into the delta."""
        target = f"CREATE OR REPLACE TEMP TABLE {_DELTA} AS" if first else f"INSERT INTO {_DELTA}"
        return f"{target} SELECT {self._listed}, weight, {', '.join(self._hashes)} FROM {CHUNK} WHERE weight <> 0"

    def count_repeats(self) -> str:
        """Return the query for the number of lines of the delta whose hash another line has too."""
        return f"SELECT count(*) - count(DISTINCT row_hash) FROM {_DELTA}"

    def consolidate(self) -> list[str]:
        """Return the statements that add up the lines with equal rows into a table of their own."""
        repeated = f"SELECT row_hash FROM {_DELTA} GROUP BY row_hash HAVING count(*) > 1"
        columns = f"{self._listed}, {self._hash_names}"
        added_up = f"SELECT sum(weight) AS weight, {columns} FROM {_DELTA} WHERE row_hash IN ({repeated}) GROUP BY {columns}"
        return [
            f"CREATE OR REPLACE TEMP TABLE {_NET} AS {added_up}",
            f"DELETE FROM {_DELTA} WHERE row_hash IN (SELECT row_hash FROM {_NET})",
        ]

    def find_overflow(self) -> str:
        """Return the query for a row whose added up weight does not fit a BIGINT, that weight last."""
        return f"SELECT {self._listed}, weight FROM {_NET} WHERE TRY_CAST(weight AS BIGINT) IS NULL LIMIT 1"

    def take_net(self) -> str:
        """Return the statement that puts the added up lines back into the delta."""
        net = f"SELECT * REPLACE (CAST(weight AS BIGINT) AS weight) FROM {_NET} WHERE weight <> 0"
        return f"INSERT INTO {_DELTA} BY NAME {net}"

    def count_delta(self) -> str:
        """Return the query for the lines of the delta: all of them, and the retractions."""
        return f"SELECT count(*), count(*) FILTER (weight < 0) FROM {_DELTA}"

    # -- retractions --------------------------------------------------------------------------------------------------

    def find_candidates(self) -> str:
        """Return the statement that fetches the lines of the base table with the hash of a changed row."""
        # Two steps inside: one column is scanned for the hashes, then only the vectors with a hit are decompressed.
        wanted = f"SELECT {self._match_hash} FROM {_DELTA}" + ("" if self.has_key else " WHERE weight < 0")
        kept = ", ".join([*(self._key_columns or self.columns), "weight", self._hash_names])
        return (
            f"CREATE OR REPLACE TEMP TABLE {_CANDIDATE} AS SELECT rowid AS base_row, {kept} FROM {self.base} "
            f"WHERE rowid IN (SELECT rowid FROM {self.base} WHERE {self._match_hash} IN ({wanted}))"
        )

    def match_retractions(self) -> str:
        """Return the statement that finds the lines each retraction takes away."""
        # With a key the identity is compared by value and the rest of the row by its hash: that only checks the changelog.
        also = " AND candidate.row_hash = delta.row_hash" if self.has_key else ""
        return (
            f"CREATE OR REPLACE TEMP TABLE {_MATCHED} AS SELECT candidate.base_row, delta.rowid AS delta_row, "
            f"candidate.weight AS held, delta.weight AS change FROM {_CANDIDATE} AS candidate "
            f"JOIN {_DELTA} AS delta ON {self._same_identity()}{also} WHERE delta.weight < 0"
        )

    def count_unheld(self) -> str:
        """Return the query for how many retractions exceed what is held, one of them, and how many leave a rest."""
        return (
            f"SELECT count(*) FILTER (rest < 0), min(delta_row) FILTER (rest < 0), count(*) FILTER (rest > 0) FROM ("
            f"SELECT delta.rowid AS delta_row, coalesce(sum(matched.held), 0) + delta.weight AS rest "
            f"FROM {_DELTA} AS delta LEFT JOIN {_MATCHED} AS matched ON matched.delta_row = delta.rowid "
            f"WHERE delta.weight < 0 GROUP BY delta.rowid, delta.weight)"
        )

    def describe_retraction(self, delta_row: int) -> str:
        """Return the query for one retraction, its weight, and how much of the row the view holds."""
        held = f"SELECT coalesce(sum(held), 0) FROM {_MATCHED} WHERE delta_row = {delta_row:d}"
        return f"SELECT {self._listed}, weight, ({held}) FROM {_DELTA} WHERE rowid = {delta_row:d}"

    def delete_matched(self) -> str:
        """Return the statement that takes the matched lines out of the base table."""
        return f"DELETE FROM {self.base} WHERE rowid IN (SELECT base_row FROM {_MATCHED})"

    def insert_rest(self) -> str:
        """Return the statement that puts back what retractions left of the lines they matched; only without a key."""
        row = _prefixed("candidate", self.columns)
        rests = f"SELECT min(base_row) AS base_row, sum(held) + min(change) AS rest FROM {_MATCHED} GROUP BY delta_row"
        return (
            f"INSERT INTO {self.base} ({self._listed}, weight, row_hash) SELECT {row}, CAST(rest AS BIGINT), row_hash "
            f"FROM {_CANDIDATE} AS candidate JOIN ({rests}) AS left_over USING (base_row) WHERE rest > 0"
        )

    # -- insertions ---------------------------------------------------------------------------------------------------

    def find_repeated_key(self) -> str:
        """Return the query for a key that the delta inserts more than once."""
        keys = ", ".join(self._key_columns)
        suspects = f"SELECT key_hash FROM {_DELTA} WHERE weight > 0 GROUP BY key_hash HAVING sum(weight) > 1"
        return (
            f"SELECT {keys} FROM {_DELTA} WHERE weight > 0 AND key_hash IN ({suspects}) "
            f"GROUP BY {keys} HAVING sum(weight) > 1 LIMIT 1"
        )

    def find_taken_key(self) -> str:
        """Return the query for a key that the delta inserts while another row of the view has it."""
        keys = _prefixed("delta", self._key_columns)
        return (
            f"SELECT {keys} FROM {_CANDIDATE} AS candidate JOIN {_DELTA} AS delta ON {self._same_identity()} "
            f"WHERE delta.weight > 0 AND candidate.base_row NOT IN (SELECT base_row FROM {_MATCHED}) LIMIT 1"
        )

    def insert(self) -> str:
        """Return the statement that adds the insertions of the delta to the base table."""
        listed = f"{self._listed}, weight, {self._hash_names}"
        return f"INSERT INTO {self.base} ({listed}) SELECT {listed} FROM {_DELTA} WHERE weight > 0"

    def _same_identity(self) -> str:
        compared = self._key_columns or self.columns
        tests = [f"candidate.{name} IS NOT DISTINCT FROM delta.{name}" for name in compared]
        return " AND ".join([f"candidate.{self._match_hash} = delta.{self._match_hash}", *tests])


def _prefixed(table: str, columns: Iterable[str]) -> str:
    return ", ".join(f"{table}.{name}" for name in columns)


def _exported(expression: str, data_type: pa.DataType) -> str:
    """Return the expression with every duration as microseconds: exported as an interval it would overflow."""
    if not holds_duration(data_type):
        return expression
    if pt.is_duration(data_type):
        return f"epoch_us({expression})"
    if pt.is_struct(data_type):
        fields = (f"{quote(field.name)} := {_exported(f'{expression}.{quote(field.name)}', field.type)}" for field in data_type)
        exported = f"struct_pack({', '.join(fields)})"
    elif pt.is_map(data_type):
        key, item = _exported("entry.key", data_type.key_type), _exported("entry.value", data_type.item_type)
        entry = f"{{'key': {key}, 'value': {item}}}"
        exported = f"map_from_entries(list_transform(map_entries({expression}), lambda entry: {entry}))"
    else:
        exported = f"list_transform({expression}, lambda element: {_exported('element', data_type.value_type)})"
    return f"CASE WHEN {expression} IS NULL THEN NULL ELSE {exported} END"
