"""Joins by processing time inside Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.core.errors import OptionError
from zset_join.lookup import DataFrameSource
from zset_join.pipeline import PROCESSING_TIME
from zset_join.spark import appends, changes

Run = Callable[..., Any]
ORDERS = pa.schema([("order_id", pa.int64()), ("sku", pa.int64())])
PRICES = pa.schema([("sku", pa.int64()), ("price", pa.int64())])


def test_a_row_meets_the_table_of_its_moment_and_is_never_corrected(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    orders, prices = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "p", PRICES)
    orders.add((1, 7)).add().add((2, 7), (3, 8))
    prices.add((7, 3)).add((7, 4)).add()
    left = appends(orders.stream(), name="orders")
    sink = Collected()

    query = run(
        left.temporal_join(changes(prices.stream(), name="prices", keys=["sku"]), on="sku", as_of=PROCESSING_TIME),
        sink,
        buckets=2,
    )

    assert sink.total() == {(7, 1, 3): 1, (7, 2, 4): 1}
    emitted = spark.createDataFrame([(7, 1, 3, 1), (7, 2, 4, 1)], "sku long, order_id long, price long, _weight long")
    assert query.verify(actual_df=emitted).equal
    assert query.verify(actual_df=emitted.limit(1)).different_rows == 1
    tables = {"orders": spark.read.parquet(str(orders.directory))}
    with pytest.raises(OptionError, match=r"^\[VERIFY_STAGE\] verify\(\) can compare a join by processing time only where"):
        query.verify(tables=tables, actual_df=emitted)


def test_a_dataframe_on_the_right_is_read_again_when_its_interval_has_passed(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders = Source(spark, tmp_path / "o", ORDERS)
    orders.add((1, 7)).add((2, 7), (3, 8))
    read: list[int] = []

    def table() -> Any:
        read.append(len(read))
        return spark.createDataFrame([(7, len(read))], "sku long, price long")

    prices = DataFrameSource(name="prices", schema=PRICES, dataframe=table)
    left = appends(orders.stream(), name="orders")
    hourly = left.temporal_join(prices, on="sku", how="left", as_of=PROCESSING_TIME, reload_interval="1 hour")
    sink = Collected()

    run(hourly, sink, buckets=2)

    assert read == [0]
    assert sink.total() == {(7, 1, 1): 1, (7, 2, 1): 1, (8, 3, None): 1}
    with pytest.raises(OptionError, match="by event time"):
        left.temporal_join(prices, on="sku")
