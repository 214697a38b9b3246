"""Bring the rows of a batch to the driver as Arrow tables, or name the option that makes batches smaller.

    an epoch                      whole, one job
    the first one of a query      whole where it has few rows; else in slices
    a baseline                    in slices

A slice is a range of rows of the batch as Spark has persisted it on its disks, so Spark holds no more than one slice as Arrow,
and what is read twice was computed once. Every slice reads what is persisted from its beginning.

The law: rows above the limit are refused before anything is applied, so the same batch comes again. The slices of a batch have
its rows, once, in its order.

Memory: the tables; of Spark one slice of about 64 MB, or for an epoch all rows, bounded by `spark.driver.maxResultSize`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import ResourceError
from zset_join.runners.spark.driver.choosing import refuse_without_memory

__all__ = ["collected_slices", "collected_table", "first_tables"]

_CURE = (
    "Limit what the sources read per epoch: the option maxFilesPerTrigger or maxBytesPerTrigger of files and Delta tables, "
    "maxOffsetsPerTrigger of Kafka"
)
_NAMED_BY_SPARK = "maxResultSize"
_SLICE_BYTES = 64 << 20
_FIRST_SLICE_ROWS = 100_000
_WHOLE_ROWS = 200_000
_PARTITION_BITS = 33
"""Where `monotonically_increasing_id` has the number of the partition."""


@dataclass
class _Cursor:
    counts: dict[int, int]
    partition: int = 0
    row: int = 0

    def next(self, rows: int) -> tuple[int, int] | None:
        """Return the first number and the one behind the last of the next rows, at most so many; None at the end."""
        begin: int | None = None
        end = 0
        while rows and self.partition <= max(self.counts, default=-1):
            there = self.counts.get(self.partition, 0) - self.row
            taken = min(there, rows)
            if taken:
                at = (self.partition << _PARTITION_BITS) + self.row
                begin, end = at if begin is None else begin, at + taken
            rows -= taken
            self.row += taken
            if taken == there:
                self.partition, self.row = self.partition + 1, 0
        return None if begin is None else (begin, end)


def collected_table(rows: DataFrame, epoch: int, max_bytes: int) -> pa.Table:
    table = _arrow(rows, epoch)
    _check(table.num_rows, table.nbytes, epoch, max_bytes)
    return table


def first_tables(rows: DataFrame, epoch: int, max_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of the first batch of a query, which may be all that its sources have."""
    table = _arrow(rows.limit(_WHOLE_ROWS + 1), epoch)
    if table.num_rows > _WHOLE_ROWS:
        del table
        yield from collected_slices(rows, epoch, max_bytes)
        return
    _check(table.num_rows, table.nbytes, epoch, max_bytes)
    yield table


def collected_slices(rows: DataFrame, epoch: int, max_bytes: int, *, slice_bytes: int = _SLICE_BYTES) -> Iterator[pa.Table]:
    """Yield rows as tables of about the same size."""
    kept = rows.persist(StorageLevel.DISK_ONLY)
    try:
        numbered = kept.withColumn("__at", F.monotonically_increasing_id())
        partitions = kept.select(F.spark_partition_id().alias("p")).groupBy("p").count().collect()
        cursor = _Cursor({int(row[0]): int(row[1]) for row in partitions})
        total_rows = total_bytes = 0
        wanted = _FIRST_SLICE_ROWS
        while (found := cursor.next(wanted)) is not None:
            table = _arrow(numbered.where((F.col("__at") >= found[0]) & (F.col("__at") < found[1])).drop("__at"), epoch)
            total_rows, total_bytes = total_rows + table.num_rows, total_bytes + table.nbytes
            _check(total_rows, total_bytes, epoch, max_bytes)
            refuse_without_memory(total_bytes, epoch)
            wanted = max(1, slice_bytes * total_rows // max(1, total_bytes))
            yield table
    finally:
        kept.unpersist()


def _arrow(rows: DataFrame, epoch: int) -> pa.Table:
    try:
        return rows.toArrow()
    except Exception as error:  # a classic session raises what py4j has, Spark Connect its own
        if _NAMED_BY_SPARK not in str(error):
            raise
        raise ResourceError(
            f"the rows of epoch {epoch} are more than Spark collects on the driver (spark.driver.maxResultSize). {_CURE}; or "
            "raise that setting.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
        ) from error


def _check(rows: int, size: int, epoch: int, max_bytes: int) -> None:
    if max_bytes and size > max_bytes:
        raise ResourceError(
            f"epoch {epoch} has {rows:,} rows of {size:,} bytes, and maxDeltaBytes allows {max_bytes:,}. "
            f"{_CURE}; or raise maxDeltaBytes; in SQL, SET max_delta_bytes.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
            rows=rows,
            bytes=size,
            limit=max_bytes,
        )
