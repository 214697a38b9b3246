"""verify() of temporal joins uses the rows that were present when an answer became final."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.conftest import Collected, Source
from zset_join.sinks.unfit_values import UnfitRows, text_with_nul
from zset_join.spark import appends, changes

Run = Callable[..., Any]
ORDERS = pa.schema([("id", pa.int64()), ("currency", pa.string()), ("t", pa.int64())])
RATES = pa.schema([("currency", pa.string()), ("at", pa.int64()), ("rate", pa.int64()), ("w", pa.int64())])


class ReadableWithoutNul(Collected):
    """Take no text with U+0000, as PostgreSQL does, and show what was taken."""

    def unfit(self, rows: pa.RecordBatch) -> list[UnfitRows]:
        return text_with_nul(rows)

    def read(self) -> pa.Table:
        rows = [dict(zip((*self.names, "_weight"), (*row, weight), strict=True)) for row, weight in self.total().items()]
        return pa.Table.from_pylist(rows)


def test_arrival_times_of_streams_are_known_and_what_cannot_be_compared_is_counted(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    orders, rates = Source(spark, tmp_path / "o", ORDERS), Source(spark, tmp_path / "r", RATES)
    orders.add((1, "EUR", 7), (2, "USD", 9), (3, "EUR", 20)).add()
    rates.add(("EUR", 5, 2, 1), ("EUR", 5, 1, 1), ("EUR", 20, 4, 1), ("USD", 5, 1, 1), ("USD", 5, 2, 1), ("CHF", 5, 9, 1))
    late = [("EUR", 5, 1, -1), ("USD", 5, 1, -1), ("USD", 5, 1, 1), ("EUR", 6, 3, 2), ("EUR", 6, 3, -1)]
    rates.add(*late, ("CHF", 5, 8, 1), ("A\0", 5, 7, 1))

    def left(name: str, **options: Any) -> Any:
        return appends(orders.stream(), name=name, **options)

    def right(name: str, **options: Any) -> Any:
        return changes(rates.stream(), name=name, weight_column="w", **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        views = {
            "first": right("r0").dedup("currency", order_by="at"),
            "corrected": left("o1", watermark=("t", 0)).temporal_join(
                right("r1", watermark=("at", 0)).dedup("currency", order_by="at", keep="last"),
                on="currency",
                emit="eager",
                keep_probe_for=2,
            ),
            "behind": right("r2").dedup(["currency", "at", "rate"], order_by="at").dedup("currency", order_by="at"),
        }
        chosen = [view.select(F.lit(name).alias("name"), "currency", "rate") for name, view in views.items()]
        joined = reduce(lambda one, other: one.unionAll(other), chosen)
    sink = ReadableWithoutNul()

    report = run(joined, sink, buckets=1, onBadInput="quarantine").verify()

    assert report.equal, str(report)
    assert (report.left_out_rows, report.unjudged_rows) == (2, 2)
    assert {row[1:]: weight for row, weight in sink.total().items() if row[0] == "first"} == {
        ("EUR", 2): 1,
        ("USD", 2): 1,
        ("CHF", 9): 1,
    }
