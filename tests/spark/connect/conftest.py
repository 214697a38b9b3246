"""A server of Spark Connect, and a client in a process of its own: beside a classic session there can be no other.

The server's process and the client's have nothing in common but a port. A test gives the client a function of its module, which
is given the session.
"""

from __future__ import annotations

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
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the address of the server."""
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
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(home)}
        environment.pop("SPARK_REMOTE", None)
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-submit"),
                    "--class",
                    "org.apache.spark.sql.connect.service.SparkConnectServer",
                    *conf,
                    "spark-internal",
                ],
                cwd=self.directory,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and self.process.poll() is None:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"the server did not start: {(self.directory / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill it, and every process it has started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


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
        """Kill the process."""
        for process in self._pool._processes.values():
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here with `spark`: it needs a JVM, that of a server."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path) -> None:
    """Make the directories of the inputs."""
    for name in ("orders", "names"):
        (tmp_path / name).mkdir()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server of Spark Connect."""
    server = Server(tmp_path_factory.mktemp("connect-server"))
    try:
        yield server.start()
    finally:
        server.kill()


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
        return function(SparkSession.active(), *given)
    except PySparkException as error:  # it holds messages that only a client can read
        raise RuntimeError(str(error)) from None
