"""Requirements on a session, checked before a query starts, recommended settings, and a local session that has them.

Workers must run the driver's Python: the same version, with the same packages. Spark starts `python3` from the PATH
unless `PYSPARK_PYTHON` is set, so a virtual environment of the driver is easily missed. One small job at the start of
a query reads a worker's identity; that costs nothing extra, for the worker stays and serves the first epoch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
from pyspark import __version__ as pyspark_version
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, SparkSession

from zset_join.core.errors import PlanError
from zset_join.runners.spark.frames.facts import is_connect, is_of_spark

__all__ = ["check_session", "cluster_settings", "has_class", "local_session"]

_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "zset_join.runners.spark.worker.daemon"
_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LEAST_JAVA = 17
_WORKER_TRIES = 5
_LONGEST_SOCKET_DIRECTORY = 40
_JAVA_CURE = (
    "Install a JDK (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and let "
    "JAVA_HOME point at it."
)


def local_session(
    app_name: str = "zset_join", *, cores: int | None = None, options: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return a session on this machine that runs the driver's Python in its workers.

    Its pages are at the `uiWebUrl` of its context, on the loopback address; `options={"spark.ui.enabled": "false"}` does
    without them. Spark's checkpoint is written by renaming files, without a process per file; for a checkpoint on HDFS or an
    object store set `spark.sql.streaming.checkpointFileManagerClass` to what Spark has for it.

    Args:
        app_name: name of the application.
        cores: cores to use; all by default.
        options: more Spark options, by their own names.

    Raises:
        PlanError: no Java, or one that is too old.
    """
    _check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(f"local[{cores or '*'}]")
        .appName(app_name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(cores or os.cpu_count() or 1))
        .config("spark.port.maxRetries", "256")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if len(tempfile.gettempdir()) <= _LONGEST_SOCKET_DIRECTORY:
        # TCP holds small answers back for 40 ms; a Unix socket does not. Its path may have 100 characters.
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if _workers_find_us():
        builder = builder.config(_DAEMON, _OUR_DAEMON)
    if has_class(_PLAIN_FILES):
        # Spark's default starts ten processes, `readlink` and `chmod`, for every file of its checkpoint on a local disk, 30 in
        # an epoch: 0.08 CPU seconds. Both rename a finished file.
        builder = builder.config(_FILES, _PLAIN_FILES)
    for name, value in (options or {}).items():
        builder = builder.config(name, str(value))
    return builder.getOrCreate()


def cluster_settings() -> dict[str, str]:
    """Return Spark settings that speed up joins on a cluster; they are read when a session is created.

    With them a bucket's task runs where its state is (see `zset_join.runners.spark.worker.locality`), and workers start
    with the engine loaded (see `zset_join.runners.spark.worker.daemon`), which needs this package in every executor's Python.

    >>> sorted(cluster_settings())
    ['spark.python.daemon.module', 'spark.scheduler.minRegisteredResourcesRatio', 'spark.shuffle.reduceLocality.enabled']
    """
    return {
        _DAEMON: _OUR_DAEMON,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.shuffle.reduceLocality.enabled": "false",
    }


def check_session(session: SparkSession) -> None:
    """Refuse a session in which a query could not run."""
    if not hasattr(DataFrame, "repartitionById"):
        raise PlanError(
            f"PySpark {pyspark_version} has no DataFrame.repartitionById, which sends each row to its bucket. Use PySpark 4.1 "
            "or newer.",
            code="PYSPARK_VERSION",
            version=pyspark_version,
        )
    if not is_connect(session):
        _check_workers(session)


def has_class(name: str) -> bool:
    """Return whether Spark's own SQL has a class; versions of Spark move classes from package to package."""
    entry = f"{name.replace('.', '/')}.class"
    for path in (Path(_find_spark_home()) / "jars").glob("spark-sql_*.jar"):
        with ZipFile(path) as jar:
            return entry in jar.NameToInfo
    return False


def _workers_find_us() -> bool:
    """Return whether a new process finds this package; one that does not would keep every Python worker from starting."""
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('zset_join') is None)"
    return not subprocess.run([sys.executable, "-c", question], check=False).returncode


def _answer_of_worker(session: SparkSession) -> str:
    # Spark finds out that an idle worker has died when it is given rows; the next try has another one.
    rows = session.range(1).coalesce(1).mapInArrow(_introduce_worker, "note string")
    for tries_left in reversed(range(_WORKER_TRIES)):
        try:
            return str(rows.collect()[0][0])
        except Exception as error:
            if not tries_left or "exited unexpectedly" not in str(error):
                raise
    raise AssertionError("a try returns or raises")


def _check_workers(session: SparkSession) -> None:
    cure = (
        f"Set the environment variable PYSPARK_PYTHON={sys.executable} before the session is created "
        "(zset_join.spark.local_session does), or install the same packages for the workers' Python."
    )
    from zset_join.runners.spark.frames.classic.context import worker_python

    python = worker_python(session)
    try:
        answer = _answer_of_worker(session)
    except Exception as error:
        if not is_of_spark(error):
            raise
        messages = re.findall(r"(\w*(?:Error|IOException): .*)", str(error))
        raise PlanError(
            f"a worker with the Python {python!r} could not answer: {messages[-1] if messages else error}. {cure}",
            code="WORKER_PYTHON",
            driver=sys.executable,
            worker=python,
        ) from error
    worker = json.loads(answer)
    mine = _introduction()
    differing = [f"{name}: driver {mine[name]}, worker {worker[name]}" for name in mine if mine[name] != worker[name]]
    if differing:
        raise PlanError(
            f"workers run another Python than the driver ({worker['executable']}): {'; '.join(differing)}. {cure}",
            code="WORKER_PYTHON",
            driver=sys.executable,
            worker=worker["executable"],
        )


def _introduction() -> dict[str, str]:
    return {"python": ".".join(map(str, sys.version_info[:2])), "pyarrow": pa.__version__.split(".")[0]}


def _introduce_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return which Python this is; runs in a worker, and fails there when the engine cannot be imported."""
    from zset_join.runners.spark.worker import tasks  # noqa: F401 - the import is the question

    for _ in batches:
        note = json.dumps({**_introduction(), "executable": sys.executable})
        yield pa.RecordBatch.from_pydict({"note": [note]})


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java is on the PATH"
        raise PlanError(f"Spark needs Java {_LEAST_JAVA} or newer, and {where}. {_JAVA_CURE}", code="JAVA_MISSING")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    major = int(version[1]) if version else 0
    if major == 1 and version is not None and version[2]:
        major = int(version[2])
    if major < _LEAST_JAVA:
        printed = output.splitlines()[0] if output else "nothing"
        raise PlanError(
            f"Spark needs Java {_LEAST_JAVA} or newer; {java} answers {printed!r}. {_JAVA_CURE}",
            code="JAVA_VERSION",
            java=java,
        )
