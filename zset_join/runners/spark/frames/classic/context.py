"""The Spark context beside a classic session: how many cores and executors there are, and what its jobs are called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

__all__ = ["GATEWAY_ERRORS", "described_jobs", "executors", "parallelism", "worker_python"]

GATEWAY_ERRORS: tuple[type[Exception], ...] = (Py4JError,)
"""What a call into the JVM raises beside PySpark's own errors."""

_DESCRIPTION = "spark.job.description"
_LOCAL_MASTER = re.compile(r"local(\[.*)?")


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at once, as Spark counts them."""
    return int(session.sparkContext.defaultParallelism)


def executors(session: SparkSession) -> int:
    """Return the executors that are present now; what Spark lists has the driver too."""
    context = session.sparkContext
    if _LOCAL_MASTER.fullmatch(context.master or ""):
        return 1
    return len(context._jsc.statusTracker().getExecutorInfos()) - 1


def worker_python(session: SparkSession) -> str:
    """Return the Python that workers are started with."""
    return str(session.sparkContext.pythonExec)


@contextmanager
def described_jobs(session: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs that this thread runs, and so their stages, on Spark's pages."""
    context = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None takes the property away
