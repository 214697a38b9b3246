"""A server of Spark Connect, and a client in a process of its own: beside a classic session there can be no other.

The server's process and the client's have nothing in common but a port. A test gives the client a function of its module, which
is given the session.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException

from tools.short_lived_jvms import PLAIN_FILES

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
START_SECONDS = 90
_COMPILED = """
import sys

sys.path[:] = [one for one in sys.path if not one.endswith("pyspark.zip")]
"""
"""Workers import PySpark as it is installed, with its byte code, in 1.5 CPU s: from Spark's own archive of sources it takes 3.5."""

Client = Callable[..., Any]


class Server:
    """A server on this machine.

    Args:
        directory: where it keeps its own files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.group: int | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start it, and wait until it answers."""
        home = Path(pyspark.__file__).parent
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={ROOT / 'tests' / 'log4j2.properties'}",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": self.directory / "local",
            "spark.master": "local[2]",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.streaming.checkpointFileManagerClass": PLAIN_FILES,
            "spark.sql.warehouse.dir": self.directory / "warehouse",
            "spark.ui.enabled": "false",
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        (self.directory / "path").mkdir(exist_ok=True)
        (self.directory / "path" / "sitecustomize.py").write_text(_COMPILED)
        path = os.pathsep.join((str(ROOT), str(self.directory / "path")))
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "SPARK_HOME": str(home)}
        environment.pop("SPARK_REMOTE", None)
        submit = str(home / "bin" / "spark-submit")
        kind = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
        with (self.directory / "server.log").open("ab") as log:
            # No child of this process: the one that ends last kills it.
            started = subprocess.run(
                ["bash", "-c", 'setsid "$0" "$@" >&2 & echo $!', submit, *kind, *conf, "spark-internal"],
                cwd=self.directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                check=True,
            )
        self.group = int(started.stdout)
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and Path(f"/proc/{self.group}").exists():
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"the server did not start: {(self.directory / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill it, and every process it has started."""
        if self.group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
            self.group = None


class ClientProcess:
    """A process with a session of Spark Connect.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_connect, initargs=(url,))

    def __call__(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return what a function of the test returns there; it is given the session first."""
        return self._pool.submit(_with_session, function, given).result()

    def kill(self) -> None:
        for process in self._pool._processes.values():
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        self._pool.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here with `spark`: it needs a JVM, that of a server."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path) -> None:
    for name in ("orders", "names"):
        (tmp_path / name).mkdir()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give the server of Spark Connect that all processes of a run share: the first starts it, the last kills it."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "connect-server"
    place.mkdir(exist_ok=True)
    server, started = Server(place), place / "started"
    with (place / "starting").open("a") as starting, (place / "users").open("a") as users:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if started.exists():
            server.port, server.group = map(int, started.read_text().split())
        else:
            started.write_text(f"{server.port} {server.start().group}")
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield server
        fcntl.flock(starting, fcntl.LOCK_EX)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        server.kill()
        started.unlink()


@pytest.fixture(scope="session")
def client(connect_server: Server) -> Iterator[Client]:
    """Give a function that runs another in the client's process."""
    process = ClientProcess(connect_server.url)
    yield process
    process.close()


def _connect(url: str) -> None:
    """Make the session of this process, and the one that is active."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    from pyspark.sql import SparkSession

    SparkSession.builder.remote(url).getOrCreate()


def _with_session(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    from pyspark.sql import SparkSession

    try:
        SparkSession.active().conf.set("spark.sql.session.timeZone", "UTC")  # a test before may have set another
        return function(SparkSession.active(), *given)
    except PySparkException as error:  # it holds messages that only a client can read
        raise RuntimeError(str(error)) from None
