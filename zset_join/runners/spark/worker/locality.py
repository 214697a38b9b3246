"""Let every bucket come back to the executor that has its state.

An *anchor* is a cached row per bucket; when the rows of an epoch are joined with it, Spark prefers for each bucket the executor
that holds its cached row. That takes no shuffle of its own, because both sides are divided alike.

The law: it is a preference. Whether it was followed changes no answer; a bucket that runs elsewhere rebuilds its state there
from the checkpoint, and its receipt records it (a miss).

It is off on a local master, and over Spark Connect, where executors cannot be counted. The anchor is rebuilt when half of the
places are empty, as after executors have come; all buckets may move then. It needs `zset_join.spark.cluster_settings`: without
these, Spark also prefers the hosts that wrote most of the shuffle, and the anchor is made before all executors are present.

Cost: one small job when a query starts, and a hash probe per row and stage.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.runners.spark.frames.facts import is_connect

__all__ = ["Locality", "executor_name"]

_ANCHOR = "__anchor"
_TRIES = 3
_LEAST_EXECUTORS = 2


class Locality:
    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._anchor: DataFrame | None = None
        self._holders: set[str] = set()
        self._made_for = 0

    def begin(self, session: SparkSession) -> None:
        """Look at the executors there are before an epoch; make the anchor, or rebuild it."""
        if is_connect(session):
            return
        from zset_join.runners.spark.frames.classic import context

        executors = context.executors(session)
        if executors < _LEAST_EXECUTORS:
            self.close()
        elif self._anchor is None or not self._anchor.storageLevel.useMemory or self._is_lopsided(executors):
            self.close()
            self._made_for = executors
            self._anchor = self._make(session, executors)

    def pin(self, rows: DataFrame) -> DataFrame:
        """Return rows that were sent to their buckets (column `bucket`), their tasks bound to the anchor."""
        if self._anchor is None:
            return rows
        on_bucket = F.col("bucket") == F.col(_ANCHOR)
        return rows.join(self._anchor.hint("shuffle_hash"), on_bucket, "left").select(*rows.columns)

    def learn(self, executors: Sequence[str]) -> None:
        """Take note of the executors that ran the buckets of an epoch."""
        self._holders = set(executors)

    def close(self) -> None:
        if self._anchor is not None:
            anchor, self._anchor = self._anchor, None
            from zset_join.runners.spark.frames.classic.context import GATEWAY_ERRORS

            with suppress(*GATEWAY_ERRORS):  # the session has gone, and its cached rows with it
                anchor.unpersist()

    def _is_lopsided(self, executors: int) -> bool:
        """Return whether half of the places or more are empty; tried once for a number of executors."""
        places = min(self._buckets, executors)
        return executors != self._made_for and 2 * len(self._holders) <= places

    def _make(self, session: SparkSession, executors: int) -> DataFrame:
        """Make an anchor whose rows are spread over the executors; the last try counts, however it fell out."""
        fair_share = -(-self._buckets // executors)
        for rest in reversed(range(_TRIES)):
            # The literal keeps the anchors of two queries apart: Spark recognises cached tables by their plan.
            numbers = session.range(0, self._buckets, 1, self._buckets)
            anchor = numbers.select(F.col("id").cast("int").alias(_ANCHOR), F.lit(uuid.uuid4().hex).alias("query"))
            anchor = anchor.repartitionById(self._buckets, F.col(_ANCHOR)).cache()
            places = [row[0] for row in anchor.mapInArrow(_where, "executor string").collect()]
            if max(Counter(places).values()) <= fair_share or not rest:
                break
            anchor.unpersist(blocking=True)
        self._holders = set(places)
        return anchor


def executor_name() -> str:
    """Return a name of the executor a task runs on: its host, and the process that starts its Python workers."""
    return f"{socket.gethostname()}/{os.getppid()}"


def _where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"executor": [executor_name()] * batch.num_rows})
