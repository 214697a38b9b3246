"""A DuckDB file that is given back between uses, so that other processes can read it while a query runs.

DuckDB lets one process write a file, or several read it. So a writer opens it for its epoch and closes it after; who wants to
read opens it in between, with `read_only=True`, and tries again when it is busy.

The law: outside of `held` the file is closed at most `hold_seconds` after its last use. Inside it is ours alone. A reader
that holds it longer keeps us waiting, not failing: opening is tried again, with growing pauses, a warning in the log after a
second, and an error after `patience_seconds`.

Closing makes DuckDB write its log into the file. That costs little after a small epoch and as much as the epoch after a large
one, so epochs that follow each other fast share one opening.

Memory: one thread that waits, while the file is open and not in use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zset_join.core.errors import OptionError, SinkError
from zset_join.core.extras import needed_for

with needed_for("a DuckDB output"):
    import duckdb

__all__ = ["HOLD_SECONDS", "PATIENCE_SECONDS", "DuckDBFile"]

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
