"""verify() of temporal joins knows what had come when an answer became final."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.conftest import Collected, Source
from zset_join.spark import appends, changes

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64())])


def test_a_version_that_came_after_an_answer_was_final_is_not_expected_in_it(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    draw = random.Random(4)
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    orders.add((1, "EUR", 7)).add((2, "EUR", 20))
    rates.add(("EUR", 5, 1)).add(("EUR", 20, 2))
    for epoch in range(2, 6):
        near = 5 * epoch
        orders.add(*((10 * epoch + at, "EUR", near + draw.randint(-6, 6)) for at in range(3)))
        rates.add(("EUR", 6, 3), *(("EUR", near + draw.randint(-6, 6), 10 * epoch + at) for at in range(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        versions = changes(rates.stream(), name="rates", keys=["currency"], watermark=("at", 0))
        left = appends(orders.stream(), name="orders", watermark=("t", 0))
        joined = left.temporal_join(versions, on="currency", how="left", emit="eager", keep_probe_for=2)
    sink = Collected()

    query = run(joined, sink, buckets=2)

    rows = [(*row, weight) for row, weight in sink.total().items()]
    emitted = spark.createDataFrame(rows, joined.schema.add("_weight", "long"))
    report = query.verify(actual_df=emitted)
    assert report.equal, str(report)
    assert ("EUR", 1, 7, 5, 1) in sink.total()
