"""Functions that run in a Python process of a Spark Connect server; client and server share no disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from zset_join.spark.rows.baseline import make_start

__all__ = ["on_server", "start_on_server"]


def on_server(session: SparkSession, function: Callable[[], str]) -> str:
    """Return what a function returns in a Python process of the server.

    Args:
        session: of Spark Connect.
        function: takes nothing; it is pickled.

    Raises:
        PySparkException: what it raises, as Spark reports it.

    Cost: one job with one task.
    """

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"answer": [function()]})

    (row,) = session.range(1).coalesce(1).mapInArrow(answer, "answer string").collect()
    return str(row[0])


def start_on_server(session: SparkSession, location: str) -> None:
    """Make the directory of the source that brings epochs when none has a row.

    Args:
        session: of Spark Connect.
        location: `checkpointLocation`.
    """

    def make() -> str:
        make_start(location)
        return ""

    on_server(session, make)
