"""What every test shares: one Spark session, compiled kernels that survive between runs, the Hypothesis profile.

A test that requests the fixture `spark` carries the mark `spark` by itself: `-m "not spark"` needs no JVM.
PySpark is imported only when the first such test runs.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from property_tests.profiles import load_profile
from tests.scratch import remove_scratch, use_memory
from tools.short_lived_jvms import PLAIN_FILES, use_short_lived_jvms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# Tests compile what they call: a change of one kernel does not compile all of them.
os.environ.setdefault("ZSET_JOIN_COMPILE", "lazily")

# A thousand tests leave more behind than Spark's 1 GB: with it the last tests of a run took ten times as long, and then the
# heap was full. A JVM whose heap is full ends at once, and its last line reports it, instead of failing every test that follows.
ROOMY_JVM = "-Xss4m -Xmn512m -XX:+ExitOnOutOfMemoryError"
JVM_HEAP = "3g"
SHORT_HISTORY = dict.fromkeys(
    (
        "spark.sql.streaming.numRecentProgressUpdates",
        "spark.sql.ui.retainedExecutions",
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
    ),
    20,
)
"""Spark keeps a thousand plans, jobs and stages for its pages, which nobody opens here."""

LONGEST_SOCKET_DIRECTORY = 40
"""The path of a Unix socket, which answers 40 ms sooner than TCP, may have 100 characters."""

MOST_SHOWN = 4_000
LONGEST_NAME = 30
JVM_STDERR = pytest.StashKey[Path]()
HAS_FAILED = pytest.StashKey[bool]()
NUMBERS = itertools.count()
SCRATCH = use_memory()

# Inherited by the programs that tests start.
use_short_lived_jvms()

# Without a deadline: the first call of a kernel may compile it.
load_profile()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would visit what thirteen thousand tests consist of again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without the word spark unread where `-m` wants Spark's tests only: reading all takes each worker 20 s."""
    wants_spark = str(config.getoption("markexpr")).startswith("spark and ")
    if not wants_spark or collection_path.suffix != ".py" or "spark" in str(collection_path.relative_to(ROOT)):
        return None
    return "spark" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that requests `spark`, before `-m` picks."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a Spark test that failed what the JVM wrote last: why it died, if it did."""
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    written = item.config.stash.get(JVM_STDERR, None)
    if report.failed and written is not None and "spark" in getattr(item, "fixturenames", ()):
        last = written.read_text(encoding="utf-8", errors="replace")[-MOST_SHOWN:]
        report.sections.append((f"end of {written}", last))
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note whether somebody may look for what a test left."""
    session.config.stash[HAS_FAILED] = exitstatus != 0


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if SCRATCH is not None and not config.stash.get(HAS_FAILED, True):
        remove_scratch(SCRATCH)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a directory, which is removed when the test has passed.

    That of pytest is numbered: to find its number, pytest looks through those of all tests before.
    """
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:LONGEST_NAME]
    path = tmp_path_factory.mktemp(f"{name}{next(NUMBERS)}", numbered=False)
    yield path
    if not request.node.stash.get(HAS_FAILED, False):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def standard_error_of_children(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write their standard error into a file."""
    ours = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory the JVM runs in: there, relative paths of Spark end up."""
    return tmp_path_factory.mktemp("spark-run")


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_directory: Path, pytestconfig: pytest.Config
) -> Iterator[SparkSession]:
    """Give the one session of the run: two cores, two shuffle partitions, UTC, no UI, nothing logged below ERROR."""
    java = subprocess.run(["bash", str(ROOT / "tools" / "check_java.sh")], capture_output=True, text=True, check=False)
    if java.returncode:
        pytest.fail(java.stderr, pytrace=False)
    # All three are read when the JVM starts. The conf spark.pyspark.python alone is not enough: only spark-submit reads
    # it. Workers find the test modules, whose functions are pickled by name, through PYTHONPATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

    from pyspark.sql import SparkSession

    from tests.java_names import keep_java_names

    keep_java_names()
    directory, logging = tmp_path_factory.mktemp("spark"), ROOT / "tests" / "log4j2.properties"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("zset_join tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{ROOMY_JVM} -Dlog4j2.configurationFile={logging}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", JVM_HEAP)
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.pyspark.python", sys.executable)
        .config("spark.python.daemon.module", "zset_join.runners.spark.worker.daemon")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 100_000)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.checkpointFileManagerClass", PLAIN_FILES)
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if len(tempfile.gettempdir()) <= LONGEST_SOCKET_DIRECTORY:
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    for name, count in SHORT_HISTORY.items():
        builder = builder.config(name, count)
    pytestconfig.stash[JVM_STDERR] = written = directory / "jvm.stderr"
    with contextlib.chdir(spark_directory), standard_error_of_children(written):
        session = builder.getOrCreate()
    yield session
    session.stop()
