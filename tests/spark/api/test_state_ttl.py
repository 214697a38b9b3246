"""State that ends by time, inside Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.spark import StateTtl, appends, changes, rescale

Run = Callable[..., Any]
ORDERS = pa.schema([("order_id", pa.int64()), ("sku", pa.int64()), ("at", pa.int64())])
PRICES = pa.schema([("sku", pa.int64()), ("price", pa.int64())])


def test_rows_end_by_event_time_and_what_was_emitted_is_retracted_through_other_buckets(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders, prices = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "p", PRICES)
    location = str(tmp_path / "checkpoint")

    def view() -> Any:
        left = appends(orders.stream(), name="orders", watermark=("at", 0))
        right = changes(prices.stream(), name="prices", keys=["sku"])
        joined = left.join(right, on="sku", how="left", state_ttl=(StateTtl(10, by="event"), None))
        return joined.groupBy("sku").count()

    orders.add((1, 7, 1), (2, 8, 5)).add((3, 8, 11))
    prices.add((7, 3)).add()
    sink = Collected()
    run(view(), sink, buckets=2, snapshotAfterBytes=1)
    rescale(location, buckets=3, local_state_dir=str(tmp_path / "local"))
    orders.add((4, 9, 15))
    prices.add()
    query = run(view(), sink)

    assert sorted(sink.epochs[1]) == [((7, 1), -1), ((8, 1), -1), ((8, 2), 1)]
    assert sink.total() == {(8, 1): 1, (9, 1): 1}
    emitted = spark.createDataFrame([(8, 1, 1), (9, 1, 1)], "sku long, count long, _weight long")
    tables = {"orders": spark.read.parquet(str(orders.directory)), "prices": spark.read.parquet(str(prices.directory))}
    assert query.verify(tables=tables, actual_df=emitted).equal
