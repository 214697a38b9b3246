"""Bring the rows of a batch to the driver as one Arrow table, or say which option makes batches smaller.

The law: rows above the limit are refused before anything is applied, so the same batch comes again.

Memory: the whole table; what Spark sends is bounded by `spark.driver.maxResultSize`, what is taken by `maxDeltaBytes`.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from zset_join.core.errors import ResourceError

__all__ = ["collected_table"]

_CURE = (
    "Let the sources bring less per epoch: the option maxFilesPerTrigger or maxBytesPerTrigger of files and Delta tables, "
    "maxOffsetsPerTrigger of Kafka"
)
_TOLD_BY_SPARK = "maxResultSize"


def collected_table(rows: DataFrame, epoch: int, max_bytes: int) -> pa.Table:
    """Return rows as one table.

    Args:
        rows: what is collected.
        epoch: the epoch they are of.
        max_bytes: most bytes they may have in Arrow; 0: any.

    Raises:
        ResourceError: `DELTA_TOO_LARGE`.
    """
    try:
        table = rows.toArrow()
    except PySparkException as error:
        if _TOLD_BY_SPARK not in str(error):
            raise
        raise ResourceError(
            f"the rows of epoch {epoch} are more than Spark brings to the driver (spark.driver.maxResultSize). {_CURE}; or "
            "raise that setting.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
        ) from error
    if max_bytes and table.nbytes > max_bytes:
        raise ResourceError(
            f"epoch {epoch} has {table.num_rows:,} rows of {table.nbytes:,} bytes, and maxDeltaBytes allows {max_bytes:,}. "
            f"{_CURE}; or raise maxDeltaBytes.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
            rows=table.num_rows,
            bytes=table.nbytes,
            limit=max_bytes,
        )
    return table
