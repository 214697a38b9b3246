"""A program that changes its running query and is killed on the way: python -m ... DIRECTORY EXECUTION MOMENT; see test_killed_changes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.spark import JoinQuery, changes, local_session
from zset_join.spark import functions as F  # noqa: N812 - PySpark's own habit

MOMENTS: dict[tuple[str, str], tuple[Any, str, bool]] = {
    ("driver", "before-record"): (Checkpoint, "commit_change", True),
    ("driver", "behind-record"): (Checkpoint, "commit_change", False),
    ("driver", "between-outputs"): (ParquetChangelogSink, "write", True),
    ("driver", "before-start"): (JoinStreamWriter, "start_behind_change", True),
    ("executors", "before-record"): (Checkpoint, "commit_change", True),
    ("executors", "behind-record"): (Checkpoint, "commit_change", False),
    ("executors", "between-outputs"): (ParquetChangelogSink, "write", True),
}
"""What ends the process, by where epochs run: a call of a class, before it begins or once it is done."""


def view(session: SparkSession, directory: Path, *, at_least: int) -> Any:
    """Return the customers with so many orders."""
    rows = session.readStream.schema("id BIGINT, who STRING, total BIGINT").parquet(str(directory / "orders"))
    orders = changes(rows, name="orders", keys=["id"], sequence_by="total")
    return orders.groupBy("who").agg(F.count().alias("n")).where(f"n >= {at_least}")


def start(session: SparkSession, directory: Path, *, at_least: int, execution: str) -> JoinQuery:
    """Start the query into a DuckDB file and a Parquet changelog, and let it read the present content."""
    options = {"checkpointLocation": str(directory / "checkpoint"), "localStateDir": str(directory / "local")}
    writer = view(session, directory, at_least=at_least).writeStream.options(**options, execution=execution)
    query: JoinQuery = writer.toDuckDB(directory / "out.duckdb", "v").to("parquet", path=directory / "changelog").start()
    query.processAllAvailable()
    return query


def _killing(owner: Any, name: str, *, first: bool) -> Any:
    """Let a call end this process, before it begins or once it is done."""
    method: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any, **options: Any) -> Any:
        if not first:
            method(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    return mock.patch.object(owner, name, killed)


def main(directory: Path, execution: str, moment: str) -> None:
    """Run the query over the present content, change it, and be killed."""
    session = local_session("changed", cores=1)
    session.sparkContext.setLogLevel("ERROR")
    query = start(session, directory, at_least=0, execution=execution)
    owner, name, first = MOMENTS[execution, moment]
    with _killing(owner, name, first=first):
        query.evolve(view(session, directory, at_least=8))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
