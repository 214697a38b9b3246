"""The settings of Spark that our jobs need, whatever the session sets otherwise.

No adaptive execution (a partition is a bucket), large batches, Arrow types with 32-bit offsets, instants in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pyspark.sql import SparkSession

from zset_join.runners.spark.frames.facts import is_connect

__all__ = ["described_jobs", "job_settings", "wanted_settings"]


def wanted_settings(max_records_per_batch: int, *, is_routed: bool) -> dict[str, str]:
    wanted = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(max_records_per_batch),
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    if is_routed:
        # A route that runs again after an executor was lost sends the same rows, another receipt. Spark would take that for a
        # source that cannot be trusted, and fail the query.
        wanted["spark.sql.shuffle.orderIndependentChecksum.enabled"] = "false"
        wanted["spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"] = "false"
        # Joins share the first shuffle, and tasks of a union are numbered one input after the other.
        wanted["spark.sql.exchange.reuse"] = "true"
        wanted["spark.sql.unionOutputPartitioning"] = "false"
    return wanted


@contextmanager
def job_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Apply the settings of a job, and restore the previous ones."""
    kept = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in kept.items():
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)


def described_jobs(session: SparkSession, text: str) -> AbstractContextManager[None]:
    """Describe the jobs that this thread runs, and so their stages, on Spark's pages."""
    if is_connect(session):
        return nullcontext()
    from zset_join.runners.spark.frames.classic import context

    return context.described_jobs(session, text)
